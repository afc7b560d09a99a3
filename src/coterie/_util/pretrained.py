"""Pretrained models and tokenizers of others: from a folder, or by name from the Hugging Face hub. Their code is never run."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from coterie._util.errors import UserError, summarize_error

T = TypeVar("T")


def import_transformers(title: str) -> Any:
    """The package, with its logging and progress bars off."""
    try:
        import transformers
    except ImportError:
        raise UserError(f"{title} needs the package transformers, which is not installed: pip install 'coterie[text]'.") from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def load_pretrained(title: str, where: str, what: str, load: Callable[[str, bool], T]) -> T:
    """What `load` makes of a folder, or of a name on the hub; `load` gets which of the two it is (True: only what is here).

    `what` is the file, or the kind of files, that it needs.
    """
    folder = Path(where).expanduser()
    here = folder.is_dir()
    if not here and (folder.is_absolute() or where.startswith((".", "~")) or where.count("/") > 1):
        raise UserError(f"{title}: there is no folder {where!r}: give the folder of a downloaded model, or its name on the hub.")
    try:
        return load(str(folder) if here else where, here)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        why = summarize_error(error)[:160]
        if here:
            raise UserError(f"{title}: folder {where!r} holds no {what} that can be read ({why}): get it again.") from error
        if _is_hub_unreachable(error):
            raise UserError(
                f"{title}: {where!r} is not here and the Hugging Face hub cannot be reached: give the folder of a downloaded copy instead."
            ) from error
        raise UserError(f"{title}: {where!r} is no folder here, and the hub has no {what} of that name ({why}): check it.") from error


def find_gguf_file(title: str, where: str, needs: Sequence[str] = ("gguf",)) -> tuple[str, str | None]:
    """The folder and, where its weights are quantised, the GGUF file in it: for such a file, or for a folder of one and of no others.

    `transformers` reads such files by packages of others, which it `needs`.
    """
    path = Path(where).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        files, folder = [path], path.parent
    else:
        files, folder = sorted(path.glob("*.gguf")) if path.is_dir() and not (path / "config.json").is_file() else [], path
    if len(files) > 1:
        raise UserError(f"{title}: folder {where!r} holds {len(files)} GGUF files: name one of them, such as {str(files[0])!r}.")
    if not files:
        return where, None
    if lacking := [name for name in needs if find_spec(name) is None]:
        raise UserError(f"{title}: {str(files[0])!r} needs the package {lacking[0]}, which is not installed: pip install 'coterie[text]'.")
    return str(folder), files[0].name


@contextmanager
def suppress_stderr() -> Iterator[None]:
    """Without the bars that packages draw of their own accord: a dequantisation has one that cannot be asked to go."""
    with open(os.devnull, "w") as nothing, redirect_stderr(nothing):
        yield


def _is_hub_unreachable(error: BaseException | None) -> bool:
    """Whether the hub did not answer, as far as the chain of errors shows."""
    offline = os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "YES", "ON")
    while error is not None:
        name = type(error).__name__
        if name in ("RepositoryNotFoundError", "EntryNotFoundError", "RevisionNotFoundError"):
            return False
        if name in ("LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectError", "ConnectTimeout", "ConnectionError", "ProxyError"):
            return True
        error = error.__cause__ or error.__context__
    return offline
