"""The first screen and the table of methods, from accuracies that force each case."""

import re
from html import unescape

import numpy as np
import pytest

from coterie.analysis.overview import make_difference
from coterie.report.federation_view import FederationView
from coterie.report.overview_section import (
    MAX_ROWS,
    Axis,
    build_overview_table,
    choose_forest_rows,
    explain_row,
    list_details,
    make_axis,
    render_first_screen,
    render_method_table,
)
from coterie.report.page import Html
from coterie.report.wording import list_next_steps
from report.made_up import view

SEEDS = 6
BASE = [0.600 + 0.001 * i for i in range(SEEDS)]
AVG, ALONE, GROUP, RANDOM, SIM = "fedavg", "local", "fedgroup(groups=2)", "fedgroup(groups=2,assign=random)", "fedsim(clusters=2)"


def above(gain: float, jitter: float = 0.001) -> list[float]:
    """The baseline plus a gain that differs a little from seed to seed."""
    return [level + gain + jitter * (i - 2.5) for i, level in enumerate(BASE)]


def render(found: FederationView) -> str:
    return "".join(block.text for block in render_first_screen(found, found.overview) if isinstance(block, Html))


def read_rows(html: str) -> list[tuple[str, list[str]]]:
    """The classes and the cells of each row of the plot's body."""
    body = html.partition("<tbody>")[2].partition("</tbody>")[0]
    rows = re.findall(r'<tr class="([^"]*)" tabindex="0">(.*?)</tr>', body, re.DOTALL)
    return [(kind, [unescape(cell) for cell in re.findall(r"<td(?! class=\"plot)[^>]*>(.*?)</td>", row)]) for kind, row in rows]


def test_the_first_screen_is_verdict_advice_and_one_row_each() -> None:
    found = view({AVG: BASE, ALONE: above(0.04), GROUP: above(0.1), RANDOM: above(0.0, 0.02), SIM: above(-0.1)}, losses={GROUP: 0.3})
    html = render(found)
    assert html.index("FedGroup beats FedAvg by +5.0 points") < html.index("What to do:") < html.index('class="forest"')
    rows = read_rows(html)
    assert [kind for kind, _ in rows] == ["baseline", "better", "inconclusive control", "worse", "better simpler"]
    # client 0 has 0.1 - 0.3 = -0.2 of gain, the other five 0.1: 0.05 on average; one of six clients is clearly worse off
    assert rows[1][1] == ["+5.0", "65.2", "17 %"]
    assert rows[0][1] == ["–", "60.2", "–"]
    assert rows[3][1] == ["−10.0", "50.2", "100 %"]
    assert html.count('class="tip"') == 5


def test_marks_are_placed_on_one_axis() -> None:
    axis = Axis(-0.02, 0.08)
    assert [axis.place(value) for value in (-0.02, 0.0, 0.03, 0.08, 0.5)] == [0, 20, 50, 100, 100]
    assert [(round(tick, 6), main) for tick, main in axis.ticks()] == [
        (0.0, True),
        (0.02, False),
        (0.04, True),
        (0.06, False),
        (0.08, True),
    ]
    found = view({AVG: BASE, GROUP: above(0.1)})
    html = render(found)
    axis = make_axis(found.overview.rows, found.overview.margin)
    gain = found.overview.row(GROUP).gain
    assert gain is not None
    assert f'<b style="left:{axis.place(gain.mean)}%">' in html
    assert f'<i class="ci" style="left:{axis.place(gain.low)}%;' in html
    band = re.search(r'class="band" style="left:([\d.]+)%;width:([\d.]+)%', html)
    assert band is not None
    assert float(band[1]) == axis.place(-0.01)
    assert float(band[2]) == pytest.approx(axis.place(0.01) - axis.place(-0.01), abs=0.01)


def test_an_interval_that_is_much_wider_than_all_gains_is_cut_off() -> None:
    found = view({AVG: BASE, GROUP: above(0.02), ALONE: above(0.02, 0.1)})
    alone = found.overview.row(ALONE).gain
    axis = make_axis(found.overview.rows, found.overview.margin)
    assert alone is not None
    assert alone.high > axis.high > 0.02
    assert 'class="ci from to"' in render(found)


