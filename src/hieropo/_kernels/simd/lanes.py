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

from hieropo._kernels.simd import llvm
from hieropo._kernels.simd.llvm import data, number, splat, square_root, transpose

LANES = 8
_VECTOR = llvm.vector(LANES)
_CONTRACT = ("contract",)


class _VectorType(types.Type):
    def __init__(self) -> None:
        super().__init__(name="Vector8")


_vector = _VectorType()


@register_model(_VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, kind) -> None:
        super().__init__(manager, kind, _VECTOR)


def _doubles(builder, offset):
    return builder.mul(offset, number(LANES))


def _load(builder, base, offset):
    return llvm.load(builder, base, _doubles(builder, offset), LANES)


def _store(builder, value, base, offset):
    llvm.store(builder, value, base, _doubles(builder, offset))


@intrinsic
def load(typingctx, A, a):
    """Return vector number ``a`` of the flat array ``A``."""

    def generate(context, builder, signature, args):
        return _load(builder, data(context, builder, signature, args, 0), args[1])

    return _vector(A, types.int64), generate


@intrinsic
def store(typingctx, A, a, value):
    """Write a vector as number ``a`` of the flat array ``A``."""

    def generate(context, builder, signature, args):
        _store(builder, args[2], data(context, builder, signature, args, 0), args[1])
        return context.get_dummy_value()

    return types.void(A, types.int64, _vector), generate


@intrinsic
def constant(typingctx, value):
    """Return a vector with ``value`` in every lane."""

    def generate(context, builder, signature, args):
        return splat(builder, args[0], LANES)

    return _vector(types.float64), generate


@intrinsic
def times(typingctx, x, y):
    """Return ``x * y``."""

    def generate(context, builder, signature, args):
        return builder.fmul(*args, flags=_CONTRACT)

    return _vector(_vector, _vector), generate


@intrinsic
def larger(typingctx, x, y):
    """Return the larger of x and y in each lane; y where x is not a number."""

    def generate(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered(">", *args), *args)

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


@intrinsic
def inverse_root(typingctx, x, floor):
    """Return ``1 / sqrt(x)``, and 0 where ``x <= floor``."""

    def generate(context, builder, signature, args):
        good = builder.fcmp_ordered(">", *args)
        root = square_root(builder, builder.select(good, args[0], _constant(1.0)))
        return builder.select(good, builder.fdiv(_constant(1.0), root), _constant(0.0))

    return _vector(_vector, _vector), generate


@intrinsic
def reflection(typingctx, x):
    """Return ``(1 + s) / (s x)`` with ``s = sqrt(1 + x)``, and 0 where x is 0."""

    def generate(context, builder, signature, args):
        one, zero = _constant(1.0), _constant(0.0)
        root = square_root(builder, builder.fadd(one, args[0]))
        some = builder.fcmp_ordered(">", args[0], zero)
        below = builder.select(some, builder.fmul(root, args[0]), one)
        return builder.select(some, builder.fdiv(builder.fadd(one, root), below), zero)

    return _vector(_vector), generate


def _steps(kind: str, e):
    """Vectors between the four entries that a tile takes at once, and from one term of the sum to the next."""
    one = number(1)
    return (e, one) if kind == "n" else (one, e)


def _tile(builder, kinds, height, width, C, c, A, a, B, b, n, e, sign):
    numbers = [number(k) for k in range(4)]
    (a_row, a_step), (b_row, b_step) = _steps(kinds[0], e), _steps("t" if kinds[1] == "n" else "n", e)
    sums = [[cgutils.alloca_once_value(builder, _constant(0.0)) for _ in range(width)] for _ in range(height)]
    with cgutils.for_range(builder, n) as loop:
        left_entry = builder.add(a, builder.mul(loop.index, a_step))
        right_entry = builder.add(b, builder.mul(loop.index, b_step))
        left = [
            _load(builder, A, builder.add(left_entry, builder.mul(numbers[p], a_row))) for p in range(height)
        ]
        right = [
            _load(builder, B, builder.add(right_entry, builder.mul(numbers[q], b_row))) for q in range(width)
        ]
        for p in range(height):
            for q in range(width):
                product = builder.fmul(left[p], right[q], flags=_CONTRACT)
                builder.store(builder.fadd(builder.load(sums[p][q]), product, flags=_CONTRACT), sums[p][q])
    for p in range(height):
        row = builder.add(c, builder.mul(numbers[p], e if width > 1 else numbers[1]))
        for q in range(width):
            entry = builder.add(row, numbers[q])
            signed = builder.fmul(builder.load(sums[p][q]), sign, flags=_CONTRACT)
            _store(builder, builder.fadd(_load(builder, C, entry), signed, flags=_CONTRACT), C, entry)


def _fours(builder, count):
    return cgutils.for_range(builder, builder.sdiv(builder.add(count, number(3)), number(4)))


def _product(kinds: str):
    def body(builder, C, c, A, a, B, b, rows, columns, n, e, sign):
        factor, four = splat(builder, sign, LANES), number(4)
        a_row, b_row = _steps(kinds[0], e)[0], _steps("t" if kinds[1] == "n" else "n", e)[0]
        with _fours(builder, rows) as outer:
            p = builder.mul(outer.index, four)
            left, below = builder.add(a, builder.mul(p, a_row)), builder.add(c, builder.mul(p, e))
            with _fours(builder, columns) as inner:
                q = builder.mul(inner.index, four)
                right, corner = builder.add(b, builder.mul(q, b_row)), builder.add(below, q)
                _tile(builder, kinds, 4, 4, C, corner, A, left, B, right, n, e, factor)

    return body


