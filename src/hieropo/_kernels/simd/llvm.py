"""Emit LLVM code for vectors of doubles of any width: numbers, loads, stores, transposition, calls.

:mod:`~hieropo._kernels.simd.lanes` puts eight tasks into a vector, :mod:`~hieropo._kernels.simd.pointers` and
:mod:`~hieropo._kernels.circulant_updates` four entries of one row.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, type-arg, no-any-return"

from llvmlite import ir
from numba.core import cgutils

INDEX = ir.IntType(64)
DOUBLES = ir.DoubleType().as_pointer()


def vector(width):
    """Return the type of a vector of ``width`` doubles."""
    return ir.VectorType(ir.DoubleType(), width)


def number(value: int):
    """Return a whole number, a constant."""
    return ir.Constant(INDEX, value)


def load(builder, base, offset, width):
    """Return the vector that begins ``offset`` doubles after an address."""
    value = builder.load(_address(builder, base, offset, width))
    value.align = 8
    return value


def store(builder, value, base, offset):
    """Write a vector to the doubles from ``offset`` on after an address."""
    builder.store(value, _address(builder, base, offset, value.type.count)).align = 8


def _address(builder, base, offset, width):
    return builder.bitcast(builder.gep(base, [offset]), vector(width).as_pointer())


def splat(builder, value, width):
    """Return a vector with a double in every lane."""
    empty = ir.Constant(vector(width), ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(ir.IntType(32), 0))
    return _shuffle(builder, first, empty, [0] * width)


def _shuffle(builder, x, y, mask):
    return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(ir.IntType(32), len(mask)), mask))


def transpose(builder, rows):
    """Return as many vectors as their width, a power of two: lane l of the k-th is lane k of row l."""
    rows, width = list(rows), len(rows)
    step = 1
    while step < width:  # exchange the off-diagonal blocks of step x step lanes
        upper = [lane if not lane & step else width + lane - step for lane in range(width)]
        lower = [lane + step if not lane & step else width + lane for lane in range(width)]
        for k in (k for k in range(width) if not k & step):
            pair = rows[k], rows[k + step]
            rows[k], rows[k + step] = _shuffle(builder, *pair, upper), _shuffle(builder, *pair, lower)
        step *= 2
    return rows


def multiplied_and_added(builder, x, y, z):
    """Return x y + z, rounded once where the processor can: an instruction that no optimisation takes apart."""
    return _intrinsic(builder, "fmuladd", x, y, z)


def square_root(builder, x):
    """Return the square root of every lane."""
    return _intrinsic(builder, "sqrt", x)


def _intrinsic(builder, name, *vectors):
    signature = ir.FunctionType(vectors[0].type, [x.type for x in vectors])
    name = f"llvm.{name}.v{vectors[0].type.count}f64"
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), vectors)


def data(context, builder, signature, args, k):
    """Return the address of argument k, an array."""
    return context.make_array(signature.args[k])(context, builder, args[k]).data


def row_at(context, builder, signature, args, k):
    """Return the address of the entry of argument k, an array, that argument k + 1 names."""
    return builder.gep(data(context, builder, signature, args, k), [args[k + 1]])


def outlined(builder, name, fields, values, body, attributes=()):
    """Call ``body`` as a function of its own, which is made once in each compiled function."""
    shape = ir.FunctionType(ir.VoidType(), fields)
    function = cgutils.get_or_insert_function(builder.module, shape, f"hieropo_{name}")
    if function.is_declaration:
        function.linkage = "internal"
        for attribute in attributes:
            function.attributes.add(attribute)
        inside = ir.IRBuilder(function.append_basic_block("entry"))
        body(inside, *function.args)
        inside.ret_void()
    builder.call(function, values)


def chosen(builder, value, first, last, small, large):
    """Emit ``small(k)`` for each value k from ``first`` to ``last``, and ``large()`` for all others."""
    after, other = builder.append_basic_block("after"), builder.append_basic_block("other")
    cases = builder.switch(value, other)
    for k in range(first, last + 1):
        block = builder.append_basic_block(f"case{k}")
        cases.add_case(number(k), block)
        builder.position_at_end(block)
        small(k)
        builder.branch(after)
    builder.position_at_end(other)
    large()
    builder.branch(after)
    builder.position_at_end(after)
