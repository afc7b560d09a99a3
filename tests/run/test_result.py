"""A result's tables as data frames: whose rows they are, and how little they hold."""

from pathlib import Path

import numpy as np

import coterie as ct
from coterie.core.asks import Evaluated
from coterie.evidence.tables import ANSWERS
from coterie.run.result import Result
from coterie.testing import worlds


def test_every_row_has_the_name_of_its_client_in_its_own_draw(tmp_path: Path) -> None:
    settings = {"rounds": 1, "cohort": 3, "epochs": 1, "draws": 2, "seeds": [0], "controls": False}
    compared = ct.compare(["ifca(groups=2)"], data="digits/iid(clients=6)", out=tmp_path / "study", **settings)  # type: ignore[arg-type]
    result = Result(compared.federations[0].evidence)
    for frame in (result.clients, result.groups):
        assert frame["draw"].nunique() == 2
        ids = {draw: result.evidence.select_draw(draw).ids for draw in (0, 1)}
        told = zip(frame["draw"], frame["client"], frame["id"], strict=True)
        assert all(ids[draw][client] == name for draw, client, name in told)
        assert list(frame.columns[:6]) == ["draw", "method", "seed", "round", "client", "id"]
        assert frame["method"].cat.categories.tolist() == ["ifca(groups=2)"]
    assert ANSWERS not in result.clients
    assert result.evidence.frame("clients", ["client", ANSWERS])[ANSWERS].notna().any()


def test_counts_that_wait_to_be_written_take_half_the_memory() -> None:
    hits, predicted, actual = (np.arange(6).reshape(2, 3) + i for i in range(3))
    wide = Evaluated(np.array([2, 5]), hits, predicted, actual, np.array([0.5, 1.0]), np.array([0.1, 0.2]))
    kept = wide.narrow()
    for name in ("hits", "predicted", "actual"):
        assert getattr(kept, name).dtype == np.int32
        assert getattr(kept, name).tolist() == getattr(wide, name).tolist()
    assert kept.sizes.tolist() == wide.sizes.tolist()
    assert kept.loss is wide.loss


def test_tables_of_many_classes_come_without_advice_to_programmers() -> None:
    """Warnings are errors here: with more than a hundred columns pandas told users that their frame was fragmented."""
    federation = worlds.make_federation()
    result = ct.study("ifca(groups=2)", data=federation.replace(classes=tuple(f"letter {i}" for i in range(62))), rounds=1)
    assert len(result.clients.columns) > 100
    assert result.clients["id"].iloc[0] == federation.ids[0]
