"""Evidence that was changed, cut or swapped is noticed, told of, and made again to the same digest: never shown as if nothing were."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

import integrity
from coterie._util.errors import UserError
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.evidence import Evidence, digest
from coterie.evidence.manifest import find_studies, read_study_head
from coterie.evidence.settings import Settings
from coterie.evidence.verify import verify
from coterie.methods.fedavg import FedAvg
from coterie.methods.local_only import LocalOnly
from coterie.run.callbacks import Callback
from coterie.run.execution import Execution
from coterie.run.study import Study
from coterie.testing import worlds

SETTINGS = Settings(
    methods=("fedavg", "local"), data="tiny", seeds=(0, 1), plan=Plan(rounds=4, cohort=4, local=Local(epochs=1, lr=0.1, max_steps=2))
)
EXECUTION = Execution(engine="loop", checkpoint_every=1, seeds_per_wave=1)  # four segments a seed


class Heard(Callback):
    """What a run said aloud."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_notice(self, sentence: str) -> None:
        self.told.append(sentence)


def run(folder: Path, *, resume: bool = False) -> list[str]:
    """Run the study or go on with it; what was said aloud."""
    heard = Heard()
    prepared = Study.prepare(SETTINGS, federation=worlds.make_federation(), methods=(FedAvg(), LocalOnly()))
    prepared.run(out=folder, resume=resume, execution=EXECUTION, callbacks=[heard])
    return heard.told


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("integrity") / "whole"
    assert run(folder) == []
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


@cache
def wanted(whole: Path) -> str:
    """The digest of what nobody touches."""
    return digest(Evidence.open(whole))


def test_a_study_that_nobody_touched_is_whole(whole: Path) -> None:
    found = verify(whole)
    assert (found.damaged, found.set_aside) == ((), ())
    assert found.good == {f"{number:06d}": 4 if number in (1, 5) else 2 for number in range(1, 9)}  # two lanes; the first has round 0, too
    assert json.dumps(found.as_json())
    head = read_study_head(whole)
    assert head is not None
    assert head.last.segment == "000008"


def first_by_second(folder: Path) -> None:
    integrity.overwrite_table(folder, "clients", 1, 0)


# What is done to a study, and the words of what must be said of it.
TAMPERED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a segment in the middle is removed": (lambda folder: integrity.remove_segment(folder, 2), "000003 is missing"),
    "the first segment is removed": (lambda folder: integrity.remove_segment(folder, 0), "000001 is missing"),
    "the last segment is removed": (lambda folder: integrity.remove_segment(folder, -1), "000008 is missing"),
    "all segments are removed": (lambda folder: shutil.rmtree(folder / "segments"), "000008 is missing"),
    "two segments are swapped": (lambda folder: integrity.swap_segments(folder, 3, 7), "000004 is segment 000008 under another name"),
    "a table is another segment's": (first_by_second, "000001 is damaged (clients.parquet is not as it was written)"),
    "hits are doubled": (
        lambda folder: integrity.rewrite_table(folder, "clients", -1, integrity.double_hits),
        "000008 is damaged (clients.parquet is not as it was written)",
    ),
    "methods are reversed": (integrity.reverse_methods, "settings.json is not as it was written"),
    "settings are gone": (lambda folder: (folder / "settings.json").unlink(), "settings.json is missing"),
    "a roster is gone": (lambda folder: (folder / "rosters" / "0.parquet").unlink(), "rosters/0.parquet is missing"),
    "the engine is another": (
        lambda folder: integrity.edit_json(folder / "execution.json", lambda tree: tree.update(engine="batched")),
        "execution.json is not as it was written",
    ),
    "the hash of the data is gone": (lambda folder: (folder / "data.json").write_text("{}"), "data.json is not as it was written"),
    "the head is gone": (lambda folder: (folder / "head.json").unlink(), "head.json is missing"),
    "a manifest is gone": (lambda folder: (folder / "segments/000003/manifest.json").unlink(), "000003 has no manifest"),
    "a manifest tells of fewer rows": (
        lambda folder: integrity.edit_json(folder / "segments/000003/manifest.json", lambda tree: tree.update(rows={})),
        "000003 is not what the chain of segments names",
    ),
    "a stray segment": (lambda folder: (folder / "segments/000009").mkdir(), "000009 has no manifest"),
    "a whole segment of an earlier round again": (
        lambda folder: shutil.copytree(folder / "segments/000008", folder / "segments/000009"),
        "000009 is segment 000008 under another name",
    ),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_what_was_tampered_with_is_refused_told_of_and_made_again(name: str, whole: Path, copy: Path) -> None:
    tamper, said = TAMPERED[name]
    tamper(copy)
    with pytest.raises(UserError, match=r"is not whole: .* 'coterie verify .* resume=True\."):
        Evidence.open(copy)
    found = verify(copy)
    assert not found.whole
    assert any(said in sentence for sentence in found.damaged), found.damaged
    told = run(copy, resume=True)
    assert told
    assert digest(Evidence.open(copy)) == wanted(whole)
    assert verify(copy).damaged == ()


def test_damaged_segments_are_set_aside_not_deleted(copy: Path) -> None:
    integrity.rewrite_table(copy, "clients", 3, integrity.double_hits)
    before = (integrity.numbered(copy)[3] / "clients.parquet").read_bytes()
    run(copy, resume=True)
    assert verify(copy).set_aside == ("segments-000004",)
    assert (copy / "set-aside" / "segments-000004" / "clients.parquet").read_bytes() == before
    integrity.remove_segment(copy, 0)  # what is set aside in the first place does not stand in the way of a second
    integrity.flip(integrity.numbered(copy)[-1] / "rounds.parquet", 0)
    run(copy, resume=True)
    assert verify(copy).whole


