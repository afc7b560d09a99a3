"""Evidence of several draws, methods and seeds: what its tables hold, and what its hash does and does not depend on."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from coterie._util.errors import UserError
from coterie.core.asks import Evaluate, Evaluated
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.replies import make_empty_reply
from coterie.core.serving import Serving
from coterie.evidence import Evidence, digest
from coterie.evidence.folder import MemorySource
from coterie.evidence.reader import read_notes
from coterie.evidence.records import LaneEnd, LaneKey, RoundRecord
from coterie.evidence.settings import Settings
from coterie.evidence.tables import KEYS, TABLES, make_tables
from coterie.run.execution import Execution
from coterie.run.result import Result
from coterie.run.study import Study

SETTINGS = Settings(
    methods=("fedavg", "ifca(groups=2)", "fedsim(clusters=2)"),
    data="synthetic(1,1,clients=5)",
    seeds=(0, 1),
    draws=(5, 3),
    plan=Plan(rounds=3, cohort=4, dropout=0.3, local=Local(lr=0.1, max_steps=3)),
)
LOOP = Execution(engine="loop")


def carried_out(settings: Settings = SETTINGS, execution: Execution = LOOP, **options: Any) -> Evidence:
    return Study.prepare(settings).run(execution=execution, **options).evidence


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return carried_out()


def rows(evidence: Evidence, name: str) -> list[tuple[Any, ...]]:
    """The rows of a table, nan and all, so that they can be compared."""
    columns = [map(repr, column.to_pylist()) for column in evidence.table(name).columns]
    return list(zip(*columns, strict=True))


def test_several_draws_in_one_study_are_the_separate_studies_row_by_row(evidence: Evidence) -> None:
    for draw in SETTINGS.draws:
        alone, part = carried_out(replace(SETTINGS, draws=(draw,))), evidence.select_draw(draw)
        for name in TABLES:
            if name != "timings":
                assert rows(part, name) == rows(alone, name), name
                assert rows(part, name) == [row for row in rows(evidence, name) if row[0] == str(draw)]
        assert part.roster.equals(alone.roster)
        assert part.ends() == alone.ends()
        assert digest(part) == digest(alone)
    assert rows(evidence.select_draw(5), "clients")[0][4:] != rows(evidence.select_draw(3), "clients")[0][4:]


WAYS: dict[str, Callable[[Path], Evidence]] = {
    "waves": lambda _: carried_out(execution=replace(LOOP, seeds_per_wave=1)),
    "segments": lambda folder: carried_out(execution=replace(LOOP, checkpoint_every=1), out=folder / "study"),
    "waves of segments": lambda folder: carried_out(
        execution=replace(LOOP, checkpoint_every=2, memory=1e-9, threads=1), out=folder / "study"
    ),
    "order of methods": lambda _: carried_out(replace(SETTINGS, methods=SETTINGS.methods[::-1])),
    "order of seeds": lambda _: carried_out(replace(SETTINGS, seeds=(1, 0))),
    "order of draws": lambda _: carried_out(replace(SETTINGS, draws=(3, 5))),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_digest_does_not_depend_on(way: str, evidence: Evidence, tmp_path: Path) -> None:
    assert digest(WAYS[way](tmp_path)) == digest(evidence)


def changed(evidence: Evidence, name: str, change: Callable[[pa.Table], pa.Table]) -> Evidence:
    """The same evidence with something done to one of its tables."""
    tables = {table: [evidence.table(table)] for table in TABLES}
    return replace(evidence, source=MemorySource({**tables, name: [change(tables[name][0])]}, evidence.ends()))


def test_the_digest_depends_on_every_table_but_the_timings(evidence: Evidence) -> None:
    usual = digest(evidence)
    for name in TABLES:
        if evidence.table(name).num_rows > 0:
            assert (digest(changed(evidence, name, lambda table: table.slice(1))) == usual) == (name == "timings"), name
    assert evidence.table("timings").num_rows > 0
    assert sum(evidence.table(name).num_rows > 0 for name in TABLES) >= 8  # all but `central`, which synthetic data has not

    def one_hit_fewer(table: pa.Table) -> pa.Table:
        hits = table["hits_0"].to_numpy().copy()
        hits[hits.argmax()] -= 1
        return table.set_column(table.column_names.index("hits_0"), "hits_0", pa.array(hits))

    assert digest(changed(evidence, "clients", one_hit_fewer)) != usual


def test_the_digest_does_not_depend_on_a_column_that_says_nothing(evidence: Evidence) -> None:
    usual = digest(evidence)
    n = evidence.table("rounds").num_rows

    def with_column(values: pa.Array) -> str:
        return digest(changed(evidence, "rounds", lambda table: table.append_column("later", values)))

    for empty in (pa.nulls(n, pa.int64()), pa.array(np.full(n, np.nan)), pa.nulls(n, pa.string())):
        assert with_column(empty) == usual
    assert with_column(pa.array(np.zeros(n))) != usual


def test_the_digest_does_not_depend_on_which_lane_is_written_first(evidence: Evidence) -> None:
    def lanes_backwards(table: pa.Table) -> pa.Table:
        keys = list(dict.fromkeys(zip(*(table[name].to_pylist() for name in KEYS[:3]), strict=True)))
        pieces = []
        for draw, method, seed in reversed(keys):
            own = pc.and_(pc.equal(table["draw"], draw), pc.and_(pc.equal(table["method"], method), pc.equal(table["seed"], seed)))
            pieces.append(table.filter(own))
        return pa.concat_tables(pieces)

    other = changed(evidence, "clients", lanes_backwards)
    assert rows(other, "clients") != rows(evidence, "clients")
    assert digest(other) == digest(evidence)


def test_every_table_is_keyed_by_draw_method_seed_and_round(evidence: Evidence) -> None:
    for name in TABLES:
        frame = evidence.frame(name)
        assert tuple(frame.columns[:4]) == KEYS
        assert tuple(evidence.columns(name)[:4]) == KEYS
        assert set(frame["draw"]) <= {3, 5}
        assert list(frame["method"].cat.categories) == list(SETTINGS.methods)
    rounds = evidence.frame("rounds")
    assert not rounds.duplicated(list(KEYS)).any()
    assert len(rounds) == 2 * 3 * 2 * 4  # draws, methods, seeds, rounds 0 to 3
    assert evidence.table("rounds", ["steps"]).column_names == [*KEYS, "steps"]
    with pytest.raises(UserError, match="no table 'round'"):
        evidence.table("round")


def test_absences_clusters_and_groups_say_what_happened(evidence: Evidence) -> None:
    """Dropped clients are absent with a reason; FedSim's clusters last a round and IFCA's groups stay."""
    rounds, absences = evidence.frame("rounds").set_index(list(KEYS)), evidence.frame("absences")
    counted = absences.groupby(list(KEYS), observed=True).size()
    assert counted.to_dict() == rounds["absent"][rounds["absent"] > 0].to_dict()
    assert set(absences["why"]) == {"ABSENT"}
    assert set(absences["ask"]) == {"Train", "Losses", "Gradient"}
    clusters, mixing = evidence.frame("clusters"), evidence.frame("mixing")
    assert set(clusters["method"]) == {"fedsim(clusters=2)"}
    assert set(clusters["cluster"]) <= {0, 1}
    mixed = mixing[(mixing["method"] == "fedsim(clusters=2)") & ~mixing["kept"]]
    assert set(zip(*(clusters[name] for name in ("draw", "seed", "round", "client")), strict=True)) == set(
        zip(*(mixed[name] for name in ("draw", "seed", "round", "source")), strict=True)
    )
    groups = evidence.frame("groups")
    assert set(groups["method"]) == {"ifca(groups=2)"}
    assert set(groups["group"]) == {-1, 0, 1}
    assert (groups.groupby(list(KEYS), observed=True).size() == 5).all()
    switched = [(key, round_, value) for key, round_, value in read_notes(evidence, "switched")]
    assert [(key, round_) for key, round_, _ in switched] == [
        (LaneKey(draw, "ifca(groups=2)", seed), round_) for seed in (0, 1) for draw in (5, 3) for round_ in (1, 2, 3)
    ]
    assert all(0 <= value <= 4 for _, _, value in switched)


def test_how_far_each_lane_has_come_is_known(evidence: Evidence) -> None:
    expected = {LaneKey(draw, method, seed): LaneEnd(3) for draw in (5, 3) for seed in (0, 1) for method in SETTINGS.methods}
    assert evidence.ends() == expected
    assert evidence.select_draw(3).ends() == {key: end for key, end in expected.items() if key.draw == 3}
    assert Result(evidence).problems == {}


def test_a_folder_holds_what_memory_holds(evidence: Evidence, tmp_path: Path) -> None:
    written = carried_out(out=tmp_path / "study")
    assert sorted(path.name for path in (tmp_path / "study" / "rosters").iterdir()) == ["3.parquet", "5.parquet"]
    assert [path.name for path in (tmp_path / "study" / "segments").iterdir()] == ["000001"]
    for name in TABLES:
        if name != "timings":
            assert rows(written, name) == rows(evidence, name)
            assert written.columns(name) == evidence.columns(name)
    assert written.ends() == evidence.ends()
    (tmp_path / "study" / "rosters" / "5.parquet").unlink()
    with pytest.raises(UserError, match=r"5\.parquet is missing"):
        Evidence.open(tmp_path / "study")


def test_a_result_counts_every_draw(evidence: Evidence) -> None:
    result = Result(evidence)
    assert result.last == 3
    scores, table = result.scores, result.table()
    assert len(scores) == 2 * 3 * 2
    assert set(scores["draw"]) == {3, 5}
    for label in SETTINGS.methods:
        mine = scores[scores["method"] == label]
        assert table.loc[label, "final"] == pytest.approx(mine["final"].mean())
        assert table.loc[label, "seeds"] == 4
    for draw in (3, 5):
        alone = Result(evidence.select_draw(draw)).scores
        both = scores[scores["draw"] == draw].reset_index(drop=True)
        assert alone["final"].tolist() == both["final"].tolist()
        own = result.clients[result.clients["draw"] == draw]
        assert own["id"].tolist() == [evidence.select_draw(draw).ids[client] for client in own["client"]]
    assert sorted(set(result.rounds["draw"])) == [3, 5]


def test_a_round_whose_evaluation_nobody_answered_leaves_no_rows() -> None:
    ask = Evaluate(Serving.one(np.arange(2), np.zeros(2, np.float32)))
    counts = np.ones((2, 3), np.int64)
    answered = Evaluated(np.arange(2), counts, counts, counts, np.zeros(2), np.full(2, np.nan))
    key = LaneKey(0, "fedavg", 0)
    records = [RoundRecord(key, 0, evaluated=make_empty_reply(ask)), RoundRecord(key, 1, evaluated=answered)]
    for some, rounds in ((records, [1, 1]), (records[:1], [])):
        clients = make_tables(some, classes=3, drifting=True)["clients"]
        assert clients["round"].to_pylist() == rounds
        assert clients["actual_2"].to_pylist() == [1] * len(rounds)
        counted = [f"{name}_{c}" for name in ("hits", "predicted", "actual") for c in range(3)]
        assert clients.column_names[-10:] == [*counted, "answers"]
        assert clients["answers"].null_count == len(rounds)  # nobody asked for them
