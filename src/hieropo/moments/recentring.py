"""Origins of columns and of rewards: maps and moments are moved there, so that large offsets do not lose precision.

Two maps of one family see a row by features phi and phi~ = T phi, T = I (x) T_p with the same block T_p (p, p) for
every feature of the action. Moments are moved by the congruence S -> T S T', exact up to rounding.

A block of a map without an origin is z = (1, x), or x without an intercept. One with the origin o, a point (1, origin),
or origin, sees ``z - k s`` with s = z_p for p the intercept, or the pivot, and k = o / o_p. An origin of a log is about
``k = <s, z> / <s, s>`` over its rows, so that what is left of a column is orthogonal to s. Sums around 0 lose
(|k| |s| / |z - k s|)^2 units of the last place of what is left.

Sums of squares of r around 0 lose (mean / sd)^2 units of the last place of what residuals say. Where features of every
row have a v with v' phi = 1, such as the sum of the intercepts, rewards r - r_0 move the population mean by r_0 v and
nothing else. So moments take r - o' phi with o = r_0 v, which is exact for any o, and give o back with every mean.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array
from hieropo._utils.packed import triangle, unpack
from hieropo.errors import MismatchError
from hieropo.features.maps import Columns, FeatureMap
from hieropo.features.per_action import Crossed
from hieropo.moments.statistics import Moments
from hieropo.moments.units import UnitMoments

Exact = NDArray[np.object_]
AnyMoments = TypeVar("AnyMoments", bound=Moments | UnitMoments)
Movable = Columns | Crossed

FAR = 100.0  # |k| |s| / |z - k s| from which on a column is moved: around 0 it would lose more than 1e4 units
_LOST = 1e-12  # |z - k s| in units of |k| |s| up to which it is rounding
_NOISE = 1e-13  # share of a sum of squares that is the rounding of it
_STEADY = 1e7  # |mean| / sd beyond which a column is as good as constant
_ALIKE = 4.0  # times as steady as the first of them: then another column is the pivot
_FIRST = 8192  # rows that are looked at before the sums are taken
_PIECE = 256  # tasks moved at once


class _Origin(NamedTuple):
    """A point (p,) in the coordinates z of a block, and the place of s in it; zeros but there are no origin."""

    point: Array
    spot: int

    @classmethod
    def of(cls, features: Movable) -> "_Origin":
        first = _intercept(features)
        point = np.zeros(len(features.columns) + first)
        spot = 0 if features.pivot is None else features.columns.index(features.pivot)
        point[spot] = 1.0
        if features.origin is not None:
            point[first:] = features.origin
        return cls(point, spot)

    @property
    def k(self) -> Array:
        """Multiples (p,) of s; 0 for s itself."""
        k: Array = self.point / self.point[self.spot]
        k[self.spot] = 0.0
        return k

    def exact(self) -> list[Fraction]:
        """Return k, without rounding."""
        s = Fraction(float(self.point[self.spot]))
        return [
            Fraction(0) if j == self.spot else Fraction(float(each)) / s for j, each in enumerate(self.point)
        ]

    def back(self) -> Array:
        """Matrix (p, p) that makes z of z - k s."""
        whole = np.eye(self.point.size)
        whole[:, self.spot] += self.k
        return whole

    def of_map(self, features: Movable) -> Any:
        """Return the map of the family that has this origin."""
        first = _intercept(features)
        return features.recentred(self.point[first:].tolist(), None if first else features.columns[self.spot])


def _intercept(features: Movable) -> int:
    return int(getattr(features, "intercept", False))


def movable(features: FeatureMap) -> bool:
    """Return whether a map has columns that it can measure from elsewhere."""
    return isinstance(features, Movable) and bool(features.columns)


def near(features: FeatureMap, context: Array) -> FeatureMap:
    """Return the map measured from near the first rows of a log, contexts (n, c), where they lie far from 0.

    Sums are taken with it; :func:`settled` then moves them to where the whole log lies. A map with an origin is
    returned as it is.
    """
    x = context[:_FIRST]
    if not (isinstance(features, Movable) and movable(features)) or features.origin is not None or not len(x):
        return features
    z = np.column_stack([np.ones((len(x), _intercept(features))), x])
    away = z - z[0]
    mean, sd = z[0] + away.mean(axis=0), away.std(axis=0)
    spot = 0 if _intercept(features) else _steadiest(mean, sd)
    if spot is None or not z[0, spot]:
        return features
    here = _Origin(z[0], spot)
    shift = away - away[:, [spot]] * here.k
    shift[:, spot] = z[:, spot]
    s = 1.0 if _intercept(features) else _steady(mean[spot], sd[spot])
    found: FeatureMap = _chosen(shift.T @ shift, here, spot, s, constant=True).of_map(features)
    return found


def settled(moments: AnyMoments, features: FeatureMap) -> tuple[AnyMoments, FeatureMap]:
    """Move moments that a map made to an origin that depends on the rows alone, not on their order.

    Columns of which sums around 0 lose less than 1e4 units of the last place are measured from 0, the others from
    their mean, rounded to the power of ten below their standard deviation.

    Returns
    -------
    moments, features
        Both as they are, where the map has that origin already.
    """
    if not isinstance(features, Movable) or not movable(features):
        return moments, features
    block, first = _blocks(moments, features)
    here = _Origin.of(features)
    spot: int | None = here.spot
    s = float(here.point[here.spot])
    if not _intercept(features) and first is not None:  # else that of the first rows has to do
        mean = here.back() @ first
        sd = _sds(here.back() @ block @ here.back().T, mean)
        spot = _steadiest(mean, sd)
        s = s if spot is None else _steady(mean[spot], sd[spot])
    there = features.recentred(None)
    if spot is not None:
        there = _chosen(block, here, spot, s).of_map(features)
    return recentred(moments, features, there), there


def remote(moments: Moments | UnitMoments, features: FeatureMap) -> tuple[str, ...]:
    """Return the columns that lie far from where a map measures them, of which its sums have lost digits."""
    if not isinstance(features, Movable) or not movable(features):
        return ()
    block, first = _blocks(moments, features)
    spot: int | None = 0
    if not _intercept(features):
        spot = None if first is None else _steadiest(first, _sds(block, first))
    if spot is None:
        return ()
    around = _Origin(np.eye(len(block))[spot], spot)
    away = _chosen(block, around, spot, 1.0).k[_intercept(features) :]
    return tuple(column for column, far in zip(features.columns, away.tolist(), strict=True) if far)


def _blocks(moments: Moments | UnitMoments, features: Movable) -> tuple[Array, Array | None]:
    """Mean products (p, p) of the features of a block, and their means (p,) where the sums tell these."""
    sums: Array = (moments.units if isinstance(moments, UnitMoments) else moments).sums
    d = moments.unit_dim if isinstance(moments, UnitMoments) else moments.dim
    p = len(features.columns) + _intercept(features)
    total = unpack(sums.sum(axis=0), d + 2)
    count = total[d + 1, d + 1] or 1.0
    block = np.einsum("ipiq->pq", total[:d, :d].reshape(d // p, p, d // p, p)) / count
    first: Array = total[:d, d + 1].reshape(d // p, p).sum(axis=0) / count
    return block, first if getattr(features, "table", None) is None else None


def _sds(block: Array, mean: Array) -> Array:
    return np.asarray(np.sqrt(np.maximum(np.diagonal(block) - mean**2, 0.0)))


def _steadiest(mean: Array, sd: Array) -> int | None:
    """Column of which others are multiples, but for a little: the first of those with the largest |mean| / sd."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(mean != 0, np.minimum(np.abs(mean) / sd, _STEADY), 0.0)
    most = ratio.max()
    return int((_ALIKE * ratio >= most).argmax()) if most > FAR else None


