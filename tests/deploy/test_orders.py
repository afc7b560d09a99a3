"""A site answers an order only after its own yes, and nothing outside of it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from coterie._util.errors import UserError
from coterie.cli.app import app
from coterie.core.asks import Evaluate, Gradient, Train
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.serving import Serving
from coterie.core.states import unpack
from coterie.deploy.messages import KINDS, PROTOCOL, AskBatch, Denial, MessageError, ReplyBatch, SiteCard, to_message
from coterie.deploy.orders import OrderError, OrderTerms, find_asks
from coterie.deploy.server.introduction import TooFewSitesError, introduce_sites
from coterie.deploy.server.runner import run_order
from coterie.deploy.server.runs import APPROVALS_FILE, Order
from coterie.deploy.site.approvals import MOST_PENDING, ORDERS_FILE, Approvals, estimate_epsilon
from coterie.deploy.site.audit import verify_audit
from coterie.deploy.site.data import SiteSettings
from coterie.deploy.site.policy import DEFAULT_POLICY, ApprovalRules, approve_orders, parse_policy
from coterie.deploy.site.process import Site
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.evidence.settings import Settings
from coterie.methods.catalogue import build, methods
from coterie.run.driver import drive
from coterie.run.lanes import make_lanes
from coterie.run.waves import TimeBudget
from coterie.testing.worlds import make_world
from deploy.ordering import APPROVE_ANY, make_hello, make_terms

DP = '[privacy]\nmechanism = "dp-sgd"\nnoise_multiplier = 1.0\nmax_grad_norm = 1.0\ndelta = 1e-5\nepsilon_limit = 50.0\n'
CLIENT = np.array([0])


def make_kit(folder: Path, policy: str = DEFAULT_POLICY, clients: tuple[str, ...] = ("va",)) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "policy.toml").write_text(policy)
    SiteSettings(data="heart", clients=clients, engine="loop", threads=1).write(folder)
    return folder


def read(message: bytes) -> Any:
    return unpack(message, KINDS)


def greet(site: Site, terms: OrderTerms) -> Any:
    return read(site.answer(to_message(make_hello(terms))))


def ask(site: Site, terms: OrderTerms, asked: Any = None, *, order: str | None = None, run: str | None = None, **stamp: Any) -> Any:
    """The answer to one ask of an order."""
    size = site.world.model.layout.size if site.world is not None else 28
    asked = asked if asked is not None else Train(CLIENT, np.zeros((1, size), dtype=np.float32), Local())
    stamped = StampedAsk(**{"ask": asked, "seed": 0, "round_": 1, **stamp})
    batch = AskBatch(PROTOCOL, run or terms.run, "2", ("va",), (stamped,), terms.hash if order is None else order)
    found = read(site.answer(to_message(batch)))
    assert isinstance(found, ReplyBatch)
    assert found.order == batch.order
    return found.answers[0]


def log_of(kit: Path) -> list[dict[str, Any]]:
    assert verify_audit(kit / "audit.jsonl").faults == ()
    return [json.loads(line) for line in (kit / "audit.jsonl").read_text().splitlines()]


def test_nothing_is_answered_before_the_site_says_yes(tmp_path: Path) -> None:
    kit, terms = make_kit(tmp_path), make_terms("first")
    site = Site(kit)
    response = greet(site, terms)
    assert isinstance(response, Denial)
    assert response.cause == "pending"
    with pytest.raises(MessageError, match="before the server has introduced itself"):
        ask(site, terms)
    Approvals(kit).decide("first", "approved")
    card = greet(site, terms)
    assert isinstance(card, SiteCard)
    assert card.order == terms.hash
    assert not isinstance(ask(site, terms), Denial)
    assert (kit / ORDERS_FILE).stat().st_mode & 0o777 == 0o600
    reported = log_of(kit)
    reported = [line for line in reported if line.get("event") != "ledger sealed"]
    assert [line.get("event", line.get("ask")) for line in reported] == ["approval", "hello", "refused", "approval", "hello", "Train"]
    assert {line["order"] for line in reported if line.get("event") != "refused"} == {terms.hash}


def test_an_approved_order_needs_no_second_yes_and_another_one_of_its_name_does(tmp_path: Path) -> None:
    kit, terms = make_kit(tmp_path), make_terms("first", rounds=5)
    greet(Site(kit), terms)
    Approvals(kit).decide(terms.hash[:12], "approved")
    assert isinstance(greet(Site(kit), terms), SiteCard)  # another process, later
    for changed in (
        make_terms("first", rounds=6),
        replace(terms, seeds=(0, 1)),
        replace(terms, purpose="x"),
        replace(terms, methods=("local",)),
    ):
        site = Site(kit)
        response = greet(site, changed)
        assert isinstance(response, Denial)
        assert response.cause == "pending"
        with pytest.raises(MessageError):
            ask(site, changed)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"round_": 6}, "Round 6 is not in the approved order, which ends with round 5"),
        ({"round_": -1}, "Round -1 is not"),
        ({"round_": 1.0}, "Round 1.0 is not"),
        ({"seed": 1}, "Seed 1 is not in the approved order"),
        ({"seed": True}, "Seed True is not"),
        ({"asked": Gradient(CLIENT, np.zeros((1, 28), dtype=np.float32))}, "Gradient is not in the approved order, which names Train"),
        ({"asked": Evaluate(Serving.one(CLIENT, np.zeros(28, dtype=np.float32)))}, "Evaluate is not in the approved order"),
        ({"order": "0" * 64}, "not approved"),
        ({"order": ""}, "not approved"),
        ({"run": "second"}, "not approved"),
    ],
)
def test_an_ask_outside_of_the_order_is_denied_and_logged(what: dict[str, Any], reason: str, tmp_path: Path) -> None:
    kit, terms = make_kit(tmp_path, APPROVE_ANY), make_terms("first", rounds=5, asks=("Train",))
    site = Site(kit)
    assert isinstance(greet(site, terms), SiteCard)
    response = ask(site, terms, **what)
    assert isinstance(response, Denial)
    assert reason in response.reason
    assert reason in log_of(kit)[-1]["reason"]
    assert not isinstance(ask(site, terms), Denial)  # and the site goes on


def test_a_refusal_counts_at_once_and_is_told(tmp_path: Path) -> None:
    kit, terms = make_kit(tmp_path, APPROVE_ANY), make_terms("first")
    site = Site(kit)
    greet(site, terms)
    assert not isinstance(ask(site, terms), Denial)
    Approvals(kit).decide("first", "refused", "not our question")
    assert "does not approve the order" in ask(site, terms).reason.replace("The site ", "")
    response = greet(Site(kit), terms)  # the policy approves any order, but a person's word stands
    assert response.cause == "policy"
    assert "has refused the order" in response.reason
    assert "not our question" in response.reason
    Approvals(kit).decide("first", "approved")
    assert isinstance(greet(Site(kit), terms), SiteCard)


def test_a_hello_must_be_what_it_says(tmp_path: Path) -> None:
    site, hello = Site(make_kit(tmp_path, APPROVE_ANY)), make_hello(run="first")
    other = make_terms("first", rounds=7)
    for wrong in (
        replace(hello, order=other.hash),
        replace(hello, terms=other.as_text()),
        replace(hello, run="second"),
        replace(hello, model="mlp"),
        replace(hello, terms=""),
        replace(hello, order=""),
    ):
        with pytest.raises(MessageError):
            site.answer(to_message(wrong))
    assert site.worker is None
    assert [line["event"] for line in log_of(tmp_path)] == ["refused"] * 6


TERMS = json.loads(make_terms("first").as_text())
WRONG_TERMS: tuple[dict[str, Any], ...] = (
    {"run": "../x"},
    {"run": 3},
    {"kind": "job"},
    {"methods": []},
    {"methods": [1]},
    {"methods": ["x" * 501]},
    {"seeds": []},
    {"seeds": ["0"]},
    {"seeds": [True]},
    {"asks": ["Everything"]},
    {"asks": []},
    {"purpose": "x" * 501},
    {"operator": None},
    {"more": 1},
    {"plan": []},
    {"plan": {"rounds": 10**10, "local": {"epochs": 1}}},
    {"plan": {"rounds": True, "local": {"epochs": 1}}},
    {"plan": {"rounds": 1, "local": {"epochs": -1}}},
    {"plan": {"rounds": 1, "local": []}},
    {"plan": {"rounds": 1}},
    {"kind": "inspect", "plan": {"pilot": 3}},
    {"kind": "nothing"},
    {"kind": ["study"]},
    {"seeds": list(range(100_000))},
)
NO_ORDERS = (
    "",
    "[]",
    "nonsense",
    "[" * 100_000,
    make_terms("first").as_text() + " ",
    make_terms("first").as_text().replace('"rounds":1000', '"rounds":5,"rounds":1000'),  # shown the one, held to the other
    *(json.dumps({**TERMS, **wrong}, sort_keys=True, separators=(",", ":")) for wrong in WRONG_TERMS),
)


@pytest.mark.parametrize("text", NO_ORDERS, ids=range(len(NO_ORDERS)))
def test_what_is_no_order_is_refused(text: str) -> None:
    with pytest.raises(OrderError):
        OrderTerms.read(text)


def test_an_order_can_be_read_again() -> None:
    for terms in (make_terms("first"), make_terms("first", operator="\u202e\x1b[2J", methods=("fedgroup(groups=2)", "local"))):
        assert OrderTerms.read(terms.as_text()) == terms


@pytest.mark.parametrize(
    ("table", "terms", "approved"),
    [
        ({}, {}, False),
        ({"any": True}, {}, True),
        ({"methods": ["fedavg"]}, {}, True),
        ({"methods": ["local"]}, {}, False),
        ({"methods": ["fedavg"]}, {"methods": ("fedavg", "local")}, False),
        ({"methods": ["fedavg"]}, {"methods": ("fedavg(weighting=uniform)",)}, True),
        ({"methods": ["fedgroup(groups=2)"]}, {"methods": ("fedgroup(groups=3)",)}, False),
        ({"methods": ["fedavg"]}, {"methods": ("fedavg+guard",)}, False),
        ({"methods": ["fedavg", "guard"]}, {"methods": ("fedavg+guard(share=0.3)",)}, True),
        ({"methods": ["fedavg"], "models": ["mlp"]}, {}, False),
        ({"methods": ["fedavg"], "models": ["mclr"]}, {}, True),
        ({"methods": ["fedavg"], "maximum_rounds": 9}, {"rounds": 9}, True),
        ({"methods": ["fedavg"], "maximum_rounds": 9}, {"rounds": 10}, False),
        ({"methods": ["fedavg"], "maximum_epsilon": 9.0}, {}, False),  # nothing bounds it
        ({"methods": ["inspect"]}, {"kind": "inspect", "methods": ("inspect",), "plan": {}}, True),
    ],
)
def test_orders_that_a_policy_approves_by_itself(table: dict[str, Any], terms: dict[str, Any], approved: bool, tmp_path: Path) -> None:
    kit = make_kit(tmp_path)
    approve_orders(kit / "policy.toml", **table)
    response = greet(Site(kit), make_terms("first", **terms))
    assert isinstance(response, SiteCard if approved else Denial)
    (record,) = Approvals(kit).records().values()
    assert (record.state, record.by) == (("approved", "policy") if approved else ("pending", ""))


def test_a_policy_that_approves_any_order_and_limits_which_is_refused() -> None:
    with pytest.raises(UserError, match="approves any order and limits which"):
        parse_policy("[approve]\nany = true\nmaximum_rounds = 3\n")
    with pytest.raises(UserError, match=r"unknown key 'approve.maximum_round'.*maximum_rounds"):
        parse_policy("[approve]\nmaximum_round = 3\n")


def test_what_was_approved_by_epsilon_is_held_to_it(tmp_path: Path) -> None:
    """An order that says one round, and is asked for more often: the server may not spend what the site's operator was not asked for."""
    policy = parse_policy(DP)
    one, many = make_terms("first", rounds=1), make_terms("second", rounds=50)
    sizes = {"va": 104}
    after_one, after_many = (estimate_epsilon(terms, policy.privacy, sizes, {}) for terms in (one, many))
    assert after_one is not None
    assert after_many is not None
    assert after_one < after_many
    most = after_one * 1.05
    kit = make_kit(tmp_path, f'[approve]\nmethods = ["fedavg"]\nmaximum_epsilon = {most}\n{DP}')
    site = Site(kit)
    assert greet(site, many).cause == "pending"
    assert isinstance(greet(site, one), SiteCard)
    response = [ask(site, one) for _ in range(4)]
    assert not isinstance(response[0], Denial)
    assert isinstance(response[-1], Denial)
    assert "privacy budget" in response[-1].reason
    assert site.worker is not None
    spent = site.worker.ledger.spent(site.policy.privacy)["va"]  # type: ignore[arg-type]
    assert 0 < spent <= most
    assert abs(spent - after_one) < 1e-6  # one round costs what was estimated


