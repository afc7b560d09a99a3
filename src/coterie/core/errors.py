"""What a user is told when the input is wrong: one sentence that says what, where and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """Bad input. The command line prints the sentence and exits with code 2, without a traceback."""


class DesignWarning(UserWarning):
    """What a comparison cannot show, said before it runs."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """The end of an error sentence: the names that were probably meant, or all there are."""
    names = sorted(known)
    close = get_close_matches(word, names, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(repr(name) for name in close)}?"
    return f"choose from {', '.join(names)}." if names else "there is none to choose from."


def check_names(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Refuse the first name that is not known, with the nearest right ones."""
    known = list(known)
    for name in given:
        if name not in known:
            raise UserError(f"Unknown {what} {name!r}: {suggestion(name, known)}")
