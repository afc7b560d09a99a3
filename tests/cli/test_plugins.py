"""Packages of others: `coterie new method`, and what entry points add."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import coterie as ct
from cli.test_bundle_commands import Commands
from coterie.analysis.metrics import INSTALLED_METRICS
from coterie.cli.new import write_package
from coterie.core.plan import attacks
from coterie.core.specs import Registry
from coterie.data.catalogue import sources
from coterie.grouping.clustering import clusterers
from coterie.methods.catalogue import methods
from coterie.models.catalogue import models
from coterie.report.sections import installed_sections

REGISTRIES: tuple[Registry[Any], ...] = (
    methods,
    models,
    sources,
    ct.samplers,
    clusterers,
    attacks,
    INSTALLED_METRICS,
    installed_sections,
)
THEIRS = '''
from dataclasses import dataclass
import numpy as np
from coterie.core.plan import Attack
from coterie.report.page import Html, Section

def halves(points, k, rng):
    return np.arange(len(points)) % 2 + 7

def outliers(points, k, rng):
    return np.full(len(points), -1)

@dataclass(frozen=True, kw_only=True)
class Zeros(Attack):
    """Sends nothing new."""

    def falsify(self, updates, rows, rng):
        return np.zeros_like(updates[rows])

def note(comparison):
    return Section("Our note", [Html("<p>Compared by us.</p>")], "note", "Note")

def broken(comparison):
    raise KeyError("mean")
'''
ENTRIES = """[coterie.clusterers]
halves = theirs:halves
outliers = theirs:outliers
[coterie.attacks]
zeros = theirs:Zeros
[coterie.report_sections]
note = theirs:note
broken = theirs:broken
"""


@pytest.fixture
def coterie(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(capfd, monkeypatch)


def install(folder: Path, entries: str) -> None:
    """What pip leaves of a package, without its files."""
    about = folder / "theirs-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(entries)


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "theirs.py").write_text(THEIRS)
    install(tmp_path, ENTRIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
        registry.__dict__.pop("installed", None)
    yield
    sys.modules.pop("theirs", None)
    for registry in REGISTRIES:
        registry.__dict__.pop("installed", None)


@pytest.mark.usefixtures("_installed")
def test_installed_clusterers_attacks_and_sections_are_used(coterie: Commands, tmp_path: Path) -> None:
    out = tmp_path / "study"
    data = ("--data", "synthetic(iid,clients=6)", "--rounds", "2", "--epochs", "1")
    coterie("compare", "fedsim(clusterer=halves)", *data, "--attack", "zeros(share=0.4)", "--draws", "2", "--out", out)
    coterie("report", out)
    page = (out / "report.html").read_text()
    assert "Compared by us." in page
    assert "of an installed package failed" in page
    assert "the number of its group" in coterie.refused("run", "fedsim(clusterer=outliers)", *data)
    assert "Unknown clusterer 'halfs': did you mean 'halves'" in coterie.refused("run", "fedsim(clusterer=halfs)", *data)


@pytest.mark.usefixtures("_installed")
def test_an_attack_of_a_package_falsifies_updates() -> None:
    """A client that sends no change pulls the model to where it was; all of them together leave it there."""
    settings: dict[str, Any] = {"data": "synthetic(iid,clients=4)", "rounds": 1, "lr": 0.5}
    honest, attacked = (ct.study("fedavg", attack=attack, **settings) for attack in (None, "zeros(share=0.75)"))
    begin = ct.study("fedavg", **{**settings, "lr": 1e-12})
    moves = [abs(ct.get_bundle(each, "client-0").models - ct.get_bundle(begin, "client-0").models).max() for each in (honest, attacked)]
    assert 0 < moves[1] < moves[0]


def test_a_new_package_passes_its_tests_at_once(tmp_path: Path) -> None:
    folder = write_package("root_mean", tmp_path / "root-mean")
    install(folder, "[coterie.methods]\nroot_mean = root_mean.method:RootMean\n")
    assert 'root_mean = "root_mean.method:RootMean"' in (folder / "pyproject.toml").read_text()
    path = os.pathsep.join(map(str, (folder / "src", folder, Path(ct.__file__).parents[1])))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert not any(word in text for text in map(Path.read_text, folder.rglob("*.py")) for word in ("NAME", "CLASS", "PACKAGE"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("Mine",), "'Mine' is no name for a method"),
        (("class",), "'class' is no name for a method"),
        (("fedavg",), "There is a method 'fedavg' already"),
        (("mine", "--out", "."), "is there already: choose another --out"),
    ],
)
def test_bad_names_are_refused(coterie: Commands, words: tuple[str, ...], sentence: str) -> None:
    assert sentence in coterie.refused("new", "method", *words)


def test_the_page_lists_every_group_of_entry_points() -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "extend.md").read_text()
    assert [registry.group for registry in REGISTRIES if f"`{registry.group}`" not in page] == []
