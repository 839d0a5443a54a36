"""Randomised experiments with many tasks, brought to one form: task, context, action, reward, propensity.

The tables are not part of the repository (see their licences); a program is told the folder. Contexts are centred, as
LIMITATIONS.md asks, and measured in standard deviations; those constants, and those of test scores, are taken from all
rows, since they choose nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

Array = NDArray[np.float64]
Codes = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Study:
    """One log of n rows.

    Parameters
    ----------
    task : (n,) ids
    unit : (n,) codes
        Units that are drawn into one half or the other, with all their rows.
    actions : tuple of str
        The K actions.
    action : (n,) codes into ``actions``
    reward : (n,) array
    design : (n, K) array or (n,) codes
        Propensity of every action in every row; or the strata in which actions were dealt out in fixed numbers.
    context : (n, c) array
    columns : tuple of str
        Names of the c context columns.
    """

    task: NDArray[Any]
    unit: Codes
    actions: tuple[str, ...]
    action: Codes
    reward: Array
    design: Array | Codes
    context: Array
    columns: tuple[str, ...] = ()

    def chance(self, rows: Mask) -> Array:
        """Propensity of every action in some of the rows, given the actions of all others, (rows, K).

        In a stratum the actions of these rows are then a permutation of those they have: the share among them. One that
        none of them has could not have been taken: 0.
        """
        if self.design.ndim == 2:
            return np.asarray(self.design[rows], dtype=np.float64)
        return shares(codes(self.design[rows]), self.action[rows], len(self.actions))

    def rows(self, taken: Mask) -> pa.Table:
        """Some of the rows, as a learner reads them."""
        names = np.array(self.actions, dtype=object)
        columns = {name: self.context[taken, j] for j, name in enumerate(self.columns)}
        return pa.table({
            "task": self.task[taken], "action": names[self.action[taken]], "reward": self.reward[taken], **columns,
        })  # fmt: skip


def codes(*columns: Sequence[Any] | NDArray[Any]) -> Codes:
    """One number for each distinct combination of the columns, (n,)."""
    found = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        _, each = np.unique(np.asarray(column), return_inverse=True)
        _, found = np.unique(found * (each.max() + 1) + each, return_inverse=True)
    return found


def shares(stratum: Codes, action: Codes, n_actions: int) -> Array:
    """Share of each action in the stratum of each row, (n, K)."""
    counts = np.zeros((stratum.max() + 1, n_actions))
    np.add.at(counts, (stratum, action), 1.0)
    return np.asarray((counts / counts.sum(axis=1, keepdims=True))[stratum])


def scaled(*columns: Array) -> Array:
    """Columns with mean 0 and standard deviation 1, (n, c)."""
    matrix = np.column_stack(columns).astype(np.float64)
    return np.asarray((matrix - matrix.mean(axis=0)) / matrix.std(axis=0))


def star(folder: Path) -> Study:
    """Tennessee STAR: class type in 80 schools, kindergarten to grade 3; reward = mean of two scores.

    A row is a pupil in a grade; its scores, of reading and mathematics, are in standard deviations of the grade.
    Classes were randomised within school and grade, the strata. A pupil with all grades goes to one half. Pupils of
    both halves were in the same classes, so that effects of teachers are part of the coefficients; and the pupils of a
    class share its effect, which a model of the school counts as independent evidence.
    """
    found = _Table(folder, "star_aer")
    parts = []
    for grade in "k123":
        names = (f"schoolid{grade}", f"star{grade}", f"read{grade}", f"math{grade}", f"lunch{grade}")
        school, kind, reading, maths, lunch = (found[name] for name in names)
        known = ~np.isnan(school) & ~np.isnan(reading) & ~np.isnan(maths) & _given(kind) & _given(lunch)
        score = scaled(reading[known], maths[known]).mean(axis=1)
        free = lunch[known] == "free"
        parts.append(
            (np.flatnonzero(known), np.full(known.sum(), grade), school[known], kind[known], score, free)
        )
    pupil, grade, school, kind, score, free = (np.concatenate(each) for each in zip(*parts, strict=True))
    actions = ("regular", "regular+aide", "small")
    action = _positions(kind, actions)
    grades = [(grade == g).astype(np.float64) for g in "123"]
    return Study(
        school.astype(np.int64), codes(pupil), actions, action, score, codes(school, grade),
        scaled(*grades, free), ("grade 1", "grade 2", "grade 3", "free lunch"),
    )  # fmt: skip


def star_grades(folder: Path) -> Study:
    """Tennessee STAR with each grade of a school, in which classes were randomised, as a task of its own."""
    school = star(folder)
    return replace(school, task=school.design, context=school.context[:, 3:], columns=school.columns[3:])


def thornton(folder: Path) -> Study:
    """Thornton (2008): a cash incentive in 119 villages; reward = 1 if the person collected the result.

    The incentive is cut at 0.01, 1.2 and 2.2 dollars; the strata are the villages.
    """
    found = _Table(folder, "thornton_hiv")
    columns = {name: found[name] for name in ("villnum", "got", "tinc", "age", "distvct")}
    known = np.all([~np.isnan(values) for values in columns.values()], axis=0)
    village, got, incentive, age, distance = (values[known] for values in columns.values())
    action = np.digitize(incentive, [0.01, 1.2, 2.2])
    return Study(
        village.astype(np.int64), np.arange(village.size), ("none", "small", "medium", "large"), action, got,
        codes(village), scaled(age, distance), ("age", "distance"),
    )  # fmt: skip


def kenya(folder: Path) -> Study:
    """Voter registration in Kenya: six arms in blocks of six polling stations; reward = new voters per old one.

    Each arm comes once in a block, so that the arms to choose from for the held-out stations have no rows of that block
    in the learned half: rows of a block inform only through its other arms.
    """
    found = _Table(folder, "kenya_voter_reg")
    arm, rate = found["treatment"], found["reg_byrv13"]
    known = ~np.isnan(rate)
    actions = tuple(sorted(set(arm.tolist())))
    n = int(known.sum())
    return Study(
        found["block"][known], np.arange(n), actions, _positions(arm[known], actions), rate[known],
        codes(found["block"][known]), np.empty((n, 0)),
    )  # fmt: skip


def ist(folder: Path) -> Study:
    """International Stroke Trial: aspirin by heparin in 466 hospitals; reward = alive and independent after six months.

    Propensity 1/2 for aspirin, and 1/2, 1/4, 1/4 for no, low and medium heparin ("high" in the pilot).
    """
    found = _Table(folder, "ist_trial")
    outcome = found["OCCODE"]
    known = (outcome != 0) & (outcome != 9)
    heparin = np.where(found["RXHEP"] == "H", "M", found["RXHEP"])
    arm = np.array(
        [f"aspirin {a}, heparin {h}" for a, h in zip(found["RXASP"], heparin, strict=True)], dtype=object
    )
    actions = tuple(sorted(set(arm.tolist())))
    chance = [0.5 * (0.5 if name.endswith("N") else 0.25) for name in actions]
    n = int(known.sum())
    return Study(
        found["HOSPNUM"][known], np.arange(n), actions, _positions(arm[known], actions),
        (~np.isin(outcome[known], (1, 2))).astype(np.float64), np.tile(chance, (n, 1)), np.empty((n, 0)),
    )  # fmt: skip


def oralytics(folder: Path) -> Study:
    """Oralytics pilot: prompts to 9 users by a deployed bandit that logged propensities; reward = seconds brushed."""
    found = _Table(folder, "oralytics_pilot")
    action, prompt = found["action"].astype(np.int64), found["prob"]
    names = ("state_tod", "state_b_bar", "state_app_engage")
    return Study(
        found["user_id"], np.arange(action.size), ("none", "prompt"), action, found["quality"],
        np.column_stack([1 - prompt, prompt]), scaled(*(found[name] for name in names)), names,
    )  # fmt: skip


def hillstrom(folder: Path) -> Study:
    """Hillstrom's e-mail challenge: three e-mails in 57 cells of spending, place and channel; reward = a visit."""
    found = _Table(folder, "hillstrom_email")
    actions = tuple(sorted(set(found["segment"].tolist())))
    n = found["segment"].size
    names = ("recency", "mens", "womens", "newbie")
    return Study(
        codes(found["history_segment"], found["zip_code"], found["channel"]), np.arange(n), actions,
        _positions(found["segment"], actions), found["visit"].astype(np.float64), np.full((n, 3), 1 / 3),
        scaled(*(found[name] for name in names)), names,
    )  # fmt: skip


STUDIES: dict[str, Callable[[Path], Study]] = {
    "star": star,
    "star_grades": star_grades,
    "thornton": thornton,
    "kenya": kenya,
    "ist": ist,
    "oralytics": oralytics,
    "hillstrom": hillstrom,
}


class _Table:
    """Columns of a Parquet file as numpy arrays; strings as objects, None where missing."""

    def __init__(self, folder: Path, name: str) -> None:
        self._table = pq.read_table(folder / f"{name}.parquet")

    def __getitem__(self, column: str) -> NDArray[Any]:
        values = self._table.column(column)
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        return np.asarray(values.to_numpy(zero_copy_only=False))


def _given(values: NDArray[Any]) -> Mask:
    return np.array([value is not None for value in values])


def _positions(values: NDArray[Any], actions: tuple[str, ...]) -> Codes:
    place = {action: k for k, action in enumerate(actions)}
    return np.array([place[value] for value in values], dtype=np.int64)