def test_a_server_cannot_fill_the_kit_with_orders(tmp_path: Path) -> None:
    kit = make_kit(tmp_path)
    site = Site(kit)
    for i in range(MOST_PENDING):
        greet(site, make_terms("first", purpose=str(i)))
    with pytest.raises(MessageError, match="takes no further ones"):
        greet(site, make_terms("first", purpose="one more"))
    assert len(Approvals(kit).records()) == MOST_PENDING


def test_the_commands_of_a_site(tmp_path: Path) -> None:
    def coterie(*words: str) -> str:
        done = CliRunner().invoke(app, ["policy", *words], catch_exceptions=False)
        return done.output

    kit = make_kit(tmp_path / "kit")
    site = Site(kit)
    first, grown = make_terms("first", purpose="Risk of \x1b[2J falls"), make_terms("first", rounds=2000)
    greet(site, first)
    listed = coterie("orders", str(kit))
    for words in (first.hash[:12], "waits for your approval", "a test", "mclr", "fedavg", "1000, with 1 seed", "Leaves", "no mechanism"):
        assert words.lower() in listed.lower(), words
    assert "\x1b" not in listed
    with pytest.raises(UserError, match="knows no order 'second': choose from first"):
        coterie("approve", str(kit), "second")
    assert "is approved (by " in coterie("approve", str(kit), "first")
    with pytest.raises(UserError, match="is approved already"):
        coterie("approve", str(kit), "first")
    greet(site, grown)
    assert "is refused" in coterie("refuse", str(kit), "first", "--reason", "too long")  # the one that waits is meant
    found = json.loads(coterie("orders", str(kit), "--json"))
    assert [(one["order"], one["state"]) for one in found] == [(first.hash, "approved"), (grown.hash, "refused")]
    with pytest.raises(UserError, match=f"2 orders are called 'first': name one by its hash, {first.hash[:12]} or"):
        Approvals(kit).resolve("first")
    (kit / ORDERS_FILE).write_text("{")
    with pytest.raises(UserError, match="restore the file"):
        coterie("orders", str(kit))


