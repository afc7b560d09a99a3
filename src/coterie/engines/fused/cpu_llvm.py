"""The inner loops of local training as LLVM vector instructions, for what numba's own loops cannot express.

numba compiles loops over scalars and leaves it to LLVM to find the vectors; for these loops it finds poor ones. Here tiles of
accumulators stay in registers while one pass over memory serves several rows. The vector width is the same on every machine (LLVM
splits a vector that is wider than the registers) and every sum is taken in a fixed order over a fixed number of lanes, so the shape of
a tile never changes a bit.

All arrays are flat float32 buffers and every row starts at a multiple of LANES, padded with zeros.

Why it is kept: with plain numba loops a whole study takes 1.17 times as long with a linear model, 1.54 and 1.48 times with MLPs
(`python -m benchmarks.llvm_tiles`, two cores).
"""

from collections.abc import Callable
from itertools import product
from typing import Any, cast

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped_utils
from numba.extending import intrinsic

LANES = 16
cgutils: Any = untyped_utils
_float, _long = ir.FloatType(), ir.IntType(64)
VECTOR = ir.VectorType(_float, LANES)
BITS = ir.VectorType(ir.IntType(32), LANES)


def get_row_length(length: int) -> int:
    """The length of a row in the buffers: up to the next multiple of LANES."""
    return (length + LANES - 1) // LANES * LANES


def make_intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """`numba.extending.intrinsic`: in compiled code the first argument, the typing context, is left out."""
    return cast(Callable[..., Any], intrinsic(function))


class VectorBuilder:
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


def unpack_arguments(context: Any, builder: Any, signature: Any, args: Any) -> list[Any]:
    """Arrays become pointers to their first element; numbers stay as they are."""
    return [
        context.make_array(kind)(context, builder, value=value).data if isinstance(kind, types.Array) else value
        for kind, value in zip(signature.args, args, strict=True)
    ]


_counter = types.Array(types.int64, 1, "C")


