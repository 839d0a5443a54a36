"""Origins of columns and of rewards, so that large offsets do not lose precision; moments and maps are moved there.

Two equivalent maps give a row features phi and phi~ = T phi, T = I (x) T_p with the same block T_p (p, p) for every
feature of the action. Moments are moved by the congruence S -> T S T', exact up to rounding.

A block of a map without an origin is z = (1, x), or x without an intercept. With the origin o, a point (1, origin), or
origin, the block is ``z - k s`` with s = z_p for p the intercept, or the reference column, and k = o / o_p. The origin
for a log is about ``k = <s, z> / <s, s>`` over its rows, so that the remainder of a column is orthogonal to s. Sums
around 0 lose (|k| |s| / |z - k s|)^2 units of the last place of the remainder.

Sums of squares of r around 0 lose (mean / sd)^2 units of the last place of the residuals' squares. Where features of
every row have a v with v' phi = 1, such as the sum of the intercepts, rewards r - r_0 move the population mean by r_0 v
and nothing else. So moments take r - o' phi with o = r_0 v, which is exact for any o; every mean gets o added back.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array
from hieropo._utils.packed import triangle, unpack
from hieropo.errors import MismatchError
from hieropo.features.maps import Columns, FeatureMap
from hieropo.features.per_action import Crossed
from hieropo.moments.statistics import Moments

Exact = NDArray[np.object_]
Movable = Columns | Crossed

FAR = (
    100.0  # |k| |s| / |z - k s| above which a column is recentred: around 0 it would lose more than 1e4 units
)
_ROUNDING_RATIO = 1e-12  # |z - k s| in units of |k| |s| up to which it is rounding error
_ROUNDING_SHARE = 1e-13  # rounding error of a sum of squares, relative
_CONSTANT = 1e7  # |mean| / sd from which a column is taken as constant
_MIN_ADVANTAGE = 4.0  # in |mean| / sd, of the reference column over an earlier column
_FIRST_ROWS = 8192  # from which the first origin is chosen
_PIECE = 256  # tasks worked on at once


class _Origin(NamedTuple):
    """An origin: a point (p,) in the coordinates z of a block, and the index of s in it."""

    point: Array
    reference: int

    @classmethod
    def of(cls, features: Movable) -> "_Origin":
        first = _intercept(features)
        point = np.zeros(len(features.columns) + first)
        reference = (
            0 if features.reference_column is None else features.columns.index(features.reference_column)
        )
        point[reference] = 1.0
        if features.origin is not None:
            point[first:] = features.origin
        return cls(point, reference)

    @property
    def k(self) -> Array:
        """The multiples k (p,) of s; 0 for s itself."""
        k: Array = self.point / self.point[self.reference]
        k[self.reference] = 0.0
        return k

    def exact(self) -> list[Fraction]:
        """Return k, without rounding."""
        s = Fraction(float(self.point[self.reference]))
        return [
            Fraction(0) if j == self.reference else Fraction(float(value)) / s
            for j, value in enumerate(self.point)
        ]

    def back(self) -> Array:
        """Return the matrix (p, p) that maps z - k s to z."""
        matrix = np.eye(self.point.size)
        matrix[:, self.reference] += self.k
        return matrix

    def of_map(self, features: Movable) -> Any:
        """Return the equivalent map that has this origin."""
        first = _intercept(features)
        return features.recentred(
            self.point[first:].tolist(), None if first else features.columns[self.reference]
        )


def _intercept(features: Movable) -> int:
    return int(getattr(features, "intercept", False))


def has_movable_origin(features: FeatureMap) -> bool:
    """Return True for a map with context columns whose origin can be changed."""
    return isinstance(features, Movable) and bool(features.columns)


def near_first_rows(features: FeatureMap, context: Array) -> FeatureMap:
    """Return the map with an origin near the first rows of a log, contexts (n, c), where they lie far from 0.

    Sums are taken with it; :func:`at_final_origin` then moves them to the origin for the whole log. A map that has an
    origin is returned unchanged.
    """
    x = context[:_FIRST_ROWS]
    if (
        not (isinstance(features, Movable) and has_movable_origin(features))
        or features.origin is not None
        or not len(x)
    ):
        return features
    z = np.column_stack([np.ones((len(x), _intercept(features))), x])
    shifted = z - z[0]
    mean, sd = z[0] + shifted.mean(axis=0), shifted.std(axis=0)
    reference = 0 if _intercept(features) else _reference_column(mean, sd)
    if reference is None or not z[0, reference]:
        return features
    origin = _Origin(z[0], reference)
    shift = shifted - shifted[:, [reference]] * origin.k
    shift[:, reference] = z[:, reference]
    s = 1.0 if _intercept(features) else _round_value(mean[reference], sd[reference])
    recentred_map: FeatureMap = _choose_origin(shift.T @ shift, origin, reference, s, constant=True).of_map(
        features
    )
    return recentred_map


def at_final_origin(moments: Moments, features: FeatureMap) -> tuple[Moments, FeatureMap]:
    """Return moments and their map at the final origin, which depends on the rows alone and not on their order.

    Columns whose sums around 0 lose less than 1e4 units of the last place have the origin 0, the others about
    their mean, rounded to the power of ten below their standard deviation.

    Returns
    -------
    moments, features
        Unchanged where the map has that origin already.
    """
    if not isinstance(features, Movable) or not has_movable_origin(features):
        return moments, features
    block, first = _blocks(moments, features)
    origin = _Origin.of(features)
    reference: int | None = origin.reference
    s = float(origin.point[origin.reference])
    if (
        not _intercept(features) and first is not None
    ):  # else the reference column stays that of the first rows
        mean = origin.back() @ first
        sd = _sds(origin.back() @ block @ origin.back().T, mean)
        reference = _reference_column(mean, sd)
        s = s if reference is None else _round_value(mean[reference], sd[reference])
    final_map = features.recentred(None)
    if reference is not None:
        final_map = _choose_origin(block, origin, reference, s).of_map(features)
    return recentred(moments, features, final_map), final_map


def far_columns(moments: Moments, features: FeatureMap) -> tuple[str, ...]:
    """Return the columns that lie far from the origin of a map, so that its sums have lost precision."""
    if not isinstance(features, Movable) or not has_movable_origin(features):
        return ()
    block, first = _blocks(moments, features)
    reference: int | None = 0
    if not _intercept(features):
        reference = None if first is None else _reference_column(first, _sds(block, first))
    if reference is None:
        return ()
    around = _Origin(np.eye(len(block))[reference], reference)
    k = _choose_origin(block, around, reference, 1.0).k[_intercept(features) :]
    return tuple(column for column, far in zip(features.columns, k.tolist(), strict=True) if far)


def _blocks(moments: Moments, features: Movable) -> tuple[Array, Array | None]:
    """Return mean products (p, p) of the features of a block, and their means (p,), or None with a table of actions."""
    d, p = moments.unit_dim, len(features.columns) + _intercept(features)
    total = unpack(moments.unit_sums.sum(axis=0), d + 2)
    count = total[d + 1, d + 1] or 1.0
    block = np.einsum("ipiq->pq", total[:d, :d].reshape(d // p, p, d // p, p)) / count
    first: Array = total[:d, d + 1].reshape(d // p, p).sum(axis=0) / count
    return block, first if getattr(features, "table", None) is None else None


def _sds(block: Array, mean: Array) -> Array:
    return np.asarray(np.sqrt(np.maximum(np.diagonal(block) - mean**2, 0.0)))


def _reference_column(mean: Array, sd: Array) -> int | None:
    """Return the column with the largest |mean| / sd as reference column; None where that is small in all columns."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(mean != 0, np.minimum(np.abs(mean) / sd, _CONSTANT), 0.0)
    most = ratio.max()
    return int((_MIN_ADVANTAGE * ratio >= most).argmax()) if most > FAR else None


