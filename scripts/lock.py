"""Write requirements.lock: the versions of constraints.txt with the SHA-256 of every file that the index offers for them.

Hashes cannot stand in constraints.txt itself: pip would then demand one for everything, and an editable install has none. So the lock is
a file of requirements for `make locked`, which installs it with --require-hashes and then Coterie without its dependencies.
"""

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parents[1]
INDEX = "https://pypi.org/simple"
HEAD = "# Made by scripts/lock.py from constraints.txt: every file of these versions on the index, whatever the platform.\n"


def pinned(text: str) -> dict[str, tuple[str, str]]:
    """By name, the version, and where it is installed at all: a marker, with its semicolon, or nothing."""
    lines = [line.partition(" ;") for line in text.splitlines() if "==" in line and not line.startswith("#")]
    return {name: (version, between + marker) for line, between, marker in lines for name, version in [line.split("==")]}


def hashes(name: str, version: str) -> list[str]:
    """The hashes of all files of a version."""
    project = re.sub(r"[-_.]+", "-", name).lower()
    with urlopen(f"{INDEX}/{project}/", timeout=60) as answer:
        links = re.findall(r'href="([^"#]*)#sha256=([0-9a-f]{64})"', answer.read().decode())
    stem = r"[-_.]+".join(map(re.escape, re.split(r"[-_.]+", name)))
    own = re.compile(rf"{stem}-{re.escape(version)}(-.*\.whl|\.tar\.gz|\.zip)", re.IGNORECASE)
    return sorted({digest for path, digest in links if own.fullmatch(path.rpartition("/")[2])})


def main() -> None:
    """Fetch and write; a version without a file is an error."""
    versions = pinned((ROOT / "constraints.txt").read_text())
    with ThreadPoolExecutor(8) as pool:
        found = dict(zip(versions, pool.map(lambda name: hashes(name, versions[name][0]), versions), strict=True))
    if lacking := [name for name, own in found.items() if not own]:
        sys.exit(f"The index has no file for {', '.join(lacking)}.")
    lines = [
        "==".join((name, "".join(versions[name]))) + "".join(f" \\\n    --hash=sha256:{one}" for one in own) + "\n"
        for name, own in found.items()
    ]
    (ROOT / "requirements.lock").write_text(HEAD + "".join(lines))


if __name__ == "__main__":
    main()
