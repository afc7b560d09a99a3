"""The page and the command."""

import json
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from coterie.cli import main
from coterie.inspect import Inspection, InspectPlan, PilotPlan, inspect_data
from inspect_federations import even, federation

pytest.importorskip("altair")


@pytest.fixture(scope="module")
def found() -> Inspection:
    plan = InspectPlan(references=19, pilot=PilotPlan(rounds=2, randoms=2))
    return inspect_data(federation(even(12), groups=np.arange(12) % 3, moved=True), plan=plan)


class Specs(HTMLParser):
    """The charts of a page, and the addresses it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.charts: list[dict[str, object]] = []
        self.loaded: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._inside = tag == "script" and given.get("type") == "application/json"
        if tag in ("script", "link", "img"):
            self.loaded += [value for name, value in given.items() if name in ("src", "href") and value]

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.charts.append(json.loads(data))
            self._inside = False


def test_the_page_has_every_answer_and_figure_and_loads_nothing(found: Inspection) -> None:
    from coterie.inspect.page import render_inspection

    text = render_inspection(found)
    reader = Specs()
    reader.feed(text)
    assert reader.loaded == []
    assert len(reader.charts) == 5
    for words in ("3 distinct groups", "Would grouping help?", "what leaves the client", "gradient_coherence"):
        assert words in text
    for axis in ("clients in dendrogram order", "first shared direction", "number of groups", "gain over one model, points"):
        assert axis in text


def test_a_map_of_one_direction_says_so(found: Inspection) -> None:
    from coterie.inspect.page import draw_map

    narrow = replace(found, groups=replace(found.groups, coordinates=found.groups.coordinates[:, :1]))
    assert draw_map(narrow).spec()["encoding"]["y"]["title"] == "(no second direction is shared)"
    assert draw_map(found).spec()["encoding"]["y"]["title"] == "second shared direction"


def test_figures_can_be_drawn_for_papers(found: Inspection, tmp_path: Path) -> None:
    from coterie.inspect.page import draw_curves

    assert "number of groups" in draw_curves(found).save(tmp_path, "svg").read_text()


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["coterie", *words])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["inspect", "--data", "digits/rotated(clients=8,groups=2)", "--references", "19", "--rounds", "1", "--randoms", "1"]
    assert run(monkeypatch, *words, "--out", str(tmp_path / "out"), "--json") == 0
    tree = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert tree["groups"]["k"] == 2
    assert json.loads((tmp_path / "out" / "inspection.json").read_text()) == tree
    assert "<h1>" in (tmp_path / "out" / "inspection.html").read_text()


@pytest.mark.parametrize(("option", "told"), [("--references", "references=0"), ("--randoms", "randoms=0"), ("--rounds", "rounds=0")])
def test_bad_input(option: str, told: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "inspect", "--data", "digits/rotated", option, "0") == 2
    error = capfd.readouterr().err
    assert told in error
    assert len(error.strip().splitlines()) == 1
