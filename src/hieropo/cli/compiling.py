"""Compile all loops at once, by using each on a few numbers: for images that are built once and start often."""

from collections.abc import Callable
from types import MappingProxyType, SimpleNamespace

import numpy as np

from hieropo._kernels import backend
from hieropo.doctor.statistics.times import Times
from hieropo.features.maps import Columns, per_action
from hieropo.logging_policy.cells import CellSums
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.posterior import condition_crossed
from hieropo.model.crossed.propagation import TaskTerms, propagate
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.posterior import condition
from hieropo.model.table import PosteriorTable
from hieropo.moments.accumulation import Accumulator, Work
from hieropo.moments.column_pass import Column, ColumnPass, PartitionBuffers, clean_rows
from hieropo.moments.periods import PeriodSums, UnitFactors
from hieropo.moments.row_sketch import RowSketcher
from hieropo.moments.statistics import Moments
from hieropo.moments.units import UnitAccumulator
from hieropo.policies.lower_bound import LCBPolicy, SamplingPolicy
from hieropo.reproduce.movielens.als import factorize
from hieropo.rows.keys import GrowingKeys, Keys
from hieropo.rows.numbering import DictionaryCodes
from hieropo.rows.texts import Text, Texts

_N = 24  # rows: more than stand side by side in any loop
_TEXTS = 600  # more than there are slots for at first


def _rows() -> SimpleNamespace:
    rng = np.random.default_rng(0)
    task, action = np.arange(_N) % 9, np.arange(_N) % 2
    phi, reward = rng.standard_normal((_N, 2)), rng.standard_normal(_N)
    return SimpleNamespace(task=task, action=action, phi=phi, reward=reward, ones=np.ones(_N))


def _sums() -> None:
    r = _rows()
    Moments.from_arrays(r.task, r.phi, r.reward)
    sums = Accumulator(2)
    sums.add(r.task, r.phi, r.reward)
    sums.moments()
    Accumulator.after(sums.moments())
    Accumulator.together([sums], drop=True)


def _columns() -> None:
    r = _rows()
    sums, sketcher = UnitAccumulator(per_action(["a", "b"], ["x"])), RowSketcher(["a", "b"])
    running = sums.running
    features = per_action(["a", "b"], ["x"])
    running.keys.rows_of_ids(r.task)
    columns = [
        Column.of(r.reward.ctypes.data, "f8", "reward"),
        Column.of(r.ones.ctypes.data, "f8", "context"),
    ]
    rows = ColumnPass(features, running, sketcher)
    rows.add(columns, r.task * running.blocks + r.action, r.action, weighted=False)
    plain = Accumulator(1)
    plain.running.keys.rows_of_ids(r.task)
    ColumnPass(Columns(("x",)), plain.running, RowSketcher()).add(columns, r.task, None, weighted=False)
    work = Work.of(plain.running.layout)
    backend.partition_buffers().flush_buffers(0, 0, PartitionBuffers.none(), plain.running.running(), work)
    clean_rows(columns, _N)


def _ids() -> None:
    GrowingKeys().rows_of_ids(np.arange(_N))
    keys, which = GrowingKeys(), np.arange(_N, dtype=np.int32)
    DictionaryCodes(keys.rows_of_texts, keys.rows_of_ids).codes(Text.of([f"{k}" for k in range(_N)]), which)
    Texts().rows(Text.of([f"{k}" for k in range(_TEXTS)]))


def _cells() -> None:
    r = _rows()
    CellSums().add(r.task, r.action, r.reward, tasks=9, actions=2, pscore=r.ones, share=r.ones)
    Times().add(r.ones, r.task, r.reward, 9)


def _sketches() -> None:
    r = _rows()
    RowSketcher(["a", "b"]).add(r.reward, r.phi, r.action)


def _steps() -> None:
    r = _rows()
    for size in (1.0, 1e4):  # the second outweighs the prior, and takes another way
        hierarchy = Hierarchy(Gaussian(np.zeros(2), np.eye(2)), np.eye(2), 1.0)
        condition(Moments.from_arrays(r.task, size * r.phi, r.reward), hierarchy).table()


def _crossed() -> None:
    r = _rows()
    for columns in ([], ["x"]):
        sums, p = UnitAccumulator(per_action(["a", "b"], columns)), 1 + len(columns)
        sums.add(r.task, r.action, r.phi[:, : len(columns)], r.reward)
        cov = 0.1 * np.eye(p)
        condition_crossed(sums.moments(), CrossedHierarchy(cov, cov, cov, np.ones(2))).table()


def _propagation() -> None:
    information, score = np.tile(np.eye(2), (2, _N, 1, 1)), np.ones((2, _N, 2))
    propagate(TaskTerms(information, score, np.zeros((2, _N))), np.full(2, 0.5), np.ones(2))


def _periods() -> None:
    sums = np.zeros((2, 2, 3, 6))
    periods = PeriodSums(sums, np.arange(3.0), 3.0, 1)
    UnitFactors.at_start(periods, np.ones((2, 3)), np.eye(1))


def _choices() -> None:
    n, d, keys = 3, 2, Keys(np.arange(2))
    one, apart = (
        PosteriorTable(
            keys,
            np.zeros((2, *lead, d)),
            np.ones((2, *lead, 3)),
            np.ones(2),
            np.zeros((*lead, d)),
            np.ones((*lead, 3)),
        )
        for lead in ((), (n,))
    )
    features = per_action(["a", "b", "c"], ["x"])
    for policy in (LCBPolicy(one), LCBPolicy(apart, features)):
        phi = np.eye(n, policy.table.dim)
        policy.lower_bound(0, phi)
    LCBPolicy(one).choose(0, phi=np.ones((n, d)))
    LCBPolicy(one).choose_many([0], phi=np.ones((1, n, d)))
    LCBPolicy(apart, features).choose(0, [1.0])
    LCBPolicy(apart, features).choose_many([0], [[1.0]])
    SamplingPolicy(one, random_state=0).choose(0, phi=np.ones((n, d)))


def _ratings() -> None:
    factorize(
        np.arange(_N) % 5, np.arange(_N) % 7, np.ones(_N), np.random.default_rng(0), rank=2, iterations=1
    )


_PARTS: dict[str, Callable[[], None]] = {
    "ids": _ids,
    "sums of rows": _sums,
    "columns in place": _columns,
    "tasks and actions in their order": _cells,
    "hashes of rows": _sketches,
    "steps": _steps,
    "steps of the crossed prior": _crossed,
    "expectation propagation": _propagation,
    "periods": _periods,
    "choices": _choices,
    "factors": _ratings,
}
PARTS = MappingProxyType(_PARTS)


def compile_part(name: str) -> None:
    """Compile what one of the :data:`PARTS` needs; what was compiled before takes no time."""
    with backend.forced(backend.COMPILED):
        _PARTS[name]()
