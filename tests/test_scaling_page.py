"""The arithmetic of docs/reference/scaling.md, done again from what it says it was multiplied from."""

import re
from pathlib import Path

import pytest

from coterie.models import build_model

PAGE = (Path(__file__).parent.parent / "docs" / "reference" / "scaling.md").read_text()
PAPER = PAGE[PAGE.index("## On paper") :]
PROSE = " ".join(PAPER.split())  # wherever lines break
DEVICES, COHORT, GROUPS, SKETCH, RELAYS = 10**7, 10**4, 5, 256, 100
FLOAT, LINE = 4, 10e9 / 8  # bytes of a number; bytes a second of 10 Gbit/s
UNITS = {"": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
KEPT = 0.4e3  # bytes a client of roster, groups, draws and counts


def read_cell(row: str, column: int) -> float:
    """A cell of the table of devices, as a number."""
    cells = next(line for line in PAPER.splitlines() if line.startswith(f"| {row}")).split(" | ")
    value, unit = re.match(r"([\d.,]+) ?(\w*)", cells[1 + column].strip(" |")).groups()  # type: ignore[union-attr]
    return float(value.replace(",", "")) * UNITS[unit]


@pytest.mark.parametrize(("column", "shape", "spec"), [(0, (60,), "mclr"), (1, (28, 28), "cnn")])
def test_ten_million_devices(column: int, shape: tuple[int, ...], spec: str) -> None:
    numbers = sum(p.numel() for p in build_model(spec, shape, 10).parameters())
    assert f"{numbers:,}" in PAPER.splitlines()[next(i for i, line in enumerate(PAPER.splitlines()) if line.startswith("| | softmax"))]
    reply = FLOAT * numbers
    rows = {
        "messages a round": 2 * COHORT,
        "bytes down and up a round": 2 * COHORT * reply,
        "bytes down a round with five models": GROUPS * COHORT * reply,
        "replies that the server holds": COHORT * reply,
        "seconds for these": COHORT * reply / LINE,
        "what each of 100 relays passes on": COHORT / RELAYS * reply,
        "the same, were it summed there": reply,
        "FeSEM's warm-up": DEVICES * reply,
        "a sketch of 256 numbers": DEVICES * SKETCH * FLOAT,
        "roster, groups": DEVICES * KEPT,
    }
    for row, expected in rows.items():
        assert read_cell(row, column) == pytest.approx(expected, rel=0.03), row


def test_a_hundred_machines() -> None:
    draws, seeds, methods, machines = 20, 35, 10, 100
    assert f"{draws} draws of {seeds} seeds with ten methods are 7,000 lanes, 70 a machine" in PROSE
    assert draws * seeds * methods == 7000
    assert draws * seeds * methods // machines == 70
    figures = (Path(__file__).parent.parent / "benchmarks" / "README.md").read_text()
    share, seconds, megabytes = map(float, re.search(r"writing / rounds \| ([\d.]+) % \(([\d.]+) s, (\d+) MB\)", figures).groups())  # type: ignore[union-attr]
    assert f"Writing took {share:g} % *m*" in PROSE
    assert f"{seconds:g} s and {megabytes:g} MB" in PROSE
    assert f"about {round(100 / share)} machines" in PROSE
    assert f"with {machines} it is {machines * share / 100:g} times too slow" in PROSE
    assert f"{draws * methods * megabytes / 1e3:g} GB of evidence" in PROSE
    assert f"MNIST's 70,000 images are {round(70_000 * 28 * 28 * FLOAT / 1e6, -1):g} MB" in PROSE
