"""Real logs: what an evaluation claims, against what is true or known from randomisation.

    python experiments/real_logs.py --data DIR     # writes docs/results/real_logs.md; some minutes
    HIEROPO_DATA=DIR python experiments/real_logs.py --logs 10 --out /tmp/real.md

Routing. Two language models answered all prompts of 56 subjects of MMLU, so that every policy's value is known. A
reward is 1 for a right answer less 0.1 for a call of the stronger model, a cost that was set beforehand: without it one
model is the best everywhere. In each of 200 logs every prompt is shown to one of the two at random; half of the prompts
are learned from, and the policy is judged on the other half and, in every fourth log, on the rows that it was learned
from. The truth is the mean over the prompts of the other half, both answers of which are new to the policy; of single
subjects, over all prompts. The subject whose answers seem to be graded wrongly is left out.

Clicks. The uniform policy's gain over Thompson sampling as logged, from the rows of the latter alone, against the mean
of the random log less that of the other, which is on-policy; and what is said of a policy learned from one and judged
on the other. 38 to 69 clicks a log tell next to nothing, and that is what should be said.

Halves. A policy is learned on one half of the units of a randomised experiment and judged on the other, 20 times: its
gain over the incumbent by the model, and by doubly robust weighting of the held-out rows, which knows nothing of the
model's claim. Halves overlap, so that the share in which both agree is of one log and has no error of its own.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fitting import fit
from numpy.typing import NDArray
from studies import STUDIES, Study
from tables import figure, provenance, table, write

from hieropo import HierOPO, HieropoWarning
from hieropo.ope.off_policy import OffPolicySums
from hieropo.ope.value_estimates import values

Array = NDArray[np.float64]

SEED, LOGS, HALVES, COST = 20231119, 200, 20, 0.1
OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "real_logs.md"
LEFT_OUT = "high_school_mathematics"
SHOWN = ("SNIPS", "DR")
ROLES: dict[str, Any] = {"task": "task", "action": "action", "reward": "reward", "pscore": "p"}


def mean(found: list[float] | Array, digits: int = 4) -> str:
    """Mean with its standard error over logs."""
    array = np.asarray(found, dtype=np.float64)
    return figure(float(array.mean()), float(array.std(ddof=1) / np.sqrt(array.size)), digits)


# -- routing ----------------------------------------------------------------------------------------------------------


def prompts(folder: Path) -> tuple[NDArray[Any], Array]:
    """Subject (n,) of each prompt, and reward (n, 2) of each of the two models."""
    found = pq.read_table(folder / "routellm_mmlu.parquet")
    subject = found["subject"].cast("string").to_numpy(zero_copy_only=False)
    right = np.stack(
        [found[name].to_numpy().astype(float) for name in ("mixtral_8x7b_correct", "gpt4_1106_correct")]
    )
    own = subject != LEFT_OUT
    return subject[own], right.T[own] - np.array([0.0, COST])


def routed(folder: Path, logs: int) -> dict[str, list[dict[str, float]]]:
    """Claims and truths of each log, by what the policy was judged on."""
    subject, reward = prompts(folder)
    names, task = np.unique(subject, return_inverse=True)
    worth = np.stack([np.bincount(task, reward[:, k]) / np.bincount(task) for k in range(2)], axis=1)
    share = np.bincount(task) / task.size
    found: dict[str, list[dict[str, float]]] = {"other rows": [], "the same rows": []}
    for number in range(logs):
        rng = np.random.default_rng([SEED, number])
        action, half = rng.integers(2, size=task.size), rng.random(task.size) < 0.5
        log = pa.table(
            {"task": subject, "action": np.array(["weak", "strong"])[action], "p": np.full(task.size, 0.5),
             "reward": reward[np.arange(task.size), action]}
        )  # fmt: skip
        learner = HierOPO(logging="random").fit(log.filter(pa.array(half)), **ROLES)
        judged = {"other rows": log.filter(pa.array(~half))}
        if number % 4 == 0:
            judged["the same rows"] = log.filter(pa.array(half))
        chosen = (learner.predict(pa.table({"task": names})) == "strong").astype(int)
        gain = worth[np.arange(names.size), chosen] - worth.mean(axis=1)
        later, at = reward[~half], task[~half]
        truth = float((later[np.arange(at.size), chosen[at]] - later.mean(axis=1)).mean())
        for name, rows in judged.items():
            found[name].append(_claims(learner, rows, names, gain, share) | {"true": truth})
            for each in ("model", *SHOWN):
                low, high = found[name][-1].pop(f"{each} low"), found[name][-1].pop(f"{each} high")
                found[name][-1][f"{each} holds"] = float(low <= truth <= high)
    return found


def _claims(
    learner: HierOPO, rows: pa.Table, names: NDArray[Any], gain: Array, share: Array
) -> dict[str, float]:
    seen = learner.evaluate(rows)
    model = seen.model
    at = np.asarray(model.keys.require(names))
    found = model.difference
    told = {"model": found.mean, "model low": found.low, "model high": found.high}
    for name in SHOWN:
        each = seen.estimate(name)
        told |= {name: each.gain, f"{name} low": each.gain_low, f"{name} high": each.gain_high}
    passed = seen.passed[at]
    return told | {
        "harm said": float(model.harm.mean()),
        "harmed": float((gain < 0).mean()),
        "passed": float(passed.mean()),
        "harmed of all, gated": float(((gain < 0) & passed).mean()),
        "gain, gated": float((gain * passed) @ share),
        "gain said, gated": seen.gated_gain().mean,
    }


def routing(folder: Path, logs: int) -> Iterator[str]:
    """Yield the part of the page on routing."""
    found = routed(folder, logs)
    yield "## Routing: MMLU, two models, 56 subjects\n"
    rows = []
    for judged, each in found.items():
        data = {key: np.array([one[key] for one in each]) for key in each[0]}
        for name in ("model", *SHOWN):
            error = data[name] - data["true"]
            rows.append(
                [f"{name}, {judged}", str(len(each)), mean(data[name]), mean(data["true"]), mean(error),
                 f"{np.sqrt((error**2).mean()):.4f}", mean(data[f"{name} holds"], 3)]
            )  # fmt: skip
    head = [
        "gain, judged on",
        "logs",
        "claimed",
        "true",
        "error",
        "root mean square",
        "95 % intervals that hold it",
    ]
    yield table(head, rows)
    each = found["other rows"]
    data = {key: np.array([one[key] for one in each]) for key in each[0]}
    head = ["of subjects", "said", "true"]
    yield table(
        head,
        [
            ["harmed", mean(data["harm said"], 3), mean(data["harmed"], 3)],
            ["that pass a gate at 0.05", mean(data["passed"], 3), ""],
            ["harmed, with the gate", "", mean(data["harmed of all, gated"], 3)],
            ["gain with the gate", mean(data["gain said, gated"]), mean(data["gain, gated"])],
        ],
    )


# -- clicks -----------------------------------------------------------------------------------------------------------


def clicks(folder: Path) -> Iterator[str]:
    """Yield the part of the page on clicks."""
    found = pq.read_table(folder / "obd_small.parquet")
    policy, campaign, item, position, click, chance = (
        found[name].cast("string" if name in ("behavior_policy", "campaign") else pa.float64())
        .to_numpy(zero_copy_only=False)
        for name in ("behavior_policy", "campaign", "item_id", "position", "click", "propensity_score")
    )  # fmt: skip
    yield "## Clicks: Open Bandit Dataset, 10,000 rows a log\n"
    rows, learned = [], []
    for name in ("all", "men", "women"):
        own = campaign == name
        items = np.unique(item[own])
        bts, random = own & (policy == "bts"), own & (policy == "random")
        terms = OffPolicySums(0.0, 1.0, int(bts.sum()))
        zero = np.zeros(int(bts.sum()))
        terms.add(position[bts], click[bts], chance[bts], np.full(zero.size, 1 / items.size), zero, zero)
        away = click[random].mean() - click[bts].mean()
        error = np.sqrt(click[random].var() / random.sum() + click[bts].var() / bts.sum())
        for each in values(terms.moments(), rng=np.random.default_rng(SEED)):
            if each.name in ("IPS", "SNIPS"):
                holds = (
                    "yes" if each.gain_low - 1.96 * error <= away <= each.gain_high + 1.96 * error else "no"
                )
                rows.append(
                    [f"{name}: {each.name}", f"{int(click[bts].sum())}", figure(1e3 * each.gain, 1e3 * each.gain_se, 2),
                     figure(1e3 * away, 1e3 * error, 2), f"{each.ess:.0f}", holds, each.withheld or ""]
                )  # fmt: skip
        learned.append([name, *_learned(item, position, click, chance, bts, random)])
    head = [
        "uniform less Thompson sampling, clicks in 1,000",
        "clicks",
        "weighted",
        "on-policy",
        "effective sample size",
    ]
    yield table([*head, "holds", "withheld because"], rows)
    yield "Holds: the on-policy difference, with its own error, lies in the 95 % interval.\n"
    head = [
        "learned from Thompson sampling, judged on random",
        "by model, gain in 1,000",
        "DR, gain in 1,000",
        "DR",
    ]
    yield table(head, learned)


def _learned(item: Array, position: Array, click: Array, chance: Array, bts: Any, random: Any) -> list[str]:
    def log(rows: Any) -> pa.Table:
        columns = {"task": position, "action": item.astype(int), "reward": click, "p": chance}
        return pa.table({name: values_[rows] for name, values_ in columns.items()})

    learner = HierOPO("indicator", logging="adaptive").fit(log(bts), **ROLES)
    kept = random & np.isin(item, [float(action) for action in learner.features_.actions or ()])
    seen = learner.evaluate(log(kept))
    gain, each = seen.model.difference, seen.estimate("DR")
    told = figure(1e3 * gain.mean, 1e3 * gain.sd, 2), figure(1e3 * each.gain, 1e3 * each.gain_se, 2)
    return [*told, each.withheld or "shown"]


# -- halves -----------------------------------------------------------------------------------------------------------


def half_log(study: Study, rows: NDArray[np.bool_]) -> pa.Table:
    """Rows of a study with the propensity of the action taken."""
    chance = study.chance(rows)
    columns = {name: study.context[rows, k] for k, name in enumerate(study.columns)}
    action = study.action[rows]
    names = np.array(study.actions)[action]
    taken = chance[np.arange(action.size), action]
    return pa.table(
        {"task": study.task[rows], "action": names, "reward": study.reward[rows], "p": taken, **columns}
    )


def halves(folder: Path, count: int) -> Iterator[str]:
    """Yield the part of the page on halves of experiments."""
    yield "## Halves of randomised experiments\n"
    rows = []
    for name in ("star_grades", "thornton", "oralytics"):
        study, told = STUDIES[name](folder), []
        for number in range(count):
            rng = np.random.default_rng([SEED, number])
            order = rng.permutation(int(study.unit.max()) + 1)
            mine = np.isin(study.unit, order[: order.size // 2])
            context = list(study.columns)
            logging = "adaptive" if name == "oralytics" else "random"
            learner = fit(HierOPO(logging=logging), half_log(study, mine), context=context, **ROLES).learner
            later = half_log(study, ~mine)
            seen = learner.evaluate(later)
            each, gain = seen.estimate("DR"), seen.model.difference
            apart = abs(each.gain - gain.mean) <= 1.96 * np.hypot(each.gain_se, gain.sd)
            told.append(
                [gain.mean, gain.sd, each.gain, each.gain_se, apart, each.withheld is None, gain.low > 0]
            )
        data = np.array(told, dtype=np.float64)
        rows.append(
            [name, str(count), *(figure(data[:, k].mean(), data[:, k + 1].mean()) for k in (0, 2)),
             *(f"{share:.2f}" for share in data[:, 4:].mean(axis=0))]
        )  # fmt: skip
    head = ["experiment", "halves", "gain by model (its sd)", "gain by DR (its se)", "within 1.96 errors"]
    yield table([*head, "DR shown", "model says better"], rows)


READING = """
Conclusions. On routing, with some 60 rows of a task and model, the claim of the model is a third too large and its
intervals hold in 59 % of the logs only, while importance weighting is right. In a separate check of 20 of the logs, the
integrated hierarchy has a standard deviation between subjects of 0.099 for the difference of the two models, where all
answers give 0.074; with uncertainty="plug-in" it is 0.078, and the claim 0.0276 in place of 0.0305. So the weak prior
on covariances explains about a third of the excess. The rest is probably the skewness of the differences (1.0), which a
Gaussian distribution of tasks does not have. Where model and weighting differ, trust the weighting. The gate harms
0.8 % of subjects. In oralytics, nine users with eight coefficients each, the model claims a gain that the other half
does not have. In a separate check it claims the same where rewards are permuted within users (its interval left out 0
in 20 of 20 such logs, that of DR in 2): with few tasks and many coefficients it claims gains in noise. On clicks the
weighted estimates of learned policies are withheld, except for those without a two-sided interval; for men the model
still claims a gain without other evidence. Cross-fitted intervals on the rows learned from are too narrow.
"""


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--data", type=Path, default=os.environ.get("HIEROPO_DATA"))
    parser.add_argument("--logs", type=int, default=LOGS)
    parser.add_argument("--halves", type=int, default=HALVES)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    if given.data is None:
        sys.exit("Give --data DIR, the folder of the tables, or set HIEROPO_DATA.")
    warnings.simplefilter("ignore", HieropoWarning)
    folder = Path(given.data)
    about = (
        f"The problems are explained at the head of `experiments/real_logs.py`. The seed is {SEED}. After ± stands one "
        "standard error, over logs where there are many; logs share prompts, halves share rows.\n"
    )
    parts = [
        "# Real logs: claims against what is known\n",
        about,
        provenance("python experiments/real_logs.py"),
        *halves(folder, given.halves),
        *clicks(folder),
        *routing(folder, given.logs),
        READING,
    ]
    write(given.out, parts)


if __name__ == "__main__":
    main()
