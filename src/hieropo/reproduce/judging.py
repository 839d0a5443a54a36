"""Many algorithms on one log, evaluated against the truth."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo.errors import HieropoWarning, NumericalError
from hieropo.estimation.hyper.uncertainty import learn
from hieropo.evaluation.by_posterior.bounds import exact_constant, paper_constant
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.posterior import condition
from hieropo.moments.statistics import Moments
from hieropo.policies.lower_bound import LCBPolicy, checked_pessimism
from hieropo.reproduce.settings import Algorithm

R = TypeVar("R")

REFUSED = "shapes refused"  # key beside the figures of a run
SIMPLER = ("auto", "diag", "isotropic")  # shapes of Sigma_0 to try in this order


@dataclass(frozen=True, eq=False)
class World:
    """The random draws of a run: the truth, the moments of its log, and the contexts of the evaluation.

    Parameters
    ----------
    prior : Hierarchy
        From which tasks were drawn, or one that stands for it.
    root : (d,) array
        The paper's mu_*.
    theta : (m, d) array
        Parameters of the tasks 0 .. m-1.
    moments : Moments
        Of those tasks; some may have no rows.
    candidates : (m, E, K, d) array
        phi(x, a) of every action in each of E contexts of each task.
    weights : (m,) array
        Weights of tasks in the mean; they add to 1.
    """

    prior: Hierarchy
    root: Array
    theta: Array
    moments: Moments
    candidates: Array
    weights: Array


def pessimism(algorithm: Algorithm, dim: int) -> float:
    """Return the pessimism of an algorithm."""
    word, level = algorithm.pessimism, algorithm.level
    if isinstance(word, float):
        return word
    if word == "calibrated":
        return checked_pessimism(None, level)
    return (exact_constant if word == "simultaneous" else paper_constant)(dim, 1.0 - level)


def with_first_accepted(learn_as: Callable[[Any], R], shapes: Sequence[str] = SIMPLER) -> tuple[R, int]:
    """Learn with the first structure of Sigma_0 that is not refused; return the result and the number of refusals.

    Messages of refusal advise such a simpler covariance. Warnings are hidden.

    Raises
    ------
    NumericalError
        Not even one variance can be learned.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HieropoWarning)
        for refused, shape in enumerate(shapes[:-1]):
            try:
                return learn_as(shape), refused
            except NumericalError:
                continue
        return learn_as(shapes[-1]), len(shapes) - 1


_KNOWN_PRIORS: dict[str, Callable[[World], Hierarchy]] = {
    "oracle": lambda world: world.prior.oracle(world.root),
    "hierarchical": lambda world: world.prior,
    "flat": lambda world: world.prior.flat(),
    "pooled": lambda world: world.prior.pooled(),
}


def choices(world: World, algorithms: Sequence[Algorithm]) -> tuple[list[Codes], int]:
    """Return the actions of each algorithm, (m, E), and the number of refused structures of Sigma_0."""
    m, contexts, actions, dim = world.candidates.shape
    tasks, phi = np.repeat(np.arange(m), contexts), world.candidates.reshape(-1, actions, dim)
    posteriors: dict[str, Any] = {}
    chosen, refused = [], 0
    for algorithm in algorithms:
        if algorithm.prior not in posteriors:
            if algorithm.prior == "learned":
                learned, refused = with_first_accepted(lambda shape: learn(world.moments, shape))
                posteriors[algorithm.prior] = learned.posterior
            else:
                posteriors[algorithm.prior] = condition(world.moments, _KNOWN_PRIORS[algorithm.prior](world))
        policy = LCBPolicy(posteriors[algorithm.prior], pessimism=pessimism(algorithm, dim))
        index = policy.choose_many(tasks, phi=phi, threads=1).index
        chosen.append(index.reshape(m, contexts))
    return chosen, refused


def losses(world: World, algorithms: Sequence[Algorithm]) -> dict[str, float]:
    """Return the mean suboptimality by algorithm, in reward units, and the number of refused structures of Sigma_0."""
    choices_by_algorithm, refused = choices(world, algorithms)
    value: Array = np.einsum("sekd,sd->sek", world.candidates, world.theta, optimize=True)
    best = value.max(axis=-1)
    mean_losses = {}
    for algorithm, index in zip(algorithms, choices_by_algorithm, strict=True):
        chosen = np.take_along_axis(value, index[..., None], axis=-1)[..., 0]
        mean_losses[algorithm.name] = float(world.weights @ (best - chosen).mean(axis=1))
    return {**mean_losses, REFUSED: float(refused)}
