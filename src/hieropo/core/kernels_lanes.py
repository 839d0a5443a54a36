"""Eight small matrices side by side, one to a SIMD lane.

A *vector* is eight consecutive doubles: the same matrix entry of eight tasks. Work arrays are flat; offsets and
steps count vectors (doubles where an array is said to be shared by the lanes). Numba does not vectorise across
such lanes by itself (it must assume that a store changes the next load), so the inner loops are emitted as LLVM
vector code, each once per library and never inlined: that keeps compiling short.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, type-arg, no-any-return"
# ruff: noqa: ANN001, ANN202 - LLVM builders are untyped

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 8
_VECTOR = ir.VectorType(ir.DoubleType(), LANES)
_INDEX = ir.IntType(64)
_CONTRACT = ("contract",)


def _constant(value: float):
    return ir.Constant(_VECTOR, [value] * LANES)


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


def _sqrt(builder, value):
    kind = ir.FunctionType(_VECTOR, [_VECTOR])
    name = f"llvm.sqrt.v{LANES}f64"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [value])


def _outlined(name: str, kinds: str, body):
    """Make ``body(builder, *arguments)`` a function of its own; ``kinds`` is 'a' for an array, 'i' for an int."""
    fields = [ir.DoubleType().as_pointer() if kind == "a" else _INDEX for kind in kinds]

    def generate(context, builder, signature, args):
        shape = ir.FunctionType(ir.VoidType(), fields)
        function = cgutils.get_or_insert_function(builder.module, shape, f"hieropo_lanes_{name}")
        if function.is_declaration:
            function.linkage = "internal"
            function.attributes.add("noinline")
            inner = ir.IRBuilder(function.append_basic_block("entry"))
            body(inner, *function.args)
            inner.ret_void()
        values = [
            context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
            for kind, value in zip(signature.args, args, strict=True)
        ]
        builder.call(function, values)
        return context.get_dummy_value()

    return generate


def _panel(*, shared: bool, subtract: bool):
    def block(builder, width, C, c, A, a, a_step, B, b, b_q, b_step, n, scale, s):
        lanes = [ir.Constant(_INDEX, q) for q in range(width)]
        spots = [builder.add(c, q) for q in lanes]
        sums = [cgutils.alloca_once_value(builder, _load(builder, C, spot)) for spot in spots]
        combine = builder.fsub if subtract else builder.fadd
        with cgutils.for_range(builder, n) as loop:
            first = _load(builder, A, builder.add(a, builder.mul(loop.index, a_step)))
            base = builder.add(b, builder.mul(loop.index, b_step))
            for q, total in zip(lanes, sums, strict=True):
                spot = builder.add(base, builder.mul(q, b_q))
                second = (
                    _splat(builder, builder.load(builder.gep(B, [spot])))
                    if shared
                    else _load(builder, B, spot)
                )
                product = builder.fmul(first, second, flags=_CONTRACT)
                builder.store(combine(builder.load(total), product, flags=_CONTRACT), total)
        factor = _load(builder, scale, s)
        for spot, total in zip(spots, sums, strict=True):
            _store(builder, builder.fmul(builder.load(total), factor), C, spot)

    def body(builder, C, c, width, A, a, a_step, B, b, b_q, b_step, n, scale, s):
        done = cgutils.alloca_once_value(builder, ir.Constant(_INDEX, 0))
        for size in (4, 2, 1):
            count = builder.sdiv(builder.sub(width, builder.load(done)), ir.Constant(_INDEX, size))
            with cgutils.for_range(builder, count):
                q = builder.load(done)
                right = builder.add(b, builder.mul(q, b_q))
                block(builder, size, C, builder.add(c, q), A, a, a_step, B, right, b_q, b_step, n, scale, s)
                builder.store(builder.add(q, ir.Constant(_INDEX, size)), done)

    return body


_ADD = _outlined("add", "aiiaiiaiiiiai", _panel(shared=False, subtract=False))
_SUB = _outlined("sub", "aiiaiiaiiiiai", _panel(shared=False, subtract=True))
_MIX = _outlined("mix", "aiiaiiaiiiiai", _panel(shared=True, subtract=False))


@intrinsic
def add(typingctx, C, c, width, A, a, a_step, B, b, b_q, b_step, n, scale, s):
    """``C[c + q] = (C[c + q] + sum_{k < n} A[a + k a_step] B[b + q b_q + k b_step]) * scale[s]``, q < width."""
    i = types.int64
    return types.void(C, i, i, A, i, i, B, i, i, i, i, scale, i), _ADD


@intrinsic
def sub(typingctx, C, c, width, A, a, a_step, B, b, b_q, b_step, n, scale, s):
    """As :func:`add`, with the sum subtracted."""
    i = types.int64
    return types.void(C, i, i, A, i, i, B, i, i, i, i, scale, i), _SUB


@intrinsic
def mix(typingctx, C, c, width, A, a, a_step, B, b, b_q, b_step, n, scale, s):
    """As :func:`add`, with ``B`` shared by the lanes."""
    i = types.int64
    return types.void(C, i, i, A, i, i, B, i, i, i, i, scale, i), _MIX


def _pivot(builder, C, c, inverse, i, floor, f):
    value = _load(builder, C, c)
    good = builder.fcmp_ordered(">", value, _load(builder, floor, f))
    root = _sqrt(builder, builder.select(good, value, _constant(1.0)))
    _store(builder, builder.select(good, root, _constant(0.0)), C, c)
    _store(builder, builder.select(good, builder.fdiv(_constant(1.0), root), _constant(0.0)), inverse, i)


_PIVOT = _outlined("pivot", "aiaiai", _pivot)


@intrinsic
def pivot(typingctx, C, c, inverse, i, floor, f):
    """``C[c] = sqrt(C[c])`` and ``inverse[i] = 1 / sqrt(C[c])``; both 0 where ``C[c] <= floor[f]``."""
    n = types.int64
    return types.void(C, n, inverse, n, floor, n), _PIVOT


def _reflector(builder, norms, s, j, inverse, weight):
    square = _load(builder, norms, j)
    one, zero = _constant(1.0), _constant(0.0)
    root = _sqrt(builder, builder.fadd(one, square))
    some = builder.fcmp_ordered(">", square, zero)
    below = builder.select(some, builder.fmul(root, square), one)
    factor = builder.fdiv(builder.fadd(one, root), below)
    _store(builder, root, norms, s)
    _store(builder, builder.fdiv(one, root), inverse, j)
    _store(builder, builder.select(some, factor, zero), weight, ir.Constant(_INDEX, 0))


_REFLECTOR = _outlined("reflector", "aiiaa", _reflector)


@intrinsic
def reflector(typingctx, norms, s, j, inverse, weight):
    """From ``x = norms[j]``: ``norms[s] = sqrt(1 + x)``, its inverse in ``inverse[j]``, ``(1 + s) / (s x)``."""
    i = types.int64
    return types.void(norms, i, i, inverse, weight), _REFLECTOR


def _rank_one(builder, C, c, c_row, A, a, w, k, rows, n):
    with cgutils.for_range(builder, rows) as outer:
        factor = _load(builder, w, builder.add(k, outer.index))
        base = builder.add(c, builder.mul(outer.index, c_row))
        with cgutils.for_range(builder, n) as loop:
            spot = builder.add(base, loop.index)
            product = builder.fmul(_load(builder, A, builder.add(a, loop.index)), factor, flags=_CONTRACT)
            _store(builder, builder.fsub(_load(builder, C, spot), product, flags=_CONTRACT), C, spot)


_RANK_ONE = _outlined("rank_one", "aiiaiaiii", _rank_one)


@intrinsic
def rank_one(typingctx, C, c, c_row, A, a, w, k, rows, n):
    """``C[c + r c_row + i] -= A[a + i] w[k + r]``, r < rows, i < n."""
    i = types.int64
    return types.void(C, i, i, A, i, w, i, i, i), _RANK_ONE


def _copy(builder, C, c, c_step, A, a, a_step, n, scale, s):
    factor = _load(builder, scale, s)
    with cgutils.for_range(builder, n) as loop:
        value = _load(builder, A, builder.add(a, builder.mul(loop.index, a_step)))
        _store(builder, builder.fmul(value, factor), C, builder.add(c, builder.mul(loop.index, c_step)))


_COPY = _outlined("copy", "aiiaiiiai", _copy)


@intrinsic
def copy(typingctx, C, c, c_step, A, a, a_step, n, scale, s):
    """``C[c + k c_step] = A[a + k a_step] * scale[s]``, k < n."""
    i = types.int64
    return types.void(C, i, i, A, i, i, i, scale, i), _COPY


def _spread(builder, C, c, A, a, a_step, n):
    with cgutils.for_range(builder, n) as loop:
        spot = builder.add(a, builder.mul(loop.index, a_step))
        _store(builder, _splat(builder, builder.load(builder.gep(A, [spot]))), C, builder.add(c, loop.index))


_SPREAD = _outlined("spread", "aiaiii", _spread)


@intrinsic
def spread(typingctx, C, c, A, a, a_step, n):
    """``C[c + k] = A[a + k a_step]`` in every lane, ``A`` shared by the lanes, k < n."""
    i = types.int64
    return types.void(C, i, A, i, i, i), _SPREAD
