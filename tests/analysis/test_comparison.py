"""Reading of real, partial and damaged studies."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import coterie as ct
from analysis.made_records import AVG, GROUP, RANDOM, SIM
from coterie._util.errors import UserError
from coterie.analysis.comparison import compare_evidence, open_comparison
from coterie.analysis.findings import Findings
from coterie.analysis.record_reader import read_records
from coterie.analysis.verdict import write_verdicts
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.evidence import Evidence
from coterie.evidence.settings import Settings
from coterie.run.execution import Execution
from coterie.run.study import Study
from integrity import reseal

SETTINGS = Settings(
    methods=(AVG, GROUP, RANDOM, SIM, "fedprox(mu=1e30)"),
    data="digits/rotated(clients=8,groups=2,validation=0.2)",
    seeds=(0, 1),
    plan=Plan(rounds=4, local=Local(lr=0.1, batch_size=40)),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study on disk: two waves of one seed, two segments each; one method diverges at once."""
    out = tmp_path_factory.mktemp("comparison") / "study"
    Study.prepare(SETTINGS).run(out=out, execution=Execution(engine="loop", checkpoint_every=2, seeds_per_wave=1))
    return out


def test_records_hold_what_the_result_shows(folder: Path) -> None:
    evidence = Evidence.open(folder)
    records = read_records(evidence)
    rounds = ct.Result(evidence).rounds
    for row in rounds.itertuples():
        at = SETTINGS.methods.index(str(row.method)), SETTINGS.seeds.index(int(row.seed)), int(row.round)  # type: ignore[arg-type]
        assert records.accuracy[at] == pytest.approx(row.accuracy)
        assert records.loss[at] == pytest.approx(row.loss)
        assert records.costs["bytes_up"][at] == row.bytes_up
        assert records.validation[at] == row.validation
    assert records.groups[GROUP].shape == (2, 5, 8)
    assert set(records.clusters) == {SIM}
    assert set(records.clusters[SIM]) == {(seed, round_) for seed in (0, 1) for round_ in range(1, 5)}
    assert ("fedprox(mu=1e30)", 0) in records.stopped
    assert np.isfinite(records.silhouette[SETTINGS.methods.index(GROUP)]).all()


def test_a_study_on_disk_becomes_a_comparison(folder: Path) -> None:
    comparison = open_comparison(folder)
    (found,) = comparison.federations
    assert found.seeds == (0, 1)
    assert found.methods[SIM].group_quality is not None
    assert found.methods[GROUP].decomposition is not None
    assert 0 <= found.methods[GROUP].scores["validated"].mean <= 1
    said = comparison.verdicts()[SETTINGS.data]
    assert any("fedprox(mu=1e30) cannot be judged" in sentence for sentence in said)
    assert list(comparison.table()["method"]) == list(SETTINGS.methods)
    assert comparison.as_json()["table"][0]["ari"] is None
    assert comparison.faults == ()
    assert comparison.ranking is None
    mean, low, high = found.curves[AVG]
    assert mean == pytest.approx(found.records.accuracy[0].mean(axis=0))
    assert ((low <= mean) & (mean <= high)).all()


def test_memory_and_disk_are_compared_alike(folder: Path) -> None:
    memory = Study.prepare(SETTINGS).run(execution=Execution(engine="loop")).evidence
    one, two = compare_evidence([memory]).table(), open_comparison(folder).table()
    same = [name for name in one if name != "server_seconds"]
    assert one[same].equals(two[same])


def damaged(folder: Path, tmp_path: Path, file: str, segment: int) -> Path:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    path = sorted((copy / "segments").iterdir())[segment] / file
    path.write_bytes(path.read_bytes()[:50])
    return reseal(copy)


def test_a_study_that_is_not_whole_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "whole"))
    shutil.rmtree(sorted((copy / "segments").iterdir())[-1])
    with pytest.raises(UserError, match=r"is not whole: .* is missing"):
        open_comparison(copy)
    shutil.copytree(folder, tmp_path / "other")  # beside another one it is named, and the other counts
    comparison = open_comparison(tmp_path)
    assert "is not whole" in comparison.faults[0]
    assert len(comparison.federations) == 1


@pytest.mark.parametrize(
    ("file", "segment", "seeds"), [("clients.parquet", 1, (1,)), ("clients.parquet", 2, (0, 1)), ("lanes.json", 0, (0, 1))]
)
def test_a_damaged_file_is_named_and_the_rest_still_counts(
    folder: Path, tmp_path: Path, file: str, segment: int, seeds: tuple[int, ...]
) -> None:
    comparison = open_comparison(damaged(folder, tmp_path, file, segment))
    assert len(comparison.faults) == 1
    assert file in comparison.faults[0]
    assert comparison.federations[0].seeds == seeds


@pytest.mark.parametrize("table", ["groups", "clusters", "notes", "timings", "rounds"])
def test_other_damaged_tables_cost_only_their_own_numbers(folder: Path, tmp_path: Path, table: str) -> None:
    comparison = open_comparison(damaged(folder, tmp_path, f"{table}.parquet", 1))
    assert f"{table}.parquet" in comparison.faults[0]
    whole, rest = (c.federations[0].methods[AVG].scores["final"].mean for c in (open_comparison(folder), comparison))
    assert whole == rest


@pytest.mark.parametrize("table", ["mixing", "central", "absences"])
def test_tables_that_no_number_is_read_from_are_not_missed(folder: Path, tmp_path: Path, table: str) -> None:
    comparison = open_comparison(damaged(folder, tmp_path, f"{table}.parquet", 1))
    assert comparison.faults == ()
    same = [name for name in comparison.table() if name != "server_seconds"]
    assert comparison.table()[same].equals(open_comparison(folder).table()[same])


def test_a_study_that_is_cut_short_says_so(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    first, second, third, fourth = sorted((copy / "segments").iterdir())
    shutil.rmtree(fourth)  # the second seed stands at round 2
    found = open_comparison(reseal(copy)).federations[0]
    assert found.seeds == (0,)
    assert "Only 1 of 2 repetitions are complete and compared." in write_verdicts(found)
    shutil.rmtree(second)  # and so does the first
    found = open_comparison(reseal(copy)).federations[0]
    assert (found.seeds, found.scope.last) == ((0, 1), 2)
    assert any(said.startswith("The study is at round 2 of 4") for said in write_verdicts(found))
    shutil.rmtree(first)
    shutil.rmtree(third)
    with pytest.raises(UserError, match="no evaluated round yet"):
        open_comparison(reseal(copy))


def test_several_federations_are_ranked_and_a_broken_one_is_named(folder: Path, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        shutil.copytree(folder, tmp_path / name)
    (tmp_path / "two" / "settings.json").write_text("{")
    (tmp_path / "compare.json").write_text("{")
    comparison = open_comparison(tmp_path)
    assert len(comparison.federations) == 2
    named = ("seals.json", "compare.json", "settings.json")
    assert all(name in fault for name, fault in zip(named, comparison.faults, strict=True))
    assert comparison.ranking is not None
    assert comparison.ranking.ranks[SETTINGS.methods.index("fedprox(mu=1e30)")] == 5
    with pytest.raises(UserError, match="holds no study"):
        open_comparison(tmp_path / "nowhere")


def test_any_two_methods_can_be_compared(folder: Path) -> None:
    found: Findings = open_comparison(folder).federations[0]
    difference = found.gap(SIM, GROUP, "max")
    assert difference.mean == pytest.approx(-found.gap(GROUP, SIM, "max").mean)
