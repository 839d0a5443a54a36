"""Eight small matrices side by side, one to a SIMD lane.

A *vector* is eight consecutive doubles: the same matrix entry of eight tasks. Work arrays are flat; offsets and
steps count vectors. Numba does not vectorise across such lanes by itself (it must assume that a store changes the
next load), so vectors are a type of their own here: ``load``, ``store`` and arithmetic on them become single vector
instructions. The one operation that takes nearly all the time, the matrix product, works on 4 x 4 tiles kept in
registers and is emitted once.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, type-arg, no-any-return"

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

LANES = 8
_VECTOR = ir.VectorType(ir.DoubleType(), LANES)
_INDEX = ir.IntType(64)
_CONTRACT = ("contract",)


class _VectorType(types.Type):
    def __init__(self) -> None:
        super().__init__(name="Vector8")


_vector = _VectorType()


@register_model(_VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, kind) -> None:
        super().__init__(manager, kind, _VECTOR)


def _pointer(builder, data, offset):
    scaled = builder.mul(offset, ir.Constant(_INDEX, LANES))
    return builder.bitcast(builder.gep(data, [scaled]), _VECTOR.as_pointer())


def _load(builder, data, offset):
    value = builder.load(_pointer(builder, data, offset))
    value.align = 8
    return value


def _store(builder, value, data, offset):
    builder.store(value, _pointer(builder, data, offset)).align = 8


def _splat(builder, value):
    empty = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(
        first, empty, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    )


def _data(context, builder, signature, args, k):
    return context.make_array(signature.args[k])(context, builder, args[k]).data


@intrinsic
def load(typingctx, A, a):
    """Vector number ``a`` of the flat array ``A``."""

    def generate(context, builder, signature, args):
        return _load(builder, _data(context, builder, signature, args, 0), args[1])

    return _vector(A, types.int64), generate


@intrinsic
def store(typingctx, A, a, value):
    """Write a vector as number ``a`` of the flat array ``A``."""

    def generate(context, builder, signature, args):
        _store(builder, args[2], _data(context, builder, signature, args, 0), args[1])
        return context.get_dummy_value()

    return types.void(A, types.int64, _vector), generate


@intrinsic
def constant(typingctx, value):
    """Return a vector with ``value`` in every lane."""

    def generate(context, builder, signature, args):
        return _splat(builder, args[0])

    return _vector(types.float64), generate


@intrinsic
def times(typingctx, x, y):
    """Return ``x * y``."""

    def generate(context, builder, signature, args):
        return builder.fmul(*args, flags=_CONTRACT)

    return _vector(_vector, _vector), generate


@intrinsic
def less(typingctx, z, x, y):
    """Return ``z - x * y``."""

    def generate(context, builder, signature, args):
        product = builder.fmul(args[1], args[2], flags=_CONTRACT)
        return builder.fsub(args[0], product, flags=_CONTRACT)

    return _vector(_vector, _vector, _vector), generate


def _constant(value: float):
    return ir.Constant(_VECTOR, [value] * LANES)


def _sqrt(builder, value):
    kind = ir.FunctionType(_VECTOR, [_VECTOR])
    name = f"llvm.sqrt.v{LANES}f64"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [value])


@intrinsic
def inverse_root(typingctx, x, floor):
    """Return ``1 / sqrt(x)``, and 0 where ``x <= floor``."""

    def generate(context, builder, signature, args):
        good = builder.fcmp_ordered(">", *args)
        root = _sqrt(builder, builder.select(good, args[0], _constant(1.0)))
        return builder.select(good, builder.fdiv(_constant(1.0), root), _constant(0.0))

    return _vector(_vector, _vector), generate


@intrinsic
def reflection(typingctx, x):
    """Return ``(1 + s) / (s x)`` with ``s = sqrt(1 + x)``, and 0 where x is 0."""

    def generate(context, builder, signature, args):
        one, zero = _constant(1.0), _constant(0.0)
        root = _sqrt(builder, builder.fadd(one, args[0]))
        some = builder.fcmp_ordered(">", args[0], zero)
        below = builder.select(some, builder.fmul(root, args[0]), one)
        return builder.select(some, builder.fdiv(builder.fadd(one, root), below), zero)

    return _vector(_vector), generate


def _tile(builder, rows, columns, sign, C, c, c_row, c_column, A, a, a_row, a_step, B, b, b_row, b_step, n):
    numbers = [ir.Constant(_INDEX, k) for k in range(4)]
    lefts = [builder.add(a, builder.mul(numbers[p], a_row)) for p in range(rows)]
    rights = [builder.add(b, builder.mul(numbers[q], b_row)) for q in range(columns)]
    sums = [[cgutils.alloca_once_value(builder, _constant(0.0)) for _ in rights] for _ in lefts]
    with cgutils.for_range(builder, n) as loop:
        left_step, right_step = builder.mul(loop.index, a_step), builder.mul(loop.index, b_step)
        left = [_load(builder, A, builder.add(spot, left_step)) for spot in lefts]
        right = [_load(builder, B, builder.add(spot, right_step)) for spot in rights]
        for p in range(rows):
            for q in range(columns):
                product = builder.fmul(left[p], right[q], flags=_CONTRACT)
                builder.store(builder.fadd(builder.load(sums[p][q]), product, flags=_CONTRACT), sums[p][q])
    for p in range(rows):
        for q in range(columns):
            spot = builder.add(
                c, builder.add(builder.mul(numbers[p], c_row), builder.mul(numbers[q], c_column))
            )
            signed = builder.fmul(builder.load(sums[p][q]), sign, flags=_CONTRACT)
            _store(builder, builder.fadd(_load(builder, C, spot), signed, flags=_CONTRACT), C, spot)


def _advance(builder, base, count, step):
    return builder.add(base, builder.mul(count, step))


def _product(
    builder, C, c, c_row, c_column, A, a, a_row, a_step, B, b, b_row, b_step, rows, columns, n, sign
):
    factor = _splat(builder, sign)
    p = cgutils.alloca_once_value(builder, ir.Constant(_INDEX, 0))
    q = cgutils.alloca_once_value(builder, ir.Constant(_INDEX, 0))
    for height in (4, 2, 1):
        tall = ir.Constant(_INDEX, height)
        with cgutils.for_range(builder, builder.sdiv(builder.sub(rows, builder.load(p)), tall)):
            row = builder.load(p)
            left = _advance(builder, a, row, a_row)
            builder.store(ir.Constant(_INDEX, 0), q)
            for width in (4, 2, 1):
                wide = ir.Constant(_INDEX, width)
                with cgutils.for_range(builder, builder.sdiv(builder.sub(columns, builder.load(q)), wide)):
                    column = builder.load(q)
                    spot = _advance(builder, _advance(builder, c, row, c_row), column, c_column)
                    right = _advance(builder, b, column, b_row)
                    _tile(
                        builder, height, width, factor, C, spot, c_row, c_column,
                        A, left, a_row, a_step, B, right, b_row, b_step, n,
                    )  # fmt: skip
                    builder.store(builder.add(column, wide), q)
            builder.store(builder.add(row, tall), p)


@intrinsic
def add_product(
    typingctx, C, c, c_row, c_column, A, a, a_row, a_step, B, b, b_row, b_step, rows, columns, n, sign
):
    """``C[c + p c_row + q c_column] += sign * sum_{k < n} A[a + p a_row + k a_step] B[b + q b_row + k b_step]``."""
    i, double = types.int64, types.float64
    kinds = (C, i, i, i, A, i, i, i, B, i, i, i, i, i, i, double)

    def generate(context, builder, signature, args):
        pointer = ir.DoubleType().as_pointer()
        fields = [
            pointer if isinstance(k, types.Array) else context.get_value_type(k) for k in signature.args
        ]
        shape = ir.FunctionType(ir.VoidType(), fields)
        function = cgutils.get_or_insert_function(builder.module, shape, "hieropo_add_product")
        if function.is_declaration:
            function.linkage = "internal"
            function.attributes.add("noinline")
            inside = ir.IRBuilder(function.append_basic_block("entry"))
            _product(inside, *function.args)
            inside.ret_void()
        values = [
            _data(context, builder, signature, args, k) if isinstance(kind, types.Array) else args[k]
            for k, kind in enumerate(signature.args)
        ]
        builder.call(function, values)
        return context.get_dummy_value()

    return types.void(*kinds), generate
