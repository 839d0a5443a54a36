"""Rows of one value of a column whose rewards are alike: a cause that the model does not have.

With r_i the reward of row i less the mean of its task and action, and less what the contexts explain of it there, rows
of one value g of a column, in one cell (a task and an action), have

    T = sum_g (S_g^2 - Q_g) / n_g,   S_g = sum_{i in g} r_i,   Q_g = sum_{i in g} r_i^2

which is about sigma^2 rho sum_g (n_g - 1) where they share the part rho of their variance. Its mean and its error
where rows are independent are those of random permutations of the rows within their cells. Neighbours in a cell, in the
order of the log, are tested alike, by the sum of r_i r_{i+1}, r less its trend along the cell.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array, Codes, Hashes

MOST_ROWS = 50_000  # the first rows of the log: a correlation of .05 is then found with groups of two
_PERMUTATIONS = 40
_LEAST_VALUES, _LEAST_GROUPS = 20, 20  # fewer values describe rows, such as a kind or a yes or no
_LEAST_SHARE = (
    0.1  # of the rows in groups of two or more; a column of few rows may be filled after the reward
)
_MOST = 0.99  # share of the variance; a column whose values tell the reward is a form of it
FAR = 20  # rows between which a drift still correlates rewards, and a visit does not


@dataclass(frozen=True, slots=True)
class AlikeRows:
    """Correlation of the rewards of rows that a column, or their order, joins.

    Attributes
    ----------
    column : str or None
        None: the next row of the same task and action.
    groups, rows : int
        Groups of two rows or more in one task and action, and their rows.
    correlation : float
    z : float
        In standard errors of independent rows.
    """

    column: str | None
    groups: int
    rows: int
    correlation: float
    z: float


class RowSample:
    """The first rows of a log with the values of its columns without a role, batch by batch."""

    columns: tuple[str, ...]

    def __init__(self, columns: tuple[str, ...], most: int = MOST_ROWS) -> None:
        self.columns = columns
        self._left = most
        self._parts: list[tuple[tuple[Codes, Codes, Array, Array], dict[str, Hashes], dict[str, Array]]] = []

    @property
    def wants(self) -> bool:
        """True as long as rows can be added."""
        return bool(self._left)

    def add(
        self, task: Codes, action: Codes, reward: Array, contexts: Array,
        hashes: Mapping[str, Hashes], numbers: Mapping[str, Array],
    ) -> None:  # fmt: skip
        """Add rows (n,) with tasks and actions of -1, or rewards of NaN, where these cannot be used.

        ``contexts`` (n, c); ``hashes`` (n,) of each column, 0 where a value is missing, and ``numbers`` (n,) of those
        that can be ordered.
        """
        usable = (task >= 0) & (action >= 0) & np.isfinite(reward) & np.isfinite(contexts).all(axis=1)
        rows = np.flatnonzero(usable)[: self._left]
        self._left -= rows.size
        self._parts.append((
            (task[rows], action[rows], reward[rows], contexts[rows]),
            {name: values[rows] for name, values in hashes.items()},
            {name: values[rows] for name, values in numbers.items()},
        ))  # fmt: skip

    def alike(self) -> tuple[AlikeRows, ...]:
        """Return the correlation by each column that may name a cause, and by the order of rows, last."""
        if not self._parts:
            return ()
        rows, hashes, numbers = zip(*self._parts, strict=True)
        task, action, reward, contexts = map(np.concatenate, zip(*rows, strict=True))
        _, cell = np.unique(task * (int(action.max(initial=0)) + 1) + action, return_inverse=True)
        keep = np.bincount(cell)[cell] > 1
        if np.count_nonzero(keep) < 2 * _LEAST_GROUPS:
            return ()
        cells = _Cells(cell[keep], _residuals(cell[keep], action[keep], reward[keep], contexts[keep]))
        of_column = {name: np.concatenate([part[name] for part in hashes])[keep] for name in self.columns}
        ordered = {name: np.concatenate([part[name] for part in numbers])[keep] for name in numbers[0]}
        tests = [_by_column(cells, name, of_column[name], ordered.get(name)) for name in self.columns]
        return (*(test for test in tests if test is not None), *_by_order(cells))


class _Cells:
    """Residuals (n,) in their cells, and permutations of them within the cells."""

    def __init__(self, cell: Codes, residual: Array) -> None:
        self.cell, self.residual = np.unique(cell, return_inverse=True)[1], residual
        self.order = np.argsort(self.cell, kind="stable")
        self.variance = float(np.mean(residual**2))
        rng, self.permuted = np.random.default_rng(0), []
        for _ in range(_PERMUTATIONS):
            drawn = np.empty_like(residual)
            drawn[self.order] = residual[np.argsort(self.cell + rng.random(residual.size))]
            self.permuted.append(drawn)

    def tested(self, statistic: Callable[[Array], float]) -> tuple[float, float]:
        """Return the statistic less its mean over permutations, and that in their standard deviations."""
        chance = np.array([statistic(drawn) for drawn in self.permuted])
        excess, error = statistic(self.residual) - float(chance.mean()), float(chance.std(ddof=1))
        return excess, excess / error if error > 0.0 else 0.0


def _residuals(cell: Codes, action: Codes, reward: Array, contexts: Array) -> Array:
    """Rewards less the means of their cells and, by least squares in each action, less the part of the contexts."""
    residual, x = _centred(cell, reward[:, None])[:, 0], _centred(cell, contexts)
    for one in np.unique(action) if x.shape[1] else ():
        rows = action == one
        if np.count_nonzero(rows) > 5 * x.shape[1]:
            residual[rows] -= x[rows] @ np.linalg.lstsq(x[rows], residual[rows], rcond=None)[0]
    return np.asarray(_centred(cell, residual[:, None])[:, 0])


def _centred(cell: Codes, values: Array) -> Array:
    """Columns (n, c) less their means in each cell."""
    count = np.maximum(np.bincount(cell), 1)
    means = (
        np.stack([np.bincount(cell, column) / count for column in values.T], axis=1)
        if values.size
        else values
    )
    return values - means[cell] if values.size else values


def _by_column(cells: _Cells, name: str, hashes: Hashes, numbers: Array | None) -> AlikeRows | None:
    """Return the test of a column; None where it is a measure, or has too few values or groups."""
    values, code = np.unique(hashes, return_inverse=True)
    measure = numbers is not None and bool((numbers != np.floor(numbers)).any())
    if measure or np.count_nonzero(values) < _LEAST_VALUES or cells.variance <= 0.0:
        return None
    group = cells.cell * values.size + code
    missing = np.flatnonzero(hashes == 0)
    group[missing] = values.size * (int(cells.cell.max()) + 1) + np.arange(missing.size)  # each by itself
    _, group = np.unique(group, return_inverse=True)
    sizes = np.bincount(group)
    if np.count_nonzero(sizes > 1) < _LEAST_GROUPS or (sizes.size - cells.cell.max() - 1) < _LEAST_GROUPS:
        return None

    def statistic(residual: Array) -> float:
        sums, squares = np.bincount(group, residual), np.bincount(group, residual**2)
        return float(((sums**2 - squares) / sizes).sum())

    excess, z = cells.tested(statistic)
    correlation = excess / (cells.variance * float((sizes - 1).sum()))
    joined = sizes[sizes > 1]
    if joined.sum() < _LEAST_SHARE * group.size or _repeated(cells.residual, group) > _MOST:
        return None
    if numbers is not None and _explained(cells, numbers, np.flatnonzero(hashes)) > correlation / 2.0:
        return None
    return AlikeRows(name, int(joined.size), int(joined.sum()), min(correlation, 1.0), z)


def _repeated(residual: Array, group: Codes) -> float:
    """Share of the squares of the residuals, of rows in groups of two or more, that the means of the groups explain."""
    sizes = np.bincount(group)
    rows = sizes[group] > 1
    means = np.bincount(group, residual) / sizes
    squares = float((residual[rows] ** 2).sum())
    return float((means[group][rows] ** 2).sum()) / squares if squares > 0.0 else 1.0


def _explained(cells: _Cells, numbers: Array, rows: Codes) -> float:
    """Share of the variance of the residuals of some rows that the ranks of numbers explain: an id explains none."""
    ranks = np.unique(numbers[rows], return_inverse=True)[1].astype(np.float64)
    both = _centred(cells.cell[rows], np.stack([ranks, cells.residual[rows]], axis=1))
    squares, product = (both**2).sum(axis=0), float(both[:, 0] @ both[:, 1])
    return float(product**2 / squares.prod()) if squares.all() else 0.0


def _by_order(cells: _Cells) -> tuple[AlikeRows, ...]:
    """Return the test of neighbours in a cell, less the correlation of rows far apart, which a drift has as well."""
    cell = cells.cell[cells.order]
    near, far = cell[1:] == cell[:-1], cell[FAR:] == cell[:-FAR]
    pairs, far_pairs = int(np.count_nonzero(near)), int(np.count_nonzero(far))
    if pairs < _LEAST_GROUPS or cells.variance <= 0.0:
        return ()
    position = _centred(cell, np.arange(cell.size, dtype=np.float64)[:, None])[:, 0]
    squares = np.maximum(np.bincount(cell, position**2), 1.0)

    def at_distance(residual: Array, distance: int, joined: NDArray[np.bool_]) -> float:
        along = residual[cells.order]
        along = along - position * (np.bincount(cell, position * along) / squares)[cell]
        return float((along[distance:] * along[:-distance])[joined].sum())

    excess, z = cells.tested(lambda residual: at_distance(residual, 1, near))
    correlation = excess / (cells.variance * pairs)
    if far_pairs >= _LEAST_GROUPS:
        excess, _ = cells.tested(lambda residual: at_distance(residual, FAR, far))
        correlation -= max(excess / (cells.variance * far_pairs), 0.0)
    return (AlikeRows(None, pairs, pairs, correlation, z),)
