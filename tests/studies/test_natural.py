"""Natural-12: the page is what the small tables beside it give, and they are of what was declared."""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from coterie.data.catalogue import DATA_SETS
from study_scripts import script

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "natural.md").read_text(encoding="utf-8")


natural, natural_page = script("natural"), script("natural_page")
TABLES = natural_page.Tables.read()
FEDERATIONS = TABLES.federations["federation"].tolist()


def test_the_page_is_what_its_tables_give() -> None:
    assert "\n".join(natural_page.page(TABLES)) + "\n" == PAGE


def test_the_tables_are_of_what_was_declared() -> None:
    assert dict(zip(FEDERATIONS, TABLES.federations["data"], strict=True)) == natural.TWELVE
    for name in FEDERATIONS:
        table = TABLES.accuracies(name)
        assert table.index.tolist() == [*range(natural.FIRST, natural.FIRST + natural.DRAWS)]
        clients = int(TABLES.federations.set_index("federation").loc[name, "clients"])
        assert {*natural.methods_for(clients), natural.FINETUNED, "fedavg", "local"} <= set(table.columns)
        assert not table.isna().any(axis=None)
        assert natural.CHOOSING not in table.index  # the draw that the rate was chosen on
    assert set(TABLES.federations["rate"]) <= set(natural.RATES)
    assert (min(natural.RATES), max(natural.RATES)) == (natural_page.LOWEST, natural_page.HIGHEST)


@pytest.mark.parametrize("name", FEDERATIONS)
def test_gains_and_words_by_hand(name: str) -> None:
    """Student's interval over draws and over test clients, the wider bound of each; the words by the rules of a verdict."""
    line = next(row for row in PAGE[PAGE.index("## Five methods") :].splitlines() if row.startswith(f"| {name} |"))
    cells = re.findall(r"([+-][\d.]+) \(([+-][\d.]+) to ([+-][\d.]+)\) \**(\w+)\**", line)
    assert len(cells) == 5
    table = TABLES.accuracies(name)
    own = TABLES.gains[(TABLES.gains["federation"] == name) & (TABLES.gains["against"] == "fedavg")]
    p_values, bounds = [], []
    for row in own.to_dict("records"):
        gained = 100 * (table[row["method"]] - table["fedavg"]).to_numpy()
        draws = stats.t.interval(0.95, len(gained) - 1, gained.mean(), stats.sem(gained)) if np.ptp(gained) > 0 else (gained[0], gained[0])
        clients = stats.t.interval(0.95, row["degrees"], 100 * row["mean"], 100 * row["error"])
        bounds.append((gained.mean(), min(draws[0], clients[0]), max(draws[1], clients[1])))
        rank = stats.wilcoxon(gained.round(10), alternative="greater").pvalue if np.ptp(gained) > 0 else 1.0
        among = stats.ttest_1samp(gained, 0, alternative="greater").pvalue if np.ptp(gained) > 0 else 1.0
        p_values.append(max(rank, among, stats.t.sf(row["mean"] / row["error"], row["degrees"])))
    order = np.argsort(p_values)
    corrected = np.empty(5)
    corrected[order] = np.maximum.accumulate(np.array(p_values)[order] * [5, 4, 3, 2, 1])
    for (mean, low, high, word), (gain, least, most), p in zip(cells, bounds, corrected, strict=True):
        assert [float(mean), float(low), float(high)] == pytest.approx([gain, least, most], abs=0.051)
        assert (word == "better") == (least > 0 and p < 0.05)
        assert (word == "worse") == (most < 0)
        if word == "same":
            assert max(-least, most) < 1.3  # a 90 % interval within a point is at most so wide at 95 %


def test_the_counts_are_those_of_the_table() -> None:
    lines = [
        row for row in PAGE[PAGE.index("## Five methods") : PAGE.index("## What is recommended")].splitlines() if row.startswith("| ")
    ][2:]
    for place, title in enumerate(natural_page.NAMES.values()):
        words = [re.findall(r"\) \**(\w+)\**", row)[place] for row in lines]
        (told,) = re.findall(rf"- {title}: (.*), of {len(lines)}\.", PAGE)
        assert dict(count.split(" in ") for count in told.split(", ")) == {word: str(words.count(word)) for word in set(words)}


def test_the_figure_shows_every_federation_and_method() -> None:
    drawn = (ROOT / "docs" / "figures" / "natural.svg").read_text(encoding="utf-8")
    for word in (*FEDERATIONS, *natural_page.NAMES.values()):
        assert f">{word}</text>" in drawn


@pytest.mark.parametrize("name", [name for name, known in DATA_SETS.items() if known.package])
def test_the_page_of_data_has_the_counts_that_are_checked(name: str) -> None:
    page, known = (ROOT / "docs" / "reference" / "data.md").read_text(encoding="utf-8"), DATA_SETS[name]
    assert known.package is not None
    (row,) = re.findall(rf"^\| `{name}` \| ([\d,]+) \w+ \| ([\d,]+) \| ", page, re.MULTILINE)
    assert row == (f"{known.clients:,}", f"{known.counts['train']:,}")
    assert known.package.name in page
