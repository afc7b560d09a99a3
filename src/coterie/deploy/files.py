"""Where a site keeps its own files: beside its policy, in its kit folder."""

from dataclasses import dataclass
from pathlib import Path

from coterie.core.errors import UserError


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