# What the server makes of it.


class Here:
    """Carries messages to sites within this process; `between` happens before each exchange."""

    def __init__(self, kits: Mapping[str, Path], between: Any = lambda: None) -> None:
        self.sites, self.between = {site: Site(kit) for site, kit in kits.items()}, between
        self.asked: list[str] = []

    def exchange(self, batches: Mapping[str, bytes]) -> dict[str, bytes]:
        self.between()
        found = {}
        for site, data in batches.items():
            if b"AskBatch" in data[:5000]:
                self.asked.append(site)
            found[site] = self.sites[site].answer(data)
        return found


SETTINGS = Settings(methods=("fedavg",), data="sites", plan=Plan(rounds=3, local=Local(epochs=1)))


@pytest.fixture
def kits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.setattr("coterie.deploy.server.introduction.POLL", 0.01)
    return {site: make_kit(tmp_path / site, clients=(site,)) for site in ("hungary", "va")}


def test_a_server_waits_for_enough_approvals_and_takes_the_others_in_later(kits: dict[str, Path], tmp_path: Path) -> None:
    order, reported = Order("first", "study", SETTINGS.as_json(), ("hungary", "va"), 1), list[str]()
    looks = 0

    def later() -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            Approvals(kits["hungary"]).decide("first", "approved")
        if looks == 8:
            Approvals(kits["va"]).decide("first", "approved")

    carrier = Here(kits, later)

    def job() -> bool:
        return run_order(order, carrier, ("hungary", "va"), tmp_path / "first", clock=TimeBudget(60.0), report=reported.append)

    assert not job()  # ended early, for the site that had not approved has
    assert reported[0].startswith("Waiting for approval at hungary, va (order ")
    assert reported[1].startswith("Waiting for approval at va (order ")
    assert set(carrier.asked) == {"hungary"}  # nothing but hellos went to the other
    assert job()
    assert set(carrier.asked) == {"hungary", "va"}
    assert json.loads((tmp_path / "first" / APPROVALS_FILE).read_text()) == {"order": order.terms().hash, "pending": []}
    for kit in kits.values():
        assert (kit / "bundles" / "first" / "fedavg" / "bundle.json").is_file()
        assert log_of(kit)[-1]["event"] == "delivery"
        assert {line["order"] for line in log_of(kit)} == {order.terms().hash}


