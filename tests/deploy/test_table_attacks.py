"""What a malicious site answers about its table, and what a malicious server asks: other sites answer, and nothing more leaves."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.asks import Evaluate, Evaluated, Share
from coterie.core.serving import Serving
from coterie.core.states import unpack
from coterie.data.agreed_schema import AgreedColumn, AgreedSchema, format_agreed_schema
from coterie.data.schema import Schema
from coterie.deploy.messages import (
    KINDS,
    PROTOCOL,
    Hello,
    MessageError,
    ReplyBatch,
    TableAsk,
    TableReply,
    from_message,
    is_kind,
    to_message,
)
from coterie.deploy.server.runs import Order
from coterie.deploy.site.ledger import Ledger
from coterie.deploy.site.policy import Policy
from coterie.deploy.site.process import Site
from coterie.engines.engine import StampedAsk
from coterie.evidence.reader import Evidence
from deploy.different_tables import SITES, TableFed
from deploy.lying import TABLES, TIME_SUMS, Change
from deploy.ordering import APPROVING_POLICY
from deploy.test_survival_sites import EXACT, SCHEMA, TimeFed

LIAR = "east"
EXACT_ROUNDING = APPROVING_POLICY.replace("rounding = 3", "rounding = 1")
CLIPPED = EXACT_ROUNDING.replace(
    'mechanism = "none"', 'mechanism = "clip+noise"\nclip = 1.0\nnoise = 0.5\ndelta = 1e-5\nepsilon_limit = 60.0'
)
PRIVATE = EXACT_ROUNDING.replace(
    'mechanism = "none"', 'mechanism = "dp-sgd"\nnoise_multiplier = 0.7\nmax_grad_norm = 1.0\ndelta = 1e-5\nepsilon_limit = 90.0'
)
AGES = AgreedSchema("outcome", ("no", "yes"), (AgreedColumn("age", bounds=(0.0, 120.0)), AgreedColumn("glucose", required=False)), ("?",))


class Teller:
    """Changes the answers of one site that `applies` to."""

    def __init__(self, lie: Change, applies: Callable[[Any], bool] = lambda message: isinstance(message, TableReply)) -> None:
        self.lie, self.applies, self.told = lie, applies, 0

    def __call__(self, site: str, data: bytes) -> bytes:
        found = unpack(data, KINDS)
        if site != LIAR or not self.applies(found):
            return data
        self.told += 1
        return to_message(replace(found, body=json.dumps(self.lie(json.loads(found.body)))))


def list_cases(*questions: str) -> list[Any]:
    return [pytest.param(question, how, id=f"{question}: {how}") for question in questions for how in TABLES[question]]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> TableFed:
    return TableFed(tmp_path_factory.mktemp("tables"), EXACT_ROUNDING, rows=40)


@pytest.mark.parametrize(("question", "how"), list_cases("DescribeTable", "CheckTable", "SummarizeTable"))
def test_a_false_answer_about_a_table_costs_only_its_site_the_order(
    question: str, how: str, tables: TableFed, monkeypatch: pytest.MonkeyPatch
) -> None:
    teller = Teller(TABLES[question][how])
    monkeypatch.setattr(tables, "tamper", teller)
    kind = "statistics" if question == "SummarizeTable" else "schema"
    written = {"DescribeTable": "columns.json", "CheckTable": "findings.json", "SummarizeTable": "statistics.json"}[question]
    folder = tables.order(kind, {"schema": None if question == "DescribeTable" else AGES.to_dict()}, "attacked")
    (fault,) = tables.reported
    assert fault.startswith(f"Site '{LIAR}' does not take part: ")
    assert fault.isprintable()
    assert len(fault) < 400
    tree = json.loads((folder / written).read_text())
    assert set(tree["sites"] if question == "SummarizeTable" else tree) == set(SITES) - {LIAR}
    assert teller.told == 1


@pytest.mark.parametrize(("question", "how"), list_cases("sums of a study"))
def test_false_sums_prepare_no_site(question: str, how: str, tables: TableFed, monkeypatch: pytest.MonkeyPatch) -> None:
    (tables.folder / "schema.toml").write_text(format_agreed_schema(AGES))
    monkeypatch.setattr(tables, "tamper", Teller(TABLES[question][how]))
    run = tables.launch(how.replace(" ", "-"), rounds=1)
    assert any(f"'{LIAR}' reports no sums to prepare columns by" in line for line in tables.reported)
    scaling = json.loads(json.loads((run / "members.json").read_text())["schema"])["scaling"]
    assert 25 < scaling["mean"][0] < 85
    assert 5 < scaling["deviation"][0] < 30


@pytest.fixture(scope="module")
def times(tmp_path_factory: pytest.TempPathFactory) -> TimeFed:
    return TimeFed(tmp_path_factory.mktemp("times"), EXACT, rows=40)


@pytest.mark.parametrize(("question", "how"), list_cases("CountTimes", "event times"))
def test_false_counts_of_survival_times_make_no_curve(question: str, how: str, times: TimeFed, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = question == "event times"
    times.agree(replace(SCHEMA, grid=(), intervals=3) if computed else SCHEMA)

    def applies(message: Any) -> bool:
        return isinstance(message, TableReply) and ('"ends"' in message.body if computed else '"censored"' in message.body)

    monkeypatch.setattr(times, "tamper", teller := Teller(TABLES[question][how], applies))
    run = times.launch(f"{question}-{how}".replace(" ", "-"), rounds=1)
    assert teller.told == 1
    (fault,) = times.reported
    assert fault.startswith(f"Site '{LIAR}' reports no {'event times' if computed else 'counts of its survival times'}")
    evidence = Evidence.open(run / "study")
    assert (evidence.exits.sum(axis=(1, 2)) > 0).tolist() == [True, True, computed, True]


def test_false_sums_of_survival_times_cost_only_their_site_the_round(times: TimeFed, monkeypatch: pytest.MonkeyPatch) -> None:
    times.agree()
    lies = iter(TIME_SUMS.values())

    def tamper(site: str, data: bytes) -> bytes:
        if site != LIAR or not is_kind(data, ReplyBatch):
            return data
        found = from_message(data, ReplyBatch)
        if not isinstance(found.answers[0], Evaluated) or (lie := next(lies, None)) is None:
            return data
        return to_message(replace(found, answers=tuple(replace(reply, sums=lie[0](reply.sums)) for reply in found.answers)))

    monkeypatch.setattr(times, "tamper", tamper)
    rounds = len(TIME_SUMS)
    evidence = Evidence.open(times.launch("sums", rounds=rounds) / "study")
    found = evidence.frame("absences")
    assert dict(zip(found["round"], found["why"], strict=True)) == {n: why.name for n, (_, why) in enumerate(TIME_SUMS.values())}
    rows = evidence.frame("clients").groupby("round").size()
    assert rows.tolist() == [3] * rounds + [4]


# the server


def introduce(fed: TableFed, run: str, schema: Schema, prepares: tuple[str, ...]) -> tuple[Site, Any, Hello]:
    """A site that has approved an order and read its data by a schema."""
    settings = json.loads(json.dumps(fed.settings(1)))
    terms = Order(run, "study", settings, SITES, 1, prepares=prepares).terms()
    site = Site(fed.kit("north"))
    hello = Hello(PROTOCOL, run, "1", terms.model, "source", terms.hash, terms.as_text(), schema.to_json())
    assert not is_kind(site.answer(to_message(hello)), MessageError)
    return site, terms, hello


def ask(site: Site, terms: Any, question: str) -> Any:
    return unpack(site.answer(to_message(TableAsk(PROTOCOL, terms.run, "2", "source", terms.hash, question=question))), KINDS)


@pytest.mark.parametrize("question", ["CountTimes", "DescribeTable", "CheckTable", "Train", "", "x" * 500])
def test_a_study_asks_no_question_about_a_table_that_its_order_does_not_name(question: str, times: TimeFed) -> None:
    site, terms, _ = introduce(times, "asked", Schema.from_agreed(SCHEMA), ("SummarizeTable",))
    assert isinstance(ask(site, terms, "SummarizeTable"), TableReply)
    with pytest.raises(MessageError, match="a question about the table that the approved order does not name"):
        ask(site, terms, question)


def test_survival_times_are_counted_on_one_grid_a_run(times: TimeFed) -> None:
    """A second grid whose edge is a little further would show who died in between."""
    computed = Schema.from_agreed(replace(SCHEMA, grid=(), intervals=3))
    schemas = [replace(computed, times={"grid": [0.0, edge, 60.0, 120.0]}) for edge in (20.0, 21.0)]
    site, terms, hello = introduce(times, "grids", schemas[0], ("CountTimes",))
    first = ask(site, terms, "CountTimes")
    assert json.loads(first.body)[0]["client"] == "north"
    assert ask(site, terms, "CountTimes").body == first.body
    site.answer(to_message(replace(hello, schema=schemas[1].to_json())))
    assert "one grid a run" in str(ask(site, terms, "CountTimes"))
    again = Site(times.kit("north"))  # after a restart
    again.answer(to_message(replace(hello, schema=schemas[1].to_json())))
    assert "one grid a run" in str(ask(again, terms, "CountTimes"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"grid": [0.0, 5.0, 60.0, 120.0]},
        {"grid": [0.0, 20.0, 60.0]},
        {"grid": [0.0, 20.0, 60.0, 120.0], "reference": [0.5, 2.0, 0.1]},
        {"grid": [0.0, 20.0, 60.0, 120.0], "code": []},
        {"grid": [0.0, 20.0, 60.0, float("nan")]},
        {"grid": "0"},
        {},
    ],
)
def test_a_schema_with_another_grid_than_the_agreed_one_is_refused(wrong: Any, times: TimeFed) -> None:
    site = Site(times.kit("north"))
    terms = Order("wrong", "study", times.settings(1), SITES, 1, prepares=("CountTimes",)).terms()
    text = replace(Schema.from_agreed(SCHEMA), times=wrong).to_json() if wrong.get("grid") != [0.0, 20.0, 60.0, float("nan")] else ""
    text = text or json.dumps(replace(Schema.from_agreed(SCHEMA), times=wrong).to_dict())
    with pytest.raises(MessageError):
        site.answer(to_message(Hello(PROTOCOL, "wrong", "1", terms.model, "source", terms.hash, terms.as_text(), text)))


def test_a_policy_keeps_counts_of_survival_times(tmp_path: Path) -> None:
    fed = TimeFed(tmp_path, EXACT.replace(', "CountTimes"', ""), rows=30)
    fed.agree()
    with pytest.raises(UserError, match="No site reports counts of its survival times"):
        fed.launch(rounds=1)
    assert all("CountTimes is not answered here" in line for line in fed.reported)


# mechanisms


def test_clipped_and_noised_statistics_are_charged_until_the_budget_ends(tmp_path: Path) -> None:
    """Asked again and again, their mean would be the truth: each answer is charged, and the last is refused."""
    fed = TableFed(tmp_path, CLIPPED, rows=40)
    means, order = [], {"schema": AGES.to_dict()}
    for number in range(2):
        tree = json.loads((fed.order("statistics", order, f"run-{number}") / "statistics.json").read_text())
        own = {column["name"]: column["sites"]["north"] for column in tree["columns"]}
        assert own["age"]["count"] == 1.0  # how many rows there are does not leave
        assert own["glucose"] == {"name": "glucose", "count": None, "missing": None, "mean": None, "variance": None, "histogram": []}
        assert 0 <= own["age"]["mean"] <= 120
        assert min(own["age"]["histogram"]) >= 0
        means.append((own["age"]["mean"], *own["age"]["histogram"]))
    assert means[0] != means[1]
    charges = Ledger(fed.kit("north") / "privacy.json").charges()
    assert [(charge.mechanism, charge.noise, charge.steps) for charge in charges["north"]] == [("clip+noise", 0.25, 2)]
    for site in SITES:
        path = fed.kit(site) / "policy.toml"
        path.write_text(path.read_text().replace("epsilon_limit = 60.0", "epsilon_limit = 20.0"))
    with pytest.raises(UserError, match="privacy budget does not suffice"):
        fed.order("statistics", order, "last")
    assert Ledger(fed.kit("north") / "privacy.json").charges() == charges


@pytest.mark.parametrize("policy", [CLIPPED.replace("limit = 60", "limit = 600"), PRIVATE], ids=["clip+noise", "dp-sgd"])
def test_counts_of_survival_times_are_noised_and_charged(policy: str, tmp_path: Path) -> None:
    fed = TimeFed(tmp_path, policy, rows=60)
    fed.agree()
    evidence = Evidence.open(fed.launch(rounds=1) / "study")
    private = policy == PRIVATE
    assert (evidence.exits.sum(axis=(1, 2)) <= (54 if private else 100)).all()
    steps = {site: sum(c.steps for c in Ledger(fed.kit(site) / "privacy.json").charges()[site]) for site in SITES}
    assert min(steps.values()) >= 3  # sums of columns, counts of times, and a training
    assert len(evidence.frame("clients")) == 0
    assert "no noise hides a sample" in (fed.kit("north") / "audit.jsonl").read_text()
    first = evidence.exits.copy()
    assert (Evidence.open(fed.launch("second", rounds=1) / "study").exits != first).any()
    fed.agree(replace(SCHEMA, grid=(), intervals=3))
    with pytest.raises(UserError, match="No site reports enough events to compute a grid"):
        fed.launch("third", rounds=1)
    assert all("under which no grid is computed" in line for line in fed.reported)


def test_evaluations_by_class_of_survival_times_are_denied(times: TimeFed) -> None:
    site, _, _ = introduce(times, "shares", Schema.from_agreed(SCHEMA), ("CountTimes",))
    assert site.world is not None
    serving = Serving.one(np.zeros(1, dtype=np.int64), np.zeros(site.world.model.layout.size, dtype=np.float32))
    denied = Policy(label_shares=True).find_denial(StampedAsk(Evaluate(serving, "test", share=Share(label=0)), 0, 1), site.world)
    assert denied is not None
    assert "about classes is not answered: the site has a survival task" in denied.reason
