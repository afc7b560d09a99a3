"""Errors and warnings for users: one sentence with what is wrong, where, and what to do."""

import re
from collections.abc import Iterable
from contextvars import ContextVar
from difflib import get_close_matches

ON_COMMAND_LINE: ContextVar[bool] = ContextVar("ON_COMMAND_LINE", default=False)  # set by the `coterie` command
_COMMAND = re.compile(r"('coterie [^']*'|For your analyst: coterie .*)")
_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z-]*)(?: (\d[\d.]*(?![\d.]*-)))?")
_SWITCHES = ("resume", "trust-code", "accept", "anyway")  # flags without a value
_ARGUMENTS = {"batch": "batch_size", "trust-code": "trust"}  # where the argument is not the flag with underscores
MAX_NAMES, MAX_NAME_LENGTH = 200, 100  # names, and letters of a name, that a suggestion looks at: a file may hold any number of any length


class UserError(ValueError):
    """Bad input. The command line prints the sentence and exits with code 2, without a traceback.

    Sentences are written for the command line, with its flags; elsewhere `str` names arguments: ``--data-dir`` is ``data_dir=``.

    Example: ``raise ct.UserError("There is no file rows.csv: check the path.")``.
    """

    def __str__(self) -> str:
        text = super().__str__()
        return text if ON_COMMAND_LINE.get() or "--" not in text else replace_flags(text)


def replace_flags(text: str) -> str:
    """Rewrite the flags of a sentence as Python's arguments. Whole commands ('coterie resume DIR --draws 10') stay as they are."""
    parts = _COMMAND.split(text)
    return "".join(part if place % 2 else _FLAG.sub(_format_argument, part) for place, part in enumerate(parts))


def _format_argument(found: "re.Match[str]") -> str:
    flag, value = found[1], found[2] or ""
    name = _ARGUMENTS.get(flag, flag.replace("-", "_"))
    trailing = value[len(value.rstrip(".")) :]
    return f"{name}={'True' if flag in _SWITCHES and not value else value.rstrip('.')}{trailing}"


class DesignWarning(UserWarning):
    """What a comparison cannot show, reported before it runs."""


def suggest_names(word: str, known: Iterable[str]) -> str:
    """The end of an error sentence: the names that were probably meant, or all there are."""
    names = sorted(known)
    near = names if len(names) <= MAX_NAMES else [name for name in names if name[:1] == word[:1]][:MAX_NAMES]
    close = get_close_matches(word[:MAX_NAME_LENGTH], (name for name in near if len(name) <= MAX_NAME_LENGTH), n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(repr(name) for name in close)}?"
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    return (
        f"choose from {', '.join(name[:MAX_NAME_LENGTH] for name in names[:MAX_NAMES])}{more}."
        if names
        else "there is none to choose from."
    )


def summarize_error(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")


def check_names(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Refuse the first name that is not known, with the nearest right ones."""
    known = set(known)
    for name in given:
        if name not in known:
            raise UserError(f"Unknown {what} {name!r}: {suggest_names(name, known)}")


def find_duplicate(names: Iterable[str]) -> str | None:
    """The first name that was there before; each is looked at once."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


class Notice(UserWarning):
    """One sentence about what was done with what was given."""
