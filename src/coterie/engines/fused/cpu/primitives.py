"""Atomic numbers by which workers share a queue and hear that they should stop, and a copy (numba's own takes seconds to compile)."""

from typing import Any

from llvmlite import ir
from numba import types

from coterie.engines.fused.cpu.vectors import cgutils, emitted, unpacked

_counter = types.Array(types.int64, 1, "C")


@emitted
def copy(typing: Any, source: Any, at: Any, target: Any, to: Any, count: Any) -> Any:
    """target.flat[to : to + count] = source.flat[at : at + count], for contiguous arrays."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, at, target, to, count = unpacked(context, builder, signature, args)
        cgutils.raw_memcpy(builder, builder.gep(target, [to]), builder.gep(source, [at]), count, 4)
        return context.get_dummy_value()

    return types.void(source, types.int64, target, types.int64, types.int64), emit


@emitted
def claim(typing: Any, counter: Any) -> Any:
    """Take the next number; no two workers get the same."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (place,) = unpacked(context, builder, signature, args)
        return builder.atomic_rmw("add", place, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(_counter), emit


@emitted
def raised(typing: Any, flag: Any) -> Any:
    """The flag as another thread last set it: read from memory each time, never kept in a register."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (place,) = unpacked(context, builder, signature, args)
        return builder.load_atomic(place, "monotonic", 8)

    return types.int64(_counter), emit
