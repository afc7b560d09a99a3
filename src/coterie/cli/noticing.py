"""Notices on the command line: the sentence alone, where errors go."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coterie.core.notices import Notice


@contextmanager
def notices_as_lines() -> Iterator[None]:
    """Within it a notice is a line of its own; other warnings are shown as they were."""
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, Notice):
                from coterie.cli.console import PlainConsole  # only now, as it is slow to import

                PlainConsole(stderr=True).print(f"Note: {message}", soft_wrap=True)
            else:
                shown(message, category, *where, **more)

        warnings.showwarning = show
        warnings.simplefilter("always", Notice)
        yield