@pytest.mark.parametrize("seed", range(8))
def test_a_flipped_bit_in_a_checkpoint_never_resumes_to_another_digest(seed: int, whole: Path, copy: Path) -> None:
    last = integrity.numbered(copy)[-1]
    integrity.flip(last / "states.safetensors", seed)
    assert digest(Evidence.open(copy)) == wanted(whole)  # no number is read from it
    assert "states.safetensors is not as it was written" in verify(copy).damaged[0]
    shutil.rmtree(last.with_name("000004"))  # so that there is something to run
    assert any("000008/states.safetensors is not as it was written" in sentence for sentence in run(copy, resume=True))
    assert digest(Evidence.open(copy)) == wanted(whole)
    assert verify(copy).whole


@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_bit_anywhere_is_found_and_mended(seed: int, whole: Path, copy: Path) -> None:
    files = integrity.files_of(copy)
    integrity.flip(files[seed * 37 % len(files)], seed)
    assert not verify(copy).whole
    with suppress(UserError):  # which is the rule; but a checkpoint may be damaged, or what no number is computed from
        assert digest(Evidence.open(copy)) == wanted(whole)
    run(copy, resume=True)
    assert digest(Evidence.open(copy)) == wanted(whole)
    assert verify(copy).whole


def test_a_kill_between_a_segment_and_the_head_costs_nothing(whole: Path, tmp_path: Path) -> None:
    """The head is put back to what it was before the last segments."""
    other = tmp_path / "head"
    shutil.copytree(whole, other)
    for count in (1, 3):
        before = Path(shutil.copytree(whole, tmp_path / f"cut-{count}"))
        for _ in range(count):
            integrity.remove_segment(before, -1)
        run(before, resume=True)  # makes them again, with the same links
        first = read_study_head(before)
        assert first is not None
        kept = json.loads((before / "segments" / f"{8 - count + 1:06d}" / "manifest.json").read_text())["previous"]
        shutil.copytree(before, tmp_path / f"late-{count}")
        late = tmp_path / f"late-{count}"
        type(first)(first.files, type(first.last)(**kept), first.follows).write(late)
        assert verify(late).whole
        assert digest(Evidence.open(late)) == wanted(whole)
        run(late, resume=True)
        head = read_study_head(late)
        assert head is not None
        assert head.last.segment == "000008"


def test_other_settings_than_those_written_do_not_mend_a_study(copy: Path) -> None:
    integrity.reverse_methods(copy)
    other = Settings(**{**vars(SETTINGS), "methods": ("local", "fedavg")})
    prepared = Study.prepare(other, federation=worlds.make_federation(), methods=(LocalOnly(), FedAvg()))
    with pytest.raises(UserError, match=r"settings\.json is not as it was written, and this command has other settings"):
        prepared.run(out=copy, resume=True)


def test_more_right_answers_than_samples_are_refused(copy: Path) -> None:
    integrity.rewrite_table(copy, "clients", -1, integrity.double_hits)
    integrity.reseal(copy)
    with pytest.raises(UserError, match=r"cannot be in its table clients: client . has \d+ right answers"):
        Evidence.open(copy).table("clients")


def test_weights_that_are_no_numbers_are_refused(copy: Path) -> None:
    import numpy as np
    import pyarrow as pa

    integrity.rewrite_table(copy, "mixing", 0, lambda table: table.set_column(7, "weight", pa.array(np.full(len(table), np.inf))))
    integrity.reseal(copy)
    with pytest.raises(UserError, match="a weight is no finite number"):
        Evidence.open(copy).table("mixing")


def test_a_format_that_was_written_over_is_noticed(copy: Path) -> None:
    integrity.edit_json(copy / "settings.json", lambda tree: tree.update(format=2))
    assert not verify(copy).whole
    (copy / "head.json").unlink()
    assert not verify(copy).whole


def test_studies_below_a_folder_are_found(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "one" / "rounds")
    shutil.copytree(whole, tmp_path / "two")
    assert find_studies(tmp_path) == [tmp_path / "one" / "rounds", tmp_path / "two"]
    assert find_studies(tmp_path / "two") == [tmp_path / "two"]
    with pytest.raises(UserError, match="holds no study"):
        find_studies(tmp_path / "two" / "segments")


def test_the_digest_of_counts_leaves_out_what_a_processor_rounds(whole: Path, copy: Path) -> None:
    import pyarrow as pa

    integrity.rewrite_table(
        copy, "clients", 0, lambda table: table.set_column(5, "loss", pa.array(table["loss"].to_numpy() * (1 + 1e-15) + 1e-300))
    )
    integrity.reseal(copy)
    assert digest(Evidence.open(copy)) != wanted(whole)
    counts = digest(Evidence.open(whole), counts=True)
    assert digest(Evidence.open(copy), counts=True) == counts != wanted(whole)
    integrity.rewrite_table(copy, "clients", -1, lambda table: table.set_column(6, "hits_0", pa.array([0] * len(table), pa.int32())))
    integrity.reseal(copy)
    assert digest(Evidence.open(copy), counts=True) != counts
