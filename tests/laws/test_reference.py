"""The slow truth itself, against a second route: the joint precision of all increments, in float64."""

import numpy as np
import pytest
from reference.dense import Array, Dense, Problem
from scipy import linalg, stats

inverse = linalg.inv  # noqa: TID251  this route inverts where the definition inverts

DIM = 2
NOISE = 0.7
UP: dict[str, dict[object, object]] = {"s": {0: "A", 1: "A", 2: "B"}, "A": {"A": "top", "B": "top"}}


def definite(rng: np.random.Generator) -> Array:
    factor = rng.standard_normal((DIM, DIM + 2))
    return factor @ factor.T


def example(*, flat: bool) -> Problem:
    """Three tasks, the last without rows, under two nodes under one node under the root."""
    rng = np.random.default_rng(5)
    n = 9
    return Problem(
        task=[int(s) for s in rng.integers(0, 2, n)],
        phi=rng.standard_normal((n, DIM)),
        reward=rng.standard_normal(n),
        precision=rng.uniform(0.5, 2.0, n),
        task_cov=definite(rng),
        noise_var=NOISE,
        hyper_mean=rng.standard_normal(DIM),
        hyper_cov=None if flat else definite(rng),
        levels=((definite(rng), UP["s"]), (definite(rng), UP["A"])),
    )


# Increments in the order root, top, A, B, task 0, task 1, task 2; each unknown as a sum of them.
PATHS = {
    "root": (0,),
    "top": (0, 1),
    "A": (0, 1, 2),
    "B": (0, 1, 3),
    0: (0, 1, 2, 4),
    1: (0, 1, 2, 5),
    2: (0, 1, 3, 6),
}


def pick(unknown: object) -> Array:
    return np.hstack([np.eye(DIM) * (k in PATHS[unknown]) for k in range(7)])


def by_precision(p: Problem) -> tuple[Array, Array, Array, Array]:
    """Mean and covariance of the increments; the design of the rewards on them; their prior precision."""
    assert len(p.levels) == 2
    low, top = p.levels[0][0], p.levels[1][0]
    root = np.zeros((DIM, DIM)) if p.hyper_cov is None else inverse(p.hyper_cov)
    prior = linalg.block_diag(
        root, *[inverse(c) for c in (top, low, low, p.task_cov, p.task_cov, p.task_cov)]
    )
    centre = np.concatenate([p.hyper_mean, np.zeros(6 * DIM)])
    design = np.stack([row @ pick(s) for s, row in zip(p.task, p.phi, strict=True)])
    cov = inverse(prior + design.T @ np.diag(p.precision / p.noise_var) @ design)
    mean = cov @ (prior @ centre + design.T @ (p.precision / p.noise_var * p.reward))
    return mean, cov, design, prior


@pytest.mark.parametrize("flat", [False, True])
def test_every_unknown_by_the_joint_precision(flat: bool) -> None:  # noqa: FBT001  a parameter of the test
    dense = Dense(example(flat=flat))
    mean, cov, _, _ = by_precision(dense.problem)
    laws = {
        "root": dense.hyper,
        "top": dense.node(1, "top"),
        "A": dense.node(0, "A"),
        "B": dense.node(0, "B"),
        **{s: dense.task(s) for s in (0, 1, 2)},
    }
    for unknown, (got_mean, got_cov) in laws.items():
        np.testing.assert_allclose(got_mean, pick(unknown) @ mean, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(got_cov, pick(unknown) @ cov @ pick(unknown).T, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(dense.cov_between(0, 2), pick(0) @ cov @ pick(2).T, rtol=1e-11, atol=1e-12)
    node_mean, node_cov = dense.node(0, "B")
    np.testing.assert_allclose(dense.new_task("B")[0], node_mean, rtol=1e-14)
    np.testing.assert_allclose(dense.new_task("B")[1], node_cov + dense.problem.task_cov, rtol=1e-14)
    increments = dense.problem.task_cov + dense.problem.levels[0][0] + dense.problem.levels[1][0]
    np.testing.assert_allclose(dense.new_task()[0], dense.hyper[0], rtol=1e-14)
    np.testing.assert_allclose(dense.new_task()[1], dense.hyper[1] + increments, rtol=1e-14)


def test_evidence_is_the_density_of_the_rewards() -> None:
    p = example(flat=False)
    _, _, design, prior = by_precision(p)
    law = stats.multivariate_normal(
        p.phi @ p.hyper_mean, design @ inverse(prior) @ design.T + np.diag(p.noise_var / p.precision)
    )
    assert Dense(p).log_evidence == pytest.approx(law.logpdf(p.reward), rel=1e-12)


def test_flat_is_the_limit_of_ever_wider_hyper_priors() -> None:
    flat, wide = example(flat=True), 1e40
    proper = Problem(**{**vars(flat), "hyper_cov": wide * np.eye(DIM)})
    limit, truth = Dense(proper), Dense(flat)
    np.testing.assert_allclose(limit.task(2)[0], truth.task(2)[0], rtol=1e-14)
    np.testing.assert_allclose(limit.hyper[1], truth.hyper[1], rtol=1e-14)
    # The density of N(m, wide I) is (2 pi wide)^(-d/2) near its centre; Lebesgue measure has density 1.
    unit = DIM / 2 * np.log(2 * np.pi * wide)
    assert limit.log_evidence + unit == pytest.approx(truth.log_evidence, rel=1e-13)


def test_rewards_in_one_dimension_by_hand() -> None:
    # theta ~ N(0, 3), r = 2 theta + e, e ~ N(0, 4 / 2), r = 7: gain 6 / (12 + 2).
    p = Problem(
        task=["a"],
        phi=np.array([[2.0]]),
        reward=np.array([7.0]),
        precision=np.array([2.0]),
        task_cov=np.array([[1.0]]),
        noise_var=4.0,
        hyper_mean=np.zeros(1),
        hyper_cov=np.array([[2.0]]),
    )
    mean, cov = Dense(p).task("a")
    assert mean[0] == pytest.approx(3.0, rel=1e-15)
    assert cov[0, 0] == pytest.approx(3.0 - 36.0 / 14.0, rel=1e-15)
    assert Dense(p).log_evidence == pytest.approx(stats.norm(0, np.sqrt(14)).logpdf(7.0), rel=1e-14)
