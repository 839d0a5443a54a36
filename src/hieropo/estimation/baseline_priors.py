"""Priors of the baselines: the noise variance of one fit to all rows, and the prior of independent tasks."""

import numpy as np

from hieropo.estimation.likelihood import Problem, pooled
from hieropo.estimation.reml import with_rows
from hieropo.estimation.shapes import noise_inside
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.posterior import condition
from hieropo.moments.statistics import Moments


def pooled_noise(moments: Moments) -> float:
    """Return the residual variance of one least-squares fit to the rows of all tasks, in squared reward units."""
    active = with_rows(moments)
    return pooled(Problem(active, "reml", noise_inside(active)[1])).noise_var


def empirical_flat(hierarchy: Hierarchy, moments: Moments) -> Hierarchy:
    """Return FlatOPO's prior from an estimate: N(0, diag(mu_j^2 + Sigma_0_jj)), the usual size of each coefficient."""
    mu = condition(moments, hierarchy).hyper.mean
    size = mu**2 + np.diagonal(hierarchy.task_cov)
    known = Gaussian(np.zeros(mu.size), np.zeros((mu.size, mu.size)))
    return Hierarchy(hyper=known, task_cov=np.diag(size), noise_var=hierarchy.noise_var)
