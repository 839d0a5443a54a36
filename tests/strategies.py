"""Hypothesis strategies: hierarchies and logs of every rank and scale, as `Problem` and as hieropo values.

Structure (dimensions, ranks, exponents, trees, ids) is drawn by Hypothesis, so that it shrinks; the numbers
inside come from a generator with a drawn seed, so that they lie in general position.
"""

from collections.abc import Hashable, Mapping
from datetime import date
from typing import Any

import numpy as np
from hypothesis import strategies as st
from reference.dense import Problem

from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Hierarchy, Level
from hieropo.moments.statistics import Moments

Array = np.ndarray[Any, np.dtype[np.float64]]

INTEGER_IDS: tuple[Hashable, ...] = (7, -3, 0, 2**40, 11, 5)
STRING_IDS: tuple[Hashable, ...] = ("south", "", "é", "a b", "7", "north")
MIXED_IDS: tuple[Hashable, ...] = ("7", 7, "south", -3, date(2024, 2, 29), "z")

seeds = st.integers(0, 2**32 - 1)
task_ids = st.sampled_from([INTEGER_IDS, STRING_IDS, MIXED_IDS])


@st.composite
def covariances(draw: st.DrawFn, dim: int, *, min_rank: int = 0) -> Array:
    """PSD (dim, dim) of any rank; below full rank of few binary digits, hence exactly singular."""
    rank = draw(st.integers(min_rank, dim))
    scale = 4.0 ** draw(st.integers(-4, 3))
    rng = np.random.default_rng(draw(seeds))
    if rank == dim:
        axes, _ = np.linalg.qr(rng.standard_normal((dim, dim)))
        cov = (axes * rng.uniform(0.02, 1.0, dim)) @ axes.T
        return scale * (cov + cov.T) / 2
    factor = rng.integers(-3, 4, (dim, rank)) / 4
    return scale * (factor @ factor.T)


@st.composite
def features_of_rank(draw: st.DrawFn, dim: int, noise_var: float, *, max_rows: int = 5) -> Array:
    """Rows (n, dim) of one task, n >= 0, with ||G|| between 1e-12 and 1e6.

    Of rank <= dim: exactly, to rounding, or nearly, where the remaining directions are hardly seen.
    """
    n = draw(st.integers(0, max_rows))
    rank = draw(st.integers(0, dim))
    exponent = draw(st.integers(-12, 6))
    kind = draw(st.sampled_from(["exact", "rounded", "near"]))
    rng = np.random.default_rng(draw(seeds))
    if kind == "exact":
        phi = (rng.integers(-8, 9, (n, rank)) / 8) @ (rng.integers(-3, 4, (rank, dim)) / 1.0)
    else:
        phi = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, dim))
    if kind == "near":
        phi += 10.0 ** -draw(st.integers(1, 10)) * rng.standard_normal((n, dim))
    size = np.linalg.norm(phi, 2) if phi.size else 0.0
    if size == 0.0:
        return phi
    factor = np.sqrt(10.0**exponent * noise_var) / size
    # A power of two keeps exact rows exact.
    return phi * (2.0 ** np.floor(np.log2(factor)) if kind == "exact" else factor)


@st.composite
def trees(draw: st.DrawFn, tasks: tuple[Hashable, ...], dim: int, max_levels: int = 3) -> Any:
    """0 to ``max_levels`` levels over the tasks; children are dealt to parents at random."""
    rng = np.random.default_rng(draw(seeds))
    children: list[Hashable] = list(tasks)
    levels: list[tuple[Array, Mapping[Hashable, Hashable]]] = []
    for k in range(draw(st.integers(0, max_levels))):
        names = [f"node {k}.{i}" for i in range(draw(st.integers(1, max(1, len(children)))))]
        parent: dict[Hashable, Hashable] = {child: names[rng.integers(len(names))] for child in children}
        levels.append((draw(covariances(dim)), parent))
        children = list(dict.fromkeys(parent.values()))
    return tuple(levels)


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    flat: bool = False,
    max_levels: int = 3,
    max_dim: int = 4,
    max_tasks: int = 5,
    weighted: bool | None = None,
) -> Problem:
    """A hierarchy and a log: every rank of G_s, Sigma_0 and Sigma_q, tasks without rows, trees to depth 4."""
    dim = draw(st.integers(1, max_dim))
    ids = draw(task_ids)[: draw(st.integers(1, max_tasks))]
    noise_var = 4.0 ** draw(st.integers(-3, 3)) * 1.3
    task_cov = draw(covariances(dim))
    hyper_cov = None if flat else draw(covariances(dim))
    levels = draw(trees(ids, dim, max_levels))
    rows = [draw(features_of_rank(dim, noise_var)) for _ in ids]
    rng = np.random.default_rng(draw(seeds))
    with_weights = draw(st.booleans()) if weighted is None else weighted
    task = [s for s, own in zip(ids, rows, strict=True) for _ in own]
    phi = np.concatenate([np.zeros((0, dim)), *rows])
    precision = rng.uniform(0.2, 5.0, len(task)) if with_weights else np.ones(len(task))
    hyper_mean = rng.standard_normal(dim)
    theta = {s: hyper_mean + rng.standard_normal(dim) for s in ids}
    signal = np.array([own @ theta[s] for s, own in zip(task, phi, strict=True)]).reshape(len(task))
    reward = signal + rng.standard_normal(len(task)) * np.sqrt(noise_var / precision)
    # In a log the rows of one task do not stand together.
    order = rng.permutation(len(task))
    return Problem(
        task=[task[t] for t in order],
        phi=phi[order],
        reward=reward[order],
        precision=precision[order],
        task_cov=task_cov,
        noise_var=noise_var,
        hyper_mean=hyper_mean,
        hyper_cov=hyper_cov,
        levels=levels,
    )


def id_column(ids: list[Hashable]) -> Any:
    """Ids as an array; of mixed kinds, each is kept as it is."""
    if len({type(i) for i in ids}) <= 1:
        return np.array(ids)
    column = np.empty(len(ids), dtype=object)
    column[:] = ids
    return column


def moments_of(problem: Problem) -> Moments:
    """Moments of the rows of a problem."""
    if not problem.task:
        return Moments.zero(problem.dim)
    return Moments.from_arrays(
        id_column(problem.task), problem.phi, problem.reward, precision=problem.precision
    )


def hierarchy_of(problem: Problem) -> Hierarchy:
    """Hierarchy of a problem."""
    flat = problem.hyper_cov is None
    return Hierarchy(
        hyper=None if flat else Gaussian(problem.hyper_mean, problem.hyper_cov),
        task_cov=problem.task_cov,
        noise_var=problem.noise_var,
        levels=tuple(Level(cov, parent) for cov, parent in problem.levels),
    )
