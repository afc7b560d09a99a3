"""The parts of a report by themselves, against numbers that can be checked by hand."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie._util.errors import UserError
from coterie.analysis.findings import compute_findings
from coterie.analysis.groups import co_membership_from_labels, order_by_similarity, read_aggregation_weights
from coterie.analysis.record_reader import read_records
from coterie.report.charts.accuracy import draw_time_curves
from coterie.report.charts.clients import (
    _project_clients,
    draw_client_gains,
    draw_client_map,
    draw_decomposition,
    draw_stages,
    spread_points,
)
from coterie.report.charts.elements import apply_ramp, colour_groups, encode_data_url, shrink
from coterie.report.charts.groups import draw_co_membership, draw_groups, match_labels
from coterie.report.federation_tables import build_cost_table
from coterie.report.federation_view import FederationView, _select_clients, pick_evenly
from coterie.report.figure import Figure, parse_formats
from coterie.report.page import (
    Column,
    ReportTable,
    Section,
    render_page,
    render_paragraph,
    show_amount,
    show_interval,
    show_number,
    show_points,
    show_text,
)
from coterie.report.style import GREY, METHODS, OKABE_ITO, OLIVE
from coterie.testing import worlds
from report.made_up import view


def test_agreement_is_the_share_of_common_pieces_with_equal_labels() -> None:
    everybody = np.arange(3)
    pieces = [
        (everybody, np.array([0, 0, 1])),
        (everybody, np.array([1, 0, 0])),
        (np.array([0, 1]), np.array([5, 5])),
        (everybody, np.array([-1, 2, 2])),
    ]
    # 0 and 1 meet in three pieces, together in two; 0 and 2 meet in two, never together; 1 and 2 meet in three, together in two
    expected = [[1, 2 / 3, 0], [2 / 3, 1, 2 / 3], [0, 2 / 3, 1]]
    np.testing.assert_allclose(co_membership_from_labels(pieces, 3), expected)


def test_clients_that_never_met_agree_in_nothing() -> None:
    np.testing.assert_array_equal(co_membership_from_labels([(np.array([0]), np.array([0]))], 2), [[1, 0], [0, 0]])
    np.testing.assert_array_equal(co_membership_from_labels([], 2), np.zeros((2, 2)))


def test_order_puts_companions_side_by_side_and_true_groups_first() -> None:
    table = np.eye(4)
    table[0, 2] = table[2, 0] = table[1, 3] = table[3, 1] = 1.0
    order = order_by_similarity(table, None).tolist()
    assert {frozenset(order[:2]), frozenset(order[2:])} == {frozenset({0, 2}), frozenset({1, 3})}
    assert sorted(order_by_similarity(table, np.array([1, 0, 0, 1]))[:2].tolist()) == [1, 2]


def test_groups_of_a_round_keep_their_names_as_far_as_possible() -> None:
    everybody = np.arange(4)
    rounds = [None, (everybody, np.array([0, 0, 1, 1])), (everybody, np.array([1, 1, 0, 0])), (np.array([1, 2]), np.array([1, 0]))]
    expected = [[-1, -1, -1, -1], [0, 0, 1, 1], [0, 0, 1, 1], [-1, 0, 1, -1]]
    np.testing.assert_array_equal(match_labels(rounds, 4), expected)


def test_weight_is_spread_over_as_many_clients_as_count_alike() -> None:
    levels = {"fedavg": [0.5, 0.5], "fedgroup(groups=2)": [0.6, 0.6]}
    found = view(levels, groups={"fedgroup(groups=2)": np.array([0, 0, 0, 0, 1, 1])})
    weighing = read_aggregation_weights(found.findings.draws.each[0], 0)
    np.testing.assert_allclose(weighing.spread["fedavg"][:, 1:], 6.0)
    np.testing.assert_allclose(weighing.spread["fedgroup(groups=2)"][:, 1:], 3.0)  # models of 4 and of 2 clients
    assert np.isnan(weighing.spread["fedavg"][:, 0]).all()  # nothing is mixed at the start
    np.testing.assert_allclose(weighing.shares["fedgroup(groups=2)"][1], [0.25, 0.25, 0.25, 0.25, 0.5, 0.5])


def test_tables_shrink_by_averages_and_become_images() -> None:
    table = np.arange(12, dtype=np.float64).reshape(3, 4)
    np.testing.assert_allclose(shrink(table, 2), [[2.5, 4.5], [8.5, 10.5]])
    assert apply_ramp(np.array([[0.0, 1.0]]), ("#000000", "#FFFFFF")).tolist() == [[[0, 0, 0], [255, 255, 255]]]
    assert colour_groups(np.array([[-1, 0, 2]]), ("#010000", "#020000"), "#030000")[0, :, 0].tolist() == [3, 1, 1]
    assert encode_data_url(np.zeros((2, 2, 3), dtype=np.uint8)).startswith("data:image/png;base64,")


def test_thinning_keeps_both_ends() -> None:
    assert pick_evenly(3, 10).tolist() == [0, 1, 2]
    assert pick_evenly(100, 3).tolist() == [0, 50, 99]


def test_methods_are_called_short_unless_that_is_ambiguous_and_controls_wear_their_colour() -> None:
    labels = [
        "fedavg",
        "local",
        "fedsim(clusters=2)",
        "fedsim(clusters=2,assign=random)",
        "fedprox(mu=1)",
        "fedprox(mu=2)",
        "their.own:method",
    ]
    styles = view({label: [0.5, 0.6] for label in labels}).styles
    assert [style.name for style in styles.values()] == [
        "FedAvg",
        "Training alone",
        "FedSim",
        "FedSim, random groups",
        "FedProx(mu=1)",
        "FedProx(mu=2)",
        "their.own:method",
    ]
    assert (styles["fedavg"].colour, styles["local"].colour) == (GREY, OLIVE)
    assert styles["fedavg"].dash != styles["local"].dash
    assert styles["fedsim(clusters=2)"].colour == styles["fedsim(clusters=2,assign=random)"].colour
    assert styles["fedsim(clusters=2)"].dash != styles["fedsim(clusters=2,assign=random)"].dash
    assert set(METHODS) < set(OKABE_ITO.values())


def test_sheets_are_the_same_table_in_every_form() -> None:
    frame = pd.DataFrame({"method": ["a_b & c|d", "e"], "gain": [-0.0123, np.nan], "low": [-0.02, np.nan], "high": [0.0, np.nan]})
    columns = (
        Column("method", show_text("method")),
        Column("gain", show_points("gain", signed=True)),
        Column("95 % interval", show_interval("low", "high", signed=True)),
    )
    table = ReportTable("gains", "100 % <honest>", frame, columns)
    assert table.cells() == [["a_b & c|d", "−1.2", "−2.0 to 0.0"], ["e", "–", "–"]]
    assert "| a_b & c\\|d | −1.2 | −2.0 to 0.0 |" in table.markdown()
    assert r"a\_b \& c|d & $-$1.2 & $-$2.0 to 0.0 \\" in table.latex()
    assert r"\caption{100 \% <honest>}" in table.latex()
    assert "<td>a_b &amp; c|d</td>" in table.html().text
    assert "&lt;honest&gt;" in table.html().text
    assert show_number("gain", ".0f", " %", 100)({"gain": float("inf")}) == "–"


def test_the_frame_escapes_what_it_is_given_and_loads_nothing() -> None:
    chart = alt.Chart(alt.InlineData(values=[{"x": 1, "who": "</script><b>"}])).mark_point().encode(x=alt.X("x:Q", title="an axis"))
    figure = Figure("one", "A <figure>", "", chart)
    html = render_page("A & B", "lead <1>", [Section("First", [render_paragraph("1 < 2"), figure], "first", "First")])
    markup = re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)
    assert "<title>A &amp; B</title>" in markup
    assert "1 &lt; 2" in markup
    assert "A &lt;figure&gt;" in markup
    assert "<b>" not in markup
    assert not re.search(r"(src|href)=[\"'](https?:)?//", markup)
    spec = json.loads(re.search(r'<script type="application/json">(.*?)</script>', markup, re.DOTALL).group(1))  # type: ignore[union-attr]
    assert spec["encoding"]["x"]["title"] == "an axis"
    assert spec["width"] == "container"


@pytest.mark.parametrize(("form", "begin"), [("pdf", b"%PDF"), ("svg", b"<svg"), ("png", b"\x89PNG")])
def test_figures_for_papers(tmp_path: Path, form: str, begin: bytes) -> None:
    chart = alt.Chart(alt.InlineData(values=[{"x": 1}])).mark_point().encode(x="x:Q")
    path = Figure("one", "", "", chart).save(tmp_path, parse_formats(form)[0])
    assert path.name == f"one.{form}"
    assert path.read_bytes().startswith(begin)


def test_formats_are_checked() -> None:
    assert parse_formats("") == ()
    assert parse_formats("png, PDF") == ("pdf", "png")
    with pytest.raises(UserError, match="Unknown figure format 'tiff'"):
        parse_formats("tiff")


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0123456, "0.0123"), (3.14159, "3.14"), (99.94, "99.9"), (1234567.8, "1,234,568"), (0.0, "0"), (np.nan, "–")]
)
def test_amounts_small_and_large_keep_the_figures_that_count(value: float, shown: str) -> None:
    assert show_amount("megabytes")({"megabytes": value}) == shown


def test_of_many_clients_a_sample_is_in_tables_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    levels, groups = {"fedavg": [0.5, 0.5], "fedgroup(groups=2)": [0.6, 0.6]}, np.array([0, 0, 0, 0, 1, 1])
    whole = view(levels, groups={"fedgroup(groups=2)": groups})
    table, told = whole.agreements["fedgroup(groups=2)"], whole.paired_sample_note
    monkeypatch.setattr("coterie.report.federation_view.MAX_PAIRED", 4)
    monkeypatch.setattr("coterie.report.federation_view.MAX_CLIENTS", 3)
    some = view(levels, groups={"fedgroup(groups=2)": groups})
    assert len(some.pictured_clients) == 4
    assert set(some.drawn_clients) < set(some.pictured_clients)
    np.testing.assert_array_equal(some.agreements["fedgroup(groups=2)"], table[np.ix_(some.pictured_clients, some.pictured_clients)])
    assert some.paired_sample_note == " 4 of 6 clients are shown, drawn at random."
    assert told == ""
    assert "drawn at random" in draw_groups(some)[0].note
    assert "drawn at random" in draw_co_membership(some)[0].note
    assert len(draw_client_map(some)) == 1


def test_groups_of_a_round_are_cut_to_the_clients_pictured() -> None:
    members, labels = _select_clients((np.array([1, 3, 4, 9]), np.array([0, 1, 1, 2])), np.array([3, 5, 9]))
    assert members.tolist() == [0, 2]
    assert labels.tolist() == [1, 2]


def test_the_report_draws_and_tables_time_where_there_is_any() -> None:
    plan: dict[str, Any] = {"rounds": 3, "buffer_size": 2, "speeds": "lognormal(1.0)"}
    records = read_records(ct.study(["fedavg", "simprox"], data=worlds.make_federation(), seeds=range(2), **plan).evidence)
    view = FederationView(compute_findings(records))
    (figure,) = draw_time_curves(view)
    (values,) = figure.spec(width=600)["datasets"].values()
    assert {row["method"] for row in values} == {view.name("fedavg"), view.name("simprox")}
    assert max(row["time"] for row in values) == pytest.approx(records.clock[:, :, -1].min(), rel=1e-3)  # type: ignore[index]
    table = build_cost_table(view)
    assert {"time", "time_to_target"} <= set(table.frame.columns)
    spent = view.findings.methods["fedavg"].spending
    assert spent.time == pytest.approx(records.clock[0, :, -1].mean())  # type: ignore[index]
    untimed = FederationView(compute_findings(replace(records, clock=None)))
    assert draw_time_curves(untimed) == []
    assert "time" not in build_cost_table(untimed).frame.columns


BASE = [0.600 + 0.001 * i for i in range(6)]
GROUP, RANDOM, TUNED = "fedgroup(groups=2)", "fedgroup(groups=2,assign=random)", "fedavg+finetune(epochs=5)"


def above(gain: float, jitter: float = 0.001) -> list[float]:
    """The baseline plus a gain that differs a little from seed to seed."""
    return [level + gain + jitter * (i - 2.5) for i, level in enumerate(BASE)]


def read_rows(figure: Figure) -> list[dict[str, Any]]:
    """All rows of a chart's data."""
    return [row for table in figure.spec(width=600)["datasets"].values() for row in table]