def _vector_product(kind: str):
    def body(builder, C, c, A, a, B, b, rows, n, e, sign):
        factor, four = splat(builder, sign, LANES), number(4)
        with _fours(builder, rows) as outer:
            p = builder.mul(outer.index, four)
            left = builder.add(a, builder.mul(p, _steps(kind, e)[0]))
            _tile(builder, kind + "t", 4, 1, C, builder.add(c, p), A, left, B, b, n, e, factor)

    return body


def _eights(builder, S, row, length, R, slots, shift, n, visit):
    """Visit whole groups of eight columns p: their offsets in eight rows of S, and the eight vectors of R."""
    numbers = [number(k) for k in range(LANES)]
    with cgutils.for_range(builder, builder.sdiv(n, number(LANES))) as loop:
        p = builder.mul(loop.index, number(LANES))
        rows = [builder.add(builder.mul(builder.add(row, k), length), p) for k in numbers]
        vectors = [builder.add(builder.load(builder.gep(slots, [builder.add(p, k)])), shift) for k in numbers]
        visit(rows, vectors)


def _lay(builder, S, row, length, R, slots, shift, n, scale):
    factor = splat(builder, scale, LANES)

    def visit(rows, vectors):
        scaled = [builder.fmul(llvm.load(builder, S, offset, LANES), factor) for offset in rows]
        for value, k in zip(transpose(builder, scaled), vectors, strict=True):
            _store(builder, value, R, k)

    _eights(builder, S, row, length, R, slots, shift, n, visit)


def _pick(builder, S, row, length, R, slots, shift, n, scale):
    def visit(rows, vectors):
        values = transpose(builder, [_load(builder, R, k) for k in vectors])
        for value, offset in zip(values, rows, strict=True):
            llvm.store(builder, value, S, offset)

    _eights(builder, S, row, length, R, slots, shift, n, visit)


def _outlined(name: str, body):
    """Emit calls of ``body`` as a function of its own, which is never inlined."""

    def generate(context, builder, signature, args):
        fields, values = [], []
        for k, kind in enumerate(signature.args):
            if isinstance(kind, types.Array):
                fields.append(context.get_value_type(kind.dtype).as_pointer())
                values.append(data(context, builder, signature, args, k))
            else:
                fields.append(context.get_value_type(kind))
                values.append(args[k])
        llvm.outlined(builder, name, fields, values, body, ["noinline"])
        return context.get_dummy_value()

    return generate


_ADD_TN, _ADD_NN, _ADD_NT = (_outlined(f"add_{kinds}", _product(kinds)) for kinds in ("tn", "nn", "nt"))
_LAY, _PICK = _outlined("lay", _lay), _outlined("pick", _pick)
_ADD_TV, _ADD_NV = (_outlined(f"add_{kind}v", _vector_product(kind)) for kind in "tn")


# Matrices of a product have e vectors a row. Whole 4 x 4 tiles are written: up to three rows and columns beyond those
# asked for receive the same formula, so that there must be room for them and zeros where their sums come from.


@intrinsic
def add_tn(typingctx, C, c, A, a, B, b, rows, columns, n, e, sign):
    """``C[c + p e + q] += sign * sum_{k < n} A[a + k e + p] B[b + k e + q]``."""
    i = types.int64
    return types.void(C, i, A, i, B, i, i, i, i, i, types.float64), _ADD_TN


@intrinsic
def add_nn(typingctx, C, c, A, a, B, b, rows, columns, n, e, sign):
    """``C[c + p e + q] += sign * sum_{k < n} A[a + p e + k] B[b + k e + q]``."""
    i = types.int64
    return types.void(C, i, A, i, B, i, i, i, i, i, types.float64), _ADD_NN


@intrinsic
def add_nt(typingctx, C, c, A, a, B, b, rows, columns, n, e, sign):
    """``C[c + p e + q] += sign * sum_{k < n} A[a + p e + k] B[b + q e + k]``."""
    i = types.int64
    return types.void(C, i, A, i, B, i, i, i, i, i, types.float64), _ADD_NT


@intrinsic
def add_tv(typingctx, C, c, A, a, B, b, rows, n, e, sign):
    """``C[c + p] += sign * sum_{k < n} A[a + k e + p] B[b + k]``."""
    i = types.int64
    return types.void(C, i, A, i, B, i, i, i, i, types.float64), _ADD_TV


@intrinsic
def add_nv(typingctx, C, c, A, a, B, b, rows, n, e, sign):
    """``C[c + p] += sign * sum_{k < n} A[a + p e + k] B[b + k]``."""
    i = types.int64
    return types.void(C, i, A, i, B, i, i, i, i, types.float64), _ADD_NV


@intrinsic
def lay(typingctx, S, row, length, R, slots, shift, n, scale):
    """Lane l of ``R[slots[p] + shift] = S[row + l, p] * scale`` for p below n, rounded down to whole eights."""
    i = types.int64
    return types.void(S, i, i, R, slots, i, i, types.float64), _LAY


@intrinsic
def pick(typingctx, S, row, length, R, slots, shift, n, scale):
    """``S[row + l, p]`` = lane l of ``R[slots[p] + shift]`` for p below n, rounded down to whole eights."""
    i = types.int64
    return types.void(S, i, i, R, slots, i, i, types.float64), _PICK
