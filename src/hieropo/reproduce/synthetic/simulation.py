"""Draws from the model: task parameters, logs, and the true value of a policy.

Every function that draws takes a numpy Generator.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hieropo._utils.arrays import Array, Codes
from hieropo.errors import InputError, MismatchError, UnknownTaskError
from hieropo.model.gaussian import Gaussian, frozen
from hieropo.model.hierarchy import Hierarchy
from hieropo.rows.keys import Keys

Ids = Sequence[Hashable] | NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class TrueTasks:
    """Parameters of a family of tasks, as drawn from a hierarchy.

    Parameters
    ----------
    hierarchy : Hierarchy
        From which they were drawn.
    keys : Keys
        Ids of the m tasks.
    root : (d,) array
        The drawn mu; the paper's mu_*.
    nodes : tuple of dict
        For each level of the hierarchy, node id -> (d,) array.
    theta : (m, d) array
        Parameter of each task; the paper's theta_{s,*}.
    """

    hierarchy: Hierarchy
    keys: Keys
    root: Array
    nodes: tuple[dict[Hashable, Array], ...]
    theta: Array

    @property
    def tasks(self) -> NDArray[Any]:
        """Return the ids of the tasks, (m,)."""
        return self.keys.values

    def __getitem__(self, task: Hashable) -> Array:
        """Return the parameter (d,) of one task."""
        row = self.keys.find(task)
        if row < 0:
            raise UnknownTaskError(self.keys.unknown_message(task))
        return np.asarray(self.theta[row], dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedLog:
    """A log of n rows with the features of all candidates.

    Parameters
    ----------
    task : (n,) array
        Ids.
    candidates : (n, K, d) array
        phi(x, a) of every action in every row.
    action : (n,) int64 array
        Index of the logged action among the K.
    pscore : (n,) array
        Probability with which it was logged.
    reward : (n,) array
        phi' theta_s plus noise.
    """

    task: NDArray[Any]
    candidates: Array
    action: Codes
    pscore: Array
    reward: Array

    @property
    def phi(self) -> Array:
        """Return the features (n, d) of the logged actions."""
        rows = np.arange(self.action.size)
        return np.asarray(self.candidates[rows, self.action], dtype=np.float64)


def draw_tasks(hierarchy: Hierarchy, tasks: Ids, rng: np.random.Generator) -> TrueTasks:
    """Draw mu, then every node, then theta_s of every task, from the root down.

    Parameters
    ----------
    hierarchy : Hierarchy
        With a proper hyper-prior.
    tasks : (m,) ids
        Distinct; each needs a parent node where the hierarchy has levels.
    rng : numpy Generator
        Source of all randomness.

    Raises
    ------
    InputError
        The hyper-prior is flat, or a task is named twice.
    UnknownTaskError
        A task has no parent node in the hierarchy.
    """
    if hierarchy.hyper is None:
        raise InputError(
            "Nothing can be drawn from a flat hyper-prior; give the hierarchy a Gaussian as hyper."
        )
    keys, codes = Keys.factorize(tasks)
    if len(keys) != codes.size:
        twice = keys.values[np.bincount(codes).argmax()]
        raise InputError(f"Task {twice!r} is named twice in the tasks to draw; name each once.")
    dim = hierarchy.hyper.dim
    root = hierarchy.hyper.sample(rng, 1)[0]
    nodes: list[dict[Hashable, Array]] = []
    for k in reversed(range(len(hierarchy.levels))):
        names = list(dict.fromkeys(hierarchy.levels[k].parent.values()))
        parents = _parents(hierarchy, k + 1, names, root, nodes[0] if nodes else {})
        effects = Gaussian(np.zeros(dim), hierarchy.levels[k].cov).sample(rng, len(names))
        nodes.insert(0, dict(zip(names, frozen(parents + effects), strict=True)))
    parents = _parents(hierarchy, 0, keys.values.tolist(), root, nodes[0] if nodes else {})
    theta = parents + Gaussian(np.zeros(dim), hierarchy.task_cov).sample(rng, len(keys))
    return TrueTasks(hierarchy, keys, frozen(root), tuple(nodes), frozen(theta))


def _parents(
    hierarchy: Hierarchy, level: int, children: list[Hashable], root: Array, nodes: dict[Hashable, Array]
) -> Array:
    """Return the parameter of the parent of each child; ``level`` is that of the parents."""
    if level == len(hierarchy.levels):
        return np.tile(root, (len(children), 1))
    parent = hierarchy.levels[level].parent
    orphans = [child for child in children if child not in parent]
    if orphans:
        raise UnknownTaskError(
            f"{orphans[0]!r} hangs on no node of level {level}; add it to that level's parent mapping."
        )
    return np.array([nodes[parent[child]] for child in children]).reshape(len(children), root.size)


def draw_log(
    truth: TrueTasks,
    task: Ids,
    candidates: ArrayLike,
    rng: np.random.Generator,
    *,
    propensities: ArrayLike | None = None,
) -> SimulatedLog:
    """Log one action and its reward in each of n rows: r = phi' theta_s + N(0, sigma^2).

    Parameters
    ----------
    truth : TrueTasks
        Parameters of the tasks.
    task : (n,) ids
        Task of each row.
    candidates : (n, K, d) array
        phi(x, a) of every action in every row.
    rng : numpy Generator
        Source of all randomness.
    propensities : (n, K) array, optional
        Probability of each action in each row; uniform by default.

    Raises
    ------
    UnknownTaskError
        A row names a task that ``truth`` does not have.
    MismatchError
        Shapes do not fit together.
    InputError
        Propensities of a row are negative or do not add to one.
    """
    features = np.asarray(candidates, dtype=np.float64)
    rows = truth.keys.require(task)
    if features.ndim != 3 or features.shape[0] != rows.size or features.shape[2] != truth.root.size:
        raise MismatchError(
            f"candidates have shape {features.shape}; "
            f"(n, K, d) with n = {rows.size} and d = {truth.root.size} is needed."
        )
    probabilities = _checked_propensities(propensities, features.shape[:2])
    uniform = rng.random((rows.size, 1))
    action = np.minimum((np.cumsum(probabilities, axis=1) <= uniform).sum(axis=1), features.shape[1] - 1)
    row_numbers = np.arange(rows.size)
    mean = np.einsum("nd,nd->n", features[row_numbers, action], truth.theta[rows])
    reward = mean + np.sqrt(truth.hierarchy.noise_var) * rng.standard_normal(rows.size)
    return SimulatedLog(
        truth.tasks[rows],
        frozen(features),
        action.astype(np.int64),
        frozen(probabilities[row_numbers, action]),
        frozen(reward),
    )


def _checked_propensities(propensities: ArrayLike | None, shape: tuple[int, ...]) -> Array:
    if propensities is None:
        return np.full(shape, 1.0 / shape[1])
    probabilities = np.asarray(propensities, dtype=np.float64)
    if probabilities.shape != shape:
        raise MismatchError(
            f"propensities have shape {probabilities.shape}; {shape} is needed, as in candidates."
        )
    bad = ~((probabilities >= 0.0).all(axis=1) & (np.abs(probabilities.sum(axis=1) - 1.0) < 1e-9))
    if bad.any():
        row = int(bad.argmax())
        raise InputError(
            f"propensities of row {row} are {probabilities[row]}; they must be at least 0 and add to 1."
        )
    return probabilities


def policy_value(theta: ArrayLike, chosen: ArrayLike) -> Array:
    """Return the true value V_s(pi) = mean over contexts of phi(x, pi(x))' theta_s, in reward units.

    Parameters
    ----------
    theta : (m, d) array
        Parameter of each task.
    chosen : (m, E, d) array
        phi of the action that the policy takes, in each of E contexts of each task.

    Returns
    -------
    (m,) array
    """
    features, parameters = np.asarray(chosen, dtype=np.float64), np.asarray(theta, dtype=np.float64)
    return np.asarray(np.einsum("sed,sd->s", features, parameters) / features.shape[1], dtype=np.float64)


def suboptimality(theta: ArrayLike, candidates: ArrayLike, index: ArrayLike) -> Array:
    """Return the true loss V_s(pi_*) - V_s(pi) of each task, in reward units; never negative.

    Parameters
    ----------
    theta : (m, d) array
        Parameter of each task.
    candidates : (m, E, K, d) array
        phi(x, a) of every action in each of E contexts of each task.
    index : (m, E) int array
        The action that the policy takes there.

    Returns
    -------
    (m,) array
    """
    features, parameters = np.asarray(candidates, dtype=np.float64), np.asarray(theta, dtype=np.float64)
    mean: Array = np.einsum("sekd,sd->sek", features, parameters)
    chosen = np.take_along_axis(mean, np.asarray(index, dtype=np.int64)[..., None], axis=-1)[..., 0]
    return np.asarray((mean.max(axis=-1) - chosen).mean(axis=-1), dtype=np.float64)


def synthetic_hierarchy(
    hyper_sd: float, *, dim: int = 4, task_sd: float = 0.5, noise_sd: float = 0.5
) -> Hierarchy:
    """Return the paper's synthetic hierarchy: mu_q = 0, Sigma_q = sigma_q^2 I, Sigma_0 = sigma_0^2 I.

    Source: arXiv 2212.04720, the section on synthetic experiments.
    """
    identity = np.eye(dim)
    return Hierarchy(
        hyper=Gaussian(np.zeros(dim), hyper_sd**2 * identity),
        task_cov=task_sd**2 * identity,
        noise_var=noise_sd**2,
    )


def synthetic_features(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Draw features of the paper's synthetic problems, uniform on [-1/2, 1/2]^d; shape (..., d)."""
    return rng.uniform(-0.5, 0.5, shape)


def synthetic_run(
    hierarchy: Hierarchy, n_tasks: int, n_rows: int, rng: np.random.Generator, *, n_actions: int = 5
) -> tuple[TrueTasks, SimulatedLog]:
    """Draw a run of the paper's synthetic problem: tasks 0 .. m-1, then a log under uniform actions.

    Each row's task is drawn uniformly, so that some tasks may have no rows at all.

    Parameters
    ----------
    hierarchy : Hierarchy
        Usually `synthetic_hierarchy`.
    n_tasks, n_rows : int
        m tasks; n rows in total.
    rng : numpy Generator
        Source of all randomness.
    n_actions : int
        K.
    """
    truth = draw_tasks(hierarchy, np.arange(n_tasks), rng)
    task = rng.integers(n_tasks, size=n_rows)
    candidates = synthetic_features((n_rows, n_actions, truth.root.size), rng)
    return truth, draw_log(truth, task, candidates, rng)
