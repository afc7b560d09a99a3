"""The source distribution holds everything that the repository does."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"


def test_every_tracked_file_is_in_the_source_distribution(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout")
    tracked = {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}
    for name in tracked:  # a copy: building leaves files behind
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / "copy" / name)
    done = subprocess.run([sys.executable, "-c", BUILD, tmp_path], cwd=tmp_path / "copy", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("coterie-*.tar.gz")
    with tarfile.open(archive) as found:
        held = {name.partition("/")[2] for name in found.getnames()}
    assert tracked - held == set()
    assert not [name for name in held if name.endswith(".pyc") or ".venv" in name]


def test_the_lock_has_a_hash_for_every_version_that_make_installs() -> None:
    wanted = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    locked = (ROOT / "requirements.lock").read_text().replace(" \\\n", " ").splitlines()[1:]
    assert [line.partition(" --hash")[0].rstrip() for line in locked] == wanted
    assert all(" --hash=sha256:" in line for line in locked)


def test_the_lock_leaves_nothing_to_be_found_out() -> None:
    """`make locked` takes no dependency from anywhere else: what the build and torch need is among them, where it is needed."""
    locked = [line.partition(" \\")[0] for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line]
    named = {line.partition("==")[0]: line for line in locked}
    assert "setuptools" in named
    assert named["triton"].endswith('; platform_system == "Linux"')
    assert all(line.endswith('; platform_system == "Linux"') for name, line in named.items() if name.startswith(("nvidia-", "cuda-")))


def test_the_lock_of_a_deployment_is_what_it_needs_and_no_more() -> None:
    """`make locked-deploy` on a server or a site: the same files as everywhere else, without the tools of development."""
    pytest.importorskip("nvflare")
    done = subprocess.run(
        [sys.executable, "-c", "import lock; print(lock.deploy_lock(lock.LOCK.read_text()), end='')"],
        cwd=ROOT / "scripts",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    locked = (ROOT / "requirements-deploy.lock").read_text()
    assert locked == done.stdout, "run 'python scripts/lock.py --deploy'"
    named = {line.partition("==")[0] for line in locked.splitlines() if "==" in line}
    assert {"nvflare", "opacus", "torch", "psutil", "cryptography", "setuptools"} <= named
    assert not named & {"pytest", "mypy", "ruff", "hypothesis", "wandb", "ray", "ipykernel", "transformers"}
