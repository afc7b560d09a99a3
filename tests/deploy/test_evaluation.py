"""A bundle at the sites: one look, a history that survives, what has changed, and training that continues from it."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from coterie._util.errors import UserError
from coterie.cli.app import app
from coterie.core.asks import Evaluated
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.serving import Serving
from coterie.deploy.bundle.bundle import Bundle
from coterie.deploy.bundle.files import read_bundle, write_bundle
from coterie.deploy.messages import AskBatch, ReplyBatch, from_message, is_kind, to_message
from coterie.deploy.orders import OrderError, OrderTerms
from coterie.deploy.server.evaluation import (
    EvaluateOrder,
    History,
    Look,
    Score,
    find_changes,
    keep_bundle,
    make_look,
    open_bundle,
)
from coterie.deploy.server.federation import FederationFolder
from coterie.deploy.server.members import Member, Members
from coterie.deploy.server.runner import BUNDLES_FOLDER, run_order
from coterie.deploy.server.runs import Journal, Order, read_journal
from coterie.deploy.site.data import SiteSettings
from coterie.deploy.site.explain import describe_order
from coterie.deploy.site.policy import read_policy
from coterie.deploy.site.process import Site
from coterie.evidence.restore import load_lanes
from coterie.evidence.settings import Settings
from coterie.run.waves import TimeBudget
from coterie.statistics.change import ChangeTest
from deploy.ordering import APPROVING_POLICY

SITES = ("cleveland", "hungary")


class Here:
    """Carries messages to sites that answer within this process, under their policies; `tamper` may change what one says."""

    def __init__(self, kits: Mapping[str, Path], tamper: Callable[[str, bytes], bytes | None] = lambda site, data: data) -> None:
        self.sites, self.tamper = {site: Site(kit) for site, kit in kits.items()}, tamper
        self.asked = 0

    def exchange(self, batches: Mapping[str, bytes]) -> dict[str, bytes]:
        found = {}
        for site, data in batches.items():
            self.asked += is_kind(data, AskBatch)
            response = self.tamper(site, self.sites[site].answer(data))
            if response is not None:
                found[site] = response
        return found


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for site in SITES:
        kit = made[site] = tmp_path_factory.mktemp(site)
        (kit / "policy.toml").write_text(APPROVING_POLICY.replace("rounding = 3", "rounding = 1"))
        SiteSettings("heart", (site,), engine="loop", threads=1).write(kit)
    return made


@pytest.fixture(scope="module")
def trained(kits: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of FedAvg, with what all clients are served."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    settings = Settings(methods=("fedavg",), data="sites", plan=Plan(rounds=2, local=Local(epochs=1, lr=0.05)))
    order = Order("first", "study", settings.as_json(), SITES, 2)
    assert run_order(order, Here(kits), SITES, folder, clock=TimeBudget(60.0), report=pytest.fail)
    return folder


@pytest.fixture
def bundle(trained: Path) -> Path:
    return trained / BUNDLES_FOLDER / "fedavg"


def evaluate(folder: Path, carrier: Here, bundle: Path, looks: int = 1, report: Any = pytest.fail, **options: Any) -> bool:
    """One job of an order to evaluate a bundle."""
    found, digest = open_bundle(bundle)
    if not (folder / "bundle").exists():
        keep_bundle(bundle, folder)
    wanted = EvaluateOrder("sites", found.model, digest, found.origin.method, looks)
    order = Order("look", "evaluate", wanted.as_json(), SITES, 1)
    return run_order(order, carrier, SITES, folder, clock=TimeBudget(60.0), report=report, **options)


def test_a_look_has_the_scores_of_the_last_round(kits: dict[str, Path], trained: Path, bundle: Path, tmp_path: Path) -> None:
    """The bundle that the server keeps is what sites were given, and its scores are those of the study's evidence."""
    from coterie.evidence.reader import Evidence

    delivered = read_bundle(next((kits["hungary"] / "bundles" / "first").iterdir()))
    kept = read_bundle(bundle)
    assert kept.models.tobytes() == delivered.models.tobytes()
    assert set(kept.clients) == set(SITES)
    folder, carrier = tmp_path / "look", Here(kits)
    assert evaluate(folder, carrier, bundle, looks=2, watchers=[Journal(folder)])
    (look,) = History(folder).read()
    frame = Evidence.open(trained / "study").frame("clients")
    last = frame[frame["round"] == 2].sort_values("client")
    assert [score.right for score in look.clients.values()] == last[["hits_0", "hits_1"]].sum(axis=1).tolist()
    assert [score.loss for score in look.clients.values()] == pytest.approx(last["loss"].tolist())
    assert [line["round"] for line in read_journal(folder) if line["what"] == "round"] == [1]
    assert evaluate(folder, carrier, bundle, looks=2)
    assert evaluate(folder, carrier, bundle, looks=2)  # complete: no site is asked again
    assert [one.look for one in History(folder).read()] == [1, 2]
    assert carrier.asked == 4
    assert '"look"' in (kits["hungary"] / "audit.jsonl").read_text()  # what left is in the site's log