def _steady(mean: float, sd: float) -> float:
    """A round number near the values of a pivot."""
    return rounded(float(mean), max(float(sd), abs(float(mean)) / _STEADY))


def _chosen(block: Array, here: _Origin, spot: int, s_value: float, *, constant: bool = False) -> _Origin:
    """Origin for s in another spot, from products (p, p) of features around ``here``; 0 for columns not far.

    ``s_value`` is about the size of s. With ``constant`` a column that is a multiple of s is moved, too.
    """
    z = here.back()
    s = z[spot]
    size = float(s @ block @ s)
    if size <= 0:
        return _Origin(np.eye(len(z))[spot], spot)
    k = z[:, here.spot] / s[here.spot] if s[here.spot] else np.zeros(len(z))
    rest = z - np.outer(k, s)
    if s[here.spot]:
        rest[:, here.spot] = 0.0
    own = [here.spot] if spot == here.spot else [here.spot, spot]  # in all other columns rest is the identity
    product = block + (rest - np.eye(len(z)))[:, own] @ block[own]
    more = product @ s / size
    whole = (product * rest).sum(axis=1) / size
    left = np.sqrt(np.maximum(whole - more**2, 0.0))
    known = (left > _LOST * np.abs(k + more)) & (left**2 > _NOISE * whole)
    k = np.where(known, k + more, k)
    far = np.abs(k) > FAR * left
    far[spot] = False
    if not constant:
        far &= known
    points = zip(far, s_value * k, abs(s_value) * left, strict=True)
    point = np.array([rounded(*each) if moves else 0.0 for moves, *each in points])
    point[spot] = s_value
    return _Origin(point, spot)


def rounded(value: float, spread: float) -> float:
    """Return the nearest multiple of the power of ten below ``spread``; the value itself where there is no spread."""
    if spread <= _LOST * abs(value):
        return float(value)
    digits = math.floor(math.log10(spread))
    unit = 10.0 ** abs(digits)
    return float(round(value / unit) * unit if digits >= 0 else round(value * unit) / unit)


