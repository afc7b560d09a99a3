"""Where a site keeps its own files, beside its policy, in its kit folder; and files that their owner alone may read."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coterie.core.errors import UserError

OTHERS = 0o077  # what group and others may do


@dataclass(frozen=True)
class KitFiles:
    """The policy, the privacy spent and the log."""

    policy: Path
    ledger: Path
    audit: Path


def kit_files(kit: Path) -> KitFiles:
    """The files of a kit: its folder, or the policy file itself."""
    if kit.is_dir() and not (kit / "policy.toml").exists():
        raise UserError(f"The folder {kit} holds no policy.toml: write one with 'coterie policy default > {kit / 'policy.toml'}'.")
    policy = kit / "policy.toml" if kit.is_dir() else kit
    return KitFiles(policy, policy.with_name("privacy.json"), policy.with_name("audit.jsonl"))


def keep_private(folder: Path) -> None:
    """Let nobody but their owner read or change a folder and all that is in it.

    Raises:
        UserError: The folder itself stays open to others: it belongs to somebody else, or its disk knows no permissions.
    """
    for root, folders, files in os.walk(folder):  # not through links
        for path in (Path(root), *(Path(root, name) for name in files)):
            with suppress(OSError):  # what is in a folder that nobody else may enter is safe all the same
                if not path.is_symlink() and (mode := path.stat().st_mode) & OTHERS:
                    path.chmod(mode & 0o777 & ~OTHERS)
        folders[:] = [name for name in folders if not Path(root, name).is_symlink()]
    if folder.stat().st_mode & OTHERS:
        raise UserError(f"{folder} can be read by others, and that could not be changed: as its owner, run 'chmod -R go-rwx {folder}'.")
