"""Rules about context columns: constant, copies of each other, far from 0, on different scales."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.packed import unpack
from hieropo._utils.ties import first_largest, first_smallest
from hieropo.doctor.collecting import Collected
from hieropo.doctor.examination import Finding
from hieropo.features.maps import Columns, FeatureMap, indicator, per_action
from hieropo.moments.recentring import FAR
from hieropo.passes.identifiability import undetermined
from hieropo.rows.ids import plain

_SCALES = 1e3  # ratio of the largest standard deviation to the smallest
_NEAR = 1e-6  # least eigenvalue of the correlations: coefficients then lose 6 of their digits, and 1,000 times as wide


def default_map(seen: Collected) -> FeatureMap | None:
    """The features that `fit` takes for these roles, where nothing is said; None where there are none."""
    roles = seen.roles
    if roles.action is None:
        return Columns(roles.context) if roles.context else None
    actions = [plain(each) for each in seen.actions.values.tolist()]
    return per_action(actions, roles.context) if roles.context else indicator(actions)


def features(seen: Collected) -> Iterator[Finding]:
    """Find coefficients that the log does not tell, or not well."""
    found = default_map(seen)
    if found is None or seen.contexts is None:
        return
    width, apart = len(seen.roles.context), seen.contexts_apart
    totals = unpack(_by_action(seen), width + 3)
    blocks = totals[:, : width + 1, : width + 1]
    if found.actions is None:
        blocks = _without_intercept(blocks.sum(axis=0), seen.origin)[None]
    elif not apart or _borrowing(seen):
        blocks = blocks.sum(axis=0)[
            None
        ]  # all actions together tell the coefficients, or columns are too many
        found = per_action(["any action"], seen.roles.context)
    open_ = undetermined(blocks, seen.contexts.n_rows, found)
    if open_ is not None:
        yield Finding("stops", "undetermined coefficients", "context columns", open_.said, open_.cure)
        return
    yield from alike(seen.roles.context, totals.sum(axis=0)[: width + 1, : width + 1])


def _borrowing(seen: Collected) -> bool:
    """Say that actions borrow from each other in a fit with default settings, as under the crossed prior."""
    roles = seen.roles
    return len(seen.actions) > 1 and not (roles.levels or roles.metadata or roles.sampling_weight)


def _by_action(seen: Collected) -> Array:
    """Packed sums of z z' of each action in the order of its place; of all rows together where they were kept so."""
    assert seen.contexts is not None
    if not seen.contexts_apart or seen.roles.action is None:
        return np.asarray(seen.contexts.sums)
    at = seen.contexts.keys.locate(np.arange(len(seen.actions)))
    return np.where((at >= 0)[:, None], seen.contexts.sums[at], 0.0)


def _without_intercept(gram: Array, origin: Array) -> Array:
    """Sums of x x' from those of (1, x - origin)(1, x - origin)'; columns far from 0 less multiples of the steadiest.

    That is what a fit does, too (:mod:`recentring`): around 0 all columns far from it are multiples of one another.
    """
    mean = gram[0, 1:] / gram[0, 0]
    sd = np.sqrt(np.maximum(np.diagonal(gram)[1:] / gram[0, 0] - mean**2, 0.0))
    steady = np.abs(origin) > FAR * sd
    move = np.column_stack([origin, np.eye(origin.size)])
    if np.count_nonzero(steady) > 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            pivot = int(first_largest(np.where(steady, np.abs(origin) / sd, 0.0)))
        others = np.flatnonzero(steady & (np.arange(origin.size) != pivot))
        share = origin[others] / origin[pivot]
        move[others, 0] = 0.0
        move[others, 1 + pivot] -= share
    return np.asarray(move @ gram @ move.T)


def alike(columns: Sequence[str], gram: Array) -> Iterator[Finding]:
    """Find columns that are nearly copies of each other, or on other scales, by their sums (1, x)(1, x)'."""
    mean = gram[0, 1:] / gram[0, 0]
    cov = gram[1:, 1:] / gram[0, 0] - np.outer(mean, mean)
    sd = np.sqrt(np.maximum(np.diagonal(cov), 0.0))
    vary = np.flatnonzero(sd > 0)
    if vary.size < 2:
        return
    scaled: Any = cov[np.ix_(vary, vary)] / np.outer(sd[vary], sd[vary])
    values, vectors = np.linalg.eigh(scaled)
    if values[0] < _NEAR:
        concerned = [columns[vary[j]] for j in np.flatnonzero(np.abs(vectors[:, 0]) > 0.1)]
        names = ", ".join(map(repr, concerned))
        yield Finding(
            "limits", "columns are almost copies", f"columns {names}",
            f"The columns {names} are nearly copies or sums of each other, so that the log hardly tells their "
            "coefficients apart.",
            "Leave one out.",
        )  # fmt: skip
    low, high = (int(vary[int(choose(sd[vary]))]) for choose in (first_smallest, first_largest))
    if sd[high] > _SCALES * sd[low]:
        yield Finding(
            "note", "scales differ", f"columns {columns[low]!r}, {columns[high]!r}",
            f"Standard deviations of context columns reach from {sd[low]:.3g} ({columns[low]!r}) to {sd[high]:.3g} "
            f"({columns[high]!r}).",
            "Bring them to one scale: how alike tasks are is then learned more surely.",
        )  # fmt: skip