def test_a_server_is_told_of_refusals_and_lets_other_runs_go_first(
    kits: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, reported = Order("first", "study", SETTINGS.as_json(), ("hungary", "va"), 2), list[str]()
    monkeypatch.setattr("coterie.deploy.server.introduction.TURN", 0.05)
    (tmp_path / "runs" / "second").mkdir(parents=True)
    (tmp_path / "runs" / "second" / "status.json").write_text('{"status": "waiting"}')

    def meet() -> None:
        introduce_sites(order, order.terms(), Here(kits), ("hungary", "va"), tmp_path / "runs" / "first", reported.append)

    with pytest.raises(TooFewSitesError, match="Waiting for approval at hungary, va"):
        meet()
    Approvals(kits["va"]).decide("first", "refused", "not now")
    with pytest.raises(UserError, match=r"Site 'va' does not take part: .*has refused the order .*: not now") as error:
        meet()
    assert not isinstance(error.value, TooFewSitesError)


# What an order says of its methods.


@pytest.mark.parametrize("name", sorted(methods))
def test_an_order_names_every_ask_that_its_methods_make(name: str) -> None:
    asked: set[str] = set()

    class Listening(LoopEngine):
        def run(self, asks: Any) -> list[Any]:
            asked.update(type(stamped.ask).__name__ for stamped in asks)
            return super().run(asks)

    method, own = build(name), make_world()
    (lane,) = make_lanes([(name, method)], [0], own.problem, Plan(rounds=3, local=Local(epochs=1)))
    drive([lane], Listening(own), 3, lambda lane, record: None)
    assert asked <= set(find_asks([method], "Evaluate"))


def test_fedavg_asks_for_no_gradients() -> None:
    assert find_asks([build("fedavg")], "Evaluate") == ("Train", "Evaluate")
    assert ApprovalRules().find_objection(make_terms(), None) is not None
