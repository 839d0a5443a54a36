"""Three roles of weights, each with one meaning everywhere: counts, precisions, sampling weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from hieropo import (
    HierOPO,
    HieropoWarning,
    InputError,
    LogError,
    LogMoments,
    PooledOPO,
    examine,
    load_learner,
)
from hieropo.cli import main
from hieropo.estimation.hyper.corrected import SampledPosterior
from hieropo.storage.load import verify_policy

pytestmark = pytest.mark.filterwarnings("ignore::hieropo.HieropoWarning")

Frame = pd.DataFrame
COLUMNS = {"task": "t", "action": "a", "reward": "r"}


def log(n: int = 400, seed: int = 0, *, binary: bool = False) -> Frame:
    """Rows of twelve tasks and three actions, with a context, a propensity and a count from 0 to 4."""
    rng = np.random.default_rng(seed)
    task, action = rng.integers(12, size=n), rng.choice(3, size=n, p=[0.5, 0.3, 0.2])
    x = rng.normal(size=n)
    mean = 0.4 * np.array([0.0, 1.0, -1.0])[action] + 0.3 * rng.normal(size=(12, 3))[task, action] + 0.2 * x
    reward = (rng.random(n) < 1 / (1 + np.exp(-mean))) * 1.0 if binary else mean + rng.normal(size=n)
    count = rng.integers(0, 5, size=n) * 1.0
    p = np.array([0.5, 0.3, 0.2])[action]
    return Frame({"t": task, "a": action, "r": reward, "x": x, "w": count, "p": p})


def repeated(rows: Frame) -> Frame:
    return rows.loc[rows.index.repeat(rows["w"].astype(int))].drop(columns="w").reset_index(drop=True)


def near(one: Any, other: Any, where: str = "", tolerance: float = 1e-10) -> None:
    """Compare JSON's types: equal but for rounding."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            near(one[key], other[key], f"{where}.{key}", tolerance)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for k, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            near(mine, theirs, f"{where}[{k}]", tolerance)
    elif isinstance(one, float) and isinstance(other, int | float):
        assert one == pytest.approx(other, rel=tolerance, abs=tolerance), where
    else:
        assert one == other, where


