"""The sums of a factorisation: for each row of a sparse matrix, those of the columns that it has values for."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

import numpy as np

from hieropo._kernels.jit import compiled
from hieropo._kernels.simd.lanes import LANES, constant, less, load, store


@compiled
def by_code(code, other, value, start, others, values):
    """Order n triples by their code, those of one code as they came; start (m + 1,) is where each code begins."""
    m = start.size - 1
    start[:] = 0
    for t in range(code.size):
        start[code[t] + 1] += 1
    for s in range(m):
        start[s + 1] += start[s]
    place = start[:m].copy()
    for t in range(code.size):
        at = place[code[t]]
        place[code[t]] += 1
        others[at] = other[t]
        values[at] = value[t]


@compiled
def cross_products(start, others, values, first, last, k, V, sums):
    """Packed sums of [[v v', v y], [. , .]] for the rows first .. last: sums[s] gets G = sum v v' and B = sum y v.

    V is flat: for each of the others e vectors of eight lanes, k factors and then zeros; and e more, of zeros alone.
    G is summed by rows of whole vectors, from the one that holds the diagonal on; what is left of it is not read. Four
    values are taken at once, so that a sum is written once for all of them.
    """
    e = (k + LANES - 1) // LANES
    nothing = V.size // LANES - e
    room = np.empty(((k + 1) * e + 1) * LANES)
    work = room[
        (-np.int64(room.ctypes.data) % 64) // 8 :
    ]  # a vector that lies across two cache lines costs two
    for s in range(first, last):
        work[:] = 0.0
        end = start[s + 1]
        for t in range(start[s], end, 4):
            t1, t2, t3 = min(t + 1, end - 1), min(t + 2, end - 1), min(t + 3, end - 1)
            v0 = others[t] * e
            v1 = others[t1] * e if t + 1 < end else nothing
            v2 = others[t2] * e if t + 2 < end else nothing
            v3 = others[t3] * e if t + 3 < end else nothing
            for j in range(k + 1):
                if j < k:
                    begin = j // LANES
                    x0, x1 = V[v0 * LANES + j], V[v1 * LANES + j]
                    x2, x3 = V[v2 * LANES + j], V[v3 * LANES + j]
                else:
                    begin = 0
                    x0, x1, x2, x3 = values[t], values[t1], values[t2], values[t3]
                y0, y1, y2, y3 = constant(-x0), constant(-x1), constant(-x2), constant(-x3)
                for b in range(begin, e):
                    half = less(less(load(work, j * e + b), y0, load(V, v0 + b)), y1, load(V, v1 + b))
                    store(work, j * e + b, less(less(half, y2, load(V, v2 + b)), y3, load(V, v3 + b)))
        p = 0
        for j in range(k):
            for i in range(j + 1):
                sums[s, p] = work[i * e * LANES + j]
                p += 1
        for i in range(k):
            sums[s, p] = work[k * e * LANES + i]
            p += 1
