"""Memory by its address: columns of any type read in place, laid out as rows, cache lines fetched ahead.

Numba knows arrays of one type; a log brings columns of many. This module emits LLVM code, as `lanes` does.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, type-arg, no-any-return"

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from hieropo._kernels.circulant import LANES
from hieropo._kernels.simd.llvm import (
    DOUBLES,
    INDEX,
    data,
    load,
    number,
    outlined,
    row_at,
    store,
    transpose,
    vector,
)


@intrinsic
def pointer(typingctx, address, kind):
    """Return a pointer to numbers of type ``kind`` at an address, for ``numba.carray``."""
    signature = types.CPointer(kind.dtype)(types.int64, kind)

    def generate(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return signature, generate


@intrinsic
def fetch_ahead(typingctx, address):
    """Ask for the cache line at an address, which will be written."""

    def generate(context, builder, signature, args):
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        flags = [ir.Constant(flag, value) for value in (1, 3, 1)]
        builder.call(function, [builder.inttoptr(args[0], byte), *flags])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def word_at(typingctx, address):
    """Return the 8 bytes at any address as a number."""

    def generate(context, builder, signature, args):
        value = builder.load(builder.inttoptr(args[0], INDEX.as_pointer()))
        value.align = 1
        return value

    return types.uint64(types.int64), generate


_SHORT = ir.IntType(32)


@intrinsic
def code_at(typingctx, address, short):
    """Return the whole number at an address, of 4 bytes where ``short`` is not 0, else of 8."""

    def generate(context, builder, signature, args):
        flag = builder.icmp_signed("!=", args[1], number(0))
        code = cgutils.alloca_once(builder, INDEX)
        with builder.if_else(flag) as (then, other):
            with then:
                value = builder.load(builder.inttoptr(args[0], _SHORT.as_pointer()))
                builder.store(builder.sext(value, INDEX), code)
            with other:
                builder.store(builder.load(builder.inttoptr(args[0], INDEX.as_pointer())), code)
        return builder.load(code)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def put_code(typingctx, address, code, short):
    """Write what :func:`code_at` reads."""

    def generate(context, builder, signature, args):
        flag = builder.icmp_signed("!=", args[2], number(0))
        with builder.if_else(flag) as (then, other):
            with then:
                builder.store(builder.trunc(args[1], _SHORT), builder.inttoptr(args[0], _SHORT.as_pointer()))
            with other:
                builder.store(args[1], builder.inttoptr(args[0], INDEX.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def bits_of(typingctx, x):
    """Return the 8 bytes of a number as a whole number."""

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], INDEX)

    return types.uint64(types.float64), generate


@intrinsic
def less_product(typingctx, x, a, b):
    """Return ``x - a b``, rounded twice as numpy does."""

    def generate(context, builder, signature, args):
        return builder.fsub(args[0], builder.fmul(args[1], args[2]))

    return types.float64(types.float64, types.float64, types.float64), generate


def _fours(builder, count):
    """Loop over fours that cover ``count``; yields where each begins."""
    return cgutils.for_range(builder, builder.sdiv(builder.add(count, number(3)), number(LANES)))


def _lay_columns(builder, C, Z, rows, columns, height, width, shift):
    numbers = [number(k) for k in range(LANES)]
    with _fours(builder, columns) as across:
        j = builder.mul(across.index, number(LANES))
        with _fours(builder, rows) as down:
            t = builder.mul(down.index, number(LANES))
            addresses = [builder.add(builder.mul(builder.add(j, k), height), t) for k in numbers]
            values = transpose(builder, [load(builder, C, address, LANES) for address in addresses])
            for value, k in zip(values, numbers, strict=True):
                spot = builder.add(builder.mul(builder.add(t, k), width), builder.add(j, shift))
                store(builder, value, Z, spot)


def _lay(builder, C, Z, rows, count, height, width, again):
    _lay_columns(builder, C, Z, rows, count, height, width, number(0))
    _lay_columns(builder, C, Z, rows, again, height, width, count)


@intrinsic
def lay_rows(typingctx, C, Z, width, rows, count, again):
    """Lay out ``count`` columns, the rows of C, as ``rows`` rows of Z, with the first ``again`` entries repeated.

    ``Z[t width + j] = C[j, t]`` and ``Z[t width + count + j] = C[j, t]``. Whole tiles of 4 x 4 are moved: C and Z have
    up to three rows and columns beyond those.
    """

    def generate(context, builder, signature, args):
        columns = context.make_array(signature.args[0])(context, builder, args[0])
        height = cgutils.unpack_tuple(builder, columns.shape, 2)[1]
        fields = [DOUBLES] * 2 + [INDEX] * 5
        values = [
            columns.data,
            data(context, builder, signature, args, 1),
            args[3],
            args[4],
            height,
            args[2],
            args[5],
        ]
        outlined(builder, "lay_rows", fields, values, _lay)
        return context.get_dummy_value()

    i = types.int64
    return types.void(C, Z, i, i, i, i), generate


_WIDE = vector(LANES)
_NARROW = ir.VectorType(ir.FloatType(), LANES)


def _get(builder, address, row, vectors, shift, kind, convert):
    with cgutils.for_range(builder, vectors) as loop:
        j = builder.mul(loop.index, number(LANES))
        value = builder.load(builder.gep(builder.bitcast(address, kind.as_pointer()), [loop.index]))
        value.align = 4
        store(builder, convert(value), row, builder.add(j, shift))


def _get_row(builder, address, row, vectors, count, again, narrow):
    flag = builder.icmp_signed("!=", narrow, number(0))
    with builder.if_else(flag) as (then, other):
        for branch, kind, convert in (
            (then, _NARROW, lambda value: builder.fpext(value, _WIDE)),
            (other, _WIDE, lambda value: value),
        ):
            with branch:
                _get(builder, address, row, vectors, number(0), kind, convert)
                _get(builder, address, row, again, count, kind, convert)


def _scatter_columns(builder, C, addresses, height, vectors, narrow):
    to = [builder.load(builder.gep(addresses, [number(k)])) for k in range(LANES)]

    def lay(kind, size, convert):
        with cgutils.for_range(builder, vectors) as loop:
            first = builder.mul(builder.mul(loop.index, number(LANES)), height)
            columns = [builder.add(first, builder.mul(number(k), height)) for k in range(LANES)]
            shift = builder.mul(loop.index, number(size))
            for row, address in zip(
                transpose(builder, [load(builder, C, k, LANES) for k in columns]), to, strict=True
            ):
                target = builder.inttoptr(builder.add(address, shift), kind.as_pointer())
                builder.store(convert(row), target).align = 4

    with builder.if_else(builder.icmp_signed("!=", narrow, number(0))) as (then, other):
        with then:
            lay(_NARROW, 4 * LANES, lambda row: builder.fptrunc(row, _NARROW))
        with other:
            lay(_WIDE, 8 * LANES, lambda row: row)


@intrinsic
def scatter_columns(typingctx, C, t, addresses, vectors, narrow):
    """Write columns t to t + 3 of C, so many vectors of each, to four addresses as rows.

    They become float32 where ``narrow`` is not 0. C has up to three rows and columns beyond those of the numbers.
    """

    def generate(context, builder, signature, args):
        columns = context.make_array(signature.args[0])(context, builder, args[0])
        height = cgutils.unpack_tuple(builder, columns.shape, 2)[1]
        first = builder.gep(columns.data, [args[1]])
        targets = data(context, builder, signature, args, 2)
        fields = [DOUBLES, INDEX.as_pointer()] + [INDEX] * 3
        outlined(builder, "scatter_columns", fields, [first, targets, height, *args[3:]], _scatter_columns)
        return context.get_dummy_value()

    i = types.int64
    return types.void(C, i, addresses, i, i), generate


@intrinsic
def get_row(typingctx, address, Z, z, vectors, count, again, narrow):
    """Read back a row that :func:`scatter_columns` wrote; its first ``again`` vectors also from entry z + count on."""

    def generate(context, builder, signature, args):
        address = builder.inttoptr(args[0], DOUBLES)
        fields = [DOUBLES] * 2 + [INDEX] * 4
        values = [address, row_at(context, builder, signature, args, 1), *args[3:]]
        outlined(builder, "get_row", fields, values, _get_row)
        return context.get_dummy_value()

    i = types.int64
    return types.void(i, Z, i, i, i, i, i), generate
