"""The console: it prints text as it is, whatever brackets, colons or control signs are in it.

Names of clients and classes come from data. With Rich's own console a client called ``[/bold]`` ends the program.
"""

from typing import Any

from rich.console import Console
from rich.text import Text

from coterie._util.formatting import escape_controls


class PlainConsole(Console):
    """A Rich console without markup, highlighting and emoji. Every string, those in cells of tables too, passes `render_str`."""

    def __init__(self, *, stderr: bool = False, soft_wrap: bool = False) -> None:
        super().__init__(stderr=stderr, soft_wrap=soft_wrap, markup=False, highlight=False, emoji=False)

    def render_str(self, text: str, **ways: Any) -> Text:
        return super().render_str(escape_controls(text), **{**ways, "markup": False, "emoji": False})


def make_bold(text: str) -> Text:
    """A text in bold type: ``console.print(make_bold(name), ", 3 seeds", sep="")``."""
    return Text(escape_controls(text), style="bold")
