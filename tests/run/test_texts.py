"""Studies of texts: language models compared by log-likelihood, grown, reported; what goes by classes or rows says so."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import coterie as ct
from coterie._util.errors import UserError
from coterie.analysis.auto_decisions import read_decisions
from coterie.analysis.record_reader import read_records
from coterie.data.federation import Federation
from coterie.evidence import digest
from coterie.inspect import InspectPlan, PilotPlan
from coterie.inspect.answers import write_answers
from coterie.report import write_report
from coterie.run.study import study
from tiny_lm import blocks, save_lm, spoken_federation

SIZES = (9, 4, 1, 6, 5, 5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_lm(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def spoken(folder: Path) -> Federation:
    return spoken_federation(blocks(folder, 50), SIZES).replace(groups=np.arange(6) % 2)


@pytest.fixture
def options(folder: Path, spoken: Federation) -> dict[str, Any]:
    return {"data": spoken, "model": f"lm({folder},spread=0.05)", "lr": 0.5}


def test_a_study_that_grows_has_the_digest_of_one_run_of_all(options: dict[str, Any], tmp_path: Path) -> None:
    study("fedavg", rounds=1, seeds=[0], out=tmp_path / "grown", **options)
    grown = study(["fedavg", "local"], rounds=2, seeds=[0, 1], out=tmp_path / "grown", resume=True, **options)
    whole = study(["fedavg", "local"], rounds=2, seeds=[0, 1], **options)
    assert digest(grown.evidence) == digest(whole.evidence)
    assert grown.evidence.task == "next-token"


def test_auto_chooses_by_log_likelihood(options: dict[str, Any]) -> None:
    found = study(["fedavg", "auto"], rounds=3, seeds=[0], **options)
    assert not found.problems
    [decision] = read_decisions(found.evidence)
    assert sum(decision.served.values()) == len(SIZES)
    assert all(option["score"] < 0 for option in decision.values["options"])


def test_scores_and_perplexity(options: dict[str, Any]) -> None:
    found = study(["fedavg", "ifca(groups=2)"], rounds=2, seeds=[0], **options)
    records = read_records(found.evidence)
    assert records.perplexity is not None
    assert records.rmse is None
    clients = found.clients.query("round == 2 and method == 'fedavg'")
    mean = clients["log_likelihood"].sum() / (2 * len(SIZES))  # two blocks each
    assert records.accuracy[0, 0, -1] == pytest.approx(mean)
    assert records.perplexity[0, 0, -1] == pytest.approx(np.exp(-mean))
    assert clients["loss"].mean() == pytest.approx(-mean, rel=1e-5)
    np.testing.assert_allclose(found.rounds["perplexity"], np.exp(-found.rounds["likelihood"]))
    assert found.scores["perplexity"].tolist() == pytest.approx(records.perplexity[:, 0, -1].tolist())
    assert records.metric.format_level(-2.0) == "-2.000 (perplexity 7.389)"
    first = ct.get_bundle(found, "site-0", "fedavg")
    own = clients.query("id == 'site-0'").iloc[0]
    test = options["data"].x[options["data"].test[0]]
    assert first.predict(test).sum() == pytest.approx(own["log_likelihood"], rel=1e-5)
    with pytest.raises(UserError, match="does not state how texts of 'spoken' become tokens"):
        first.predict(["a text"])


def test_a_comparison_has_intervals_over_samples_and_a_page(options: dict[str, Any], tmp_path: Path) -> None:
    found = ct.compare(["fedavg", "fedgroup(groups=2)"], rounds=2, seeds=range(2), controls=False, out=tmp_path / "c", **options)
    assert "log-likelihood" in " ".join(sentence for own in found.verdicts().values() for sentence in own)
    records = found.federations[0].records
    assert records.unit is not None
    assert records.unit.tolist() == [1, 1]
    assert "equally likely tokens" in write_report(tmp_path / "c").page.read_text()
    with pytest.raises(UserError, match="is not for a next-token task: choose from likelihood"):
        ct.compare(["fedgroup"], metric="f1", rounds=1, seeds=[0], out=tmp_path / "d", **options)


@pytest.mark.parametrize(
    ("method", "more", "sentence"),
    [
        ("fedex(groups=2,combiner=online)", {}, "goes by classes, and this is a next-token task: use combiner=mean or own"),
        ("fedavg", {"attack": "labelflip(share=0.5)"}, "labelflip turns labels round, and texts have none"),
        ("fedavg", {"loss": "absolute"}, "loss=absolute is for a regression, and this is a next-token task"),
    ],
)
def test_what_goes_by_labels_says_so(options: dict[str, Any], method: str, more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        study(method, rounds=1, **options, **more)


def test_inspection_asks_of_halves_as_a_whole(options: dict[str, Any]) -> None:
    plan = InspectPlan(pilot=PilotPlan(rounds=1, randoms=1))
    found = ct.inspect_data(options["data"], model=options["model"], plan=plan)
    assert found.task == "next-token"
    assert "This is a next-token task: label proportions exist for classes only." in write_answers(found)[0].evidence