def recentred(moments: AnyMoments, first: FeatureMap, second: FeatureMap) -> AnyMoments:
    """Return what the moments of one map would be, had another map of its family made them.

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
            f"The moments were made by the map {moments.features}, not by {first.fingerprint}."
        )
    whole = moments.units if isinstance(moments, UnitMoments) else moments
    assert isinstance(whole, Moments)
    squares = None if whole.squares is None else _turned(whole.squares, whole.dim, change)
    sums = _turned(whole.sums, whole.dim, change)
    offset = whole.offset
    if offset is not None:  # coefficients of phi~ = T phi are T^-T times those of phi
        blocks = offset.reshape(-1, len(change))
        offset = (blocks + blocks @ change_of(second, first).astype(np.float64)).reshape(-1)
    made = replace(whole, sums=sums, features=second.fingerprint, squares=squares, offset=offset)
    return cast("AnyMoments", replace(moments, units=made) if isinstance(moments, UnitMoments) else made)


def change_of(first: FeatureMap, second: FeatureMap) -> Exact:
    """T_p - I (p, p), as fractions, of phi~ = I (x) T_p phi between the features of two maps of one family.

    z - k' s' = z - k s + (k - k_q k') s - k' (z_q - k_q s), where s' = z_q, so that the column in the place of s is
    k - k_q k' and that in the place of s' is -k'.

    Raises
    ------
    MismatchError
        The maps differ by more than their origin.
    """
    if not (isinstance(first, Movable) and isinstance(second, Movable) and first.family == second.family):
        raise MismatchError(
            f"The feature maps {first.fingerprint[:12]} and {second.fingerprint[:12]} differ by more than where they "
            "measure their columns from, so that what was made with one cannot be moved to the other."
        )
    here, there = _Origin.of(first), _Origin.of(second)
    k, other = here.exact(), there.exact()
    change = np.full((len(k), len(k)), Fraction(0), dtype=object)
    for j, (mine, theirs) in enumerate(zip(k, other, strict=True)):
        change[j, here.spot] += mine - k[there.spot] * theirs
        change[j, there.spot] -= theirs
    return change


def _turned(sums: Array, d: int, change: Array) -> Array:
    """Packed sums (m, q) of (T phi, r, 1) from those of (phi, r, 1), T = I (x) (I + change), change (p, p) sparse."""
    p, size = len(change), d + 2
    at = np.flatnonzero(change.any(axis=0))
    low, high = triangle(size)
    found = np.empty_like(sums)

    def left(whole: Array) -> Array:
        rows = whole[:d].reshape(d // p, p, size, -1)
        whole[:d] += np.einsum("jk,ikbn->ijbn", change[:, at], rows[:, at]).reshape(d, size, -1)
        return np.ascontiguousarray(whole.swapaxes(0, 1))

    for start in range(0, len(sums), _PIECE):
        part = slice(start, start + _PIECE)
        whole = np.ascontiguousarray(np.moveaxis(unpack(sums[part], size), 0, -1))
        found[part] = left(left(whole))[low, high].T
    return found


_FAR_REWARDS = 1.0  # |mean| / sd from which on there is an offset; below, sums of squares are at most doubled
_ROUNDING = 1e-12


def offset_near(features: FeatureMap, reward: Array, contexts: Callable[[], Array | None]) -> Array | None:
    """Return the offset (d,) that the rewards (n,) of the first rows ask for; None for none.

    Parameters
    ----------
    features : FeatureMap
    reward : (n,) array
    contexts : callable
        Gives contexts (k, c) of first rows, in the columns that the map reads, where these are needed.
    """
    r = reward[:_FIRST]
    if not r.size or not r[0]:
        return None
    away = r - r[0]
    mean, sd = float(r[0] + away.mean()), float(away.std())
    if abs(mean) <= _FAR_REWARDS * sd:
        return None
    v = _constant(features, contexts)
    return None if v is None else rounded(mean, sd) * v


def _constant(features: FeatureMap, contexts: Callable[[], Array | None]) -> Array | None:
    """Return v (d,) with v' phi = 1 in these rows; None where there is none, or the map is of another kind."""
    if not isinstance(features, Columns | Crossed):
        return None
    block, each = None, np.ones(1)
    if isinstance(features, Crossed):
        table = features.table
        found = np.ones(len(features.actions)) if table is None else _solved(table)
        if found is None:
            return None
        each = found
        if features.intercept:
            block = np.eye(1 + len(features.columns))[0]
    if block is None:
        x = contexts()
        block = None if x is None else _solved(features.measured(x[:_FIRST]))
    return None if block is None else np.asarray(np.kron(each, block), dtype=np.float64)


def _solved(table: Array) -> Array | None:
    """Return v with table v = 1, table (n, k); one entry of v alone where a column is 1 in every row."""
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