@pytest.mark.parametrize(("random", "groups"), [(0.02, (8.0, 10.0)), (-0.03, (0.0, -3.0))])
def test_the_parts_of_a_gain_are_stacked_from_zero_similarity_first(random: float, groups: tuple[float, float]) -> None:
    """A gain of 10 points: where random groups gain 2, similarity is 0 to 8 and groups 8 to 10; where they lose 3, 0 to 13 and 0 to -3."""
    (figure,) = draw_decomposition(view({"fedavg": BASE, GROUP: above(0.1), RANDOM: above(random, 0.002)}))
    parts = {row["part"]: (row["from"], row["to"]) for row in read_rows(figure) if "part" in row}
    assert parts == {"similarity": (0.0, pytest.approx(10 - 100 * random)), "having groups": pytest.approx(groups)}
    (end,) = [row for row in read_rows(figure) if "total" in row]
    assert end["total"] == pytest.approx(10)
    assert end["low"] < 10 - 100 * random < end["high"]


def test_clients_are_bars_with_names_up_to_forty_and_points_above() -> None:
    few = view({"fedavg": BASE, GROUP: above(0.1)}, losses={GROUP: 0.3})
    (figure,) = draw_client_gains(few)
    rows = read_rows(figure)
    assert [row["client"] for row in rows if "client" in row][-1] == "client 0"  # the one that loses is last
    assert {row["client"]: row["lost"] for row in rows if "client" in row}["client 0"] == "clearly worse off"
    assert {row["gain"] for row in rows if row.get("client") == "client 0"} == {-20.0}
    assert "Triangles: clearly worse off" in figure.note
    assert "Lines are 95 % intervals over seeds" in figure.note
    (figure,) = draw_client_gains(view({"fedavg": BASE, GROUP: above(0.1)}, clients=41))
    places = [row["place"] for row in read_rows(figure) if "place" in row]
    assert len(places) == 41
    assert max(map(abs, places)) <= 0.42
    assert "Triangles" not in figure.note  # none is clearly worse off