@pytest.mark.slow
@pytest.mark.parametrize("context", [[], ["x"]])
@pytest.mark.parametrize("settings", [{}, {"task_cov": "block"}, {"uncertainty": "first-order"}], ids=str)
def test_a_fit_to_counts_is_the_fit_to_the_rows_as_often(
    context: list[str], settings: dict[str, Any]
) -> None:
    rows = log()
    counted = HierOPO(**settings).fit(rows, weight="w", context=context, **COLUMNS)
    spelled = HierOPO(**settings).fit(repeated(rows), context=context, **COLUMNS)
    near(counted.noise_sd, spelled.noise_sd, tolerance=1e-9)
    one, other = counted.posterior_.table(), spelled.posterior_.table()
    at = other.keys.locate(one.keys.values)
    np.testing.assert_allclose(one.rows, other.rows[at].astype(float), rtol=1e-12)
    np.testing.assert_allclose(one.means, other.means[at], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(one.covs, other.covs[at], rtol=1e-8, atol=1e-10)
    near(counted.posterior_.log_evidence, spelled.posterior_.log_evidence, tolerance=1e-9)
    said = [found.summary().to_dict() for found in (counted, spelled)]
    for found in said:
        del found["seconds"]
    first_order = (
        "uncertainty" in settings
    )  # else draws of hierarchies, or a search for shapes, magnify rounding
    near(*said, tolerance=1e-10 if first_order else 1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("pscore", ["p", None])
@pytest.mark.parametrize(
    "columns", [{}, {"context": ["x"]}, {"levels": ["region"]}, {"metadata": ["size"]}], ids=str
)
def test_an_evaluation_of_counts_is_that_of_the_rows_as_often(
    columns: dict[str, Any], pscore: str | None
) -> None:
    rows = log(500).assign(region=lambda frame: frame["t"] % 3, size=lambda frame: frame["t"] % 5)
    settings = {**COLUMNS, **columns, "pscore": pscore}
    counted = HierOPO(uncertainty="plug-in").fit(rows, weight="w", **settings)
    spelled = HierOPO(uncertainty="plug-in").fit(repeated(rows), **settings)
    one, other = counted.evaluate(rows).to_dict(), spelled.evaluate(repeated(rows)).to_dict()
    for found in (one, other):
        del found["checks"]["outliers"]  # the rows themselves, which are not the same ones
    near(one, other)


def test_a_pessimism_chosen_by_counts_is_that_of_the_rows_as_often() -> None:
    rows, settings = log(500), {**COLUMNS, "pscore": "p"}
    counted = HierOPO(pessimism="cv", uncertainty="plug-in").fit(rows, weight="w", **settings)
    spelled = HierOPO(pessimism="cv", uncertainty="plug-in").fit(repeated(rows), **settings)
    near(counted.pessimism_.to_dict(), spelled.pessimism_.to_dict())


def test_the_doctor_says_of_counts_what_it_says_of_the_rows_as_often() -> None:
    rows = log(500, binary=True)
    roles = {**COLUMNS, "pscore": "p", "context": ["x"]}
    assert f" {rows['w'].sum():,.0f} rows (by the weights in 'w')," in str(examine(rows, weight="w", **roles))
    one, other = examine(rows, weight="w", **roles).to_dict(), examine(repeated(rows), **roles).to_dict()
    for found in (one, other):
        found.pop("repeats")  # a count is no row that was sent twice
        found["columns"] = [each for each in found["columns"] if each["role"] != "weight"]
        copies = ("every row is repeated", "repeated rows", "consecutive rows are correlated")
        found["findings"] = [each for each in found["findings"] if each["kind"] not in copies]
        found.pop("roles", None)
    near(one, other)


def test_counts_of_visitors_are_as_good_as_their_rows() -> None:
    frame = Frame({"t": [1] * 4 + [2] * 4, "a": [0, 0, 1, 1] * 2, "r": [0.0, 1.0] * 4,
                   "w": [90, 10, 80, 20, 85, 15, 60, 40]})  # fmt: skip
    learner = HierOPO().fit(frame, weight="w", **COLUMNS)
    assert learner.noise_sd == pytest.approx(0.395, abs=5e-3)
    assert learner.moments_.n_rows == 400


def test_a_weight_of_two_halves_no_degree_of_freedom() -> None:
    frame = Frame({"t": np.repeat([0, 1, 2, 3], 3), "r": [1.0, 2, 3, 2, 3, 5, 0, 1, 1, 4, 4, 6], "one": 1.0})
    frame["w"] = 2
    columns = {"task": "t", "reward": "r", "context": ["one"]}
    counted = HierOPO("columns", uncertainty="plug-in").fit(frame, weight="w", **columns)
    spelled = HierOPO("columns", uncertainty="plug-in").fit(pd.concat([frame, frame]), **columns)
    near(counted.hierarchy_.noise_var, spelled.hierarchy_.noise_var)
    assert counted.hierarchy_.noise_var == pytest.approx(1.0, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("g", [1.0, 0.7, 0.5])
def test_rows_that_count_for_less_leave_the_noise_as_it_is(g: float) -> None:
    noise, rng = [], np.random.default_rng(1)
    for _ in range(20):
        age, n = np.arange(12), 240
        frame = Frame(
            {"t": rng.integers(8, size=n), "r": rng.normal(size=n), "one": 1.0, "w": g ** np.resize(age, n)}
        )
        found = HierOPO("columns", uncertainty="plug-in").fit(
            frame, task="t", reward="r", context=["one"], weight="w"
        )
        noise.append(found.hierarchy_.noise_var)
    assert np.mean(noise) == pytest.approx(1.0, abs=4 * np.std(noise) / np.sqrt(20) + 0.05)


@pytest.mark.slow
def test_a_constant_precision_changes_nothing_but_the_unit_of_the_noise() -> None:
    rows = log().assign(v=4.0)
    plain = HierOPO().fit(rows, context=["x"], **COLUMNS)
    scaled = HierOPO().fit(rows, context=["x"], precision="v", **COLUMNS)
    near(scaled.noise_sd / 2.0, plain.noise_sd, tolerance=1e-8)
    one, other = plain.posterior_.table(), scaled.posterior_.table()
    np.testing.assert_allclose(one.means, other.means, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(one.covs, other.covs, rtol=1e-6, atol=1e-9)
    near(plain.posterior_.log_evidence, scaled.posterior_.log_evidence, tolerance=1e-9)
    assert scaled.moments_.n_rows == len(rows)
    mine, theirs = plain.evaluate(rows).to_dict(), scaled.evaluate(rows).to_dict()
    near(mine, theirs, tolerance=1e-5)


def test_precisions_are_those_of_means_of_rows() -> None:
    """The mean of v rows has v times their precision: the posterior given noise is that of the rows themselves."""
    rng = np.random.default_rng(2)
    rows = Frame({"t": np.repeat(np.arange(10), 30), "a": np.tile(np.repeat([0, 1], 15), 10)})
    rows["r"] = rng.normal(size=len(rows)) + rows["a"] * 0.5
    means = rows.groupby(["t", "a", rows.index % 3])["r"].agg(["mean", "size"]).reset_index()
    means = means.rename(columns={"mean": "r", "size": "v"})
    known = HierOPO(uncertainty="plug-in").fit(rows, **COLUMNS).hierarchy_
    one = HierOPO(known=known).fit(rows, **COLUMNS).posterior_.table()
    other = HierOPO(known=known).fit(means, precision="v", **COLUMNS).posterior_.table()
    np.testing.assert_allclose(one.means, other.means, rtol=1e-10)
    np.testing.assert_allclose(one.covs, other.covs, rtol=1e-10)
    pooled = PooledOPO().fit(means, precision="v", **COLUMNS)
    assert pooled.hierarchy_.noise_var == pytest.approx(1.0, abs=0.3)


# Rows that chance kept: sampling weights


def kept(seed: int, n: int = 4000, tasks: int = 20) -> Frame:
    """Clicks of which those without one were kept one in ten, with 1 / P(kept)."""
    rng = np.random.default_rng(seed)
    frame = Frame({"t": rng.integers(tasks, size=n), "a": rng.integers(2, size=n)})
    level = np.random.default_rng(99).normal(0, 0.02, tasks)
    frame["r"] = (rng.random(n) < 0.05 + 0.05 * frame["a"] + level[frame["t"]]) * 1.0
    frame["q"], frame["p"] = np.where(frame["r"] > 0, 1.0, 10.0), 0.5
    return frame[(frame["r"] > 0) | (rng.random(n) < 0.1)].reset_index(drop=True)


@pytest.mark.slow
def test_rows_kept_by_chance_give_the_means_of_the_whole_log() -> None:
    found = [
        HierOPO().fit(kept(seed), sampling_weight="q", **COLUMNS).posterior_.hyper.mean for seed in range(20)
    ]
    np.testing.assert_allclose(np.mean(found, axis=0), [0.05, 0.10], atol=0.01)


def test_the_log_twice_with_half_the_sampling_weight_changes_no_point_estimate() -> None:
    rows = kept(1)
    twice = pd.concat([rows, rows]).assign(q=lambda frame: frame["q"] / 2)
    settings = {**COLUMNS, "sampling_weight": "q", "pscore": "p"}
    one, other = (HierOPO().fit(frame, **settings) for frame in (rows, twice))
    near(one.hierarchy_.noise_var, other.hierarchy_.noise_var, tolerance=1e-9)
    np.testing.assert_allclose(one.hierarchy_.task_cov, other.hierarchy_.task_cov, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(one.posterior_.table().means, other.posterior_.table().means, rtol=1e-8)
    mine, theirs = (learner.evaluate(frame) for learner, frame in ((one, kept(2)), (other, kept(2))))
    for name in ("IPS", "SNIPS", "DM", "DR", "SNDR"):
        near(mine.estimate(name).value, theirs.estimate(name).value, tolerance=1e-8)
    assert mine.estimate("DR").ess < len(kept(2))


@pytest.mark.slow
def test_standard_errors_of_rows_kept_by_chance_are_those_of_repeated_sampling() -> None:
    """By model and by weights: the spread over logs is the standard error that each log claims."""
    values, errors, means, sds = [], [], [], []
    for seed in range(100, 160):
        rows = kept(seed, tasks=4)
        learner = HierOPO(uncertainty="plug-in").fit(rows, sampling_weight="q", pscore="p", **COLUMNS)
        dr = learner.evaluate(rows).estimate("IPS")
        values.append(dr.value)
        errors.append(dr.se)
        pooled = PooledOPO().fit(rows, sampling_weight="q", **COLUMNS)
        means.append(pooled.posterior_.hyper.mean)
        sds.append(pooled.posterior_.hyper.sd)
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.35)
    assert np.all(np.abs(np.mean(sds, axis=0) / np.std(means, axis=0) - 1.0) < 0.5)


def test_what_is_not_derived_for_rows_kept_by_chance_is_refused_or_left_out() -> None:
    rows = kept(3).assign(g=lambda frame: frame["t"] % 4)
    settings = {**COLUMNS, "sampling_weight": "q"}
    for learner in (
        HierOPO(task_cov="crossed"),
        HierOPO(logging="frozen"),
        HierOPO(uncertainty="integrated"),
    ):
        with pytest.raises(InputError, match="does not go with sampling_weight"):
            learner.fit(rows, **settings)
    with pytest.raises(InputError, match="two levels without metadata"):
        HierOPO().fit(rows, levels=["g"], **settings)
    learner = HierOPO().fit(rows, **settings)
    found = learner.evaluate(rows)
    assert found.checks is None
    assert not found.estimates
    assert "cannot be estimated from a random sample of rows" in str(found.refused)
    examined = examine(rows, pscore="p", **settings)
    assert examined.facts["reward"]["mean"] == pytest.approx(np.average(rows["r"], weights=rows["q"]))
    kinds = {each.kind: each for each in examined.findings}
    assert "represents 4,160 rows" in kinds["kept by chance"].text
    with pytest.raises(LogError, match=r"column 'q', row 0: 0\.0 is not above 0|Column 'q', row 0: 0"):
        HierOPO().fit(rows.assign(q=0.0), **settings)


def test_a_policy_of_rows_kept_by_chance_comes_back_from_disk(tmp_path: Path) -> None:
    rows = kept(4)
    learner = HierOPO().fit(rows, sampling_weight="q", pscore="p", **COLUMNS)
    learner.save(tmp_path / "policy")
    again = load_learner(tmp_path / "policy")
    assert isinstance(again.posterior_, SampledPosterior)
    np.testing.assert_array_equal(again.posterior_.table().covs, learner.posterior_.table().covs)
    made = LogMoments.of(rows, sampling_weight="q", **COLUMNS)
    made.save(tmp_path / "moments")
    from_disk = HierOPO().fit(LogMoments.load(tmp_path / "moments"))
    np.testing.assert_allclose(from_disk.posterior_.table().covs, learner.posterior_.table().covs, rtol=1e-9)
    assert again.evaluate(rows).estimate("DR").value == learner.evaluate(rows).estimate("DR").value
    verify_policy(tmp_path / "policy")


def test_what_convert_writes_is_taken_by_its_name(tmp_path: Path) -> None:
    """A Vowpal Wabbit log that was thinned, through the command line: means are those of the whole one."""
    rng, lines = np.random.default_rng(5), []
    for k in range(3000):
        action, shop = int(rng.integers(2)), int(rng.integers(3))
        reward = float(rng.random() < 0.1 + 0.2 * action)
        if reward or rng.random() < 0.2:
            lines.append(
                json.dumps(
                    {
                        "_label_cost": -reward, "_label_probability": 0.5, "_labelIndex": action,
                        "EventId": str(k), "a": [action + 1, 2 - action], "p": [0.5, 0.5],
                        "pdrop": 0.0 if reward else 0.8,
                        "c": {"shop": f"s{shop}", "_multi": [{"arm": "x"}, {"arm": "y"}]},
                    }
                )
            )  # fmt: skip
    (tmp_path / "log.dsjson").write_text("\n".join(lines) + "\n")
    run = CliRunner()
    arguments = [
        "convert",
        str(tmp_path / "log.dsjson"),
        "-o",
        str(tmp_path / "log.parquet"),
        "--from",
        "dsjson",
    ]
    done = run.invoke(main, arguments)
    assert done.exit_code == 0, done.output
    columns = pq.read_schema(tmp_path / "log.parquet").names
    assert "sampling_weight" in columns
    done = run.invoke(
        main,
        [
            "fit",
            str(tmp_path / "log.parquet"),
            "-o",
            str(tmp_path / "p"),
            "--task",
            "shop",
            "--action",
            "action",
        ],
    )
    assert done.exit_code == 0, done.output
    assert "sampling_weight" in done.output
    assert "a random sample that represents" in done.output
    np.testing.assert_allclose(load_learner(tmp_path / "p").posterior_.hyper.mean, [0.1, 0.3], atol=0.06)


def test_sampling_weights_below_1_are_warned_about() -> None:
    """1 / P(the row was kept) is at least 1; a probability, or weights over their mean, may have been written."""
    rows = log(seed=3)
    rows["q"] = np.where(np.arange(len(rows)) % 2, 0.5, 1.5)
    found = [
        each
        for each in examine(rows, sampling_weight="q", **COLUMNS).findings
        if each.kind.endswith("below 1")
    ]
    assert [(each.severity, each.place) for each in found] == [("limits", "column 'q'")]
    with pytest.warns(
        HieropoWarning, match="least sampling weight is 0.5, and 1 / P.*weights divided by their mean"
    ):
        HierOPO().fit(rows, sampling_weight="q", **COLUMNS)
    rows["q"] = 1.0
    assert not any(
        each.kind.endswith("below 1") for each in examine(rows, sampling_weight="q", **COLUMNS).findings
    )


@pytest.mark.parametrize(
    ("role", "cure"),
    [
        ("precision", "A precision is 1 / the relative variance"),
        ("sampling_weight", "A sampling weight is 1 / P"),
    ],
)
def test_the_doctor_says_what_a_role_cannot_be(role: str, cure: str) -> None:
    rows = log(seed=4)
    rows["v"] = np.where(np.arange(len(rows)) == 5, 0.0, 1.0)
    stop = next(each for each in examine(rows, **{role: "v"}, **COLUMNS).findings if each.severity == "stops")
    assert "of 0 or below: column 'v'" in stop.text
    assert stop.next.startswith(cure)