def test_many_methods_fit_on_the_first_screen() -> None:
    some = {f"fedgroup(groups=2,pretrain={n})": above(0.01 * n) for n in range(1, 8)}
    controls = {f"fedgroup(groups=2,pretrain={n},assign=random)": above(0.001 * n) for n in range(1, 8)}
    found = view({AVG: BASE, **some, **controls})
    rows, ticked, hidden = choose_forest_rows(found.overview)
    assert (len(found.overview.rows), len(rows), ticked, hidden) == (15, 8, True, 0)
    assert render(found).count('<i class="tick"') == 7  # random groups, each in its method's row
    many = view({AVG: BASE, **{f"fedprox(mu={n})": above(0.01 * n) for n in range(1, 21)}})
    rows, _, hidden = choose_forest_rows(many.overview)
    assert (len(rows), hidden) == (MAX_ROWS, 21 - MAX_ROWS)
    assert rows[1].spec == "fedprox(mu=20)"  # those with the highest gain stay
    assert "8 more methods are in the table below" in render(many)


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        (above(0.1), "better, since the interval is above 0."),
        (above(-0.1), "worse, since the interval is below 0."),
        (BASE, "equivalent, since the difference is significantly within 1 point."),
        (above(0.0, 0.02), "inconclusive, since the interval contains 0."),
    ],
)
def test_a_row_explains_itself(levels: list[float], words: str) -> None:
    found = view({AVG: BASE, SIM: levels})
    said = explain_row(found, found.overview, found.overview.row(SIM))
    assert words in said
    assert said.endswith("every group has the same weight.")


def test_an_interval_above_zero_is_never_called_chance() -> None:
    """Seven seeds and four methods, one seed against the best: significant but for the correction."""
    base = [0.6 + 0.001 * i for i in range(7)]
    ahead = [level + gain for level, gain in zip(base, (-0.022, 0.03, 0.01, 0.04, 0.02, 0.05, 0.03), strict=True)]
    found = view({AVG: base, SIM: ahead, **{f"fedprox(mu={mu})": base for mu in (2, 3, 4)}})
    row = found.overview.row(SIM)
    assert "inconclusive: the interval excludes 0, but not after correction" in explain_row(found, found.overview, row)
    assert not any("chance" in sentence for sentence in list_details(found, row) if "test samples" not in sentence)
    few = view({AVG: BASE[:4], SIM: above(0.1)[:4]})
    assert "the repetitions are too few for the test" in explain_row(few, few.overview, few.overview.row(SIM))


def test_the_table_has_one_line_a_method_that_opens_to_its_details() -> None:
    found = view({AVG: BASE, ALONE: above(0.04), GROUP: above(0.1), RANDOM: above(0.02)})
    table = build_overview_table(found, found.overview)
    cells = table.cells()
    assert [column.title for column in table.columns] == [
        "method",
        "accuracy, %",
        "gain over FedAvg",
        "verdict",
        "against alone",
        "due to similarity",
        "clients clearly worse off",
        "traffic",
        "passes",
    ]
    assert [row[0] for row in cells] == ["FedAvg", "FedGroup", "Training alone"]
    assert cells[1][:5] == ["FedGroup", "70.2", "+10.0 (+9.8 to +10.2)", "better", "+6.0 (+6.0 to +6.0)"]
    assert cells[1][5:] == ["80 %: +8.0 (+8.0 to +8.0)", "0 %", "× 1.0", "× 1.0"]
    html = render_method_table(found, found.overview, table).text
    assert len(re.findall(r'<tr class="details" id="[^"]+" hidden>', html)) == 3
    assert set(re.findall(r'aria-controls="([^"]+)"', html)) == set(re.findall(r'class="details" id="([^"]+)"', html))
    row = table.frame.set_index("method").loc["FedGroup"]
    shares = [row[name] for name in ("gain", "against_alone", "similarity", "similarity_share")]
    assert shares == pytest.approx([0.1, 0.06, 0.08, 0.8])


def test_a_share_above_the_whole_is_called_all() -> None:
    found = view({AVG: BASE, GROUP: above(0.1), RANDOM: above(-0.128, 0.0011)})
    assert build_overview_table(found, found.overview).cells()[1][4].startswith("all: +22.8 (")


def test_details_name_clients_groups_and_the_origin() -> None:
    found = view(
        {AVG: BASE, GROUP: above(0.1), RANDOM: above(0.0)},
        losses={GROUP: 0.3},
        groups={GROUP: np.array([0, 0, 0, 1, 1, 1])},
    )
    said = list_details(found, found.overview.row(GROUP))
    assert said[0].startswith("Clients whose first training pulls in the same direction form a group")
    assert any("Random groups of the same sizes change nothing: the gain is from similarity" in sentence for sentence in said)
    assert "Significant losses: client 0 (−20.0)." in said
    assert "Its groups are client 0, client 1, client 2; client 3, client 4, client 5 (in 6 of 6 runs)." in said
    assert said[-1] == f"In full: {GROUP}"


def test_next_steps_are_commands() -> None:
    found = view({AVG: BASE, GROUP: above(0.1)})
    steps = list_next_steps(found, found.overview)
    assert steps[0] == f"Export its models: coterie export DIR --method '{GROUP}'."
    assert "coterie resume DIR --draws 10" in steps[1]


def test_one_repetition_has_no_interval() -> None:
    found = view({AVG: [0.6], SIM: [0.7]})
    assert "of one repetition, so without intervals." in render(found)
    assert 'class="ci' not in render(found)
    one = make_difference(found.findings.methods[SIM].gap, 0.01)
    assert one is not None
    assert (one.verdict, str(one)) == ("inconclusive", "+10.0")
