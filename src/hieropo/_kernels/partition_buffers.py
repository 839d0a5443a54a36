"""Rows that wait on heaps, and their way from there to the sums: task by task, so that its sums are fetched once.

A heap has the rows of some consecutive codes. When it is full, its rows are ordered by code, those of a code as they
came, and each code's are added in one go while its sums stay in registers.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

from hieropo._kernels.circulant_updates import add_run
from hieropo._kernels.jit import compiled, inlined
from hieropo._kernels.simd.pointers import code_at, fetch_ahead, get_row, lay_apart, put_code

LINE = 64  # bytes
MOST = 32  # lines that are fetched for a row: the processor goes on by itself
_AHEAD = 16  # rows between the fetch of a row and its use
_AT_ONCE = 1024  # doubles of rows that are laid out together


@inlined
def _sort_rows(k, heaps):
    """Order the rows of a heap by their codes; ``ends[c]`` is where those of its code number c end then."""
    n, low = heaps.fill[k], k << heaps.shift
    place = heaps.rows + k * heaps.room * heaps.stride + heaps.last
    ends, code, order = heaps.ends, heaps.code, heaps.order
    ends[:] = 0
    for t in range(n):
        c = code_at(place, heaps.narrow) - low
        code[t] = c
        ends[c] += 1
        place += heaps.stride
    total = 0
    for c in range(ends.size):
        size = ends[c]
        ends[c] = total
        total += size
    for t in range(n):
        c = code[t]
        order[ends[c]] = t
        ends[c] += 1


@inlined
def _fetch_sums(code, sums):
    """Ask for the sums of a code."""
    size = 8 * sums.length
    place = sums.base + code * size
    for line in range(min(size // LINE, MOST)):
        fetch_ahead(place + LINE * line)


@inlined
def _add_runs(code, m, sums, left, right):
    """Add rows, ordered by their codes, whose left and right factors are laid out."""
    t = 0
    while t < m:
        stop = t + 1
        while stop < m and code[stop] == code[t]:
            stop += 1
        place, row = sums.base + code[t] * 8 * sums.length, t * sums.row
        add_run(
            place, left, row, right, row, stop - t, sums.row, sums.entries, sums.turns, sums.width, sums.last
        )
        t = stop


@compiled
def empty_heaps(begin, end, heaps, sums, work):
    """Add the rows of some heaps to the sums, those of a code together, in the order in which they came."""
    for k in range(begin, end):
        n, first, c = heaps.fill[k], k * heaps.room, -1
        count, again = sums.entries, (sums.again + 3) // 4
        code, right = work.codes, work.right
        _sort_rows(k, heaps)
        at_once = max(8, min(code.size, _AT_ONCE // sums.row))
        for start in range(0, n, at_once):
            m = min(at_once, n - start)
            order = heaps.order[start : start + m]
            for t in range(m):
                if start + t + _AHEAD < n:
                    later = heaps.rows + (first + heaps.order[start + t + _AHEAD]) * heaps.stride
                    fetch_ahead(later)
                    fetch_ahead(later + heaps.last)
                row = t * sums.row
                place = heaps.rows + (first + order[t]) * heaps.stride
                get_row(place, right, row, sums.width, count, again, heaps.narrow)
                right[row + count - 1] = 1.0
                if c < 0 or heaps.ends[c] <= start + t:
                    c += 1
                    while heaps.ends[c] <= start + t:
                        c += 1
                    _fetch_sums((k << heaps.shift) + c, sums)
                code[t] = (k << heaps.shift) + c
            if heaps.weighted:
                for t in range(m):
                    weight = heaps.weights[first + order[t]]
                    for j in range(t * sums.row, t * sums.row + count):
                        work.left[j] = weight * right[j]
            _add_runs(code, m, sums, work.left if heaps.weighted else right, right)
        heaps.fill[k] = 0


@inlined
def buffer_rows(code, start, m, Z, weight, heaps, sums, work):
    """Put rows, columns of Z, on the heaps of their codes, four at a time; a heap that is full is emptied first."""
    rows, t = work.places, 0
    while t < m:
        few, full = min(4, m - t), -1
        rows[:] = heaps.rows + heaps.fill.size * heaps.room * heaps.stride  # behind all heaps
        for i in range(few):
            k = code[start + t + i] >> heaps.shift
            if heaps.fill[k] == heaps.room:
                few, full = i, k
                break
            at = k * heaps.room + heaps.fill[k]
            heaps.fill[k] += 1
            if heaps.weighted:
                heaps.weights[at] = weight[t + i]
            rows[i] = heaps.rows + at * heaps.stride
        lay_apart(Z, t, rows, sums.width, heaps.narrow)
        for i in range(few):
            put_code(rows[i] + heaps.last, code[start + t + i], heaps.narrow)  # where the 1 of z was
            fetch_ahead(rows[i] + heaps.stride + LINE)
        if full >= 0:
            empty_heaps(full, full + 1, heaps, sums, work)
        t += few