def _round_value(mean: float, sd: float) -> float:
    """Return a round number near the values of the reference column."""
    return rounded(float(mean), max(float(sd), abs(float(mean)) / _CONSTANT))


def _choose_origin(
    block: Array, origin: _Origin, reference: int, s_value: float, *, constant: bool = False
) -> _Origin:
    """Return the origin with s at ``reference``, from products (p, p) of features less ``origin``; 0 for near columns.

    ``s_value`` is the approximate size of s. With ``constant`` a column that is a multiple of s is recentred too.
    """
    z = origin.back()
    s = z[reference]
    size = float(s @ block @ s)
    if size <= 0:
        return _Origin(np.eye(len(z))[reference], reference)
    k = z[:, origin.reference] / s[origin.reference] if s[origin.reference] else np.zeros(len(z))
    rest = z - np.outer(k, s)
    if s[origin.reference]:
        rest[:, origin.reference] = 0.0
    # in all other columns rest is the identity
    changed = [origin.reference] if reference == origin.reference else [origin.reference, reference]
    product = block + (rest - np.eye(len(z)))[:, changed] @ block[changed]
    projection = product @ s / size
    total = (product * rest).sum(axis=1) / size
    remainder = np.sqrt(np.maximum(total - projection**2, 0.0))
    reliable = (remainder > _ROUNDING_RATIO * np.abs(k + projection)) & (
        remainder**2 > _ROUNDING_SHARE * total
    )
    k = np.where(reliable, k + projection, k)
    far = np.abs(k) > FAR * remainder
    far[reference] = False
    if not constant:
        far &= reliable
    points = zip(far, s_value * k, abs(s_value) * remainder, strict=True)
    point = np.array([rounded(*pair) if moves else 0.0 for moves, *pair in points])
    point[reference] = s_value
    return _Origin(point, reference)


