"""A policy on disk comes back as it was, or is refused with the name of the bad file."""

import datetime as dt
import hashlib
import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.dense import Problem
from strategies import hierarchy_of, moments_of, problems

from hieropo import (
    ArtifactError,
    Gaussian,
    Hierarchy,
    HieropoWarning,
    InputError,
    LCBPolicy,
    MismatchError,
    Moments,
    UnknownTaskError,
    condition,
    load_policy,
    per_action,
    save_policy,
)
from hieropo.errors import NumericalError
from hieropo.model.metadata import Metadata
from hieropo.model.posterior import Posterior
from hieropo.model.table import PosteriorTable
from hieropo.rows.ids import id_array
from hieropo.rows.keys import Keys
from hieropo.storage import columns, layout, load
from hieropo.storage.load import StoredPolicy, verify_policy

FILES = ("policy.json", "tasks.arrow", "lookup.arrow", "moments.arrow")
DIM = 3


def fitted(ids: Any, dim: int = DIM, *, seed: int = 5, features: str | None = None) -> Posterior:
    rng = np.random.default_rng(seed)
    keys = id_array(ids, "task")
    task = keys[rng.integers(len(keys), size=6 * len(keys))]
    phi = rng.standard_normal((len(task), dim))
    reward = phi.sum(axis=1) + rng.standard_normal(len(task))
    moments = Moments.from_arrays(task, phi, reward, features=features)
    law = Hierarchy(hyper=Gaussian(np.ones(dim), np.eye(dim)), task_cov=0.5 * np.eye(dim), noise_var=1.0)
    return condition(moments, law)


def save(posterior: Posterior, path: Path, **more: Any) -> LCBPolicy:
    policy = LCBPolicy(posterior, pessimism=0.7)
    parts = {"moments": posterior.moments, "hierarchy": posterior.hierarchy, "hyper": posterior.hyper}
    save_policy(policy, path, **parts, log_evidence=posterior.log_evidence, **more)
    return policy


def same(left: Any, right: Any) -> bool:
    return bool(left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes())


def same_ids(left: Any, right: Any) -> bool:
    kinds = [[type(item) for item in ids.tolist()] for ids in (left, right)]
    return bool(left.dtype == right.dtype and (left == right).all() and kinds[0] == kinds[1])


def assert_equal_tables(left: Any, right: Any) -> None:
    assert same_ids(left.keys.values, right.keys.values)
    for name in ("means", "covs", "rows"):
        assert same(getattr(left, name), getattr(right, name))
    assert same(left.prior.mean, right.prior.mean)
    assert same(left.prior.cov, right.prior.cov)


def assert_chooses_as(stored: LCBPolicy, policy: LCBPolicy, unknown_tasks: Any = ()) -> None:
    ids = policy.table.keys.values  # type: ignore[attr-defined]
    tasks = [*(ids if ids.dtype.kind == "M" else ids.tolist()), *unknown_tasks]
    phi = np.random.default_rng(1).standard_normal((len(tasks), 5, policy.table.dim))
    for task, candidates in zip(tasks, phi, strict=True):
        assert stored.choose(task, phi=candidates) == policy.choose(task, phi=candidates)
    every, again = policy.choose_many(ids, phi=phi[: len(ids)]), stored.choose_many(ids, phi=phi[: len(ids)])
    assert all(same(one, other) for one, other in zip(every, again, strict=True))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "policy"


