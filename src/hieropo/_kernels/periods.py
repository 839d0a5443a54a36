"""A filter over periods of the coefficients of units: ``reference.periods`` says what it computes."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

import math

import numpy as np

from hieropo._kernels.jit import compiled, inlined


@inlined
def rescale(J, h, factor):
    """Divide coefficients by a factor, in the upper triangle of their information and in their scores."""
    for i in range(J.shape[0]):
        for j in range(i, J.shape[0]):
            J[i, j] *= factor * factor
        for c in range(h.shape[1]):
            h[i, c] *= factor


@compiled
def filter_units(sums, ratio, order, moves, root, columns, information, scores, products, log_det):
    """Add the periods of each unit in some order; after each, its coefficients move for a time."""
    p, width, first_of_z = root.shape[0], columns[0], columns[1]
    C, triangle = scores.shape[2], p * (p + 1) // 2
    of_information, of_scores = np.empty(p), np.empty(C)
    walks = False
    for i in range(p):
        for j in range(p):
            walks = walks or root[i, j] != 0.0
    for u in range(sums.shape[0]):
        J, h, q = information[u], scores[u], products[u]
        for step in range(order.size):
            t = order[step]
            S = sums[u, t]
            weight = 1.0 / ratio[u % ratio.shape[0], t]
            for j in range(p):
                for i in range(j + 1):
                    J[i, j] += weight * S[j * (j + 1) // 2 + i]
                h[j, 0] += weight * S[triangle + j]
            q[0, 0] += weight * S[triangle + p]
            first = 1 + width * t if columns[2] else 1
            for c in range(width):
                z = first_of_z + c
                column = z * (z + 1) // 2
                for i in range(p):
                    h[i, first + c] += weight * (S[column + i] if i <= z else S[i * (i + 1) // 2 + z])
                product = weight * (S[column + p] if p <= z else S[triangle + z])
                q[0, first + c] += product
                q[first + c, 0] += product
                for other in range(width):
                    y = first_of_z + other
                    q[first + c, first + other] += weight * (
                        S[column + y] if y <= z else S[y * (y + 1) // 2 + z]
                    )
            variance, before, after = moves[step, 0], moves[step, 1], moves[step, 2]
            if before != 1.0:
                rescale(J, h, before)
                log_det[u] -= 2.0 * p * math.log(before)
            if not walks or not variance > 0.0:
                if after != 1.0:
                    rescale(J, h, after)
                continue
            for k in range(p):
                spread = 1.0
                for i in range(p):
                    total = 0.0
                    for j in range(p):
                        total += (J[i, j] if i <= j else J[j, i]) * root[j, k]
                    of_information[i] = total
                    spread += variance * total * root[i, k]
                for c in range(C):
                    total = 0.0
                    for i in range(p):
                        total += root[i, k] * h[i, c]
                    of_scores[c] = total
                log_det[u] += math.log(spread)
                scale = variance / spread
                for i in range(p):
                    gain = scale * of_information[i]
                    for j in range(i, p):
                        J[i, j] -= gain * of_information[j]
                    for c in range(C):
                        h[i, c] -= gain * of_scores[c]
                for c in range(C):
                    gain = scale * of_scores[c]
                    if gain != 0.0:
                        for other in range(C):
                            q[c, other] -= gain * of_scores[other]
            if after != 1.0:
                rescale(J, h, after)
        for j in range(p):
            for i in range(j):
                J[j, i] = J[i, j]
