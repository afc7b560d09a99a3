"""The drift study: its summary by hand, its section of the page, and that the page is what the files give where they are there."""

import pandas as pd
import pytest

from coterie.data.catalogue import load
from coterie.methods.catalogue import build
from study_scripts import script

drift = script("drift")


def make_scores() -> pd.DataFrame:
    """Two draws: nothing has 50 % after the change, every other method 60 % in the first draw and 62 % in the second."""
    rounds = [str(r) for r in range(0, drift.ROUNDS + 1, drift.EVALUATED)]
    rows = [
        {"scenario": scenario, "draw": draw, "method": method}
        | {r: 0.8 if int(r) < drift.AT else 0.5 if method == "nothing" else 0.6 + 0.02 * (draw - drift.FIRST) for r in rounds}
        for scenario in drift.SCENARIOS
        for draw in (drift.FIRST, drift.FIRST + 1)
        for method in drift.METHODS
    ]
    return pd.DataFrame(rows)


ALARMS = pd.DataFrame(
    [
        ("concept", drift.FIRST, "watch, place", 20, 0, 1, 10),  # a false alarm
        ("concept", drift.FIRST, "watch, place", 25, 6, 0, 10),
        ("concept", drift.FIRST, "watch, place", 30, 2, 1, 10),
        ("concept", drift.FIRST + 1, "watch, place", 30, 4, 0, 10),
    ],
    columns=["scenario", "draw", "method", "round", "right", "wrong", "moved"],
)


def test_the_summary_by_hand() -> None:
    found = drift.summarize(make_scores(), ALARMS).set_index(["scenario", "method"])
    row = found.loc["concept", "watch, place"]
    assert (row["before"], row["after"], row["gain"]) == pytest.approx((80, 61, 11))
    assert row["half"] == pytest.approx(12.706 * 1.0, rel=1e-4)  # of 10 and 12: a standard error of 1, and t with one degree of freedom
    assert (row["delay"], row["draws"], row["false"], row["wrong"]) == (4.5, 2, 1, 2)  # rounds 25 and 30, from 23
    assert row["found"] == pytest.approx((0.8 + 0.4) / 2)
    assert found.loc["rotation", "watch, place"]["draws"] == 0


def test_the_section_has_every_method_and_the_figure_every_scenario() -> None:
    section = drift.make_section(make_scores(), ALARMS)
    assert "2 of 10 declared draws" in section
    assert section.count("| watch, place |") == len(drift.SCENARIOS)
    assert "| 4 (2 of 2) | 60 % | 1 | 2 |" in section
    figure = drift.draw_figure(make_scores())
    assert all(name in figure for name in (*drift.SCENARIOS, *drift.METHODS))


def test_what_is_declared_can_run() -> None:
    for groups, data in drift.SCENARIOS.values():
        assert len(load(data, 0).later) == 1
        for spec in drift.METHODS.values():
            build(spec.format(groups))


def test_the_page_is_what_the_files_give() -> None:
    page = drift.PAGE.read_text(encoding="utf-8")
    assert page.count(drift.BEGIN) == page.count(drift.END) == 1
    if (drift.FILES / "scores.csv").exists():
        assert drift.make_page(page) == page
