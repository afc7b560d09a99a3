"""Where a worker is, and whether it computes as the driver does: another processor or library gives other last bits."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.core.errors import UserError
from coterie.run.environment import changes, environment


@dataclass(frozen=True)
class Place:
    """A process on a machine, and what decides on how it rounds."""

    host: str
    process: int
    environment: Mapping[str, Any] = field(repr=False)

    @classmethod
    def here(cls) -> "Place":
        return cls(socket.gethostname(), os.getpid(), environment() | {"compiled": _compiled_for()})

    def check_like(self, driver: "Place") -> None:
        """Refuse a worker that computes otherwise than the driver: the digest would depend on who took which wave."""
        other = changes(driver.environment, self.environment)
        for_what = driver.environment["compiled"], self.environment["compiled"]
        if for_what[0] != for_what[1]:
            other.append(f"kernels for {for_what[1]} (was {for_what[0]})")
        if other:
            raise UserError(
                f"The worker on {self.host} does not compute as the driver on {driver.host} does: {', '.join(other)}. Use machines of one "
                "kind with the same packages, or set OPENBLAS_CORETYPE, ATEN_CPU_CAPABILITY and NUMBA_CPU_FEATURES alike on all."
            )


def _compiled_for() -> str:
    """The vector units that kernels are compiled for, of those that change how sums are rounded."""
    import numba
    from llvmlite.binding import get_host_cpu_features

    said: str | None = getattr(numba.config, "CPU_FEATURES", None)
    features = dict(get_host_cpu_features().items()) if said is None else {word[1:]: word[0] == "+" for word in said.split(",") if word}
    return next((name for name in ("avx512f", "avx2", "avx", "neon") if features.get(name)), "no vector units")
