"""Progress of long work: functions report it with `track`, without knowing who listens; commands listen with a bar."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
StepsCallback = Callable[[int, int, str], None]  # how many steps are done, of how many, and what is being done
_LISTENER: ContextVar[StepsCallback | None] = ContextVar("progress", default=None)


@contextmanager
def listen(listener: StepsCallback) -> Iterator[None]:
    """Call the listener for every step that is tracked within the `with`."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def track(items: Sequence[T], doing: str) -> Iterator[T]:
    """The items one by one; a listener is called before the first and after each."""
    listener = _LISTENER.get()
    if listener is None:
        yield from items
        return
    listener(0, len(items), doing)
    for done, item in enumerate(items, 1):
        yield item
        listener(done, len(items), doing)
