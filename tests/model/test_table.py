"""The table of posteriors: of all features, or of each action by itself."""

import numpy as np
import pytest
from unit_logs import log

from hieropo._utils.packed import pack
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.posterior import condition_crossed
from hieropo.model.gaussian import Gaussian
from hieropo.model.table import PosteriorTable
from hieropo.rows.keys import Keys


def test_marginals_of_a_joint_table_are_those_that_it_was_made_of() -> None:
    cov = np.array([[2.0, 0.5], [0.5, 1.0]])
    table = PosteriorTable.joint(
        Keys(["a", "b"]), np.array([[1.0, 2.0], [3.0, 4.0]]), pack(np.stack([cov, 2 * cov])), np.ones(2),
        Gaussian([0.0, 5.0], 3 * cov),
    )  # fmt: skip
    assert (table.per_action, table.n_marginals, table.dim) == (False, 1, 2)
    np.testing.assert_array_equal(table.marginal(1).mean, [3.0, 4.0])
    np.testing.assert_array_equal(table.marginal(1).cov, 2 * cov)
    np.testing.assert_array_equal(table.prior.mean, [0.0, 5.0])
    np.testing.assert_array_equal(table.marginal(-1).cov, 3 * cov)


@pytest.mark.parametrize("action", [0, 3])
def test_marginals_of_a_table_per_action_are_those_of_the_posterior(action: int) -> None:
    units, eye = log().units(), np.eye(3)
    posterior = condition_crossed(units, CrossedHierarchy(eye, eye, eye, np.ones(4)))
    table = posterior.table()
    assert (table.per_action, table.n_marginals, table.dim) == (True, 4, 12)
    for row, task in ((2, units.tasks[2]), (-1, "new")):
        want = posterior.unit(task, action, unseen="prior")
        np.testing.assert_allclose(table.marginal(row, action).mean, want.mean, rtol=1e-10)
        np.testing.assert_allclose(table.marginal(row, action).cov, want.cov, rtol=1e-10, atol=1e-14)
