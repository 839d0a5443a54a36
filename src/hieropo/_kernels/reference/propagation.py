"""One round of expectation propagation in plain numpy: the definition that ``_kernels.propagation`` answers to."""

import numpy as np

from hieropo._kernels.reference.gaussians import inverted, phi
from hieropo._utils.arrays import Array


def one_round(
    information: Array, score: Array, constant: Array, log_weights: Array, gamma: Array, nu: Array,
    precision: Array, shift: Array, least: float, responsibilities: Array, log_ratios: Array, means: Array,
    matched: Array, matched_shift: Array, phis: Array,
) -> bool:  # fmt: skip
    """Set the posteriors of t tasks given labels, and the factors that follow; False where a law is no Gaussian.

    Parameters
    ----------
    information : (n, t, D, D) array
        Of z, by the rows of each task under each label.
    score : (n, t, D) array
    constant : (n, t) array
    log_weights : (n,) array
    gamma : (D, D) array
        Precision of z by all factors.
    nu : (D,) array
        Their shift.
    precision, shift : (t, D, D), (t, D) array
        Factors of the tasks. The cavity of task s is gamma - precision[s], nu - shift[s].
    least : float
        Responsibility below which a label has no part in the new factor, and means of 0. Where one label is left, the
        factor is that of its rows.
    responsibilities : (t, n) array
        Receives the posterior probabilities of the labels,
    log_ratios : (n, t) array
        the log evidence of the rows under each label,
    means : (n, t, D) array
        the means of z given a label,
    matched, matched_shift : (t, D, D), (t, D) array
        the new factors,
    phis : (t,) array
        and Phi of the cavities.
    """
    cavity, h = gamma - precision, nu - shift
    try:
        phis[:] = phi(cavity, h)
        log_ratios[:] = constant + phi(cavity + information, h + score) - phis
        joint = log_ratios.T + log_weights
        shares = np.exp(joint - joint.max(axis=1, keepdims=True))
        responsibilities[:] = shares / shares.sum(axis=1, keepdims=True)
        task, label = np.nonzero(responsibilities >= least)  # by task, at least one of each
        covs, some, _ = inverted(cavity[task] + information[label, task], h[task] + score[label, task])
    except np.linalg.LinAlgError:
        return False
    means[:] = 0.0
    means[label, task] = some
    matched[task], matched_shift[task] = information[label, task], score[label, task]
    mixed = np.bincount(task, minlength=len(h)) > 1
    rows = mixed[task]
    task, covs, some, weight = task[rows], covs[rows], some[rows], responsibilities[task, label][rows]
    if not task.size:
        return True
    places, starts = np.unique(task, return_index=True)
    mean = np.add.reduceat(weight[:, None] * some, starts, axis=0)
    away = some - mean[np.searchsorted(places, task)]
    cov = np.add.reduceat(
        weight[:, None, None] * (covs + away[:, :, None] * away[:, None, :]), starts, axis=0
    )
    try:
        inverse = inverted(cov, mean)[0]
    except np.linalg.LinAlgError:
        return False
    changed = inverse - cavity[mixed]
    matched[mixed] = (changed + changed.swapaxes(1, 2)) / 2  # what is not symmetric would grow in every round
    matched_shift[mixed] = np.einsum("tij,tj->ti", inverse, mean) - h[mixed]
    return True
