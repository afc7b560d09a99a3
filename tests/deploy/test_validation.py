"""A site that lies: whatever field of whatever message is false, it costs that site its round or its part in the job, and no other."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from coterie._util.errors import UserError
from coterie.cli.app import app
from coterie.core.asks import AskErrors, Errors, Evaluated, Losses, LossTable, Reply, Trained
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.replies import accept
from coterie.data.catalogue import load
from coterie.deploy.messages import KINDS, AskBatch, Receipt, ReplyBatch, SiteCard, from_message, is_kind, to_message
from coterie.deploy.server.engine import FederatedEngine
from coterie.deploy.server.federation import Claim, FederationFolder, read_roster, write_roster
from coterie.deploy.server.introduction import introduce_sites
from coterie.deploy.server.runner import UNDELIVERED_FILE, run_order
from coterie.deploy.server.runs import Order
from coterie.deploy.server.validation import BASE_BYTES, REPLIES, compute_max_bytes
from coterie.engines.engine import StampedAsk
from coterie.evidence.reader import Evidence
from coterie.evidence.settings import Settings
from coterie.evidence.verify import verify
from coterie.run.waves import TimeBudget
from deploy import lying
from deploy.in_process import InProcess
from deploy.ordering import make_terms
from deploy.running import absences

HOSPITALS = ("cleveland", "hungary", "switzerland", "va")
LIAR, HONEST = "va", ("cleveland", "hungary", "switzerland")
Tamper = Callable[[str, bytes], bytes | None]


def run(
    folder: Path,
    tamper: Tamper,
    *methods: str,
    roster: Mapping[str, Claim] | None = None,
    order: tuple[str, ...] = HOSPITALS,
    rounds: int = 2,
) -> list[str]:
    """Rounds of four hospitals by the server's own code, of which one lies; what the server told."""
    plan = Plan(rounds=rounds, norm_bound=20, local=Local(epochs=1, batch_size=20))
    wanted = Settings(methods=methods or ("fedavg",), data="heart", plan=plan)
    carrier = InProcess(load("heart"), {site: [site] for site in HOSPITALS}, tamper=tamper)
    reported: list[str] = []
    done = Order("a-run", "study", wanted.as_json(), order, 1)
    assert run_order(done, carrier, HOSPITALS, folder, clock=TimeBudget(60.0), report=reported.append, roster=roster)
    assert verify(folder / "study").whole
    return reported


def lie(kind: type, *hows: str) -> Tamper:
    """One after the other, the liar's messages of a kind are these lies; after them it is honest."""
    left = list(hows)

    def tamper(site: str, data: bytes) -> bytes:
        if site != LIAR or not left or not (is_kind(data, kind) if kind is SiteCard else lying.is_answer(data, kind)):
            return data
        return lying.tell_lie(left.pop(0), data)

    return tamper


def took_part(folder: Path) -> dict[int, set[str]]:
    """By round, who had a part in the mean."""
    evidence = Evidence.open(folder / "study")
    names, mixing = evidence.roster["id"].to_pylist(), evidence.frame("mixing")
    pairs = list(zip(mixing["round"].tolist(), mixing["source"].tolist(), strict=True))
    return {round_: {names[client] for each, client in pairs if each == round_} for round_, _ in pairs}


@pytest.mark.parametrize("how", lying.CARDS)
def test_a_false_card_costs_only_its_site_the_job(how: str, tmp_path: Path) -> None:
    reported: list[str] = []
    carrier = InProcess(load("heart"), {site: [site] for site in HOSPITALS}, tamper=lie(SiteCard, how))
    order = Order("a-run", "study", {}, HOSPITALS, 3)
    members, _ = introduce_sites(order, make_terms("a-run"), carrier, HOSPITALS, tmp_path, reported.append)
    assert set(members.sites) == members.here == set(HONEST)
    (sentence,) = reported
    assert sentence.startswith(f"Site '{LIAR}' does not take part: ")
    assert len(sentence) < 1000
    assert sentence.isprintable()


@pytest.mark.parametrize("how", ["a client of another site", "2^40 samples", "a huge shape"])
def test_a_false_card_does_not_end_the_run(how: str, tmp_path: Path) -> None:
    run(tmp_path, lie(SiteCard, how))
    assert took_part(tmp_path) == {1: set(HONEST), 2: set(HONEST)}


@pytest.mark.parametrize("kind", [Trained, Evaluated])
def test_a_false_reply_costs_only_its_site_the_round(kind: type[Reply], tmp_path: Path) -> None:
    lies = lying.REPLIES[kind]
    run(tmp_path, lie(kind, *lies), rounds=len(lies) + 1)
    first = {Trained: 1, Evaluated: 0}[kind]  # models are scored before the first round, too
    assert absences(tmp_path / "study") == {(first + place, LIAR, why.name) for place, (_, why) in enumerate(lies.values())}
    lost = range(1, len(lies) + 1) if kind is Trained else ()
    assert took_part(tmp_path) == {n: set(HONEST if n in lost else HOSPITALS) for n in range(1, len(lies) + 2)}
    for row in Evidence.open(tmp_path / "study").table("absences").to_pylist():
        assert len(row["detail"]) < 1000
        assert row["detail"].isprintable()