@make_intrinsic
def copy_floats(typing: Any, source: Any, at: Any, target: Any, to: Any, count: Any) -> Any:
    """target.flat[to : to + count] = source.flat[at : at + count], for contiguous arrays."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, at, target, to, count = unpack_arguments(context, builder, signature, args)
        cgutils.raw_memcpy(builder, builder.gep(target, [to]), builder.gep(source, [at]), count, 4)
        return context.get_dummy_value()

    return types.void(source, types.int64, target, types.int64, types.int64), emit


@make_intrinsic
def claim_next(typing: Any, counter: Any) -> Any:
    """Take the next number; no two workers get the same."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (place,) = unpack_arguments(context, builder, signature, args)
        return builder.atomic_rmw("add", place, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(_counter), emit


@make_intrinsic
def is_raised(typing: Any, flag: Any) -> Any:
    """The flag as another thread last set it: read from memory each time, never kept in a register."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (place,) = unpack_arguments(context, builder, signature, args)
        return builder.load_atomic(place, "monotonic", 8)

    return types.int64(_counter), emit


# Rows of outputs and of inputs that a tile holds, and vectors along a row: 25 and 20 accumulators of 32 registers with AVX-512; fewer
# where a vector takes two registers of 16.
WIDE = bool(llvmlite.binding.get_host_cpu_features().get("avx512f", False))
DOT_SAMPLES, DOT_ROWS = (5, 5) if WIDE else (2, 3)
SUM_ROWS, SUM_VECTORS = (5, 4) if WIDE else (3, 2)
# What `compute_sums` does with a finished sum. Typed, since numba compiles a function again for each literal that it is called with.
STORE, ADD, DESCEND, DESCEND_TO = (cast(int, np.int64(how)) for how in range(4))
_array, _i64, _f32 = types.Array(types.float32, 1, "C"), types.int64, types.float32


@make_intrinsic
def compute_dots(
    typing: Any, samples: Any, rows: Any, vectors: Any, x: Any, x_at: Any, w: Any, w_at: Any, stride: Any,
    bias_at: Any, out: Any, out_at: Any, out_stride: Any,
) -> Any:  # fmt: skip
    """One tile of a dense layer: out[s, r] = bias[r] + sum_j x[s, j] * w[r, j] for s < samples and r < rows.

    A tile is whole or one row or sample wide, so that there is little to compile; the thin ones are nearly as fast.
    """
    signature = types.void(_i64, _i64, _i64, _array, _i64, _array, _i64, _i64, _i64, _array, _i64, _i64)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        samples, rows, vectors, x, x_at, w, w_at, stride, bias_at, out, out_at, out_stride = unpack_arguments(
            context, builder, signature, args
        )
        code = VectorBuilder(builder)

        def tile(m: int, n: int) -> None:
            inputs, weights = code.strided(x, x_at, stride, m), code.strided(w, w_at, stride, n)
            accumulators = code.zeros(m * n)
            with cgutils.for_range(builder, vectors) as loop:
                j = builder.mul(loop.index, code.long(LANES))
                a, b = [code.load(row, j) for row in inputs], [code.load(row, j) for row in weights]
                for slot, (s, r) in zip(accumulators, product(range(m), range(n)), strict=True):
                    builder.store(code.fma(a[s], b[r], builder.load(slot)), slot)
            for s, results in enumerate(code.strided(out, out_at, out_stride, m)):
                for r in range(n):
                    total = code.halves(builder.load(accumulators[s * n + r]), builder.fadd)
                    bias = builder.load(code.row(w, builder.add(bias_at, code.long(r))))
                    builder.store(builder.fadd(total, bias), code.row(results, code.long(r)))

        code.cases(samples, lambda m: code.cases(rows, lambda n: tile(m, n), 1, DOT_ROWS), 1, DOT_SAMPLES)
        return context.get_dummy_value()

    return signature, emit


@make_intrinsic
def compute_sums(
    typing: Any, rows: Any, vectors: Any, terms: Any, x: Any, x_at: Any, stride: Any, factors: Any, factor_at: Any, term_stride: Any,
    row_stride: Any, out: Any, out_at: Any, then: Any, lr: Any, decay: Any, mu: Any, anchor: Any,
) -> Any:  # fmt: skip
    """A strip of rows: g[r, j] = sum_t factors[t, r] * x[t, j] for r < rows, and then what `then` selects.

    STORE: out = g; ADD: out += g; DESCEND: out -= lr * g; DESCEND_TO: out -= lr * (g + decay * out + mu * (out - anchor)).
    """
    signature = types.void(
        _i64, _i64, _i64, _array, _i64, _i64, _array, _i64, _i64, _i64, _array, _i64, _i64, _f32, _f32, _f32, _array
    )  # fmt: skip

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (rows, vectors, terms, x, x_at, stride, factors, factor_at, term_stride, row_stride, out, out_at, then, lr, decay, mu, anchor) = (
            unpack_arguments(context, builder, signature, args)
        )
        code = VectorBuilder(builder)
        step, decay, mu = code.broadcast(builder.fneg(lr)), code.broadcast(decay), code.broadcast(mu)
        length = builder.mul(vectors, code.long(LANES))

        def finished(total: Any, at: Any, then: int) -> Any:
            if then == STORE:
                return total
            old = code.load(out, at)
            if then == ADD:
                return builder.fadd(old, total)
            if then == DESCEND_TO:
                total = code.fma(decay, old, total)
                total = code.fma(mu, builder.fsub(old, code.load(anchor, at)), total)
            return code.fma(step, total, old)

        def tile(n: int, width: int, j: Any) -> None:
            accumulators = code.zeros(n * width)
            first, start = code.row(x, builder.add(x_at, j)), code.row(factors, factor_at)
            with cgutils.for_range(builder, terms) as loop:
                term = code.row(first, builder.mul(loop.index, stride))
                values = [code.load(term, code.long(k * LANES)) for k in range(width)]
                for r, factor in enumerate(code.strided(start, builder.mul(loop.index, term_stride), row_stride, n)):
                    weight = code.broadcast(builder.load(factor))
                    for k in range(width):
                        slot = accumulators[r * width + k]
                        builder.store(code.fma(weight, values[k], builder.load(slot)), slot)

            def finish(then: int) -> None:
                for r, k in product(range(n), range(width)):
                    at = builder.add(builder.add(out_at, builder.mul(length, code.long(r))), builder.add(j, code.long(k * LANES)))
                    code.store(finished(builder.load(accumulators[r * width + k]), at, then), out, at)

            code.cases(then, finish, STORE, ADD, DESCEND, DESCEND_TO)

        def strip(n: int) -> None:
            whole = builder.mul(builder.udiv(vectors, code.long(SUM_VECTORS)), code.long(SUM_VECTORS))
            for width, start, stop in ((SUM_VECTORS, code.long(0), whole), (1, whole, vectors)):
                with cgutils.for_range_slice(builder, start, stop, code.long(width)) as (index, _):
                    tile(n, width, builder.mul(index, code.long(LANES)))

        code.cases(rows, strip, 1, SUM_ROWS)
        return context.get_dummy_value()

    return signature, emit


# exp(r) for |r| <= ln(2) / 2 as a polynomial, and ln(2) in two parts so that x - n * ln(2) is exact to the last bit.
_EXP = (1.0, 1.0, 0.5, 1.6666665459e-1, 4.1665795894e-2, 8.3334519073e-3, 1.3981999507e-3, 1.9875691500e-4)
_LN2_HIGH, _LN2_LOW, _LOG2_E = 0.693359375, -2.12194440e-4, 1.44269504088896341
# Adding 1.5 * 2**23 rounds to an integer that then stands in the low bits; below exp(-80) a probability is as good as zero.
_ROUND, _FLOOR = 12582912.0, -80.0


def _emit_exp(code: VectorBuilder, x: Any) -> Any:
    """exp of numbers at most zero; a NaN stays a NaN (the comparison below is false for it)."""
    b = code.b
    x = b.select(b.fcmp_ordered("<", x, code.all(_FLOOR)), code.all(_FLOOR), x)
    rounded = code.fma(x, code.all(_LOG2_E), code.all(_ROUND))
    n = b.fsub(rounded, code.all(_ROUND))
    r = code.fma(n, code.all(-_LN2_LOW), code.fma(n, code.all(-_LN2_HIGH), x))
    result = code.all(_EXP[-1])
    for coefficient in reversed(_EXP[:-1]):
        result = code.fma(result, r, code.all(coefficient))
    exponent = b.add(b.bitcast(rounded, BITS), ir.Constant(BITS, [127] * LANES))
    return b.fmul(result, b.bitcast(b.shl(exponent, ir.Constant(BITS, [23] * LANES)), VECTOR))


@make_intrinsic
def compute_softmax(typing: Any, vectors: Any, logits: Any, at: Any, scale: Any, out: Any, out_at: Any) -> Any:
    """out = scale * softmax(logits) of one row, whose padding holds very negative numbers."""
    signature = types.void(_i64, _array, _i64, _f32, _array, _i64)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vectors, logits, at, scale, out, out_at = unpack_arguments(context, builder, signature, args)
        code = VectorBuilder(builder)
        source, target = code.row(logits, at), code.row(out, out_at)
        largest, total = cgutils.alloca_once(builder, VECTOR), cgutils.alloca_once(builder, VECTOR)
        builder.store(code.load(source, code.long(0)), largest)
        with cgutils.for_range(builder, vectors) as loop:
            value = code.load(source, builder.mul(loop.index, code.long(LANES)))
            builder.store(code.larger(value, builder.load(largest)), largest)
        top = code.broadcast(code.halves(builder.load(largest), code.larger))
        builder.store(code.all(0.0), total)
        with cgutils.for_range(builder, vectors) as loop:
            j = builder.mul(loop.index, code.long(LANES))
            value = _emit_exp(code, builder.fsub(code.load(source, j), top))
            code.store(value, target, j)
            builder.store(builder.fadd(builder.load(total), value), total)
        factor = code.broadcast(builder.fdiv(scale, code.halves(builder.load(total), builder.fadd)))
        with cgutils.for_range(builder, vectors) as loop:
            j = builder.mul(loop.index, code.long(LANES))
            code.store(builder.fmul(code.load(target, j), factor), target, j)
        return context.get_dummy_value()

    return signature, emit
