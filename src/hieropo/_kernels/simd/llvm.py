"""What the functions that are emitted as LLVM code have in common: numbers, vectors of four doubles, calls."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, type-arg, no-any-return"

from llvmlite import ir
from numba.core import cgutils

from hieropo._kernels.circulant import LANES

VECTOR = ir.VectorType(ir.DoubleType(), LANES)
INDEX = ir.IntType(64)
DOUBLES = ir.DoubleType().as_pointer()


def number(value: int):
    """Return a whole number, a constant."""
    return ir.Constant(INDEX, value)


def load(builder, base, offset):
    """Vector that begins ``offset`` doubles after an address."""
    value = builder.load(_at(builder, base, offset))
    value.align = 8
    return value


def store(builder, value, base, offset):
    """Write what :func:`load` reads."""
    builder.store(value, _at(builder, base, offset)).align = 8


def _at(builder, base, offset):
    return builder.bitcast(builder.gep(base, [offset]), VECTOR.as_pointer())


def multiplied_and_added(builder, x, y, z):
    """Vector x y + z, rounded once where the processor can: an instruction that no optimisation takes apart."""
    kind = ir.FunctionType(VECTOR, [VECTOR] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{LANES}f64")
    return builder.call(function, [x, y, z])


def data(context, builder, signature, args, k):
    """Address of argument k, an array."""
    return context.make_array(signature.args[k])(context, builder, args[k]).data


def row_at(context, builder, signature, args, k):
    """Address of the entry of argument k, an array, that argument k + 1 names."""
    return builder.gep(data(context, builder, signature, args, k), [args[k + 1]])


def outlined(builder, name, fields, values, body):
    """Call ``body`` as a function of its own, which is made once in each compiled function."""
    shape = ir.FunctionType(ir.VoidType(), fields)
    function = cgutils.get_or_insert_function(builder.module, shape, f"hieropo_{name}")
    if function.is_declaration:
        function.linkage = "internal"
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
