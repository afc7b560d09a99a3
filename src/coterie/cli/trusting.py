"""Code that a file names: whether it may run is said by --trust, or asked at a terminal."""

import sys
from collections.abc import Callable
from typing import TypeVar

import typer

from coterie.core.trust import UntrustedCodeError

T = TypeVar("T")


def with_trust(act: Callable[[bool], T], trust: bool) -> T:
    """Do what may need code that a file names. `act` refuses before it does anything, so it can be done again once somebody has agreed."""
    try:
        return act(trust)
    except UntrustedCodeError as error:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        print(f"coterie: {str(error).partition(': if you')[0]}.", file=sys.stderr)
        if not typer.confirm("Run that code?", default=False, err=True):
            raise
        return act(True)