def test_a_false_message_costs_only_its_site_the_round(tmp_path: Path) -> None:
    run(tmp_path, lie(Trained, *lying.ANSWERS), rounds=len(lying.ANSWERS) + 1)
    assert absences(tmp_path / "study") == {(n, LIAR, why.name) for n, (_, why) in enumerate(lying.ANSWERS.values(), 1)}
    assert took_part(tmp_path)[len(lying.ANSWERS) + 1] == set(HOSPITALS)


@pytest.mark.parametrize(("kind", "ask"), [(LossTable, Losses), (Errors, AskErrors)])
def test_losses_and_errors_are_checked_too(kind: type[Reply], ask: type[Losses] | type[AskErrors]) -> None:
    federation = load("heart")
    owner = {site: site for site in HOSPITALS}
    everybody = np.arange(4, dtype=np.int64)
    for how, (_, why) in lying.REPLIES[kind].items():
        engine = FederatedEngine(
            InProcess(federation, {site: [site] for site in HOSPITALS}, tamper=lie(kind, how)), owner, HOSPITALS, "a-run"
        )
        question = ask(everybody, np.zeros((2, 28), dtype=np.float32))
        reply = accept(question, engine.run([StampedAsk(question, 0, 1)])[0])
        assert {HOSPITALS[c]: refused.why for c, refused in reply.refused.items()} == {LIAR: why}
        assert reply.clients.tolist() == [0, 1, 2]


def test_every_column_of_every_reply_that_can_be_wrong_has_a_rule() -> None:
    """What has none is checked row by row: models and gradients."""
    replies = {kind for kind in KINDS.values() if isinstance(kind, type) and issubclass(kind, Reply)}
    assert set(REPLIES) == replies
    without = {(kind.__name__, name) for kind in replies for name in kind.columns() if name not in REPLIES[kind]}
    assert without == {
        *(("Trained", name) for name in ("vectors", "more", "losses")),  # a rule's objective may be below zero
        *(("Gradients", name) for name in ("vectors", "losses")),
        ("Described", "means"),
    }


def claiming(card: Callable[[SiteCard], SiteCard], site: str = LIAR) -> Tamper:
    def tamper(who: str, data: bytes) -> bytes:
        return to_message(card(from_message(data, SiteCard))) if who == site and is_kind(data, SiteCard) else data

    return tamper


def with_clients(*ids: str) -> Callable[[SiteCard], SiteCard]:
    rows = np.zeros(len(ids), dtype=np.int64)
    return lambda card: replace(card, ids=ids, sizes=card.sizes[rows], actual=card.actual[rows])


def test_a_liar_that_comes_first_does_not_take_the_others_out(tmp_path: Path) -> None:
    """It claims clients of two sites, or describes another task: those who dispute with it are more."""
    first = (LIAR, *HONEST)
    run(tmp_path / "a", claiming(with_clients("cleveland", "hungary")), order=first)
    assert took_part(tmp_path / "a")[1] == set(HONEST)
    run(tmp_path / "b", claiming(lambda card: replace(card, input_shape=(99,))), order=first)
    assert took_part(tmp_path / "b")[1] == set(HONEST)


def test_of_two_sites_that_claim_one_client_the_first_has_it(tmp_path: Path) -> None:
    for place, (order, left) in enumerate([(HOSPITALS, LIAR), ((LIAR, *HONEST), "hungary")]):
        reported = run(tmp_path / str(place), claiming(with_clients("hungary")), order=order)
        assert [sentence.split("'")[1] for sentence in reported] == [left]


def test_a_client_belongs_to_the_site_that_the_roster_lists_it_for(tmp_path: Path) -> None:
    roster = {"hungary": Claim(ids=("hungary",))}
    reported = run(tmp_path, claiming(with_clients("hungary")), roster=roster, order=(LIAR, *HONEST))
    assert reported == ["Site 'va' does not take part: it has a client 'hungary', which is a client of site 'hungary': give it another id."]


def test_a_client_stays_with_the_site_that_had_it(tmp_path: Path) -> None:
    run(tmp_path, lambda site, data: data)
    reported = run(tmp_path, claiming(with_clients("hungary", "va")), order=(LIAR, *HONEST))
    assert len(reported) == 1
    assert "'hungary'" in reported[0] or "2 clients" in reported[0]


