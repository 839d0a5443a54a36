"""Memory by its address: columns of any type read in place, sums updated by vectors, cache lines fetched ahead.

Numba knows arrays of one type; a log brings columns of many. What is emitted here is LLVM code, as in `kernels_lanes`,
of which the update of the sums takes most of the time of a pass over rows that are in memory.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, type-arg, no-any-return"

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 4  # doubles of a vector
_VECTOR = ir.VectorType(ir.DoubleType(), LANES)
_INDEX = ir.IntType(64)
_DOUBLES = ir.DoubleType().as_pointer()
_CONTRACT = ("contract",)


def _number(value: int):
    return ir.Constant(_INDEX, value)


@intrinsic
def pointer(typingctx, address, kind):
    """Pointer to numbers of type ``kind`` at an address, for ``numba.carray``."""
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
    """The 8 bytes at any address as a number."""

    def generate(context, builder, signature, args):
        value = builder.load(builder.inttoptr(args[0], _INDEX.as_pointer()))
        value.align = 1
        return value

    return types.uint64(types.int64), generate


_SHORT = ir.IntType(32)


@intrinsic
def code_at(typingctx, address, short):
    """The whole number at an address, of 4 bytes where ``short`` is not 0, else of 8."""

    def generate(context, builder, signature, args):
        flag = builder.icmp_signed("!=", args[1], _number(0))
        found = cgutils.alloca_once(builder, _INDEX)
        with builder.if_else(flag) as (then, other):
            with then:
                value = builder.load(builder.inttoptr(args[0], _SHORT.as_pointer()))
                builder.store(builder.sext(value, _INDEX), found)
            with other:
                builder.store(builder.load(builder.inttoptr(args[0], _INDEX.as_pointer())), found)
        return builder.load(found)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def put_code(typingctx, address, code, short):
    """Write what :func:`code_at` reads."""

    def generate(context, builder, signature, args):
        flag = builder.icmp_signed("!=", args[2], _number(0))
        with builder.if_else(flag) as (then, other):
            with then:
                builder.store(builder.trunc(args[1], _SHORT), builder.inttoptr(args[0], _SHORT.as_pointer()))
            with other:
                builder.store(args[1], builder.inttoptr(args[0], _INDEX.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def less_product(typingctx, x, a, b):
    """``x - a b``, rounded twice as numpy does."""

    def generate(context, builder, signature, args):
        return builder.fsub(args[0], builder.fmul(args[1], args[2]))

    return types.float64(types.float64, types.float64, types.float64), generate


def _at(builder, base, offset):
    return builder.bitcast(builder.gep(base, [offset]), _VECTOR.as_pointer())


def _load(builder, base, offset):
    value = builder.load(_at(builder, base, offset))
    value.align = 8
    return value


def _store(builder, value, base, offset):
    builder.store(value, _at(builder, base, offset)).align = 8


def _data(context, builder, signature, args, k):
    return context.make_array(signature.args[k])(context, builder, args[k]).data


def _outlined(builder, name, fields, values, body):
    """Call ``body`` as a function of its own, which is made once in each compiled function."""
    shape = ir.FunctionType(ir.VoidType(), fields)
    function = cgutils.get_or_insert_function(builder.module, shape, f"hieropo_{name}")
    if function.is_declaration:
        function.linkage = "internal"
        inside = ir.IRBuilder(function.append_basic_block("entry"))
        body(inside, *function.args)
        inside.ret_void()
    builder.call(function, values)


def _shuffle(builder, x, y, mask):
    return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(ir.IntType(32), LANES), mask))


def _turned(builder, rows):
    """Four vectors from four: lane l of the k-th is lane k of the l-th."""
    low = [_shuffle(builder, rows[i], rows[i + 1], [0, 4, 2, 6]) for i in (0, 2)]
    high = [_shuffle(builder, rows[i], rows[i + 1], [1, 5, 3, 7]) for i in (0, 2)]
    first = [_shuffle(builder, *pair, [0, 1, 4, 5]) for pair in (low, high)]
    return first + [_shuffle(builder, *pair, [2, 3, 6, 7]) for pair in (low, high)]


def _fours(builder, count):
    """Loop over fours that cover ``count``; yields where each begins."""
    return cgutils.for_range(builder, builder.sdiv(builder.add(count, _number(3)), _number(LANES)))


def _lay_columns(builder, C, Z, rows, columns, height, width, shift):
    numbers = [_number(k) for k in range(LANES)]
    with _fours(builder, columns) as across:
        j = builder.mul(across.index, _number(LANES))
        with _fours(builder, rows) as down:
            t = builder.mul(down.index, _number(LANES))
            places = [builder.add(builder.mul(builder.add(j, k), height), t) for k in numbers]
            values = _turned(builder, [_load(builder, C, place) for place in places])
            for value, k in zip(values, numbers, strict=True):
                spot = builder.add(builder.mul(builder.add(t, k), width), builder.add(j, shift))
                _store(builder, value, Z, spot)


def _lay(builder, C, Z, rows, count, height, width, again):
    _lay_columns(builder, C, Z, rows, count, height, width, _number(0))
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
        fields = [_DOUBLES] * 2 + [_INDEX] * 5
        values = [
            columns.data,
            _data(context, builder, signature, args, 1),
            args[3],
            args[4],
            height,
            args[2],
            args[5],
        ]
        _outlined(builder, "lay_rows", fields, values, _lay)
        return context.get_dummy_value()

    i = types.int64
    return types.void(C, Z, i, i, i, i), generate


_NARROW = ir.VectorType(ir.FloatType(), LANES)


def _put(builder, place, row, vectors, kind, convert):
    with cgutils.for_range(builder, vectors) as loop:
        j = builder.mul(loop.index, _number(LANES))
        target = builder.gep(builder.bitcast(place, kind.as_pointer()), [loop.index])
        builder.store(convert(_load(builder, row, j)), target).align = 4


def _get(builder, place, row, vectors, shift, kind, convert):
    with cgutils.for_range(builder, vectors) as loop:
        j = builder.mul(loop.index, _number(LANES))
        value = builder.load(builder.gep(builder.bitcast(place, kind.as_pointer()), [loop.index]))
        value.align = 4
        _store(builder, convert(value), row, builder.add(j, shift))


def _put_row(builder, place, row, vectors, narrow):
    flag = builder.icmp_signed("!=", narrow, _number(0))
    with builder.if_else(flag) as (then, other):
        with then:
            _put(builder, place, row, vectors, _NARROW, lambda value: builder.fptrunc(value, _NARROW))
        with other:
            _put(builder, place, row, vectors, _VECTOR, lambda value: value)


def _get_row(builder, place, row, vectors, count, again, narrow):
    flag = builder.icmp_signed("!=", narrow, _number(0))
    with builder.if_else(flag) as (then, other):
        for branch, kind, convert in (
            (then, _NARROW, lambda value: builder.fpext(value, _VECTOR)),
            (other, _VECTOR, lambda value: value),
        ):
            with branch:
                _get(builder, place, row, vectors, _number(0), kind, convert)
                _get(builder, place, row, again, count, kind, convert)


def _row_at(context, builder, signature, args, k):
    return builder.gep(_data(context, builder, signature, args, k), [args[k + 1]])


@intrinsic
def put_row(typingctx, address, Z, z, vectors, narrow):
    """Write so many vectors from entry z of Z on to an address, as float32 where ``narrow`` is not 0."""

    def generate(context, builder, signature, args):
        place = builder.inttoptr(args[0], _DOUBLES)
        fields = [_DOUBLES] * 2 + [_INDEX] * 2
        values = [place, _row_at(context, builder, signature, args, 1), *args[3:]]
        _outlined(builder, "put_row", fields, values, _put_row)
        return context.get_dummy_value()

    i = types.int64
    return types.void(i, Z, i, i, i), generate


@intrinsic
def get_row(typingctx, address, Z, z, vectors, count, again, narrow):
    """Read back what :func:`put_row` wrote, and the first ``again`` vectors once more, from entry z + count on."""

    def generate(context, builder, signature, args):
        place = builder.inttoptr(args[0], _DOUBLES)
        fields = [_DOUBLES] * 2 + [_INDEX] * 4
        values = [place, _row_at(context, builder, signature, args, 1), *args[3:]]
        _outlined(builder, "get_row", fields, values, _get_row)
        return context.get_dummy_value()

    i = types.int64
    return types.void(i, Z, i, i, i, i, i), generate


def _add_to(builder, sums, offset, left, right):
    product = builder.fmul(left, right, flags=_CONTRACT)
    total = builder.fadd(_load(builder, sums, offset), product, flags=_CONTRACT)
    _store(builder, total, sums, offset)


def _whole_turns(builder, sums, left, right, turns, width, few, first=None):
    """Add ``few`` vectors of every turn, a constant, from vector ``first`` on: their left factors stay in registers."""
    shifts = [_number(LANES * v) for v in range(few)]
    if first is not None:
        start = builder.mul(first, _number(LANES))
        shifts = [builder.add(start, shift) for shift in shifts]
    held = [_load(builder, left, shift) for shift in shifts]
    with cgutils.for_range(builder, turns) as loop:
        row = builder.mul(builder.mul(loop.index, width), _number(LANES))
        for value, shift in zip(held, shifts, strict=True):
            turned = _load(builder, right, builder.add(loop.index, shift))
            _add_to(builder, sums, builder.add(row, shift), value, turned)


def _part_of_turn(builder, sums, left, right, turn, width, count):
    """The first ``count`` vectors of a turn."""
    row = builder.mul(builder.mul(turn, width), _number(LANES))
    with cgutils.for_range(builder, count) as loop:
        v = builder.mul(loop.index, _number(LANES))
        value = _load(builder, right, builder.add(turn, v))
        _add_to(builder, sums, builder.add(row, v), _load(builder, left, v), value)


def _turns(builder, sums, left, right, turns, width, last):
    """Emit a case for each small width, and one for all others; then the last turn, which may be shorter."""
    after, other = builder.append_basic_block("after"), builder.append_basic_block("other")
    cases = builder.switch(width, other)
    for few in (1, 2, 3, 4):
        block = builder.append_basic_block(f"width{few}")
        cases.add_case(_number(few), block)
        builder.position_at_end(block)
        _whole_turns(builder, sums, left, right, turns, _number(few), few)
        builder.branch(after)
    builder.position_at_end(other)
    fours = builder.sdiv(width, _number(4))
    with cgutils.for_range(builder, fours) as loop:
        _whole_turns(builder, sums, left, right, turns, width, 4, builder.mul(loop.index, _number(4)))
    with cgutils.for_range(builder, builder.srem(width, _number(4))) as loop:
        rest = builder.add(builder.mul(fours, _number(4)), loop.index)
        _whole_turns(builder, sums, left, right, turns, width, 1, rest)
    builder.branch(after)
    builder.position_at_end(after)
    _part_of_turn(builder, sums, left, right, turns, width, last)


@intrinsic
def add_turns(typingctx, address, left, a, right, b, turns, width, last):
    """Add the products of a row to the sums at ``address``.

    ``sums[k, i] += left[a + i] right[b + k + i]`` for k < turns, i < 4 width, and for k = turns, i < 4 last.
    """

    def generate(context, builder, signature, args):
        rows = [builder.gep(_data(context, builder, signature, args, k), [args[k + 1]]) for k in (1, 3)]
        fields = [_DOUBLES] * 3 + [_INDEX] * 3
        values = [builder.inttoptr(args[0], _DOUBLES), *rows, *args[5:]]
        _outlined(builder, "add_turns", fields, values, _turns)
        return context.get_dummy_value()

    i = types.int64
    return types.void(i, left, i, right, i, i, i, i), generate
