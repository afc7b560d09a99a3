"""The source distribution holds everything that the repository does; a wheel holds what an installed Coterie needs."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILD = "import sys; from setuptools import build_meta as b; place = sys.argv[1]; b.build_sdist(place); b.build_wheel(place)"


@pytest.fixture(scope="module")
def tracked() -> set[str]:
    """The files of the repository."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout")
    return {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def built(tracked: set[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel, built from a copy since building leaves files behind."""
    pytest.importorskip("setuptools", minversion="77")
    place = tmp_path_factory.mktemp("built")
    for name in tracked:
        (place / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, place / "copy" / name)
    done = subprocess.run([sys.executable, "-c", BUILD, place], cwd=place / "copy", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return place


def test_every_tracked_file_is_in_the_source_distribution(tracked: set[str], built: Path) -> None:
    (archive,) = built.glob("coterie-*.tar.gz")
    with tarfile.open(archive) as found:
        held = {name.partition("/")[2] for name in found.getnames()}
    assert tracked - held == set()
    assert not [name for name in held if name.endswith(".pyc") or ".venv" in name]


def test_a_wheel_holds_the_package_its_data_and_the_study_files(tracked: set[str], built: Path) -> None:
    (wheel,) = built.glob("coterie-*.whl")
    with zipfile.ZipFile(wheel) as found:
        held = {name for name in found.namelist() if ".dist-info/" not in name}
    package = {name.removeprefix("src/") for name in tracked if name.startswith("src/")}
    studies = {f"coterie/reproduce/{name}" for name in tracked if name.startswith("studies/") and name.endswith(".toml")}
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/coterie/reproduce").glob("*.py"))
    code = {f"coterie/reproduce/studies/{name}.py" for name in re.findall(r'load_study_code\("(\w+)"\)', source)}
    assert studies
    assert code
    assert held == package | studies | code


def test_an_installed_wheel_finds_its_studies_and_draws_its_pages(built: Path) -> None:
    (wheel,) = built.glob("coterie-*.whl")
    site = built / "site"
    with zipfile.ZipFile(wheel) as found:
        found.extractall(site)
    program = """
import coterie
from coterie.reproduce import list_studies
from coterie.report.page import render_page
print(coterie.__file__, *list_studies().values(), "<style>" in render_page("t", "l", []), sep="\\n")
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=built,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *paths, page = done.stdout.splitlines()
    assert all(Path(path).is_relative_to(site) for path in paths)
    assert len(paths) == 1 + len(list((ROOT / "studies").glob("*.toml")))
    assert page == "True"


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