@pytest.mark.parametrize(
    ("card", "reported"),
    [
        (with_clients("va", "va-2"), "it claims 2 clients, and it had when the run began 1"),
        (lambda card: replace(card, sizes=card.sizes * 10), "training samples, and it had when the run began"),
    ],
)
def test_a_site_has_no_more_than_it_first_said_unless_the_roster_lets_it(
    card: Callable[[SiteCard], SiteCard], reported: str, tmp_path: Path
) -> None:
    run(tmp_path, lambda site, data: data)
    (sentence,) = run(tmp_path, claiming(card))
    assert reported in sentence
    assert "coterie federation roster FED va" in sentence
    assert run(tmp_path, claiming(card), roster={LIAR: Claim(2, 100_000)}) == []


def test_the_roster_bounds_what_a_site_may_claim(tmp_path: Path) -> None:
    roster = {LIAR: Claim(1, 500)}
    assert run(tmp_path / "a", lambda site, data: data, roster=roster) == []
    (many,) = run(tmp_path / "b", claiming(with_clients(*(f"va-{i}" for i in range(1001)))), roster=roster)
    assert "it claims 1,001 clients, and the operator's roster lets it have 1" in many
    (large,) = run(tmp_path / "c", claiming(lambda card: replace(card, sizes=card.sizes * 100)), roster=roster)
    assert "training samples, and the operator's roster lets it have 500" in large


def test_a_roster_is_kept_and_checked(tmp_path: Path) -> None:
    assert read_roster(tmp_path) == {}
    roster = {"a": Claim(3, 1000), "b": Claim(ids=("x", "y"))}
    write_roster(tmp_path, roster)
    assert read_roster(tmp_path) == roster
    (tmp_path / "roster.json").write_text('{"a": {"clients": -1}}')
    with pytest.raises(UserError, match="has nothing that can be used for the site 'a'"):
        read_roster(tmp_path)


def test_the_roster_is_set_by_a_command(tmp_path: Path) -> None:
    FederationFolder(tmp_path, "127.0.0.1", 8102, ("a", "b")).write()

    def roster(*words: str) -> Result:
        return CliRunner().invoke(app, ["federation", "roster", str(tmp_path), *words])

    assert roster("a", "--clients", "3", "--samples", "2000").output == "a: at most 3 clients, at most 2,000 training samples\n"
    assert roster("b", "--ids", "x, y").exit_code == 0
    assert read_roster(tmp_path) == {"a": Claim(3, 2000), "b": Claim(ids=("x", "y"))}
    assert roster().output.splitlines()[1] == "b: the clients x, y"
    assert roster("a", "--clear").exit_code == 0
    assert list(read_roster(tmp_path)) == ["b"]
    for words in (["c", "--clients", "1"], ["a"], ["a", "--clients", "0"]):
        assert isinstance(roster(*words).exception, UserError)


def test_a_receipt_that_cannot_be_right_is_none(tmp_path: Path) -> None:
    def tamper(site: str, data: bytes) -> bytes:
        receipt = is_kind(data, Receipt) and site == LIAR
        return to_message(replace(from_message(data, Receipt), folder="\x1b[2J" * 10_000)) if receipt else data

    run(tmp_path, tamper)
    assert (tmp_path / UNDELIVERED_FILE).read_text().split() == ["[", '"va"', "]"]


@pytest.mark.parametrize("method", ["fedavg", "ifca(groups=2)", "ditto", "fedsim(clusters=2)", "fedgroup(groups=2,alpha=2)"])
def test_no_honest_answer_is_larger_than_its_bound(method: str, tmp_path: Path) -> None:
    """And the bound is no excuse for much more: beside the numbers there is a header."""
    asked: dict[str, AskBatch] = {}
    sizes: list[tuple[int, int]] = []

    class Watched(InProcess):
        def exchange(self, batches: Mapping[str, bytes]) -> dict[str, bytes]:
            asked.update({site: from_message(data, AskBatch) for site, data in batches.items() if is_kind(data, AskBatch)})
            return super().exchange(batches)

    def weigh(site: str, data: bytes) -> bytes:
        if is_kind(data, ReplyBatch):
            sizes.append((len(data), compute_max_bytes(asked[site], 10) or 0))
        return data

    data = "digits/rotated(clients=8,groups=2)"
    federation = load(data)
    sites = {"a": list(federation.ids[:1]), "b": list(federation.ids[1:])}
    wanted = Settings(methods=(method, "fedprox"), data=data, plan=Plan(rounds=1), seeds=(0, 1))
    order = Order("a-run", "study", wanted.as_json(), ("a", "b"), 2)
    carrier: Any = Watched(federation, sites, tamper=weigh)
    assert run_order(order, carrier, ["a", "b"], tmp_path, clock=TimeBudget(60.0), report=pytest.fail)
    assert sizes
    assert all(response <= most <= response + BASE_BYTES + 64_000 for response, most in sizes)