def test_a_round_beyond_the_order_and_training_are_denied(kits: dict[str, Path], bundle: Path, tmp_path: Path) -> None:
    found, digest = open_bundle(bundle)
    wanted = EvaluateOrder("sites", found.model, digest, "fedavg", 3, 3600.0)
    terms = Order("look", "evaluate", wanted.as_json(), SITES, 1).terms()
    assert (terms.rounds, terms.asks, terms.methods, terms.local) == (3, ("Evaluate",), ("evaluate",), {})
    assert OrderTerms.read(terms.as_text()) == terms
    lines = dict(describe_order(terms, read_policy(kits["hungary"] / "policy.toml"), None))
    assert lines["rounds"] == f"3 evaluations, every 3,600 s; no training; bundle {digest[:12]}"
    for wrong in (
        {"asks": ("Train",)},
        {"plan": {"rounds": 0}},
        {"plan": {"rounds": 2, "local": {"epochs": 1}}},
        {"plan": {"rounds": True}},
    ):
        with pytest.raises(OrderError):
            OrderTerms.read(replace(terms, **wrong).as_text())


@pytest.mark.parametrize(
    ("field", "value"),
    [("hits", 10**6), ("loss", -1.0), ("actual", 2**40), ("hits", -1), ("auroc", 7.0)],
    ids=["more right than samples", "a loss below zero", "too many samples", "fewer than none", "no area"],
)
def test_a_site_that_lies_is_absent(field: str, value: Any, kits: dict[str, Path], bundle: Path, tmp_path: Path) -> None:
    def tamper(site: str, data: bytes) -> bytes:
        if site != "hungary" or not is_kind(data, ReplyBatch):
            return data
        batch = from_message(data, ReplyBatch)
        return to_message(replace(batch, answers=tuple(_spoil(reply, field, value) for reply in batch.answers)))

    reported: list[str] = []
    assert evaluate(tmp_path / "look", Here(kits, tamper), bundle, report=reported.append)
    (look,) = History(tmp_path / "look").read()
    assert list(look.clients) == ["cleveland"]
    assert look.absent == ("hungary",)
    assert any("hungary" in sentence for sentence in reported)


def _spoil(reply: Any, field: str, value: Any) -> Any:
    array = np.array(getattr(reply, field))
    array[...] = value
    return replace(reply, **{field: array})


def test_losses_that_are_no_numbers_and_silent_or_oversized_sites(kits: dict[str, Path], bundle: Path, tmp_path: Path) -> None:
    def lose(site: str, data: bytes) -> bytes:
        if not is_kind(data, ReplyBatch) or site != "hungary":
            return data
        batch = from_message(data, ReplyBatch)
        return to_message(replace(batch, answers=tuple(_spoil(reply, "loss", np.nan) for reply in batch.answers)))

    assert evaluate(tmp_path / "nan", Here(kits, lose), bundle)
    assert History(tmp_path / "nan").read()[0].clients["hungary"].loss is None
    for answer in (None, b"", b"x" * 10**6):
        shutil.rmtree(tmp_path / "silent", ignore_errors=True)

        def say(site: str, data: bytes, answer: bytes | None = answer) -> bytes | None:
            return answer if site == "hungary" and is_kind(data, ReplyBatch) else data

        assert evaluate(tmp_path / "silent", Here(kits, say), bundle, report=lambda sentence: None)
        assert list(History(tmp_path / "silent").read()[0].clients) == ["cleveland"]


def test_a_client_counts_for_the_site_that_had_it_first() -> None:
    members = Members(
        (Member("a", "other", 5, (1, 1)), Member("b", "one", 5, (1, 1))), (2,), ("x", "y"), False, frozenset({"one", "other"})
    )
    counts = np.array([[1, 0], [1, 1]])
    judged = Evaluated(np.arange(2), counts, np.ones((2, 2), int), np.ones((2, 2), int), np.zeros(2), np.zeros(2))
    before = [Look(1, 0.0, "h", {"a": Score("one", 1, 2, 0.1)}, ())]
    look = make_look(2, "h", judged, Serving.one(np.arange(2), np.zeros(2, np.float32)), members, before)
    assert list(look.clients) == ["b"]
    assert look.absent == ("a",)


