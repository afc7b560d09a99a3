"""Functions compiled to machine code by numba, and cached on disk."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def compile_function(function: F) -> F:
    """The function as machine code that runs without the GIL; without a place to keep it, compiled again in each process.

    Sums keep the order in which they are written, and no product is fused with a sum: the bits are those of NumPy.
    """
    from numba import njit  # here: importing it takes a while, and not every command needs it

    try:
        return cast(F, njit(nogil=True, error_model="numpy", cache=True)(function))
    except RuntimeError:  # numba found no folder that it may write to
        return cast(F, njit(nogil=True, error_model="numpy")(function))
