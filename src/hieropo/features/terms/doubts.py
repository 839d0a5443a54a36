"""Covariances of design columns about values that are not known: of a missing value, or of an estimated effect."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Array

_LEAST = 1e-12  # share of the largest eigenvalue below which an eigenvalue is rounding


class Doubt(NamedTuple):
    """Covariances of some columns of a design in rows that a number in the first of them marks.

    Parameters
    ----------
    columns : (k,) int
        Positions in the design.
    markers : (m,) array
        Numbers of the first column, sorted; no known value has one of them.
    roots : (m, r, k) array
        L of the covariance L'L of the columns, for each marker.
    """

    columns: NDArray[np.int64]
    markers: Array
    roots: Array

    def find(self, context: Array) -> NDArray[np.int64]:
        """Return the position (n,) of the marker of each row of a design (n, c); -1 for a row without one."""
        values = context[:, self.columns[0]]
        place = np.minimum(np.searchsorted(self.markers, values), self.markers.size - 1)
        return np.where(self.markers[place] == values, place, -1)


def directions(doubts: tuple[Doubt, ...], context: Array) -> tuple[NDArray[np.int64], Array]:
    """Return the rows of a design (n, c) that are in doubt, and a root (rows, r, c) of the covariance of each."""
    places = [doubt.find(context) for doubt in doubts]
    rows = (
        np.flatnonzero(np.any([place >= 0 for place in places], axis=0)) if places else np.zeros(0, np.int64)
    )
    size = sum(doubt.roots.shape[1] for doubt in doubts)
    roots, start = np.zeros((rows.size, size if rows.size else 0, context.shape[1])), 0
    for doubt, place in zip(doubts, places, strict=True):
        r = doubt.roots.shape[1]
        marked = np.flatnonzero(place[rows] >= 0)
        if marked.size:
            block = roots[marked, start : start + r]
            block[:, :, doubt.columns] = doubt.roots[place[rows[marked]]]
            roots[marked, start : start + r] = block
        start += r
    return rows, roots


def unknown_mean(design: Array, weights: Array) -> Array:
    """Return the means (k,) of columns (k, m) of values with weights (m,), marked: no known value has the first.

    The mark is one unit in the last place.
    """
    mean = np.asarray(design @ (weights / weights.sum()))
    mean[0] = np.nextafter(mean[0], np.inf)
    return mean


def unknown_root(design: Array, weights: Array) -> Array:
    """Return L (r, k) with L'L the covariance of columns (k, m) of values with weights (m,).

    It has no directions of rounding, and none at all where the covariance does not fit a float64.
    """
    shares = weights / weights.sum()
    with np.errstate(over="ignore", invalid="ignore"):
        centred = design - (design @ shares)[:, None]
        cov = (centred * shares) @ centred.T
    return root_of(cov) if np.isfinite(cov).all() else np.zeros((0, len(cov)))


def root_of(cov: Array) -> Array:
    """Return L (r, k) with L'L = cov (k, k), without directions of rounding."""
    values, vectors = np.linalg.eigh(cov)
    kept = values > _LEAST * float(values.max(initial=0.0))
    return np.asarray(np.sqrt(values[kept])[:, None] * vectors[:, kept].T)
