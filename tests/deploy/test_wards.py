"""A site of several wards: clients of the federation, or one reply for all; what leaves, what is logged, and what is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from typer.testing import CliRunner

from coterie._util.errors import UserError
from coterie.core.asks import AskErrors, Evaluate, Gradient, Losses, Reply, Share, Train
from coterie.core.descriptions import AskSubspaces, Describe
from coterie.core.local import Local
from coterie.core.serving import Serving
from coterie.deploy.bundle.files import read_bundle
from coterie.deploy.messages import Denial, SiteCard, from_message, to_message
from coterie.deploy.server.introduction import introduce_sites
from coterie.deploy.server.members import Members
from coterie.deploy.server.runs import Order
from coterie.deploy.site.aggregation import AGGREGATES, aggregate_reply
from coterie.deploy.site.audit import Audit, verify_audit
from coterie.deploy.site.data import SiteData, SiteSettings, describe_site_data
from coterie.deploy.site.ledger import Ledger
from coterie.deploy.site.policy import ClipNoise, Policy, parse_policy
from coterie.deploy.site.process import Site
from coterie.deploy.site.worker import SiteWorker
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World
from coterie.evidence.reader import Evidence
from coterie.testing.worlds import SIZES, make_world
from deploy.ordering import make_hello, make_terms
from deploy.wards import AGGREGATING, OPEN, WARDS, WardFed

CLIENTS, ONE = np.arange(6), np.zeros(1, dtype=np.int64)
INITIAL = make_world().model.initial(0)(0)
MODELS = np.stack([INITIAL, INITIAL + np.float32(0.1)])


def ask_all(clients: Any) -> list[StampedAsk]:
    local = Local(epochs=2, batch_size=4)
    given = (
        Train(clients, INITIAL, local),
        Train(clients, INITIAL, local, share=Share(0)),
        Gradient(clients, INITIAL),
        Losses(clients, MODELS),
        AskErrors(clients, MODELS),
        Evaluate(Serving.one(clients, INITIAL)),
        Describe(clients, INITIAL, size=3, key=5, classes=3),
    )
    return [StampedAsk(ask, 0, 1) for ask in given]


def worker(folder: Path, **policy: Any) -> SiteWorker:
    usual = {"minimum_samples": 1, "rounding": 1, "label_shares": True, "aggregate": True}
    made = Policy(**{**usual, "asks": ("Train", "Gradient", "Losses", "AskErrors", "Evaluate", "Describe", "AskSubspaces"), **policy})
    audit, world = Audit(folder / "audit.jsonl"), make_world()
    return SiteWorker(world, LoopEngine(world), made, audit, Ledger(folder / "privacy.json", audit), run="r1", site="north")


def pool(world: World) -> World:
    """The same samples as those of one client."""
    from coterie.data.wards import merge_clients

    return replace(world, federation=merge_clients(world.federation, dict.fromkeys(world.federation.ids, "all")))


def test_one_reply_leaves_and_it_is_that_of_all_samples(tmp_path: Path) -> None:
    """Gradients, losses, errors, counts and moments are those of a client that has all samples; trained models are the weighted mean."""
    replies = cast(list[Any], worker(tmp_path).answer(ask_all(ONE)))
    wards, pooled = LoopEngine(make_world()).run(ask_all(CLIENTS)), LoopEngine(pool(make_world())).run(ask_all(ONE))
    assert {type(reply) for reply in replies} == set(AGGREGATES)
    assert all(reply.clients.tolist() == [0] for reply in replies)
    weights = np.array(SIZES) / sum(SIZES)
    np.testing.assert_allclose(replies[0].vectors[0], weights @ wards[0].vectors, atol=1e-6)
    assert replies[0].sizes.tolist() == [sum(SIZES)]
    assert replies[0].steps.tolist() == [wards[0].steps.max()]
    for found, whole in zip(replies[2:], pooled[2:], strict=True):
        for name in found.columns():
            if name != "auroc":
                np.testing.assert_allclose(
                    getattr(found, name), getattr(whole, name), rtol=1e-5, atol=1e-6, err_msg=f"{type(found).__name__}.{name}"
                )
    entries = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    (first, *_) = [entry for entry in entries if "ask" in entry]
    assert first["clients"] == list(make_world().federation.ids)  # the site's own log knows which trained
    assert list(first["norms"]) == ["north"]
    assert verify_audit(tmp_path / "audit.jsonl").faults == ()


def test_the_area_under_a_curve_leaves_of_one_ward_alone() -> None:
    (judged,) = LoopEngine(make_world()).run([ask_all(CLIENTS)[5]])
    known = replace(judged, auroc=np.linspace(0.5, 1, 6))
    assert np.isnan(cast(Any, aggregate_reply(known)).auroc).all()
    alone = replace(known, **{name: getattr(known, name) * (known.clients == 2)[:, None] for name in ("hits", "predicted", "actual")})
    assert cast(Any, aggregate_reply(alone)).auroc.tolist() == [0.7]


def test_small_wards_do_not_count_in_the_reply(tmp_path: Path) -> None:
    made = worker(tmp_path, minimum_samples=7)
    (trained,) = made.answer(ask_all(ONE)[:1])
    kept = np.array([size >= 7 for size in SIZES])
    plain = LoopEngine(make_world()).run(ask_all(CLIENTS)[:1])[0]
    weights = np.array(SIZES) * kept
    np.testing.assert_allclose(cast(Any, trained).vectors[0], (weights / weights.sum()) @ plain.vectors, atol=1e-6)
    assert cast(Any, trained).sizes.tolist() == [weights.sum()]
    (entry,) = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines() if '"ask"' in line]
    assert entry["silent"] == ["client-2", "client-5"]


def test_what_has_no_mean_and_what_is_not_for_the_site_is_denied(tmp_path: Path) -> None:
    from coterie.methods.ditto import OWN_MODEL, DittoRule

    rule = Train(ONE, INITIAL, Local(rule=DittoRule(lam=0.1, own_epochs=None)), extra={OWN_MODEL: INITIAL[None]})
    given: list[Any] = [AskSubspaces(ONE, size=4), rule, Train(np.array([1]), INITIAL, Local()), Train(np.array([0, 0]), INITIAL, Local())]
    replies = worker(tmp_path).answer([StampedAsk(ask, 0, 1) for ask in given])
    assert [cast(Denial, reply).reason.partition(":")[0] for reply in replies] == [
        "AskSubspaces is not answered",
        "Train by a local rule is not answered",
        "The site sends one reply for all of its clients",
        "The site sends one reply for all of its clients",
    ]


def test_a_ward_over_its_budget_silences_the_site_and_costs_the_others_nothing(tmp_path: Path) -> None:
    """An answer without it, less one with it, would be an answer about it."""
    noise = ClipNoise(mechanism="clip+noise", clip=1.0, noise=4.0, epsilon_limit=3.0)
    flat = worker(tmp_path, aggregate=False, privacy=noise)
    while not isinstance(cast(Any, flat.answer([StampedAsk(Train(np.array([2]), INITIAL, Local()), 0, 1)])[0]), Denial):
        pass
    before = Ledger(tmp_path / "privacy.json").charges()
    (reply,) = worker(tmp_path, privacy=noise).answer(ask_all(ONE)[:1])
    assert isinstance(reply, Denial)
    assert reply.cause == "budget"
    assert Ledger(tmp_path / "privacy.json").charges() == before
    assert len(cast(Reply, flat.answer(ask_all(CLIENTS)[:1])[0])) == 5
    few = worker(tmp_path / "few", models_per_run=2)
    assert not isinstance(few.answer([ask_all(ONE)[3]])[0], Denial)
    (over,) = few.answer([StampedAsk(Losses(ONE, MODELS + np.float32(1)), 0, 1)])
    assert "the site's policy allows 2" in cast(Denial, over).reason


@pytest.mark.parametrize(
    "more", [{}, {"rounding": 3}, {"sample_counts": False, "class_counts": False}, {"minimum_samples": 5}, {"minimum_samples": 9}]
)
def test_the_card_fits_what_the_site_replies(more: dict[str, Any], tmp_path: Path) -> None:
    """Counts are rounded alike on the card and in evaluations, or the server would refuse them. Test parts have 4 to 6 samples: with at
    least 5 some wards are not evaluated, with 9 none."""
    lines = AGGREGATING.splitlines()
    for key, value in more.items():
        lines = [f"{key} = {json.dumps(value)}" if line.startswith(f"{key} = ") else line for line in lines]
    fed = WardFed(tmp_path, "\n".join(lines))
    evidence = Evidence.open(fed.launch("r", "fedavg", rounds=1) / "study")
    assert evidence.table("absences").num_rows == 0
    assert evidence.rosters[0]["id"].to_pylist() == list(WARDS)
    judged = evidence.frame("clients").query("round == 1")
    assert len(judged) == (0 if more == {"minimum_samples": 9} else 2)
    if more == {"minimum_samples": 5}:
        assert (judged["actual_0"] + judged["actual_1"]).tolist() == [5, 11]


def test_a_site_is_asked_and_served_as_one_and_its_wards_have_the_model(tmp_path: Path) -> None:
    fed = WardFed(tmp_path, AGGREGATING, "label=ill,scale=standard")
    fed.launch("r", "fedavg")
    bundle = read_bundle(fed.kit("south") / "bundles" / "r" / "fedavg")
    assert bundle.clients == {"south/icu": 0, "south/medicine": 0, "south/surgery": 0}
    assert bundle.preparation is not None


def test_flat_wards_are_clients_of_their_own_and_small_ones_are_merged(tmp_path: Path) -> None:
    fed = WardFed(tmp_path, OPEN.replace('small_clients = "silent"', 'small_clients = "merge"').replace("samples = 4", "samples = 40"))
    folder = fed.launch("r", "fedavg", rounds=1)
    members = Members.read(folder / "members.json").members
    assert [member.id for member in members] == ["north/icu+surgery", "south/icu+medicine", "south/surgery"]
    assert [member.train for member in members] == [79, 79, 50]
    data = SiteData(fed.kit("north"), SiteSettings.read(fed.kit("north")), 40)
    assert set(data.hashes) == set(data.federation.ids) == {"north/icu+surgery"}
    assert data.count_samples(by_table=True) == {"north/icu+surgery": 88}


def test_a_site_that_is_killed_rejoins_and_one_that_aggregates_no_longer_does_not(tmp_path: Path) -> None:
    whole, cut = WardFed(tmp_path / "whole", AGGREGATING), WardFed(tmp_path / "cut", AGGREGATING)
    whole.launch("r", "fedavg", rounds=2)
    cut.launch("r", "fedavg", rounds=2)  # each launch starts the sites anew, as after a kill; the run is resumed from its checkpoint
    shutil.rmtree(cut.kit("north") / "bundles")
    cut.launch("r", "fedavg", rounds=2)
    one, two = (read_bundle(fed.kit("north") / "bundles" / "r" / "fedavg").models for fed in (whole, cut))
    assert (one == two).all()
    (cut.kit("north") / "policy.toml").write_text(OPEN)
    order = Order("r", "study", {}, tuple(WARDS), 1)
    cut.sites = {site: Site(cut.kit(site)) for site in WARDS}
    introduce_sites(order, make_terms("r"), cut, tuple(WARDS), cut.folder / "runs" / "r", cut.reported.append)
    assert any("Site 'north' does not take part: it claims 2 clients, and it had when the run began 1" in line for line in cut.reported)


def test_the_card_of_one_client_alone_may_be_aggregated(tmp_path: Path) -> None:
    from coterie.deploy.messages import MessageError
    from coterie.deploy.server.validation import read_card

    fed = WardFed(tmp_path)
    hello = make_hello(run="r")
    card = from_message(Site(fed.kit("north")).answer(to_message(hello)), SiteCard)
    with pytest.raises(MessageError, match="aggregated of a SiteCard should be true of one client alone"):
        read_card(to_message(replace(card, aggregated=True)), hello, 1 << 20)


def test_join_prints_the_wards_and_what_becomes_of_them(tmp_path: Path) -> None:
    fed = WardFed(tmp_path)
    settings = SiteSettings.read(fed.kit("south"))
    assert SiteSettings(**vars(settings)) == settings
    lines = describe_site_data(settings, "south", parse_policy(AGGREGATING.replace("samples = 4", "samples = 40")))
    assert lines[-4:] == [
        "south: 3 clients with 129 training samples.",
        "south/icu (36), south/medicine (43), south/surgery (50)",
        'Silent, with fewer than 40 training samples: south/icu (small_clients = "merge" in policy.toml merges them).',
        "One reply leaves for all of them, as client 'south' (aggregate).",
    ]


def test_join_refuses_wards_that_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coterie.cli.app import app

    fed = WardFed(tmp_path)
    kit = fed.kit("north")
    monkeypatch.setattr("coterie.deploy.certificates.check_kit", lambda kit: ("north", "127.0.0.1:1"))
    monkeypatch.setattr("coterie.deploy.files.keep_private", lambda kit: None)
    one = f"csv({fed.files['north']['icu']},label=ill)"
    found = CliRunner().invoke(app, ["join", str(kit), "--data", f"a={one}", "--data", f"b={one}"])
    assert isinstance(found.exception, UserError)
    assert str(found.exception) == "The wards 'a' and 'b' hold the same samples: give each its own file."
