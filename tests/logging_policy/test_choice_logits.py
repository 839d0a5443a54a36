"""Logits of choices from sums: against the slow maximum over rows, and against what made the choices."""

from importlib import import_module

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp

from hieropo.logging_policy.choice_logits import choice_logits

K = 4


def drawn(seed: int, m: int, n: int, q: int, sd: float = 0.7) -> tuple[np.ndarray, ...]:
    """Logits (m, K, p), contexts (m, n, q) away from 0 and of unlike scales, actions (m, n)."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 0.5, (K, q + 1)) + rng.normal(0, sd, (m, K, q + 1))
    x = rng.standard_normal((m, n, q)) * np.geomspace(1, 10, q) + 3 * rng.standard_normal((m, 1, q)) / 4
    score = logits[:, None, :, 0] + np.einsum("mkq,mnq->mnk", logits[:, :, 1:] / np.geomspace(1, 10, q), x)
    logits[:, :, 1:] /= np.geomspace(1, 10, q)
    return logits, x, (score + rng.gumbel(size=score.shape)).argmax(axis=2)


def sums_of(x: np.ndarray, action: np.ndarray, actions: int = K) -> tuple[np.ndarray, ...]:
    taken = np.eye(actions)[action]
    return taken.sum(axis=1), np.einsum("mnk,mnq->mkq", taken, x), np.einsum("mnp,mnq->mpq", x, x)


def slow(x: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Mode of each task's logit by its rows, around the mode of all rows."""
    flat = x.reshape(action.size, x.shape[2])
    mean, scale = flat.mean(axis=0), flat.std(axis=0)
    design = np.concatenate([np.ones((*x.shape[:2], 1)), (x - mean) / scale], axis=2)

    def mode(u: np.ndarray, taken: np.ndarray, centre: np.ndarray, var: float) -> np.ndarray:
        def loss(z: np.ndarray) -> tuple[float, np.ndarray]:
            eta = u @ z.reshape(K, -1).T
            chance = np.exp(eta - logsumexp(eta, axis=1)[:, None])
            away = z - centre.ravel()
            value = (
                logsumexp(eta, axis=1).sum() - eta[np.arange(len(u)), taken].sum() + away @ away / (2 * var)
            )
            return value, ((chance - np.eye(K)[taken]).T @ u).ravel() + away / var

        return minimize(loss, centre.ravel(), jac=True, method="BFGS", options={"gtol": 1e-7}).x.reshape(
            K, -1
        )

    pooled = mode(
        design.reshape(action.size, design.shape[2]), action.ravel(), np.zeros((K, design.shape[2])), 25.0
    )
    found = np.array([mode(u, a, pooled, 1.0) for u, a in zip(design, action, strict=True)])
    found -= found.mean(axis=1, keepdims=True)
    found[:, :, 1:] /= scale
    found[:, :, 0] -= found[:, :, 1:] @ mean
    return found


@pytest.mark.parametrize(("q", "mean", "same"), [(1, 0.03, 0.998), (2, 0.06, 0.99), (3, 0.12, 0.98)])
def test_sums_give_nearly_what_rows_give(q, mean, same) -> None:
    _, x, action = drawn(q, 12, 60, q)
    scale = np.concatenate([[1.0], x.reshape(-1, q).std(axis=0)])
    found, expected = choice_logits(*sums_of(x, action)) * scale, slow(x, action) * scale
    assert np.abs(found - expected).mean() < mean < 0.3 * np.abs(expected).mean()
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > same


def test_without_contexts_it_is_the_slow_mode() -> None:
    _, x, action = drawn(0, 10, 50, 0)
    found = choice_logits(*sums_of(x, action))
    np.testing.assert_allclose(found, slow(x, action), atol=2e-3)


def test_many_rows_give_the_logits_that_made_the_choices() -> None:
    logits, x, action = drawn(5, 6, 20_000, 2)
    found, scale = choice_logits(*sums_of(x, action)), np.array([1.0, *x.reshape(-1, 2).std(axis=0)])
    away = (
        found - logits + logits.mean(axis=1, keepdims=True)
    ) * scale  # what a few points cost, and the penalty
    assert np.abs(away).mean() < 0.08
    assert np.abs(away).max() < 0.45


def test_contexts_in_other_units_give_the_same_choices() -> None:
    _, x, action = drawn(3, 8, 30, 2)
    found = choice_logits(*sums_of(x, action))
    recentred = choice_logits(*sums_of(5.0 * x + 2.0, action))
    np.testing.assert_allclose(recentred[:, :, 1:], found[:, :, 1:] / 5.0, atol=1e-8)
    np.testing.assert_allclose(
        recentred[:, :, 0], found[:, :, 0] - 2.0 * recentred[:, :, 1:].sum(axis=2), atol=1e-8
    )


def test_a_column_that_does_not_vary_and_an_action_never_taken_get_nothing() -> None:
    _, x, action = drawn(4, 8, 30, 2)
    x[:, :, 1] = 4.0
    found = choice_logits(*sums_of(x, action, K + 1))
    assert np.isfinite(found).all()
    assert (found[:, :, 2] == 0).all()
    assert (found[:, K] == 0).all()
    np.testing.assert_allclose(found.sum(axis=1), 0.0, atol=1e-12)


def test_tasks_of_no_row_one_row_and_one_action_are_finite_and_near_the_others() -> None:
    _, x, action = drawn(6, 9, 30, 2)
    counts, sums, squares = sums_of(x, action)
    for each in (counts, sums, squares):
        each[0] = 0.0
    counts[1], sums[1] = np.eye(K)[0], np.eye(K)[0][:, None] * x[1, 0]
    squares[1] = np.outer(x[1, 0], x[1, 0])
    found = choice_logits(counts, sums, squares)
    assert np.isfinite(found).all()
    away = np.abs((found - found[2:].mean(axis=0)) * np.array([1.0, 1.0, 10.0])).max(axis=(1, 2))
    assert away[0] < away[2:].max()
    assert away[1] < away[2:].max()


def test_pieces_do_not_matter(monkeypatch) -> None:
    _, x, action = drawn(7, 11, 20, 2)
    whole = choice_logits(*sums_of(x, action))
    monkeypatch.setattr(import_module("hieropo.logging_policy.choice_logits"), "_MAX_NUMBERS", 1)
    np.testing.assert_allclose(choice_logits(*sums_of(x, action)), whole, atol=1e-12)
