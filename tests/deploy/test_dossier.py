"""Dossiers: what the papers of a study, a comparison, a federation and a site hold, and what stops them."""

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from coterie._util.errors import UserError
from coterie._util.files import write_inside
from coterie.analysis.class_scores import compute_class_recalls, compute_site_scores
from coterie.analysis.comparison import open_comparison
from coterie.cli.app import app
from coterie.deploy.bundle.files import HEAD_FILE
from coterie.deploy.dossier import document, dossier
from coterie.deploy.dossier.document import GAP_MARK, Block, Document, Gap, Items, Table, Text
from coterie.deploy.dossier.dossier import write_dossier
from coterie.deploy.server.federation import FederationFolder
from coterie.evidence.verify import compute_digests
from deploy.small_federation import HOSPITALS, run_small_federation
from integrity import flip
from report.made_up import evidence, folder

LEVELS = {"fedavg": [0.6, 0.61, 0.62], "local": [0.5, 0.52, 0.51], "fedgroup(groups=2)": [0.7, 0.72, 0.71]}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> FederationFolder:
    return run_small_federation(tmp_path_factory.mktemp("dossier") / "fed")


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return folder(tmp_path / "study", evidence(LEVELS, groups={"fedgroup(groups=2)": np.arange(6) % 2}, losses={"fedgroup(groups=2)": 0.3}))


@pytest.fixture
def _without_pdf(monkeypatch: pytest.MonkeyPatch) -> None:
    """PDF takes most of the time, and is tested by itself."""

    def missing() -> None:
        raise UserError("PDF needs Typst, which is not installed: pip install 'coterie[dossier]'.")

    monkeypatch.setattr(dossier, "import_typst", missing)


def read_text(path: Path) -> str:
    class Words(HTMLParser):
        text = ""

        def handle_data(self, data: str) -> None:
            self.text += f"{data} "

    words = Words()
    words.feed(path.read_text(encoding="utf-8"))
    return " ".join(words.text.split())


@pytest.mark.usefixtures("_without_pdf")
def test_the_papers_of_a_study(study: Path) -> None:
    made = write_dossier(study, method="fedgroup(groups=2)")
    names = {path.name for path in made.files}
    assert names == {"model_card.html", "model_card.md", "method.html", "egress.html", "gaps.toml"}
    card, method = read_text(study / "dossier" / "model_card.html"), read_text(study / "dossier" / "method.html")
    findings = open_comparison(study).federations[0]
    assert f"{100 * findings.methods['fedgroup(groups=2)'].scores['last10'].mean:.1f}" in card
    assert "Which clients are worse off" in card
    assert "17 % of clients score lower" in card  # client 0, of six
    assert "Significant losses: client 0" in card
    assert f"{GAP_MARK} the operator of the federation: For which decisions" in card
    assert compute_digests(study)["."] in method
    assert "seeds 0 to 2" in method
    assert "coterie 0.1.0" in method
    assert "This is a simulation" in read_text(study / "dossier" / "egress.html")
    assert made.gaps == 11
    assert made.notices == ("PDF needs Typst, which is not installed: pip install 'coterie[dossier]'.",)


@pytest.mark.usefixtures("_without_pdf")
def test_scores_by_site_and_class_are_those_of_the_analysis(federation: FederationFolder) -> None:
    write_dossier(federation.folder, method="fedavg")
    card = read_text(federation.folder / "dossier" / "first" / "model_card.html")
    findings = open_comparison(federation.runs / "first" / "study").federations[0]
    sites = compute_site_scores(findings.draws, "fedavg", {site: [site] for site in HOSPITALS})
    assert sites["cleveland"].score.mean == pytest.approx(findings.methods["fedavg"].fairness.accuracy[0])
    assert f"cleveland 1 {sites['cleveland'].train} {sites['cleveland'].test} {100 * sites['cleveland'].score.mean:.1f}" in card
    absent, present = compute_class_recalls(findings.draws)["fedavg"]
    assert f"absent {100 * absent.mean:.1f}" in card
    assert f"present {100 * present.mean:.1f}" in card
    assert "To test, & to show" in card
    assert "<b>operator</b>" in card  # as text


@pytest.mark.usefixtures("_without_pdf")
def test_an_egress_record_counts_what_the_log_has(federation: FederationFolder) -> None:
    kit = federation.kit("hungary")
    write_dossier(kit)
    record = read_text(kit / "dossier" / "egress.html")
    lines = [json.loads(line) for line in (kit / "audit.jsonl").read_text().splitlines()]
    sent = [line for line in lines if "ask" in line and not line["denied"]]
    denied = [line for line in lines if line.get("denied")]
    assert f"{len(sent)} answers to asks" in record
    assert denied
    assert "The privacy budget does not suffice" in record
    assert lines[-1]["hash"] in record
    assert "none was changed, moved or removed" in record
    assert "Mechanism clip+noise" in record
    assert "approved by policy" in record
    assert f"{GAP_MARK} the data protection officer of the site" in record


@pytest.mark.usefixtures("_without_pdf")
def test_a_site_whose_log_is_elsewhere_and_one_whose_log_was_changed(federation: FederationFolder, tmp_path: Path) -> None:
    copy = tmp_path / "fed"
    shutil.copytree(federation.folder, copy)
    shutil.rmtree(copy / "kits" / "va")
    log = copy / "kits" / "cleveland" / "audit.jsonl"
    log.write_text("\n".join(line for place, line in enumerate(log.read_text().splitlines()) if place != 4) + "\n")
    write_dossier(copy)
    papers = copy / "dossier" / "first"
    assert "There, 'coterie dossier KIT' makes the record" in read_text(papers / "egress-va.html")
    changed = read_text(papers / "egress-cleveland.html")
    assert "The log is not whole" in changed
    assert "Number 5 is missing" in changed
    assert "none was changed" not in changed


