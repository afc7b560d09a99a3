"""What a user is told when the input is wrong: one sentence that says what, where and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches

COMPARED, LONGEST = 200, 100  # names, and letters of a name, that a suggestion looks at: a file may hold any number of any length


class UserError(ValueError):
    """Bad input. The command line prints the sentence and exits with code 2, without a traceback."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """The end of an error sentence: the names that were probably meant, or all there are."""
    names = sorted(known)
    near = names if len(names) <= COMPARED else [name for name in names if name[:1] == word[:1]][:COMPARED]
    close = get_close_matches(word[:LONGEST], (name for name in near if len(name) <= LONGEST), n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(repr(name) for name in close)}?"
    more = f" and {len(names) - COMPARED:,} more" if len(names) > COMPARED else ""
    return f"choose from {', '.join(name[:LONGEST] for name in names[:COMPARED])}{more}." if names else "there is none to choose from."


def check_names(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Refuse the first name that is not known, with the nearest right ones."""
    known = set(known)
    for name in given:
        if name not in known:
            raise UserError(f"Unknown {what} {name!r}: {suggestion(name, known)}")


def first_repeated(names: Iterable[str]) -> str | None:
    """The first name that was there before; each is looked at once."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
