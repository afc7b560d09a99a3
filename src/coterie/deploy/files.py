"""Names, texts and files that others may have written: validation, escaping, private permissions and the files of a kit."""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coterie._util.errors import UserError
from coterie._util.formatting import escape_controls

LONGEST_NAME = 100  # characters: a file name has 255 bytes, and suffixes are added
LONGEST_TEXT = 4096  # characters of any other text in a message
SHOWN_TEXT = 300  # characters of a text that is printed or logged
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]*")


def is_name(value: object, longest: int = LONGEST_NAME) -> bool:
    """Check that a value is a name: ASCII letters, digits, ``-``, ``_``, ``.`` and ``=``, and neither ``.`` nor ``-`` nor ``=`` first."""
    return isinstance(value, str) and len(value) <= longest and _NAME.fullmatch(value) is not None


def shorten_text(text: str, longest: int = SHOWN_TEXT) -> str:
    """Return the text with its end replaced by its length where it is too long."""
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text):,} characters)"


def escape_text(text: str, longest: int = SHOWN_TEXT) -> str:
    """Return a text for a terminal or a line of a log: short, and without line breaks or control characters."""
    return escape_controls(shorten_text(text, longest)).replace("\n", "\\n")


def make_folder_name(text: str, longest: int = LONGEST_NAME) -> str:
    """Make a folder's name of a spec such as ``fedgroup(groups=2)``: other characters become ``_``."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "-_.=") else "_" for c in text[:longest])
    return name if is_name(name) else f"_{name}"[:longest]


OTHER_USERS = 0o077  # what group and others may do


@dataclass(frozen=True)
class KitFiles:
    """The policy, the privacy spent and the log."""

    policy: Path
    ledger: Path
    audit: Path


def get_kit_files(kit: Path) -> KitFiles:
    """The files of a kit: its folder, or the policy file itself."""
    if kit.is_dir() and not (kit / "policy.toml").exists():
        raise UserError(f"The folder {kit} holds no policy.toml: write one with 'coterie policy default > {kit / 'policy.toml'}'.")
    policy = kit / "policy.toml" if kit.is_dir() else kit
    return KitFiles(policy, policy.with_name("privacy.json"), policy.with_name("audit.jsonl"))


def keep_private(folder: Path) -> None:
    """Let only their owner read or change a folder and all that is in it.

    Raises:
        UserError: The folder itself stays open to others: it belongs to another user, or its disk knows no permissions.
    """
    for root, folders, files in os.walk(folder):  # not through links
        for path in (Path(root), *(Path(root, name) for name in files)):
            with suppress(OSError):  # what is in a folder that only its owner may enter is safe all the same
                if not path.is_symlink() and (mode := path.stat().st_mode) & OTHER_USERS:
                    path.chmod(mode & 0o777 & ~OTHER_USERS)
        folders[:] = [name for name in folders if not Path(root, name).is_symlink()]
    if folder.stat().st_mode & OTHER_USERS:
        raise UserError(f"{folder} can be read by others, and that could not be changed: as its owner, run 'chmod -R go-rwx {folder}'.")
