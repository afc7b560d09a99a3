"""Write requirements.lock: the versions of constraints.txt with the SHA-256 of every file that the index offers for them; and
requirements-deploy.lock, the part of it that a server or a site of a federation needs.

Hashes cannot stand in constraints.txt itself: pip would then demand one for everything, and an editable install has none. So the lock is
a file of requirements for `make locked`, which installs it with --require-hashes and then Coterie without its dependencies.

`python scripts/lock.py --deploy` writes the second file alone, from the first, and needs no network. Which packages it needs is read from
what is installed: run it in the environment that `make` sets up.
"""

import re
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import requires
from pathlib import Path
from urllib.request import urlopen

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
INDEX = "https://pypi.org/simple"
HEAD = "# Made by scripts/lock.py from constraints.txt: every file of these versions on the index, whatever the platform.\n"
LOCK, DEPLOY_LOCK = ROOT / "requirements.lock", ROOT / "requirements-deploy.lock"
DEPLOY_HEAD = "# Made by scripts/lock.py from requirements.lock: what coterie[deploy] needs, for servers and sites.\n"
LINUX = '; platform_system == "Linux"'  # torch's parts for GPUs: a torch without them does not name them


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


def needed(roots: list[str]) -> set[str]:
    """The packages that some requirements need, themselves included, by the metadata of what is installed."""
    waiting, found = [(Requirement(root), frozenset[str]()) for root in roots], set[tuple[str, frozenset[str]]]()
    while waiting:
        requirement, extras = waiting.pop()
        if requirement.marker is not None and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras or {""}):
            continue
        name, own = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, own) not in found:
            found.add((name, own))
            waiting += [(Requirement(line), own | {""}) for line in requires(name) or ()]
    return {name for name, _ in found}


def deploy_lock(lock: str) -> str:
    """The part of a lock that `coterie[deploy]` needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = needed([*project["dependencies"], *project["optional-dependencies"]["deploy"], "setuptools"])  # Coterie is built with it
    entries = re.findall(r"^[^#\s].*(?:\n[ ]+--hash.*)*\n", lock, re.MULTILINE)
    named = {canonicalize_name(entry.partition("==")[0]): entry for entry in entries}
    if lacking := sorted(wanted - named.keys()):
        sys.exit(f"requirements.lock lacks {', '.join(lacking)}: add them to constraints.txt.")
    return DEPLOY_HEAD + "".join(entry for name, entry in named.items() if name in wanted or LINUX in entry)


def full_lock() -> str:
    """Every version of constraints.txt with its hashes; a version without a file is an error."""
    versions = pinned((ROOT / "constraints.txt").read_text())
    with ThreadPoolExecutor(8) as pool:
        found = dict(zip(versions, pool.map(lambda name: hashes(name, versions[name][0]), versions), strict=True))
    if lacking := [name for name, own in found.items() if not own]:
        sys.exit(f"The index has no file for {', '.join(lacking)}.")
    lines = [
        "==".join((name, "".join(versions[name]))) + "".join(f" \\\n    --hash=sha256:{one}" for one in own) + "\n"
        for name, own in found.items()
    ]
    return HEAD + "".join(lines)


def main() -> None:
    """Fetch and write."""
    if "--deploy" not in sys.argv[1:]:
        LOCK.write_text(full_lock())
    DEPLOY_LOCK.write_text(deploy_lock(LOCK.read_text()))


if __name__ == "__main__":
    main()