IDS: dict[str, Any] = {
    "int64": np.array([5, -3, 2**62, 0]),
    "uint64": np.array([5, 2**64 - 1, 0], dtype=np.uint64),
    "int32": np.array([3, 1, 2], dtype=np.int32),
    "python ints": [10, -7, 3],
    "wide ints": [10**30, 1, -(10**25)],
    "str": ["south", "", "é", "a b", "7"],
    "numpy str": np.array(["x", "yy"]),
    "bytes": [b"", b"\x00\xff", b"ab"],
    "bool": [True, False],
    "float": [0.5, -0.25, 1e15, 3.0],
    "uuid": [UUID(int=7), UUID(int=2**127 + 1)],
    "date": [dt.date(2024, 2, 29), dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    "datetime": [dt.datetime(2024, 2, 29, 12, 30, 1, 5), dt.datetime(1950, 1, 1)],
    "days": np.array(["2024-02-29", "1960-01-01"], dtype="M8[D]"),
    "nanoseconds": np.array(["2024-02-29T01:02:03.000000004", "1960-01-01"], dtype="M8[ns]"),
    "mixed": ["7", 7, "south", -3, dt.date(2024, 2, 29), UUID(int=1), b"7", False],
}

STRANGERS = (99, 2.5, "nobody", dt.date(2000, 1, 1), np.datetime64("2001-01-01"), b"none", UUID(int=9), 2**70)


@pytest.mark.parametrize("kind", IDS)
def test_ids_of_every_kind_come_back(kind: str, place: Path) -> None:
    posterior = fitted(IDS[kind])
    policy = save(posterior, place)
    stored = load_policy(place)
    assert_equal_tables(stored.policy.table, posterior.table())
    keys = stored.policy.table.keys
    assert (keys.locate(posterior.moments.tasks) == np.arange(len(posterior.moments))).all()
    unknown_tasks = [key for key in STRANGERS if posterior.moments.keys.find(key) < 0]
    assert [keys.find(key) for key in unknown_tasks] == [-1] * len(unknown_tasks)
    assert_chooses_as(stored.policy, policy, unknown_tasks)
    verify_policy(place)


@given(problem=problems())
@settings(max_examples=40)
def test_load_after_save_is_the_identity(problem: Problem, tmp_path_factory: pytest.TempPathFactory) -> None:
    posterior = condition(moments_of(problem), hierarchy_of(problem))
    place = tmp_path_factory.mktemp("identity") / "policy"
    provenance = {"log": "visits", "rows": len(problem.task), "nested": [{"a": None}]}
    policy = save(posterior, place, provenance=provenance)
    stored = load_policy(place)
    assert_equal_tables(stored.policy.table, posterior.table())
    assert_chooses_as(stored.policy, policy, ["nobody"])
    assert (stored.policy.pessimism, stored.policy.unseen) == (policy.pessimism, policy.unseen)
    assert (stored.provenance, stored.log_evidence) == (provenance, posterior.log_evidence)
    moments, given_moments = stored.moments(), posterior.moments
    assert moments is not None
    assert same_ids(moments.tasks, given_moments.tasks)
    for name in ("sums", "rows", "log_precision"):
        assert same(getattr(moments, name), getattr(given_moments, name))
    hierarchy, given_hierarchy = stored.hierarchy, posterior.hierarchy
    assert hierarchy is not None
    assert hierarchy.noise_var == given_hierarchy.noise_var
    assert same(hierarchy.task_cov, given_hierarchy.task_cov)
    for level, given_level in zip(hierarchy.levels, given_hierarchy.levels, strict=True):
        assert level.name == given_level.name
        assert same(level.cov, given_level.cov)
        assert list(level.parent.items()) == list(given_level.parent.items())
    verify_policy(place)


def test_a_refreshed_policy_is_the_one_made_of_all_rows(place: Path) -> None:
    first, second = fitted(["a", "b"], seed=1), fitted(["b", "c"], seed=2)
    save(first, place)
    stored = load_policy(place)
    moments, hierarchy = stored.moments(), stored.hierarchy
    assert moments is not None
    assert hierarchy is not None
    refreshed = condition(moments + second.moments, hierarchy)
    direct = condition(first.moments + second.moments, first.hierarchy)
    assert_equal_tables(refreshed.table(), direct.table())


def test_feature_map_comes_back_and_makes_the_candidates(place: Path) -> None:
    features = per_action(["left", "right"], ["age"])
    posterior = fitted(["a", "b"], 4, features=features.fingerprint)
    policy = LCBPolicy(posterior, features, unseen="error")
    save_policy(policy, place, moments=posterior.moments)
    stored = load_policy(place)
    assert stored.features == features
    assert stored.policy.choose("b", [0.3]) == policy.choose("b", [0.3])
    assert (stored.hierarchy, stored.hyper, stored.log_evidence, stored.provenance) == (None, None, None, {})
    with pytest.raises(UnknownTaskError, match=r"Task 'z' is unknown; 2 tasks are known \('[ab]', '[ab]'\)"):
        stored.policy.choose("z", [0.3])


def test_a_task_asked_for_as_the_wrong_type_is_explained(place: Path) -> None:
    policy = LCBPolicy(fitted([1, 2]), unseen="error")
    save_policy(policy, place)
    keys = load_policy(place).policy.table.keys
    assert "among them 2 of type int, but this is of type str" in keys.unknown_message("2")
    with pytest.raises(UnknownTaskError, match=r"Task 9 \(row 1\)"):
        keys.require([1, 9])  # type: ignore[attr-defined]
    assert load_policy(place).moments() is None


def test_the_same_policy_gives_the_same_bytes_and_can_be_saved_from_disk(tmp_path: Path) -> None:
    posterior = fitted(IDS["mixed"])
    save(posterior, tmp_path / "one")
    stored = load_policy(tmp_path / "one")
    parts = {"moments": stored.moments(), "hierarchy": stored.hierarchy, "hyper": stored.hyper}
    save_policy(stored.policy, tmp_path / "two", **parts, log_evidence=stored.log_evidence)
    for name in FILES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_log_without_rows_makes_a_policy_of_no_tasks(place: Path) -> None:
    law = Hierarchy(hyper=Gaussian(np.ones(2), np.eye(2)), task_cov=np.eye(2), noise_var=1.0)
    policy = save(condition(Moments.zero(2), law), place)
    stored = load_policy(place)
    assert stored.policy.choose("any", phi=np.eye(2)) == policy.choose("any", phi=np.eye(2))
    moments = stored.moments()
    assert moments is not None
    assert len(moments) == 0


def test_equal_codes_are_told_apart_by_the_ids(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "hashed", lambda key: len(str(key)))
    posterior = fitted([f"task {number}" for number in range(12)])
    policy = save(posterior, place)
    monkeypatch.setattr(load, "SMALL", 0)
    stored = load_policy(place)
    assert_chooses_as(stored.policy, policy, ["task x"])
    assert (stored.policy.table.keys.locate(posterior.moments.tasks) == np.arange(12)).all()


def test_tables_are_plain_arrow(place: Path) -> None:
    posterior = fitted(["a", "b"])
    save(posterior, place)
    with pa.memory_map(str(place / "tasks.arrow")) as source:
        table = pa.ipc.open_file(source).read_all()
    assert table.column_names == ["id", "rows", "mean", "cov", "checksum"]
    assert table["id"].to_pylist() == posterior.moments.tasks.tolist()
    assert np.array_equal(np.stack(table["mean"].to_numpy()), posterior.table().means)


def test_serving_needs_no_pyarrow(place: Path) -> None:
    save(fitted(["a"]), place)
    code = (
        "import sys; sys.modules['pyarrow'] = None; from hieropo import load_policy; "
        f"load_policy({str(place)!r}).policy.choose('a', phi=[[1.0, 0.0, 0.0]])"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Damage


@pytest.fixture
def saved(place: Path) -> Posterior:
    posterior = fitted(["south", "é", "a b", "7", "north"])
    save(posterior, place, provenance={"log": "visits"})
    return posterior


@pytest.mark.parametrize("name", FILES)
def test_one_changed_byte_is_refused(name: str, place: Path, saved: Posterior) -> None:
    whole = (place / name).read_bytes()
    rng = np.random.default_rng(3)
    for position in {0, len(whole) - 1, *rng.integers(len(whole), size=60).tolist()}:
        damaged = bytearray(whole)
        damaged[position] ^= 1 << int(rng.integers(8))
        (place / name).write_bytes(damaged)
        with pytest.raises(ArtifactError, match=name.replace(".", r"\.")):
            load_policy(place)
    (place / name).write_bytes(whole)
    assert_equal_tables(load_policy(place).policy.table, saved.table())


@pytest.mark.parametrize("name", FILES)
@pytest.mark.usefixtures("saved")
def test_a_torn_or_missing_file_is_refused(name: str, place: Path) -> None:
    whole = (place / name).read_bytes()
    for torn in (b"", whole[: len(whole) // 2], whole[:-1], whole + b"\n", bytes(len(whole))):
        (place / name).write_bytes(torn)
        with pytest.raises(ArtifactError, match=name.replace(".", r"\.")):
            load_policy(place)
    (place / name).unlink()
    with pytest.raises(ArtifactError, match=name.replace(".", r"\.")):
        load_policy(place)


@pytest.mark.parametrize("name", ["tasks.arrow", "lookup.arrow"])
@pytest.mark.parametrize("ids", [["south", "é", "a b", "7", "north"], [5, -3, 8, 0, 11], IDS["mixed"]])
def test_of_a_large_policy_each_row_is_checked_when_looked_up(
    name: str, ids: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = fitted(ids).table()
    save_policy(LCBPolicy(table), place)
    monkeypatch.setattr(load, "SMALL", 0)
    whole = (place / name).read_bytes()
    unknown_tasks = ["nobody", "z", 6, -100]
    rng = np.random.default_rng(4)
    harmless = 0  # a whole number is found by its code alone, and then its id is not read
    for position in rng.choice(positions(place, name), size=60).tolist():
        damaged = bytearray(whole)
        damaged[position] ^= 1 << int(rng.integers(8))
        (place / name).write_bytes(damaged)
        with suppress(ArtifactError):  # raised by one of the rows that are looked up when it is opened
            harmless += finds_all(load_policy(place), table, unknown_tasks)
        with pytest.raises(ArtifactError, match=name.replace(".", r"\.")):
            verify_policy(place)
    assert harmless < 15
    (place / name).write_bytes(whole)
    assert finds_all(load_policy(place), table, unknown_tasks)


def positions(place: Path, name: str) -> list[int]:
    """Where in a file the values of its columns lie."""
    columns = json.loads((place / layout.POLICY.document).read_bytes())["files"][name]["columns"].values()
    spans = [range(start, start + size) for column in columns for start, size in column["buffers"]]
    return [position for span in spans for position in span]


def finds_all(stored: StoredPolicy, table: PosteriorTable, unknown_tasks: list[Any]) -> bool:
    """Whether no task is refused; what is not refused must be right."""
    whole = True
    found = stored.policy.table
    for row, task in enumerate(table.keys.values.tolist()):
        try:
            assert found.keys.find(task) == row
        except ArtifactError:
            whole = False
            continue
        assert same(found.means[row], table.means[row])
        assert same(found.covs[row], table.covs[row])
    for stranger in unknown_tasks:
        try:
            assert found.keys.find(stranger) == -1
        except ArtifactError:
            whole = False
    try:
        assert (found.keys.locate(table.keys.values) == np.arange(len(table.keys))).all()
    except ArtifactError:
        whole = False
    return whole


def rewrite(place: Path, **changes: Any) -> None:
    """Change the document, and close it with the right checksum."""
    document = json.loads((place / layout.POLICY.document).read_bytes())
    del document["sha256"]
    (place / layout.POLICY.document).write_bytes(layout.encode({**document, **changes}))


@pytest.mark.usefixtures("saved")
@pytest.mark.parametrize("version", [9, 11])
def test_another_format_is_refused_by_its_version(place: Path, version: int) -> None:
    rewrite(place, version=version, written_by="hieropo 9.1")
    message = rf"policy\.json has format version {version}, written by hieropo 9\.1; this release reads only version 10"
    with pytest.raises(ArtifactError, match=message):
        load_policy(place)


@pytest.mark.usefixtures("saved")
def test_a_policy_that_computes_other_numbers_is_refused(place: Path) -> None:
    rewrite(place, pessimism=0.70001)
    with pytest.raises(ArtifactError, match=r"row 0 along fixed directions are .* this release computes"):
        load_policy(place)


def test_a_changed_prior_or_hierarchy_is_refused(place: Path, saved: Posterior) -> None:
    mean, cov = saved.table().prior.mean, saved.table().prior.cov
    rewrite(place, prior={"mean": (mean + 0.01).tolist(), "cov": cov.tolist()})
    with pytest.raises(ArtifactError, match="an unseen task"):
        load_policy(place)
    save(saved, place)
    entry = json.loads((place / layout.POLICY.document).read_bytes())["hierarchy"]
    rewrite(place, hierarchy={**entry, "noise_var": 1.1})
    with pytest.raises(ArtifactError, match="moments give"):
        load_policy(place).moments()
    save(saved, place)
    rewrite(place, log_evidence=saved.log_evidence + 0.1)
    load_policy(place).moments()
    with pytest.raises(ArtifactError, match="log evidence is"):
        verify_policy(place)


@pytest.mark.parametrize("crossed", [True, False])
def test_metadata_come_back(crossed: bool, place: Path) -> None:  # noqa: FBT001
    plain = fitted(["a", "b", "c"])
    rng = np.random.default_rng(0)
    values = rng.standard_normal((4, 2) if crossed else (4, DIM, 2))
    known = Metadata(["c", "b", "z", "a"], values, ("size", "age"))
    root = known.root_dim(DIM)
    wide = Gaussian(np.zeros(root), np.eye(root))
    posterior = condition(plain.moments, Hierarchy(wide, np.eye(DIM), 1.0, metadata=known))
    save(posterior, place)
    stored = load_policy(place)
    assert stored.hierarchy is not None
    assert stored.hierarchy.metadata is not None
    assert same_ids(stored.hierarchy.metadata.tasks.values, known.tasks.values)
    assert same(stored.hierarchy.metadata.values, known.values)
    assert same(stored.hierarchy.metadata.centre, known.centre)
    assert stored.hierarchy.metadata.names == known.names
    verify_policy(place)
    raw = bytearray((place / layout.METADATA).read_bytes())
    raw[len(raw) // 2] ^= 1
    (place / layout.METADATA).write_bytes(raw)
    with pytest.raises(ArtifactError, match=r"metadata\.arrow"):
        load_policy(place)


@pytest.mark.usefixtures("saved")
def test_another_feature_map_than_was_saved_is_refused(place: Path) -> None:
    features = per_action(["left"], ["age", "size"])
    rewrite(place, features=features.to_dict(), features_fingerprint="0" * 64)
    with pytest.raises(ArtifactError, match="fingerprint"):
        load_policy(place)
    rewrite(place, features={"kind": "spline"}, features_fingerprint="0" * 64)
    with pytest.raises(ArtifactError, match="feature map that this release cannot read"):
        load_policy(place)


@pytest.mark.skipif(os.open not in os.supports_dir_fd, reason="replaces a directory that is open")
@pytest.mark.parametrize("name", ["policy", "policy.json", "tasks.arrow"])
@pytest.mark.parametrize("moment", ["between", "after", "swept"])
@pytest.mark.parametrize("system", ["holds directories open", "cannot"])
def test_a_policy_replaced_while_it_is_opened_is_the_old_or_the_new_one(
    name: str, moment: str, system: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = fitted(["a"], seed=1), fitted(["a"], seed=2)
    save(one, place)
    new, aside = place.with_name("new"), place.with_name(f".{place.name}.replaced-0123456789ab")
    save(two, new)
    steps = [lambda: place.rename(aside), lambda: new.rename(place), lambda: shutil.rmtree(aside)]
    before = {"between": 1, "after": 2, "swept": 3}[moment]
    plain = os.open

    def replace_and_open(path: Any, *rest: Any, **more: Any) -> int:
        if Path(path).name != name or not new.exists():
            return plain(path, *rest, **more)
        for step in steps[:before]:  # as a writer does whose system cannot exchange two names
            step()
        try:
            return plain(path, *rest, **more)
        finally:
            for step in steps[before:]:
                step()

    monkeypatch.setattr(os, "open", replace_and_open)
    if system == "holds directories open":
        monkeypatch.setattr(os, "supports_dir_fd", {replace_and_open})
    stored = load_policy(place)
    monkeypatch.undo()
    whole = {posterior.log_evidence: posterior for posterior in (one, two)}[stored.log_evidence]
    assert_equal_tables(stored.policy.table, whole.table())
    moments = stored.moments()
    assert moments is not None
    assert same(moments.sums, whole.moments.sums)


def test_a_policy_left_aside_by_a_writer_that_died_is_read_with_a_warning(place: Path) -> None:
    posterior = fitted(["a"])
    save(posterior, place)
    place.rename(place.with_name(f".{place.name}.replaced-0123456789ab"))
    place.with_name("link").symlink_to(place)
    for path in (place, place.with_name("link")):
        with pytest.warns(HieropoWarning, match="the process that was replacing it died") as caught:
            stored = load_policy(path)
        assert caught[0].filename == __file__
        assert_equal_tables(stored.policy.table, posterior.table())


def test_what_is_no_policy_is_refused(place: Path) -> None:
    with pytest.raises(ArtifactError, match="does not exist"):
        load_policy(place)
    place.mkdir()
    with pytest.raises(ArtifactError, match=r"has no policy\.json"):
        load_policy(place)
    (place / "policy.json").write_text('{"format": "something else"}')
    with pytest.raises(ArtifactError, match="does not describe a policy"):
        load_policy(place)
    with pytest.raises(ArtifactError, match="is a file"):
        load_policy(place / "policy.json")


# Saving


def test_only_a_policy_or_an_empty_directory_is_replaced(tmp_path: Path) -> None:
    policy = LCBPolicy(fitted(["a"]))
    place = tmp_path / "place"
    place.mkdir()
    save_policy(policy, place)
    (place / "notes.txt").write_text("mine")
    with pytest.raises(ArtifactError, match=r"files that hieropo did not write \(notes\.txt\)"):
        save_policy(policy, place)
    (place / "policy.json").unlink()
    with pytest.raises(ArtifactError, match="directory with other files"):
        save_policy(policy, place)
    (place / "policy.json").write_text("{}")
    with pytest.raises(ArtifactError, match="may not be a policy"):
        save_policy(policy, place)
    assert (place / "notes.txt").read_text() == "mine"
    with pytest.raises(ArtifactError, match="is a file"):
        save_policy(policy, place / "notes.txt")
    with pytest.raises(ArtifactError, match="is not a directory"):
        save_policy(policy, tmp_path / "missing" / "place")


def test_a_policy_reached_by_a_link_is_replaced_where_it_lies(tmp_path: Path) -> None:
    one, two = fitted(["a"], seed=1), fitted(["a"], seed=2)
    save(one, tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    save(two, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert_equal_tables(load_policy(tmp_path / "real").policy.table, two.table())
    assert {path.name for path in tmp_path.iterdir()} == {"real", "link"}


def test_a_reader_keeps_the_policy_that_it_opened(place: Path) -> None:
    one, two = fitted(IDS["mixed"], seed=1), fitted(IDS["mixed"], seed=2)
    save(one, place)
    stored = load_policy(place)
    save(two, place)
    shutil.rmtree(place)
    assert_equal_tables(stored.policy.table, one.table())
    moments = stored.moments()
    assert moments is not None
    assert same(moments.sums, one.moments.sums)


def test_parts_of_another_fit_are_not_saved_together(place: Path) -> None:
    one, two = fitted(["a", "b"], seed=1), fitted(["a", "b"], seed=2)
    policy = LCBPolicy(one)
    with pytest.raises(MismatchError, match=r"The policy has for task '[ab]' the mean"):
        save_policy(policy, place, moments=two.moments, hierarchy=one.hierarchy, hyper=one.hyper)
    stranger = fitted(["a", "z"], seed=1)
    with pytest.raises(MismatchError, match="hold the task 'z'"):
        save_policy(policy, place, moments=stranger.moments, hierarchy=one.hierarchy, hyper=one.hyper)
    with pytest.raises(MismatchError, match="3 features, and its moments 2"):
        save_policy(policy, place, moments=Moments.zero(2))
    with pytest.raises(MismatchError, match="another feature map"):
        save_policy(
            LCBPolicy(one, per_action(["l"], ["x", "y"])), place, moments=Moments.zero(3, features="0" * 64)
        )
    assert not place.exists()


@pytest.mark.parametrize("provenance", [{"when": dt.date.max}, {"pair": (1, 2)}, {1: "x"}, {"x": np.nan}])
def test_provenance_that_would_not_come_back_is_refused(provenance: Any, place: Path) -> None:
    with pytest.raises(InputError, match="provenance"):
        save_policy(LCBPolicy(fitted(["a"])), place, provenance=provenance)


def test_numbers_that_are_not_finite_are_refused_with_their_cause(place: Path) -> None:
    table = fitted(["x", "y"]).table()
    far = replace(table, prior_means=np.full_like(table.prior_means, np.inf))
    with (
        np.errstate(invalid="ignore"),
        pytest.raises(NumericalError, match="'prior' has a number that is not finite"),
    ):
        save_policy(LCBPolicy(far), place)
    assert not place.exists()


@pytest.mark.parametrize("key", [("a", frozenset()), "\ud800", np.datetime64("2024-01-01"), frozenset()])
def test_an_id_that_would_not_come_back_is_refused(key: Any, place: Path) -> None:
    values = np.empty(2, dtype=object)
    values[:] = ["x", key]
    table = fitted(["x", "y"]).table()
    odd = PosteriorTable.joint(Keys(values), table.means, table.covs, table.rows, table.prior)
    with pytest.raises(InputError, match="id"):
        save_policy(LCBPolicy(odd), place)
    assert not place.exists()
    assert not list(place.parent.iterdir())


@given(st.binary(max_size=40))
def test_the_document_is_checked_to_the_last_byte(extra: bytes) -> None:
    raw = layout.encode({**layout.head(layout.POLICY), "more": extra.hex()})
    assert layout.decode(raw, Path("p"), layout.POLICY)["more"] == extra.hex()
    assert hashlib.sha256(raw.rsplit(b",\n", 1)[0]).hexdigest() in raw.decode()
    if extra:
        with pytest.raises(ArtifactError):
            layout.decode(raw + extra, Path("p"), layout.POLICY)