@pytest.mark.usefixtures("_without_pdf")
def test_the_papers_of_several_studies(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder(tmp_path / "all" / name, evidence(LEVELS))
    write_dossier(tmp_path / "all")
    method = read_text(tmp_path / "all" / "dossier" / "method.html")
    assert all(digest in method for digest in compute_digests(tmp_path / "all").values())


@pytest.mark.usefixtures("_without_pdf")
def test_a_damaged_study_gets_no_dossier(study: Path) -> None:
    flip(next((study / "segments").glob("*/clients.parquet")), 1)
    with pytest.raises(UserError, match=r"is damaged: .*clients\.parquet"):
        write_dossier(study)
    assert not (study / "dossier").exists()


@pytest.mark.usefixtures("_without_pdf")
def test_what_people_filled_in_stays_and_is_quoted_as_theirs(study: Path) -> None:
    write_dossier(study)
    gaps = study / "dossier" / "gaps.toml"
    gaps.write_text(gaps.read_text().replace('"licence" = ""', '"licence" = "Apache-2.0 <b>"'))
    before = gaps.read_text()
    made = write_dossier(study)
    assert made.gaps == 10
    assert gaps.read_text() == before
    assert "Apache-2.0 <b> (stated by the developers of the model)" in read_text(study / "dossier" / "model_card.html")


@pytest.mark.usefixtures("_without_pdf")
@pytest.mark.parametrize(("text", "sentence"), [("licence = ", "not valid TOML"), ("licence = 3", "a text for 'licence'")])
def test_answers_that_cannot_be_read(study: Path, text: str, sentence: str) -> None:
    (study / "dossier").mkdir()
    (study / "dossier" / "gaps.toml").write_text(text)
    with pytest.raises(UserError, match=sentence):
        write_dossier(study)
    assert [path.name for path in (study / "dossier").iterdir()] == ["gaps.toml"]


@pytest.mark.usefixtures("_without_pdf")
def test_a_stop_in_the_middle_leaves_whole_files_and_the_next_run_completes(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def stop(place: Path, name: str, content: str | bytes) -> Path:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(name)
        return write(place, name, content)

    write = write_inside
    monkeypatch.setattr(dossier, "write_inside", stop)
    with pytest.raises(KeyboardInterrupt):
        write_dossier(study)
    monkeypatch.setattr(dossier, "write_inside", write)
    assert len(write_dossier(study).files) == 5
    assert not list((study / "dossier").glob(".draft*"))


def test_pdf_holds_the_same_and_is_the_same_each_time() -> None:
    pytest.importorskip("typst")
    made = Document(
        "x",
        "Łódź #emph[x] $1$",
        "<b>lead</b>",
        [
            Text("A", 2),
            Gap("k", "Why?", "a person"),
            Gap("l", "Who?", "a person", "I"),
            Items(["a\x1b[2J"]),
            Table(("a", "b"), [("1", "2")]),
        ],
    )
    data, notice = made.pdf()
    assert data.startswith(b"%PDF")
    assert not notice
    assert (data, notice) == made.pdf()
    data, notice = Document("x", "\U00012000", "", []).pdf()  # which no font has
    assert data.startswith(b"%PDF")
    assert "no PDF/A" in notice


def test_text_is_escaped_in_every_form() -> None:
    bad = '<script>alert(1)</script> | `x` "'
    blocks: list[Block] = [Text(bad), Text(bad, 2), Gap("k", bad, bad), Items([bad]), Table((bad, "b"), [(bad, bad)], bad)]
    made = Document("x", bad, bad, blocks, {"tags": [bad], "metrics": [{"name": bad}]})
    assert "<script>" not in made.html()
    front, _, rest = made.markdown().partition("\n---\n\n")
    assert "\\<script>" in rest
    assert "<script>" not in rest.replace("\\<script>", "")
    assert json.loads(front.splitlines()[2].removeprefix("- ")) == bad


@pytest.mark.usefixtures("_without_pdf")
def test_a_bundle_gets_the_card_as_its_readme(federation: FederationFolder) -> None:
    bundle = next(federation.kit("cleveland").rglob(HEAD_FILE)).parent
    write_dossier(federation.folder, bundle=bundle)
    readme = (bundle / "README.md").read_text(encoding="utf-8")
    assert readme.startswith('---\nlibrary_name: "coterie"\n')
    assert "# Model card" in readme


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"run": "nine"}, "has no run 'nine'"),
        ({"method": "fedprox"}, "has no method 'fedprox': choose from fedavg"),
        ({"bundle": Path("nowhere")}, "holds no bundle"),
    ],
)
def test_what_is_not_there(federation: FederationFolder, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        write_dossier(federation.folder, **options)  # type: ignore[arg-type]


def test_a_folder_of_nothing_ends_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no study"):
        CliRunner().invoke(app, ["dossier", str(tmp_path)], catch_exceptions=False)
    with pytest.raises(UserError, match="There is no folder"):
        write_dossier(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []
    assert document.GAP_MARK == "To be filled in by"
