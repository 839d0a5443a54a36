"""One round of expectation propagation over tasks with unknown labels: what ``_kernels.reference.propagation`` defines.

A precision is A = R'R with R upper triangular, and Y = R'^-1 is lower triangular, so that A^-1 = Y'Y. All loops run
along rows of matrices.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

import math

import numpy as np
from numba.extending import register_jitable

from hieropo._kernels.jit import compiled


@register_jitable
def factor(A, D):
    """Replace the upper triangle of A by R; half of log |A|, or NaN where A is not positive definite."""
    log_det = 0.0
    for k in range(D):
        pivot = A[k, k]
        if not pivot > 0.0:
            return math.nan
        log_det += 0.5 * math.log(pivot)
        scale = 1.0 / math.sqrt(pivot)
        for j in range(k, D):
            A[k, j] *= scale
        for i in range(k + 1, D):
            x = A[k, i]
            for j in range(i, D):
                A[i, j] -= x * A[k, j]
    return log_det


@register_jitable
def half_solve(R, x, D):
    """Replace x by R'^-1 x; half of its square."""
    square = 0.0
    for k in range(D):
        x[k] /= R[k, k]
        square += x[k] * x[k]
        for j in range(k + 1, D):
            x[j] -= x[k] * R[k, j]
    return 0.5 * square


@register_jitable
def invert(R, Y, cov, D):
    """Put (R'R)^-1 in cov, and R'^-1 in Y."""
    Y[:] = 0.0
    cov[:] = 0.0
    for i in range(D):
        Y[i, i] = 1.0
        for k in range(i):
            x = R[k, i]
            for j in range(k + 1):
                Y[i, j] -= x * Y[k, j]
        scale = 1.0 / R[i, i]
        for j in range(i + 1):
            Y[i, j] *= scale
    for k in range(D):
        for i in range(k + 1):
            x = Y[k, i]
            for j in range(k + 1):
                cov[i, j] += x * Y[k, j]


@compiled
def one_round(
    information, score, constant, log_weights, gamma, nu, precision, shift, least,
    responsibilities, log_ratios, means, matched, matched_shift, phis,
):  # fmt: skip
    """As :func:`hieropo._kernels.reference.propagation.one_round`."""
    n, t, D = score.shape
    cavity, work, Y, cov, mixed = (
        np.empty((D, D)),
        np.empty((D, D)),
        np.empty((D, D)),
        np.empty((D, D)),
        np.empty((D, D)),
    )
    roots, halves = np.empty((n, D, D)), np.empty((n, D))
    h, mean = np.empty(D), np.empty(D)
    for s in range(t):
        for i in range(D):
            h[i] = nu[i] - shift[s, i]
            mean[i] = h[i]
            for j in range(D):
                cavity[i, j] = gamma[i, j] - precision[s, i, j]
                work[i, j] = cavity[i, j]
        log_det = factor(work, D)
        if math.isnan(log_det):
            return False
        phis[s] = half_solve(work, mean, D) - log_det
        most = -math.inf
        for k in range(n):
            for i in range(D):
                halves[k, i] = h[i] + score[k, s, i]
                for j in range(i, D):
                    roots[k, i, j] = cavity[i, j] + information[k, s, i, j]
            log_det = factor(roots[k], D)
            if math.isnan(log_det):
                return False
            log_ratios[k, s] = constant[k, s] + (half_solve(roots[k], halves[k], D) - log_det) - phis[s]
            most = max(most, log_ratios[k, s] + log_weights[k])
        total = 0.0
        for k in range(n):
            responsibilities[s, k] = math.exp(log_ratios[k, s] + log_weights[k] - most)
            total += responsibilities[s, k]
        left, last = 0, 0
        for k in range(n):
            responsibilities[s, k] /= total
            if responsibilities[s, k] < least:
                means[k, s] = 0.0
                continue
            left, last = left + 1, k
            for i in range(D - 1, -1, -1):  # R mean = half
                x = halves[k, i]
                for j in range(i + 1, D):
                    x -= roots[k, i, j] * means[k, s, j]
                means[k, s, i] = x / roots[k, i, i]
        if left == 1:
            matched[s] = information[last, s]
            matched_shift[s] = score[last, s]
            continue
        mean[:] = 0.0
        mixed[:] = 0.0
        for k in range(n):
            if responsibilities[s, k] >= least:
                for i in range(D):
                    mean[i] += responsibilities[s, k] * means[k, s, i]
        for k in range(n):
            weight = responsibilities[s, k]
            if weight < least:
                continue
            invert(roots[k], Y, cov, D)
            for i in range(D):
                x = means[k, s, i] - mean[i]
                for j in range(D):
                    mixed[i, j] += weight * (cov[i, j] + x * (means[k, s, j] - mean[j]))
        if math.isnan(factor(mixed, D)):
            return False
        invert(mixed, Y, cov, D)
        for i in range(D):
            x = -h[i]
            for j in range(D):
                x += cov[i, j] * mean[j]
                matched[s, i, j] = cov[i, j] - cavity[i, j]
            matched_shift[s, i] = x
    return True