def rounded(value: float, spread: float) -> float:
    """Return the nearest multiple of the power of ten below ``spread``; the value itself where ``spread`` is 0."""
    if spread <= _ROUNDING_RATIO * abs(value):
        return float(value)
    digits = math.floor(math.log10(spread))
    unit = 10.0 ** abs(digits)
    return float(round(value / unit) * unit if digits >= 0 else round(value * unit) / unit)


def recentred(moments: Moments, first: FeatureMap, second: FeatureMap) -> Moments:
    """Return the moments of one map as those of an equivalent map.

    Raises
    ------
    MismatchError
        The maps differ by more than their origin, or the moments were made by another one.
    """
    if first == second:
        return moments
    change = change_of(first, second).astype(np.float64)
    if moments.features not in (None, first.fingerprint):
        raise MismatchError(
            f"The moments were made by the feature map {moments.features}, not by {first.fingerprint}. Pass the "
            "map that made them."
        )
    offset = moments.unit_offset
    if offset is not None:  # coefficients of phi~ = T phi are T^-T times those of phi
        blocks = offset.reshape(-1, len(change))
        offset = (blocks + blocks @ change_of(second, first).astype(np.float64)).reshape(-1)
    changes = {"features": second.fingerprint, "unit_offset": offset}
    return moments.mapped(lambda sums: _block_transformed(sums, moments.unit_dim, change), **changes)


def change_of(first: FeatureMap, second: FeatureMap) -> Exact:
    """Return T_p - I (p, p), as fractions, of phi~ = I (x) T_p phi between the features of two equivalent maps.

    z - k' s' = z - k s + (k - k_q k') s - k' (z_q - k_q s), where s' = z_q. So column s is k - k_q k' and
    column s' is -k'.

    Raises
    ------
    MismatchError
        The maps differ by more than their origin.
    """
    if not (
        isinstance(first, Movable)
        and isinstance(second, Movable)
        and first.equivalence_id == second.equivalence_id
    ):
        raise MismatchError(
            f"The feature maps {first.fingerprint[:12]} and {second.fingerprint[:12]} differ by more than the origin "
            "of their columns, so that moments, priors or policies of one cannot be moved to the other. Make them "
            "again."
        )
    origin, other_origin = _Origin.of(first), _Origin.of(second)
    k, other_k = origin.exact(), other_origin.exact()
    change = np.full((len(k), len(k)), Fraction(0), dtype=object)
    for j, (k_j, other_k_j) in enumerate(zip(k, other_k, strict=True)):
        change[j, origin.reference] += k_j - k[other_origin.reference] * other_k_j
        change[j, other_origin.reference] -= other_k_j
    return change


