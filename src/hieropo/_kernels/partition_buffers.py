"""Rows in partition buffers, and their addition to the sums, task by task, so that its sums are fetched once.

A buffer has the rows of a range of codes. When it is full, its rows are ordered by code, those of a code as they
came, and each code's are added in one go while its sums stay in registers.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

from hieropo._kernels.circulant_updates import add_run
from hieropo._kernels.jit import compiled, inlined
from hieropo._kernels.simd.pointers import code_at, fetch_ahead, get_row, put_code, scatter_columns

LINE = 64  # bytes
MOST = 32  # lines that are fetched for a row: the processor goes on by itself
_AHEAD = 16  # rows between the fetch of a row and its use
_AT_ONCE = 1024  # doubles of rows that are laid out together


@inlined
def _sort_rows(k, buffers):
    """Order the rows of a buffer by their codes; ``ends[c]`` is where those of its code number c end then."""
    n, low = buffers.fill[k], k << buffers.shift
    address = buffers.rows + k * buffers.room * buffers.stride + buffers.last
    ends, code, order = buffers.ends, buffers.code, buffers.order
    ends[:] = 0
    for t in range(n):
        c = code_at(address, buffers.narrow) - low
        code[t] = c
        ends[c] += 1
        address += buffers.stride
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
    address = sums.base + code * size
    for line in range(min(size // LINE, MOST)):
        fetch_ahead(address + LINE * line)


@inlined
def _add_runs(code, m, sums, left, right):
    """Add rows, ordered by their codes, whose left and right factors are laid out."""
    t = 0
    while t < m:
        stop = t + 1
        while stop < m and code[stop] == code[t]:
            stop += 1
        address, row = sums.base + code[t] * 8 * sums.length, t * sums.row
        add_run(
            address,
            left,
            row,
            right,
            row,
            stop - t,
            sums.row,
            sums.entries,
            sums.diagonals,
            sums.width,
            sums.last,
        )
        t = stop


@compiled
def flush_buffers(begin, end, buffers, sums, work):
    """Add the rows of some buffers to the sums, those of a code together, in the order in which they came."""
    for k in range(begin, end):
        n, first, c = buffers.fill[k], k * buffers.room, -1
        count, again = sums.entries, (sums.again + 3) // 4
        code, right = work.codes, work.right
        _sort_rows(k, buffers)
        at_once = max(8, min(code.size, _AT_ONCE // sums.row))
        for start in range(0, n, at_once):
            m = min(at_once, n - start)
            order = buffers.order[start : start + m]
            for t in range(m):
                if start + t + _AHEAD < n:
                    later = buffers.rows + (first + buffers.order[start + t + _AHEAD]) * buffers.stride
                    fetch_ahead(later)
                    fetch_ahead(later + buffers.last)
                row = t * sums.row
                address = buffers.rows + (first + order[t]) * buffers.stride
                get_row(address, right, row, sums.width, count, again, buffers.narrow)
                right[row + count - 1] = 1.0
                if c < 0 or buffers.ends[c] <= start + t:
                    c += 1
                    while buffers.ends[c] <= start + t:
                        c += 1
                    _fetch_sums((k << buffers.shift) + c, sums)
                code[t] = (k << buffers.shift) + c
            if buffers.weighted:
                for t in range(m):
                    weight = buffers.weights[first + order[t]]
                    for j in range(t * sums.row, t * sums.row + count):
                        work.left[j] = weight * right[j]
            _add_runs(code, m, sums, work.left if buffers.weighted else right, right)
        buffers.fill[k] = 0


@inlined
def buffer_rows(code, start, m, Z, weight, buffers, sums, work):
    """Write rows, columns of Z, to the buffers of their codes, four at a time; a full buffer is flushed first."""
    rows, t = work.addresses, 0
    while t < m:
        few, full = min(4, m - t), -1
        rows[:] = buffers.rows + buffers.fill.size * buffers.room * buffers.stride  # behind all buffers
        for i in range(few):
            k = code[start + t + i] >> buffers.shift
            if buffers.fill[k] == buffers.room:
                few, full = i, k
                break
            at = k * buffers.room + buffers.fill[k]
            buffers.fill[k] += 1
            if buffers.weighted:
                buffers.weights[at] = weight[t + i]
            rows[i] = buffers.rows + at * buffers.stride
        scatter_columns(Z, t, rows, sums.width, buffers.narrow)
        for i in range(few):
            put_code(rows[i] + buffers.last, code[start + t + i], buffers.narrow)  # where the 1 of z was
            fetch_ahead(rows[i] + buffers.stride + LINE)
        if full >= 0:
            flush_buffers(full, full + 1, buffers, sums, work)
        t += few
