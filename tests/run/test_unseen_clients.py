"""Clients that take no part: training is as if they were not there, they are served as newcomers, and scored apart."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import coterie as ct
from coterie.analysis.comparison import open_comparison
from coterie.cli.app import app
from coterie.core.asks import Train
from coterie.core.method import Context, Round
from coterie.core.states import Models
from coterie.data.catalogue import load
from coterie.data.content import hash_contents
from coterie.data.federation import Federation, Parts
from coterie.deploy.bundle.export import load_served_models, served_result
from coterie.deploy.site.data import select_clients
from coterie.evidence.folder import MemorySource
from coterie.evidence.reader import Evidence, read_notes
from coterie.evidence.records import MALICIOUS
from coterie.evidence.verify import digest
from coterie.methods.catalogue import methods as catalogue
from coterie.methods.grouped import compute_mean_model
from coterie.methods.one_model import OneModelMethod
from coterie.report.report import write_report

DATA = "digits/rotated(clients=10,groups=2,validation=0.1)/unseen(0.3)"
KEYS = ["method", "seed", "round"]


def without(federation: Federation) -> Federation:
    """The federation of those who take part alone."""
    n = federation.participants

    def parts(found: Parts) -> Parts:
        return Parts.from_lists([found[client] for client in range(n)])

    assert federation.groups is not None
    assert federation.validation is not None
    return federation.replace(
        ids=federation.ids[:n],
        train=parts(federation.train),
        test=parts(federation.test),
        validation=parts(federation.validation),
        groups=federation.groups[:n],
        unseen=0,
        name="those who take part",
    )


def test_every_method_trains_as_if_they_were_not_there_and_serves_them() -> None:
    federation = load(DATA)
    names = [name for name in catalogue if ":" not in name]
    settings: dict[str, Any] = {"rounds": 2, "cohort": 5, "selection": "windows"}
    with_them = ct.study([*names, "fedavg+finetune"], data=federation, **settings)
    alone = ct.study([*names, "fedavg+finetune"], data=without(federation), **settings)
    assert not with_them.problems
    for table in ("clients", "groups", "clusters", "mixing", "rounds"):
        one, two = (result.evidence.frame(table) for result in (with_them, alone))
        assert len(one), table
        assert one.drop(columns="loss", errors="ignore").equals(two.drop(columns="loss", errors="ignore")), table
    unseen = with_them.evidence.select_unseen()
    assert unseen is not None
    assert alone.evidence.select_unseen() is None
    assert unseen.ids == list(federation.ids[7:])
    frame = unseen.frame("clients")
    assert len(frame) == 3 * (len(names) + 1) * 3  # clients x methods x rounds
    assert set(frame["client"]) == {0, 1, 2}
    assert with_them.table()["unseen"].notna().all()
    assert "unseen" not in alone.table()
    for name in ("final", "last10", "mean", "macro", "worst"):  # nothing else counts them
        assert with_them.table()[name].equals(alone.table()[name])


def test_the_score_is_of_the_model_that_a_newcomer_is_served() -> None:
    federation = load(DATA)
    result = ct.study("ifca(groups=2)", data=federation, rounds=3)
    hits = total = 0
    for client in range(federation.participants, len(federation)):
        rows = federation.test[client]
        answered = ct.get_bundle(result, federation.ids[client]).predict(np.asarray(federation.x[rows]))
        hits += sum(str(guess) == federation.classes[truth] for guess, truth in zip(answered, federation.y[rows], strict=True))
        total += len(rows)
    assert result.table()["unseen"].iloc[0] == pytest.approx(hits / total)


def test_without_labels_they_get_what_a_method_has_for_clients_that_it_cannot_place() -> None:
    """FedGroup serves the mean of its groups' models, IFCA the largest group's, and fine-tuning leaves FedAvg's model as it is."""
    methods = ["fedgroup(groups=2)", "ifca(groups=2)", "fedavg", "fedavg+finetune"]
    labelled, blind = (ct.study(methods, data=f"{DATA[:-1]},labelled={word})", rounds=2) for word in ("true", "false"))
    for name in ("final", "last10", "mean"):  # training is the same
        assert labelled.table()[name].equals(blind.table()[name])
    served = served_result(blind, method="fedgroup(groups=2)")
    state: Any = served.lane.state
    own = served.serving.take(served.serving.clients >= 7)
    assert len(own.clients) == 3
    np.testing.assert_array_equal(own.models[own.rows], np.repeat(compute_mean_model(state.models), 3, axis=0))
    other: Any = served_result(blind, method="ifca(groups=2)")
    rows = other.serving.rows[other.serving.clients >= 7]
    assert set(rows.tolist()) == {int(np.bincount(other.lane.state.groups).argmax())}
    tables = {name: result.table()["unseen"] for name, result in (("labelled", labelled), ("blind", blind))}
    assert tables["blind"]["fedavg+finetune"] == tables["blind"]["fedavg"] == tables["labelled"]["fedavg"]
    assert tables["labelled"]["fedavg+finetune"] != tables["labelled"]["fedavg"]
    whole = load(DATA)
    assert hash_contents(whole) != hash_contents(whole.replace(unlabelled=True))


@dataclass(frozen=True, kw_only=True)
class Prying(OneModelMethod):
    """Asks whom it should not know of."""

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        everybody = np.arange(len(ctx.roster) + 1)
        yield from Train(everybody, state.models, ctx.local)
        return state


