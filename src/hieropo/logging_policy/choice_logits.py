"""A multinomial logit of the incumbent's choices in each task, from moments alone.

    P(a | s, x) = exp(B_sa' (1, x)) / sum over b of exp(B_sb' (1, x))

The log likelihood of a task's rows needs n_sa and the sum of x over the rows of each action a, which the moments hold,
and the sum over all rows of log sum_b exp(B_sb' (1, x)). The last depends on the distribution of x in the task, of
which moments hold mean and covariance. x is taken as normal with these, and the sum as that over a few points with
exactly this mean and covariance.

B is penalised: it is the mode given B_sa ~ N(B_a, I) in standard deviations of x, with B_a that of all rows together.
The curvature of the likelihood is at most (I - 11'/K) / 2 (x) sum of (1, x)(1, x)' (Boehning, Annals of the Institute
of Statistical Mathematics 44, 1992). Steps with this bound as the curvature need no line search and only p x p
matrices.
"""

import numpy as np

from hieropo._utils.arrays import Array

_PAIRS = 8  # of points, one on each side of the mean, for each of (1, x)
_STEPS = 30
_POOLED_STEPS = 200
_POOLED_VAR = 25.0
_MAX_ROWS = (
    300.0  # to which the rows of a task are scaled down: more would overfit the few points that represent x
)
_MAX_NUMBERS = 2**20  # in one array of probabilities


def choice_logits(counts: Array, sums: Array, squares: Array) -> Array:
    """Return B (m, K, p) of each task, less its mean over actions that were ever taken; 0 for the others.

    Parameters
    ----------
    counts : (m, K) array
        Rows of each action.
    sums : (m, K, p - 1) array
        Of x over the rows of each action.
    squares : (m, p - 1, p - 1) array
        Of x x' over all rows.
    """
    m, K, q = sums.shape
    taken = counts.sum(axis=0) > 0
    B = np.zeros((m, K, q + 1))
    rows = counts.sum(axis=1)
    total = rows.sum()
    mean = sums.sum(axis=(0, 1)) / total
    variance = np.diagonal(squares.sum(axis=0)) / total - mean**2
    scale = np.sqrt(np.where(variance > 1e-12 * mean**2, variance, np.inf))
    sums_by_action = np.concatenate([counts[..., None], (sums - counts[..., None] * mean) / scale], axis=2)[
        :, taken
    ]
    centre = sums_by_action[:, :, 1:].sum(axis=1)
    raw = squares - _outer(sums.sum(axis=1), mean) - _outer(mean, sums.sum(axis=1))
    around = (raw + rows[:, None, None] * np.outer(mean, mean)) / scale[:, None] / scale
    pooled = _mode(
        sums_by_action.sum(axis=0)[None], centre.sum(axis=0)[None], around.sum(axis=0)[None], _POOLED_VAR,
        np.zeros(sums_by_action.shape[1:]), _POOLED_STEPS,
    )[0]  # fmt: skip
    piece = max(1, _MAX_NUMBERS // (2 * _points(q) * int(taken.sum())))
    scale_down = np.minimum(1.0, _MAX_ROWS / np.maximum(rows, 1.0))[:, None, None]
    sums_by_action, centre, around = (
        sums_by_action * scale_down,
        centre * scale_down[:, 0],
        around * scale_down,
    )
    for start in range(0, m, piece):
        part = slice(start, start + piece)
        B[part, taken] = _mode(sums_by_action[part], centre[part], around[part], 1.0, pooled, _STEPS)
    B[:, taken] -= B[:, taken].mean(axis=1, keepdims=True)
    B[:, :, 1:] /= scale
    B[:, :, 0] -= B[:, :, 1:] @ mean
    return B


def _mode(sums_by_action: Array, centre: Array, around: Array, var: float, prior: Array, steps: int) -> Array:
    """Return B (m, K, p) of tasks with these sums by action (m, K, p), at the mode under N(``prior``, ``var`` I)."""
    rows = sums_by_action[:, :, 0].sum(axis=1)
    safe_rows = np.maximum(rows, 1e-300)
    mean = centre / safe_rows[:, None]
    points = _points_with(mean, around / safe_rows[:, None, None] - _outer(mean, mean))
    weight = rows / points.shape[1]
    bound = 0.5 * np.swapaxes(points, 1, 2) @ points * weight[:, None, None] + np.eye(points.shape[2]) / var
    deviation = last = np.zeros(sums_by_action.shape)
    momentum = 1.0
    for _ in range(steps):
        following = (1.0 + np.sqrt(1.0 + 4.0 * momentum**2)) / 2.0
        # Nesterov's step; ``bound`` is above the curvature
        extrapolated = deviation + (momentum - 1.0) / following * (deviation - last)
        probabilities = (prior + extrapolated) @ np.swapaxes(
            points, 1, 2
        )  # (m, K, points): sums over K run along points
        probabilities -= probabilities.max(axis=1, keepdims=True)
        np.exp(probabilities, out=probabilities)
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        slope = sums_by_action - weight[:, None, None] * (probabilities @ points) - extrapolated / var
        last, momentum = deviation, following
        deviation = extrapolated + np.swapaxes(np.linalg.solve(bound, np.swapaxes(slope, 1, 2)), 1, 2)
    return np.asarray(prior + deviation)


def _points(q: int) -> int:
    """Return the number of pairs of points that represent x, which is above the dimension of x."""
    return _PAIRS * (q + 1)


def _points_with(mean: Array, cov: Array) -> Array:
    """Return points (m, n, p) (1, x) with these means and covariances of x, distributed like a normal."""
    from scipy.special import ndtri

    m, q = mean.shape
    if not q:
        return np.ones((m, 1, 1))
    golden = 2.0
    for _ in range(60):  # the root of g^(q + 1) = g + 1; its powers give evenly spaced points in the cube
        golden = (1.0 + golden) ** (1.0 / (q + 1))
    cube = (0.5 + np.outer(np.arange(1, _points(q) + 1), golden ** -np.arange(1.0, q + 1))) % 1.0
    normals = ndtri(np.clip(cube, 1e-6, 1 - 1e-6))
    normals = np.concatenate([normals, -normals])
    normals = np.linalg.solve(np.linalg.cholesky(normals.T @ normals / len(normals)), normals.T).T
    values, vectors = np.linalg.eigh(cov)
    root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    points = np.ones((m, len(normals), q + 1))
    points[:, :, 1:] = mean[:, None] + normals @ np.swapaxes(root, 1, 2)
    return points


def _outer(a: Array, b: Array) -> Array:
    return np.asarray(a[..., :, None] * b[..., None, :])
