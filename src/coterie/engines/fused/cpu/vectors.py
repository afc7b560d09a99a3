"""LLVM instructions on vectors of a fixed width, for what numba's own loops cannot say.

The width is the same on every machine (LLVM splits a vector that is wider than the registers), so the bits are too.
"""

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped_utils
from numba.extending import intrinsic

LANES = 16
cgutils: Any = untyped_utils
_float, _long = ir.FloatType(), ir.IntType(64)
VECTOR = ir.VectorType(_float, LANES)
BITS = ir.VectorType(ir.IntType(32), LANES)


def row_length(length: int) -> int:
    """The length of a row in the buffers: up to the next multiple of LANES."""
    return (length + LANES - 1) // LANES * LANES


def emitted(function: Callable[..., Any]) -> Callable[..., Any]:
    """`numba.extending.intrinsic`: in compiled code the first argument, the typing context, is left out."""
    return cast(Callable[..., Any], intrinsic(function))


class Code:
    """An LLVM builder with the few vector operations that the tiles are made of."""

    def __init__(self, builder: Any) -> None:
        self.b = builder

    def long(self, value: int) -> Any:
        return ir.Constant(_long, value)

    def all(self, value: float) -> Any:
        return ir.Constant(VECTOR, [value] * LANES)

    def row(self, base: Any, at: Any) -> Any:
        return self.b.gep(base, [at])

    def load(self, base: Any, at: Any) -> Any:
        return self.b.load(self.b.bitcast(self.row(base, at), VECTOR.as_pointer()), align=LANES * 4)

    def store(self, value: Any, base: Any, at: Any) -> None:
        self.b.store(value, self.b.bitcast(self.row(base, at), VECTOR.as_pointer()), align=LANES * 4)

    def broadcast(self, scalar: Any) -> Any:
        one = self.b.insert_element(ir.Constant(VECTOR, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
        return self.b.shuffle_vector(one, ir.Constant(VECTOR, ir.Undefined), ir.Constant(BITS, [0] * LANES))

    def call(self, name: str, result: Any, *args: Any) -> Any:
        function = cgutils.get_or_insert_function(self.b.module, ir.FunctionType(result, [a.type for a in args]), name)
        return self.b.call(function, args)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        return self.call(f"llvm.fmuladd.v{LANES}f32", VECTOR, x, y, z)

    def halves(self, value: Any, combine: Callable[[Any, Any], Any]) -> Any:
        """Fold a vector to a scalar, always the upper half onto the lower one."""
        width = LANES
        while width > 1:
            width //= 2
            mask = ir.VectorType(ir.IntType(32), width)
            lower, upper = (
                self.b.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), ir.Constant(mask, list(range(start, start + width))))
                for start in (0, width)
            )
            value = combine(lower, upper)
        return self.b.extract_element(value, ir.Constant(ir.IntType(32), 0))

    def larger(self, x: Any, y: Any) -> Any:
        return self.b.select(self.b.fcmp_ordered(">", x, y), x, y)

    def zeros(self, count: int) -> list[Any]:
        """Accumulators: stack slots that LLVM turns into registers."""
        slots = [cgutils.alloca_once(self.b, VECTOR) for _ in range(count)]
        for slot in slots:
            self.b.store(self.all(0.0), slot)
        return slots

    def strided(self, base: Any, at: Any, stride: Any, count: int) -> list[Any]:
        return [self.row(base, self.b.add(at, self.b.mul(stride, self.long(i)))) for i in range(count)]

    def cases(self, value: Any, emit: Callable[[int], None], *known: int) -> None:
        """Emit the code once for every known value, and jump to the right one."""
        after = self.b.append_basic_block("after")
        switch = self.b.switch(value, after)
        for case in known:
            block = self.b.append_basic_block(f"case{case}")
            switch.add_case(self.long(case), block)
            self.b.position_at_end(block)
            emit(case)
            self.b.branch(after)
        self.b.position_at_end(after)


def unpacked(context: Any, builder: Any, signature: Any, args: Any) -> list[Any]:
    """Arrays become pointers to their first element; numbers stay as they are."""
    return [
        context.make_array(kind)(context, builder, value=value).data if isinstance(kind, types.Array) else value
        for kind, value in zip(signature.args, args, strict=True)
    ]