def test_a_method_cannot_ask_them() -> None:
    with pytest.raises(ct.NothingFinishedError, match="may not ask clients that take no part"):
        ct.study(Prying(), data=load(DATA), rounds=1)


def test_a_cohort_is_of_those_who_take_part() -> None:
    with pytest.raises(ct.UserError, match="only 7"):
        ct.study("fedavg", data=DATA, cohort=8, rounds=1)


def test_hostile_clients_are_among_those_who_take_part() -> None:
    result = ct.study("fedavg", data=DATA, rounds=1, attack="labelflip(share=0.4)")
    ((_, _, hostile),) = read_notes(result.evidence, MALICIOUS)
    assert max(hostile) < 7
    assert np.isfinite(result.table()["unseen"].iloc[0])


def test_a_study_in_pieces_has_the_digest_of_one_and_the_digest_covers_them(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"data": DATA, "evaluate_every": 2}
    ct.study(["fedavg", "ifca(groups=2)"], rounds=3, out=tmp_path / "grown", **settings)
    ct.study(["fedavg", "ifca(groups=2)"], rounds=5, out=tmp_path / "grown", resume=True, **settings)
    ct.study(["fedavg", "ifca(groups=2)"], rounds=5, out=tmp_path / "whole", **settings)
    grown, whole = (Evidence.open(tmp_path / name) for name in ("grown", "whole"))
    assert digest(grown) == digest(whole)
    assert CliRunner().invoke(app, ["verify", str(tmp_path / "grown")]).exit_code == 0
    other = ct.study(["fedavg", "ifca(groups=2)"], rounds=5, **settings)
    assert digest(other.evidence) == digest(whole)
    source = other.evidence.source
    assert isinstance(source, MemorySource)
    table = source.tables["clients"][0]
    at = table.schema.get_field_index("predicted_0")
    changed = table["predicted_0"].to_numpy().copy()
    changed[table["client"].to_numpy() >= 7] += 1
    tables = {**source.tables, "clients": [table.set_column(at, "predicted_0", [changed])]}
    assert digest(replace(other.evidence, source=replace(source, tables=tables))) != digest(whole)


def test_compare_and_the_report_tell_of_them_apart(tmp_path: Path) -> None:
    runner, out = CliRunner(), tmp_path / "out"
    command = ["compare", "ifca(groups=2)", "--data", "digits/rotated(clients=10,groups=2)", "--unseen", "0.3", "--out", str(out)]
    ran = runner.invoke(app, [*command, "--rounds", "2", "--draws", "2", "--seeds", "0-1"])
    assert ran.exit_code == 0, ran.output
    for shown in (ran.output, runner.invoke(app, ["show", str(out)]).output):
        assert "Unseen: accuracy of the 3 clients that took no part." in shown
        assert "Clients that took no part (3)" not in shown
    assert "Clients that took no part (3)" in runner.invoke(app, ["show", str(out), "--details"]).output
    comparison = open_comparison(out)
    (findings,) = comparison.federations
    assert findings.unseen is not None
    row = comparison.table().iloc[-1]
    own = findings.unseen.methods[row["method"]]
    assert row["unseen"] == own.scores["last10"].mean
    assert (row["unseen_low"], row["unseen_high"]) == (own.gap.low, own.gap.high)
    assert len(findings.unseen.records.ids) == 3
    assert not set(findings.unseen.records.ids) & set(findings.records.ids)
    page = write_report(out).page.read_text()
    assert "Clients that took no part" in page
    assert (out / "tables" / "unseen.csv").is_file()


def test_run_prints_a_column_and_a_study_without_them_has_none(tmp_path: Path) -> None:
    runner = CliRunner()
    some = ["run", "fedavg", "--data", "digits/iid(clients=5)", "--rounds", "1"]
    ran = runner.invoke(app, [*some, "--unseen", "0.2", "--out", str(tmp_path / "a")])
    assert ran.exit_code == 0, ran.output
    assert "unseen" in ran.output
    assert "unseen" in runner.invoke(app, ["show", str(tmp_path / "a")]).output
    assert "unseen" not in runner.invoke(app, some).output.lower()
    refused = runner.invoke(app, [*some, "--unseen", "2"])
    assert isinstance(refused.exception, ct.UserError) or refused.exit_code == 2


def test_a_newcomer_of_such_a_study_is_served_as_they_are(tmp_path: Path) -> None:
    federation = load(DATA)
    ct.study("ifca(groups=2)", data=DATA, rounds=2, out=tmp_path / "s")
    everybody = load_served_models(tmp_path / "s")
    assert everybody.serving.clients.tolist() == list(range(10))
    twin = select_clients(federation, [federation.ids[8]]).replace(ids=("newcomer",))
    found = load_served_models(tmp_path / "s", newcomers=twin)
    assert found.serving.clients.tolist() == [10]
    place = everybody.serving.clients.tolist().index(8)
    assert found.serving.rows[0] == everybody.serving.rows[place]  # the same rows, the same group


@pytest.mark.parametrize(("empty", "told"), [(slice(0, 7), r"\(0.3\)' has test"), (slice(7, 10), "that takes no part has test samples")])
def test_both_must_be_scored(empty: slice, told: str) -> None:
    federation = load(DATA)
    tests = [part[:0] if client in range(10)[empty] else part for client, part in enumerate(federation.test)]
    with pytest.raises(ct.UserError, match=told):
        ct.study("fedavg", data=federation.replace(test=Parts.from_lists(tests)), rounds=1)