def look(number: int, **errors: float) -> Look:
    return Look(number, float(number), "h", {name: Score("s", round(100 * (1 - error)), 100, 0.1) for name, error in errors.items()}, ())


def test_a_history_only_grows_and_survives_a_kill(tmp_path: Path) -> None:
    history = History(tmp_path)
    assert history.read() == []
    first, second = look(1, a=0.1), look(2, a=0.2, b=0.3)
    history.append(first)
    whole = history.path.read_bytes()
    history.append(second)
    assert history.read() == [first, second]
    with pytest.raises(UserError, match="look 2 cannot follow"):
        history.append(second)
    both = history.path.read_bytes()
    for size in range(len(whole), len(both)):  # killed anywhere in the second line
        if size % 29 and size not in (len(whole), len(both) - 1):
            continue
        history.path.write_bytes(both[:size])
        assert history.read() == [first]
        history.append(second)
        assert history.path.read_bytes() == both


@pytest.mark.parametrize("change", ["number", "line", "order", "nonsense", "empty"])
def test_a_damaged_history_is_refused_in_one_sentence(change: str, tmp_path: Path) -> None:
    history = History(tmp_path)
    for number in (1, 2, 3):
        history.append(look(number, a=0.1))
    lines = history.path.read_bytes().splitlines(keepends=True)
    damaged = {
        "number": [lines[0].replace(b"90", b"91", 1), *lines[1:]],
        "line": [lines[0], lines[2]],
        "order": [lines[1], lines[0], lines[2]],
        "nonsense": [lines[0], b"\x00\xff{\n", lines[2]],
        "empty": [lines[0], b"\n", lines[2]],
    }[change]
    history.path.write_bytes(b"".join(damaged))
    with pytest.raises(UserError, match=r"history.jsonl is damaged at line \d: restore it from a copy"):
        history.read()
    with pytest.raises(UserError, match="damaged"):
        history.append(look(4, a=0.1))


def test_changes_are_found_client_by_client_and_once() -> None:
    test = ChangeTest(0.005, 0.05)
    quiet = [look(number, a=0.1, b=0.2) for number in range(1, 4)]
    assert find_changes(quiet, test) == []
    looks = [*quiet, look(4, a=0.6, b=0.2), look(5, a=0.6, b=0.2), look(6, a=0.62, b=0.21)]
    (change,) = find_changes(looks, test)  # look 5 is the new reference
    assert (change.look, change.client) == (4, "a")
    assert (change.before, change.now) == pytest.approx((0.1, 0.6))
    assert change.statistic >= change.threshold
    assert find_changes([replace(one, time=-one.time) for one in looks], test) == [change]  # times do not matter
    assert find_changes(looks[:4], test) == [change]  # a history that is read later gives the same
    assert find_changes([look(1, a=0.6), look(2, a=0.1)], test) == []  # an improvement is no alarm
    assert find_changes([look(1, a=0.1), look(2), look(3, b=0.5), look(4, a=0.7, b=0.5)], test)[0].client == "a"


