"""Roots of covariances."""

import numpy as np
import pytest

from hieropo.model.steps import pivoted_roots, square_roots


@pytest.mark.parametrize("roots", [pivoted_roots, square_roots])
def test_roots_give_the_covariance_back_for_any_rank_and_scale(roots) -> None:
    rng = np.random.default_rng(0)
    halves = [rng.standard_normal((6, rank)) for rank in (6, 3, 1)]
    halves.append(rng.standard_normal((6, 4)) * np.geomspace(1e-6, 1e6, 6)[:, None])
    covs = np.array([half @ half.T for half in halves] + [np.zeros((6, 6)), np.diag([1.0, 0, 4, 0, 0, 9])])
    for root, cov in zip(roots(covs), covs, strict=True):
        size = np.sqrt(np.outer(np.diagonal(cov), np.diagonal(cov)))
        assert (np.abs(root @ root.T - cov) <= 1e-12 * size).all()
