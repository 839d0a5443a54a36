"""A mixture of Gaussians by the EM algorithm, from k-means++."""

from dataclasses import dataclass

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.ties import first_largest
from hieropo.errors import InputError, NumericalError

_K_MEANS_PASSES, _EM_PASSES = 20, 1000
_RIDGE = 1e-6  # added to each variance, as scikit-learn's GaussianMixture does
_ATTEMPTS = 5  # for each start


@dataclass(frozen=True, eq=False)
class Clusters:
    """A mixture sum_k weight_k N(mean_k, cov_k).

    Parameters
    ----------
    weights : (K,) array
    means : (K, d) array
    covs : (K, d, d) array
    labels : (n,) int array
        The likeliest component of each point.
    score : float
        Mean log likelihood of a point.
    """

    weights: Array
    means: Array
    covs: Array
    labels: Codes
    score: float

    @property
    def largest(self) -> int:
        """Return the component with the most points."""
        return int(np.bincount(self.labels, minlength=len(self.weights)).argmax())

    @property
    def regular(self) -> bool:
        """Return True where each component has enough points for a regular covariance.

        Else the likelihood has no bound: a component closes in on a few points.
        """
        return bool((self.weights * self.labels.size > self.means.shape[1] + 1).all())


def best_of(
    points: Array, components: int, rng: np.random.Generator, *, starts: int, tolerance: float
) -> Clusters:
    """Return the likeliest mixture of some starts; one that is not regular is replaced by another start.

    Raises
    ------
    InputError
        There are fewer points than components.
    NumericalError
        In most starts a component closed in on a few points.
    """
    if len(points) < components:
        raise InputError(f"{len(points)} points cannot make {components} clusters; ask for fewer.")
    regular: list[Clusters] = []
    for _ in range(_ATTEMPTS * starts):
        clusters = one_start(points, components, rng, tolerance=tolerance)
        if clusters.regular:
            regular.append(clusters)
        if len(regular) == starts:
            return regular[int(first_largest([candidate.score for candidate in regular]))]
    raise NumericalError(
        f"In {_ATTEMPTS * starts - len(regular)} of {_ATTEMPTS * starts} starts one of {components} clusters closed in "
        "on a few points. Ask for fewer clusters."
    )


def one_start(points: Array, components: int, rng: np.random.Generator, *, tolerance: float) -> Clusters:
    """Run EM from one start until the score grows by less than ``tolerance`` in a pass."""
    share = np.zeros((len(points), components))
    share[np.arange(len(points)), _k_means(points, components, rng)] = 1.0
    before = -np.inf
    for _ in range(_EM_PASSES):
        weights, means, covs = _components(points, share)
        share, score = _shares(points, weights, means, covs)
        if score - before < tolerance:
            break
        before = score
    return Clusters(weights, means, covs, share.argmax(axis=1).astype(np.int64), score)


def _components(points: Array, share: Array) -> tuple[Array, Array, Array]:
    """Return the mixture with the weights, means and covariances of points with these responsibilities."""
    n, d = points.shape
    count = share.sum(axis=0) + 10 * np.finfo(np.float64).eps
    means = share.T @ points / count[:, None]
    covs = np.empty((share.shape[1], d, d))
    for k, mean in enumerate(means):
        centred = points - mean
        covs[k] = (share[:, k, None] * centred).T @ centred / count[k] + _RIDGE * np.eye(d)
    return count / n, means, covs


def _shares(points: Array, weights: Array, means: Array, covs: Array) -> tuple[Array, float]:
    """Return the probability of each component for each point, and the mean log likelihood of a point."""
    d = points.shape[1]
    logs = np.empty((len(points), len(weights)))
    for k, root in enumerate(np.linalg.cholesky(covs)):
        scaled = np.linalg.solve(root, (points - means[k]).T)
        logs[:, k] = np.log(weights[k]) - np.log(np.diagonal(root)).sum() - 0.5 * (scaled**2).sum(axis=0)
    largest = logs.max(axis=1, keepdims=True)
    share = np.exp(logs - largest)
    total = share.sum(axis=1, keepdims=True)
    score = float((largest + np.log(total)).mean()) - 0.5 * d * float(np.log(2 * np.pi))
    return share / total, score


def _k_means(points: Array, components: int, rng: np.random.Generator) -> Codes:
    """Return the nearest centre of each point after k-means from k-means++ (Arthur and Vassilvitskii, SODA 2007)."""
    centres = points[[rng.integers(len(points))]]
    while len(centres) < components:
        distances = _squares(points, centres).min(axis=1)
        probabilities = (
            distances / distances.sum() if distances.sum() > 0 else np.full(len(points), 1 / len(points))
        )
        centres = np.vstack([centres, points[rng.choice(len(points), p=probabilities)]])
    label = _squares(points, centres).argmin(axis=1)
    for _ in range(_K_MEANS_PASSES):
        for k in range(components):
            if (label == k).any():
                centres[k] = points[label == k].mean(axis=0)
        label = _squares(points, centres).argmin(axis=1)
    return np.asarray(label, dtype=np.int64)


def _squares(points: Array, centres: Array) -> Array:
    """Return the squared distances (n, K)."""
    squares = (points**2).sum(axis=1)[:, None] - 2 * points @ centres.T + (centres**2).sum(axis=1)
    return np.asarray(np.maximum(squares, 0.0), dtype=np.float64)
