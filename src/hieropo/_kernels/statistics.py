"""The pass over rows: add ``w z z'`` of every row to the sums of its task, z = (phi, reward, 1)."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

import numpy as np

from hieropo._kernels.jit import compiled


@compiled
def accumulate(code, phi, reward, weight, sums):
    """Add n rows. code (n,), phi (n, d), reward (n,), weight (n,) or empty; sums (m, (d + 2)(d + 3) / 2)."""
    n, d = phi.shape
    weighted = weight.size > 0
    for t in range(n):
        s = code[t]
        w = weight[t] if weighted else 1.0
        if w == 0.0:
            continue
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


@compiled
def hash_rows(reward, context, code, out):
    """Hash n rows: bits of reward (n,) and context (n, c) as int64, code (n,) or empty; out (n,) int64."""
    n, c = context.shape
    coded = code.size > 0
    odd = np.uint64(0x9E3779B97F4A7C15)
    zero = np.uint64(1) << np.uint64(63)  # the bits of -0.0
    for t in range(n):
        bits = np.uint64(reward[t])
        total = np.uint64(0) if bits == zero else bits * odd
        power = odd
        for j in range(c):
            power *= odd
            bits = np.uint64(context[t, j])
            if bits != zero:
                total += bits * power
        if coded:
            total += (np.uint64(code[t]) + np.uint64(1)) * np.uint64(0xD6E8FEB86659FD93)
        total = (total ^ (total >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        total = (total ^ (total >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out[t] = np.int64(total ^ (total >> np.uint64(31)))
