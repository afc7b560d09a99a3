"""How a long command is stopped."""

import signal
from types import FrameType


def stop_on_terminate() -> None:
    """Let SIGTERM end a run as Ctrl-C does: cleanly, with what was written kept."""
    signal.signal(signal.SIGTERM, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