def test_points_of_like_values_are_kept_apart() -> None:
    offsets = spread_points(np.array([0.0, 5.0, 5.0, 5.0, 10.0]))
    assert offsets[0] == offsets[4] == offsets[2] == 0
    assert offsets[1] == -offsets[3] != 0
    assert np.abs(spread_points(np.zeros(300))).max() == pytest.approx(0.42)


@pytest.mark.parametrize("clients", [3, 120])
def test_clients_that_are_all_alike_lie_in_one_place(clients: int) -> None:
    """Without a warning, which would be an error here."""
    places = _project_clients(np.ones((clients, clients)), "fedavg")
    assert np.abs(places).max() < 0.2  # scattered a little
    spread = _project_clients(np.eye(clients), "fedavg")
    assert np.abs(spread).max() > 0.9


def test_both_stages_are_drawn_where_the_study_has_both() -> None:
    (figure,) = draw_stages(view({"fedavg": BASE, TUNED: above(0.04), GROUP: above(0.1)}))
    rows = read_rows(figure)
    assert [(row["method"], row["stage"], row["accuracy"]) for row in rows] == [
        ("FedAvg", "as served", 60.25),
        ("FedAvg", "after 5 local epochs", 64.25),
    ]
    assert rows[0]["added"].startswith("+4.0 (")
    assert draw_stages(view({"fedavg": BASE, GROUP: above(0.1)})) == []
