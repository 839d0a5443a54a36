"""Add rows to running sums in the layout `CirculantLayout`: most of the time of a pass over rows in memory.

For rows of few entries every instruction is written out, so that the processor works on several rows at once.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, type-arg, no-any-return"

from numba.core import cgutils, types
from numba.extending import intrinsic

from hieropo._kernels.circulant import LANES, CirculantLayout
from hieropo._kernels.simd.llvm import (
    DOUBLES,
    INDEX,
    chosen,
    load,
    multiplied_and_added,
    number,
    outlined,
    row_at,
    store,
)

_WRITTEN_OUT = (
    12  # entries of a row up to which there is code for their number; all their sums fit in registers
)
_TILE = 8  # vectors of sums that it holds otherwise


def _add_to(builder, sums, offset, left, right):
    store(
        builder, multiplied_and_added(builder, left, right, load(builder, sums, offset, LANES)), sums, offset
    )


def _offsets(count):
    """Return the offsets of the sums of ``count`` entries and of their factors: three constants for each vector."""
    layout = CirculantLayout(count)
    return [
        (number(LANES * (k * layout.width + v)), LANES * v, number(k + LANES * v))
        for k in range(layout.whole + 1)
        for v in range(layout.width if k < layout.whole else layout.last)
    ]


def _few_entries(builder, sums, left, right, count):
    vectors = [load(builder, left, number(LANES * v), LANES) for v in range(CirculantLayout(count).width)]
    for to, v, k in _offsets(count):
        _add_to(builder, sums, to, vectors[v // LANES], load(builder, right, k, LANES))


def _whole_diagonals(builder, sums, left, right, diagonals, width, few, first):
    """Add ``few`` vectors of every diagonal, a constant, from vector ``first`` on; left factors stay in registers."""
    start = builder.mul(first, number(LANES))
    shifts = [builder.add(start, number(LANES * v)) for v in range(few)]
    held = [load(builder, left, shift, LANES) for shift in shifts]
    with cgutils.for_range(builder, diagonals) as loop:
        row = builder.mul(builder.mul(loop.index, width), number(LANES))
        for value, shift in zip(held, shifts, strict=True):
            shifted = load(builder, right, builder.add(loop.index, shift), LANES)
            _add_to(builder, sums, builder.add(row, shift), value, shifted)


def _part_of_diagonal(builder, sums, left, right, diagonal, width, count):
    """Add the first ``count`` vectors of a diagonal."""
    row = builder.mul(builder.mul(diagonal, width), number(LANES))
    with cgutils.for_range(builder, count) as loop:
        v = builder.mul(loop.index, number(LANES))
        value = load(builder, right, builder.add(diagonal, v), LANES)
        _add_to(builder, sums, builder.add(row, v), load(builder, left, v, LANES), value)


def _many_entries(builder, sums, left, right, diagonals, width, last):
    fours = builder.sdiv(width, number(4))
    with cgutils.for_range(builder, fours) as loop:
        _whole_diagonals(builder, sums, left, right, diagonals, width, 4, builder.mul(loop.index, number(4)))
    with cgutils.for_range(builder, builder.srem(width, number(4))) as loop:
        rest = builder.add(builder.mul(fours, number(4)), loop.index)
        _whole_diagonals(builder, sums, left, right, diagonals, width, 1, rest)
    _part_of_diagonal(builder, sums, left, right, diagonals, width, last)


def _row(builder, sums, left, right, entries, diagonals, width, last):
    chosen(
        builder, entries, 2, _WRITTEN_OUT,
        lambda count: _few_entries(builder, sums, left, right, count),
        lambda: _many_entries(builder, sums, left, right, diagonals, width, last),
    )  # fmt: skip


def _tile(builder, sums, left, right, rows, stride, offsets):
    """Add all rows of a run to some vectors of sums, which stay in registers; ``offsets`` as of :func:`_offsets`."""
    held = [cgutils.alloca_once_value(builder, load(builder, sums, to, LANES)) for to, _, _ in offsets]
    with cgutils.for_range(builder, rows) as loop:
        row = builder.mul(loop.index, stride)
        own, shifted = builder.gep(left, [row]), builder.gep(right, [row])
        factors = {v: load(builder, own, number(v), LANES) for v in sorted({v for _, v, _ in offsets})}
        for total, (_, v, k) in zip(held, offsets, strict=True):
            factor = load(builder, shifted, k, LANES)
            builder.store(multiplied_and_added(builder, factors[v], factor, builder.load(total)), total)
    for total, (to, _, _) in zip(held, offsets, strict=True):
        store(builder, builder.load(total), sums, to)


def _run_of_many(builder, sums, left, right, rows, stride, diagonals, width, last):
    """Add a run, one vector of a row after the other, and of its diagonals so many at once."""
    step = builder.mul(width, number(LANES))
    steps = [builder.mul(step, number(k)) for k in range(_TILE)]
    with cgutils.for_range(builder, width) as across:
        v = builder.mul(across.index, number(LANES))
        short = builder.zext(builder.icmp_signed("<", across.index, last), INDEX)
        whole = builder.add(diagonals, short)

        def tile(k, few):
            own = builder.gep(sums, [builder.add(builder.mul(k, step), v)])
            shifted = builder.gep(right, [builder.add(k, v)])
            offsets = [(steps[j], 0, number(j)) for j in range(few)]
            _tile(builder, own, builder.gep(left, [v]), shifted, rows, stride, offsets)

        with cgutils.for_range(builder, builder.udiv(whole, number(_TILE))) as loop:
            tile(builder.mul(loop.index, number(_TILE)), _TILE)
        rest = builder.urem(whole, number(_TILE))
        done = builder.sub(whole, rest)
        chosen(builder, rest, 1, _TILE - 1, lambda few: tile(done, few), lambda: None)


def _run(builder, sums, left, right, rows, stride, entries, diagonals, width, last):
    chosen(
        builder, entries, 2, _WRITTEN_OUT,
        lambda count: _tile(builder, sums, left, right, rows, stride, _offsets(count)),
        lambda: _run_of_many(builder, sums, left, right, rows, stride, diagonals, width, last),
    )  # fmt: skip


def _calling(name, body):
    """Emit a call of ``body`` with an address, two entries of arrays, and whole numbers."""

    def generate(context, builder, signature, args):
        factors = [row_at(context, builder, signature, args, k) for k in (1, 3)]
        sizes = args[5:]
        values = [builder.inttoptr(args[0], DOUBLES), *factors, *sizes]
        outlined(builder, name, [DOUBLES] * 3 + [INDEX] * len(sizes), values, body)
        return context.get_dummy_value()

    return generate


@intrinsic
def add_circulant(typingctx, address, left, a, right, b, entries, diagonals, width, last):
    """Add the products of a row of so many entries to the sums at ``address``.

    ``sums[k, i] += left[a + i] right[b + k + i]`` for k < diagonals, i < 4 width, and for k = diagonals, i < 4 last.
    """
    i = types.int64
    return types.void(i, left, i, right, i, i, i, i, i), _calling("add_circulant", _row)


@intrinsic
def add_run(typingctx, address, left, a, right, b, rows, stride, entries, diagonals, width, last):
    """Add so many rows, ``stride`` doubles apart, one after the other, as :func:`add_circulant` adds each of them."""
    i = types.int64
    return types.void(i, left, i, right, i, i, i, i, i, i, i), _calling("add_run", _run)
