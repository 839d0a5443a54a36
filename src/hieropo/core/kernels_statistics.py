"""The pass over rows: add ``w z z'`` of every row to the sums of its task, z = (phi, reward, 1)."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

import math

from hieropo.core.jit import compiled


@compiled
def accumulate(code, phi, reward, weight, sums, rows, log_weight):
    """Add n rows. code (n,), phi (n, d), reward (n,), weight (n,) or empty; sums (m, (d + 2)(d + 3) / 2)."""
    n, d = phi.shape
    weighted = weight.size > 0
    for t in range(n):
        s = code[t]
        w = weight[t] if weighted else 1.0
        if w == 0.0:
            continue
        rows[s] += 1
        if weighted:
            log_weight[s] += math.log(w)
        p = 0
        for j in range(d):
            scaled = w * phi[t, j]
            for i in range(j + 1):
                sums[s, p + i] += scaled * phi[t, i]
            p += j + 1
        scaled = w * reward[t]
        for i in range(d):
            sums[s, p + i] += scaled * phi[t, i]
        sums[s, p + d] += scaled * reward[t]
        p += d + 1
        for i in range(d):
            sums[s, p + i] += w * phi[t, i]
        sums[s, p + d] += scaled
        sums[s, p + d + 1] += w
