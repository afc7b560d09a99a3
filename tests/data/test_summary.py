"""What a partition looks like, in numbers and as a figure."""

from pathlib import Path

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.data.catalogue import load
from coterie.data.summary import PartitionSummary, draw_partition, make_chart

altair = pytest.importorskip("altair")


def test_counts_by_client_and_class() -> None:
    made = load("digits/pathological(2,clients=10,validation=0.2)")
    summary = PartitionSummary.from_federation(made)
    assert summary.table.sum() == 1797
    assert np.bincount(made.y).tolist() == summary.table.sum(0).tolist()
    frame = summary.clients()
    assert frame["classes"].tolist() == [2] * 10
    assert (frame["train"] + frame["validation"] + frame["test"]).tolist() == summary.table.sum(1).tolist()
    assert "group" not in frame
    assert "group" in PartitionSummary.from_federation(load("digits/rotated")).clients()
    assert list(summary.spread().index) == ["smallest", "quarter", "median", "three quarters", "largest"]


def test_few_clients_are_dots_and_many_a_heat_map() -> None:
    few = make_chart(altair, load("digits/rotated(clients=12)")).to_dict()
    assert few["mark"]["type"] == "circle"
    assert few["encoding"]["color"]["field"] == "group"
    many = make_chart(altair, load("digits/dirichlet(0.1,clients=100)")).to_dict()
    assert many["mark"]["type"] == "rect"
    assert many["encoding"]["x"]["title"] == "100 clients, ordered by the class held most of"
    assert many["title"] == "digits/dirichlet(0.1,clients=100)"
    shown = {cell["client"] for cell in many["data"]["values"]}
    assert len(shown) == 100


def test_of_very_many_clients_some_are_shown_and_it_says_so() -> None:
    made = make_chart(altair, load("digits/iid(clients=1500,test=0)")).to_dict()
    assert made["encoding"]["x"]["title"].startswith("1500 clients (1000 of them, evenly spaced)")


def test_a_file_in_each_format(tmp_path: Path) -> None:
    made = load("digits/rotated(clients=6)")
    for ending, start in ((".svg", b"<svg"), (".png", b"\x89PNG"), (".pdf", b"%PDF")):
        draw_partition(made, tmp_path / f"figure{ending}")
        assert (tmp_path / f"figure{ending}").read_bytes().startswith(start)
    with pytest.raises(UserError, match="a figure is written as"):
        draw_partition(made, tmp_path / "figure.gif")
    with pytest.raises(UserError, match="Cannot write the figure"):
        draw_partition(made, tmp_path / "no" / "figure.svg")