def _block_transformed(sums: Array, d: int, change: Array) -> Array:
    """Return packed sums (m, q) of (T phi, r, 1) from those of (phi, r, 1), T = I (x) (I + change), change (p, p)."""
    p, size = len(change), d + 2
    columns = np.flatnonzero(change.any(axis=0))
    low, high = triangle(size)
    transformed = np.empty_like(sums)

    def left_product(S: Array) -> Array:
        rows = S[:d].reshape(d // p, p, size, -1)
        S[:d] += np.einsum("jk,ikbn->ijbn", change[:, columns], rows[:, columns]).reshape(d, size, -1)
        return np.ascontiguousarray(S.swapaxes(0, 1))

    for start in range(0, len(sums), _PIECE):
        part = slice(start, start + _PIECE)
        S = np.ascontiguousarray(np.moveaxis(unpack(sums[part], size), 0, -1))
        transformed[part] = left_product(left_product(S))[low, high].T
    return transformed


FAR_REWARDS = 1.0  # |mean| / sd from which on there is an offset; below, sums of squares are at most doubled
_ROUNDING = 1e-12


def offset_near(features: FeatureMap, reward: Array, contexts: Callable[[], Array | None]) -> Array | None:
    """Return the offset (d,) for the rewards (n,) of the first rows; None where they are not far from 0.

    Parameters
    ----------
    features : FeatureMap
    reward : (n,) array
    contexts : callable
        Returns contexts (k, c) of first rows, in the columns that the map reads; called only where they are needed.
    """
    r = reward[:_FIRST_ROWS]
    if not r.size or not r[0]:
        return None
    shifted = r - r[0]
    mean, sd = float(r[0] + shifted.mean()), float(shifted.std())
    if abs(mean) <= FAR_REWARDS * sd:
        return None
    v = _constant(features, contexts)
    return None if v is None else rounded(mean, sd) * v


def _constant(features: FeatureMap, contexts: Callable[[], Array | None]) -> Array | None:
    """Return v (d,) with v' phi = 1 in these rows; None where none exists, or the map is of another kind."""
    if not isinstance(features, Columns | Crossed):
        return None
    block, per_table = None, np.ones(1)
    if isinstance(features, Crossed):
        table = features.table
        table_solution = np.ones(len(features.actions)) if table is None else _solved(table)
        if table_solution is None:
            return None
        per_table = table_solution
        if features.intercept:
            block = np.eye(1 + len(features.columns))[0]
    if block is None:
        x = contexts()
        block = None if x is None else _solved(features.measured(x[:_FIRST_ROWS]))
    return None if block is None else np.asarray(np.kron(per_table, block), dtype=np.float64)


def _solved(table: Array) -> Array | None:
    """Return v with table v = 1, table (n, k), or None; v has one entry where a column is 1 in every row."""
    if not len(table):
        return None
    ones = np.flatnonzero((table == 1.0).all(axis=0))
    if ones.size:
        return np.asarray(np.eye(table.shape[1])[ones[0]])
    size = np.abs(table).max(axis=0)
    size = np.where(size > 0, size, 1.0)
    scaled = table / size
    v = np.linalg.lstsq(scaled, np.ones(len(table)), rcond=_ROUNDING)[0]
    v[np.abs(v) < _ROUNDING] = 0.0
    return np.asarray(v / size, dtype=np.float64) if np.abs(scaled @ v - 1.0).max() <= _ROUNDING else None
