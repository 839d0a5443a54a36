"""The size and weights of a mixture of spreads, integrated under each of three patterns.

In the words of :mod:`spreads`: the log evidence of the rows of each task, a function of its spread v, is a spline, and
(m, g, w) are integrated on a grid whose windows follow the weight.
"""

from typing import NamedTuple

import numpy as np

from hieropo._utils.arrays import Array

_RATIOS = (float(np.log(2.0)), float(np.log(30.0)))  # of log g
ROUNDS = 6  # of windows
_NEGLIGIBLE = 1e-3  # weight of a node, in units of the largest, from which the next window spans it
_NARROWER = 0.8
_CUT = 0.01  # weight of the last node of a window, in units of the largest, above which it is widened
_TINY = np.finfo(np.float64).tiny  # likelihood of a task, where that of all three spreads is 0
_FLOOR = 1e-3  # weight that all nodes of the grid have together, besides those of the mean mixture
SIZES = {"none": (9, 1, 9, 1), "large": (7, 7, 1, 7), "both": (6, 5, 6, 5)}  # nodes of m, g, w_0, w_2

Window = tuple[float, float]
WHOLE: Window = (0.0, 1.0)


class Curves:
    """Z_s(v) of all tasks, over its largest value, for any v."""

    most: Array
    none: Array

    def __init__(self, scales: Array, log_ratios: Array) -> None:
        from scipy.interpolate import CubicSpline

        self.most = log_ratios.max(axis=0)
        self.none = np.exp(log_ratios[0] - self.most)
        self._ends = np.log(scales[[1, -1]])
        self._spline = CubicSpline(np.log(scales[1:]), log_ratios[1:] - self.most, axis=0)

    def at(self, v: Array) -> Array:
        """Return the values (..., t) for some v."""
        return np.asarray(np.exp(self._spline(np.clip(np.log(v), *self._ends))))


class PatternNodes(NamedTuple):
    """Nodes of (m, g, w) under one pattern, flat; ``weights`` add to 1, ``log_evidence`` is that of the pattern."""

    weights: Array
    m: Array
    large: Array  # g m
    w: Array  # (nodes, 3)
    log_evidence: float
    windows: tuple[Window, ...]


def integrate_pattern(curves: Curves, pattern: str, windows: tuple[Window, ...]) -> PatternNodes:
    """Integrate (m, g, w) under one pattern, on windows that follow the weight."""
    sizes = SIZES[pattern]
    for _ in range(ROUNDS):
        nodes, masses = zip(
            *(axis_nodes(window, size) for window, size in zip(windows, sizes, strict=True)), strict=True
        )
        m = np.tan(np.pi / 2 * nodes[0])
        g = np.exp(_RATIOS[0] + nodes[1] * (_RATIOS[1] - _RATIOS[0])) if sizes[1] > 1 else np.ones(1)
        none = nodes[2] if sizes[2] > 1 else np.zeros(1)
        large = 0.5 * nodes[3] if sizes[3] > 1 else np.zeros(1)
        w = np.empty((none.size, large.size, 3))
        w[:, :, 0] = none[:, None]
        w[:, :, 2] = (1 - none)[:, None] * large
        w[:, :, 1] = 1 - w[:, :, 0] - w[:, :, 2]
        log_weight = _log_likelihood(curves, m, g, w)
        for k, mass in enumerate(masses):
            log_weight += np.expand_dims(np.log(mass), tuple(i for i in range(4) if i != k))
        most = float(log_weight.max())
        share = np.exp(log_weight - most)
        closer = tuple(
            closer_window(nodes[k], windows[k], share.sum(axis=tuple(i for i in range(4) if i != k)))
            if sizes[k] > 1
            else windows[k]
            for k in range(4)
        )
        if closer == windows:
            break
        windows = closer
    shape = share.shape
    all_m = np.broadcast_to(m[:, None, None, None], shape)
    return PatternNodes(
        (share / share.sum()).ravel(), all_m.ravel(),
        np.broadcast_to((m[:, None] * g)[:, :, None, None], shape).ravel(),
        np.broadcast_to(w, (*shape, 3)).reshape(-1, 3), most + float(np.log(share.sum())),
        windows,
    )  # fmt: skip


def axis_nodes(window: Window, size: int) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and masses of a uniform law; one node where the axis is not in use."""
    if size == 1:
        return np.zeros(1), np.ones(1)
    x, mass = np.polynomial.legendre.leggauss(size)
    half = (window[1] - window[0]) / 2
    return window[0] + half * (x + 1), half * mass


def closer_window(nodes: Array, window: Window, share: Array) -> Window:
    """Span the nodes that have weight, up to the next one at each side; a window that cuts them off is widened."""
    most, width = share.max(), window[1] - window[0]
    cut = [window[0] > 0 and share[0] > _CUT * most, window[1] < 1 and share[-1] > _CUT * most]
    if any(cut):
        return max(window[0] - cut[0] * width, 0.0), min(window[1] + cut[1] * width, 1.0)
    heavy = np.flatnonzero(share > _NEGLIGIBLE * most)
    ends = np.concatenate([[window[0]], nodes, [window[1]]])
    low, high = float(ends[heavy[0]]), float(ends[heavy[-1] + 2])
    return (low, high) if high - low < _NARROWER * (window[1] - window[0]) else window


def _log_likelihood(curves: Curves, m: Array, g: Array, w: Array) -> Array:
    """Log of prod_s sum_v pi_v Z_s(v), (m, g, w_0, w_2)."""
    usual, large = curves.at(m), curves.at(m[:, None] * g)
    values = np.empty((m.size, g.size, *w.shape[:2]))
    for i in range(m.size):
        for j in range(g.size):
            mixed = w @ np.stack([curves.none, usual[i], large[i, j]])
            values[i, j] = np.log(np.maximum(mixed, _TINY)).sum(axis=2)
    return values + float(curves.most.sum())


def mean_mixture(scales: Array, patterns: list[PatternNodes], shares: Array) -> Array:
    """Mean of pi over all nodes, on the grid; a v between two nodes is shared by them."""
    logs, mean = np.log(scales[1:]), np.zeros(len(scales))

    def add(v: Array, weights: Array) -> None:
        x = np.clip(np.log(v), logs[0], logs[-1])
        k = np.clip(np.searchsorted(logs, x) - 1, 0, len(logs) - 2)
        share = (x - logs[k]) / (logs[k + 1] - logs[k])
        np.add.at(mean, 1 + k, weights * (1 - share))
        np.add.at(mean, 2 + k, weights * share)

    for share, nodes in zip(shares, patterns, strict=True):
        mean[0] += share * float(nodes.weights @ nodes.w[:, 0])
        add(nodes.m, share * nodes.weights * nodes.w[:, 1])
        add(nodes.large, share * nodes.weights * nodes.w[:, 2])
    return np.asarray((1 - _FLOOR) * mean / mean.sum() + _FLOOR / len(scales))