def test_training_continues_from_a_bundle(kits: dict[str, Path], bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "second"
    keep_bundle(bundle, folder)
    settings = Settings(methods=("fedavg",), data="sites", plan=Plan(rounds=1, local=Local(epochs=1, lr=1e-30)))
    order = Order("second", "study", settings.as_json(), SITES, 2, start=open_bundle(bundle)[1])
    assert order.terms().plan["start"] == order.start
    assert order.terms().hash != replace(order, start="").terms().hash  # sites approve what it starts from
    assert run_order(order, Here(kits), SITES, folder, clock=TimeBudget(60.0), report=pytest.fail)
    (lane,) = load_lanes(folder / "study").lanes.values()
    state: Any = lane.state
    np.testing.assert_allclose(state.models, read_bundle(bundle).models, rtol=1e-6)  # a step of 1e-30 changes nothing
    from coterie.evidence.reader import Evidence

    looked = tmp_path / "look"
    assert evaluate(looked, Here(kits), bundle)
    frame = Evidence.open(folder / "study").frame("clients")
    begun = frame[frame["round"] == 0].sort_values("client")
    assert begun["loss"].tolist() == pytest.approx([score.loss for score in History(looked).read()[0].clients.values()])


def other(bundle: Path, folder: Path, **changes: Any) -> Path:
    """A bundle with something changed."""
    made = read_bundle(bundle)
    write_bundle(Bundle(**{**{name: getattr(made, name) for name in made.__dataclass_fields__}, **changes}), folder)
    return folder


def test_bundles_that_do_not_fit_are_refused_in_one_sentence(kits: dict[str, Path], bundle: Path, tmp_path: Path) -> None:
    classes = other(bundle, tmp_path / "classes", classes=("yes", "no"))
    with pytest.raises(UserError, match="The bundle predicts yes, no, and the sites have the classes"):
        evaluate(tmp_path / "a", Here(kits), classes)
    width = read_bundle(bundle).input_shape[0]
    short = other(bundle, tmp_path / "short", input_shape=(width - 1,), features=None, models=read_bundle(bundle).models[:, : 2 * width])
    with pytest.raises(UserError, match=r"takes samples of shape \(\d+,\), the sites have"):
        evaluate(tmp_path / "b", Here(kits), short)
    keep_bundle(classes, tmp_path / "c")
    with pytest.raises(UserError, match="not the bundle that was ordered"):
        evaluate(tmp_path / "c", Here(kits), bundle)
    stranger = other(
        bundle, tmp_path / "strangers", models=np.repeat(read_bundle(bundle).models, 2, axis=0), names=("x", "y"), clients={"z": 1}
    )
    with pytest.raises(UserError, match="no model for any client that is there"):
        evaluate(tmp_path / "d", Here(kits), stranger, report=lambda sentence: None)
    assert not (tmp_path / "d" / "history.jsonl").exists()
    with pytest.raises(UserError, match="holds no bundle"):
        open_bundle(tmp_path)


def refuse(*words: str) -> str:
    """The sentence with which a command refuses, as `main` prints it before it exits with 2."""
    result = CliRunner().invoke(app, list(words))
    assert isinstance(result.exception, UserError), (words, result.output, result.exception)
    return str(result.exception)


def test_commands_refuse_in_one_sentence(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = tmp_path / "fed"
    fed.mkdir()
    FederationFolder(fed, "127.0.0.1", 1, SITES).write()
    monkeypatch.setattr("coterie.deploy.server.federation.require_server", lambda folder, server: None)
    for words, sentence in [
        (("monitor", str(fed), "--every", "0"), "=0 is no schedule"),
        (("monitor", str(fed), "--every", "nan"), "is no schedule"),
        (("monitor", str(fed), "--rate", "2"), "between 0 and 1"),
        (("monitor", str(fed)), "Name the bundle in use"),
        (("monitor", str(fed), "--bundle", str(tmp_path)), "holds no bundle"),
        (("monitor", str(fed), "--bundle", str(bundle)), "No site is connected"),
        (("monitor", str(fed), "--show"), "has no run 'monitor'"),
    ]:
        assert sentence in refuse("federation", *words)
    for words, sentence in [
        (("fedavg", "--evaluate", str(bundle)), "trains nothing: omit fedavg"),
        (("--evaluate", str(bundle)), "No site is connected"),
        (("fedavg", "--from", str(bundle), "--model", "mlp(4)"), "is a bundle of mclr, and"),
        (("--resume", "--name", "x", "--from", str(bundle)), "continues a run from its own models"),
    ]:
        assert sentence in refuse("launch", *words, "--federation", str(fed))
    made = tmp_path / "fed" / "runs" / "monitor"
    made.mkdir(parents=True)
    (made / "order.json").write_text(json.dumps({"order": asdict(Order("monitor", "evaluate", {"plan": {"rounds": 1}})), "timeout": 1.0}))
    (made / "status.json").write_text('{"status": "complete"}')
    (made / "history.jsonl").write_text("{}\n")
    assert "damaged at line 1" in refuse("federation", "monitor", str(fed), "--show")


@pytest.mark.parametrize("ahead", [-50.0, 0.0, 1e6])
def test_a_clock_that_was_set_back_delays_no_look(ahead: float, monkeypatch: pytest.MonkeyPatch) -> None:
    from coterie.cli import federation_monitor

    slept: list[float] = []
    monkeypatch.setattr(federation_monitor, "time", lambda: 1000.0 + sum(slept))
    monkeypatch.setattr(federation_monitor, "sleep", slept.append)
    federation_monitor.wait_for_look(1000.0 + ahead, 60.0)
    assert sum(slept) == (10.0 if ahead < 0 else 60.0)
