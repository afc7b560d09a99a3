"""Names and texts that come from elsewhere: a message, a job, a file that someone else may have written.

A name becomes a folder, a file or a line of a log, so it is held to a small alphabet before it is used as any of them.
"""

import re

from coterie.core.showing import shown

LONGEST_NAME = 100  # characters: a file name has 255 bytes, and suffixes are added
LONGEST_TEXT = 4096  # characters of any other text in a message
SHOWN_TEXT = 300  # characters of a text that is printed or logged
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]*")


def is_name(value: object, longest: int = LONGEST_NAME) -> bool:
    """Check that a value is a name: ASCII letters, digits, ``-``, ``_``, ``.`` and ``=``, and neither ``.`` nor ``-`` nor ``=`` first.

    Args:
        value: What came from a message or a file; anything but a string is no name.
        longest: Most characters.
    """
    return isinstance(value, str) and len(value) <= longest and _NAME.fullmatch(value) is not None


def shorten_text(text: str, longest: int = SHOWN_TEXT) -> str:
    """Return the text with its end replaced by its length where it is too long."""
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text):,} characters)"


def escape_text(text: str, longest: int = SHOWN_TEXT) -> str:
    """Return a text for a terminal or a line of a log: short, and without line breaks or control characters."""
    return shown(shorten_text(text, longest)).replace("\n", "\\n")


def make_folder_name(text: str, longest: int = LONGEST_NAME) -> str:
    """Make a folder's name of a spec such as ``fedgroup(groups=2)``: other characters become ``_``."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "-_.=") else "_" for c in text[:longest])
    return name if is_name(name) else f"_{name}"[:longest]
