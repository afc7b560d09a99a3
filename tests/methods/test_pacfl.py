"""PACFL: directions worked by hand, angles in degrees, groups by them, and what a site lets out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.descriptions import AskSubspaces, Subspaces, compute_subspaces
from coterie.deploy.messages import Denial
from coterie.deploy.orders import find_asks
from coterie.deploy.server.validation import InvalidMessageError, check_reply
from coterie.deploy.site.audit import Audit
from coterie.deploy.site.ledger import Ledger
from coterie.deploy.site.policy import ClipNoise, Policy
from coterie.deploy.site.worker import SiteWorker
from coterie.engines.engine import StampedAsk
from coterie.grouping import landmarks
from coterie.methods import pacfl
from coterie.methods.fedavg import FedAvg
from coterie.methods.flhc import FLHC
from coterie.methods.own_norm import OwnNorm
from coterie.methods.pacfl import PACFL, compute_angles
from coterie.run.costs import compute_cost
from coterie.testing import worlds
from coterie.testing.fakes import make_trained, run_dialogue
from coterie.testing.play import PLAN, get_loop_engine, make_round_context, play

WORLD = worlds.make_world()
CLIENTS = WORLD.problem.roster.clients
ASK = AskSubspaces(CLIENTS, size=5, directions=2, classes=3)


def answer(ask: AskSubspaces = ASK, world: Any = WORLD) -> Subspaces:
    (reply,) = get_loop_engine(world).run([StampedAsk(ask, 3, 1)])
    return reply  # type: ignore[no-any-return]


def test_directions_by_hand() -> None:
    samples = np.array([[3.0, 4.0, 0.0], [3.0, 4.0, 0.0], [0.0, 0.0, -2.0], [0.0, -5.0, 0.0]])
    bases, counts = compute_subspaces(samples, np.array([0, 0, 0, 2]), 3, 2)
    np.testing.assert_allclose(bases[0], [[0.6, 0.8, 0.0], [0.0, 0.0, 1.0]], atol=1e-7)  # lengths sqrt(50) and 2
    np.testing.assert_allclose(bases[1], 0)  # no sample
    np.testing.assert_allclose(bases[2], [[0, 1, 0], [0, 0, 0]], atol=1e-7)  # one sample has one direction, the positive of two
    assert counts.tolist() == [3, 0, 1]
    alike, _ = compute_subspaces(samples[:2], None, 0, 2)
    np.testing.assert_allclose(alike, [[[0.6, 0.8, 0.0], [0.0, 0.0, 0.0]]], atol=1e-7)  # equal samples span one direction
    whole, counts = compute_subspaces(samples, None, 0, 1)
    assert (whole.shape, counts.tolist()) == ((1, 1, 3), [4])


def test_angles_by_hand() -> None:
    first, second = np.zeros((2, 1, 2, 2, 3), dtype=np.float32)  # one client each: two classes, two directions
    first[0, 0] = [[1, 0, 0], [0, 1, 0]]
    second[0, 0] = [[-0.5, 0, np.sqrt(0.75)], [0, 0, 0]]
    second[0, 1, 0] = [0, np.sqrt(0.5), np.sqrt(0.5)]
    np.testing.assert_allclose(compute_angles(first, second, "smallest"), [[45]], atol=1e-4)  # not 60, and of another class
    np.testing.assert_allclose(compute_angles(first, second, "sum"), [[60 + 90 + 90 + 0]], atol=1e-4)  # the last place is empty in both
    for angle in ("smallest", "sum"):
        both = np.concatenate([first, second])
        found = compute_angles(both, both, angle)
        np.testing.assert_allclose(found, found.T, atol=1e-9)
        assert found.diagonal().tolist() == [0, 0]
    assert compute_angles(first, np.zeros_like(first), "smallest") == [[90]]  # a client without directions


def test_engine_answers_from_the_training_samples_of_each_class() -> None:
    reply, x, y = answer(), WORLD.federation.x, WORLD.federation.y
    assert reply.bases.shape == (6, 3, 2, 5)
    for client in CLIENTS:
        own = WORLD.federation.train[client]
        assert reply.counts[client].tolist() == [int((y[own] == c).sum()) for c in range(3)]
        for c in range(3):
            rows = x[own[y[own] == c]].astype(np.float64)
            values, vectors = np.linalg.eigh(rows.T @ rows)  # the same directions, by another route
            for place in range(min(2, len(rows))):
                assert abs(reply.bases[client, c, place] @ vectors[:, -1 - place]) > 1 - 1e-4 or values[-1 - place] < 1e-9
    cost = compute_cost(ASK, reply)
    assert (cost.bytes_down, cost.bytes_up) == (0, 4 * 6 * (3 * 2 * 5 + 3 + 1))  # no model is sent


def bases_at(degrees: list[float]) -> np.ndarray[Any, Any]:
    turned = np.radians(degrees)
    return np.stack([np.cos(turned), np.sin(turned)], axis=1).astype(np.float32)[:, None, None]


def test_groups_by_angle_and_averages_within() -> None:
    ctx = make_round_context(WORLD, replace(PLAN, cohort=None), round_=1)
    sizes, vectors = list(worlds.SIZES), np.random.default_rng(0).normal(size=(6, WORLD.model.layout.size)).astype(np.float32)
    bases = bases_at([0, 3, 40, 178, 43, 90])  # 178 degrees are 2: a direction has no sign
    sent = Subspaces(CLIENTS, bases, np.ones((6, 1), np.int64), np.array(sizes))
    state: Any = play(PACFL(groups=2), rounds=0).states[0]
    trained = make_trained(range(6), vectors, sizes)
    after, (_, asked) = run_dialogue(PACFL(threshold=6.0).round(state, ctx), trained, sent)
    assert (asked.size, asked.classes, asked.directions) == (5, 3, 3)
    assert after.groups.tolist() == [0, 0, 1, 0, 1, 2]
    expected = np.average(vectors[[0, 1, 3]].astype(np.float64), axis=0, weights=np.array(sizes)[[0, 1, 3]])
    np.testing.assert_allclose(after.models[0], expected, rtol=1e-4)
    finer, _ = run_dialogue(PACFL(threshold=2.5).round(state, ctx), trained, sent)
    assert finer.groups.tolist() == [0, 1, 2, 0, 3, 4]  # 0 and 178 alone are near enough
    silent, _ = run_dialogue(PACFL(threshold=6.0).round(state, ctx), trained, sent.take(np.array([0, 1, 2, 3, 4])))
    assert silent.groups.tolist() == [0, 0, 1, 0, 1, 0]  # a client without directions joins the largest group


def test_many_clients_by_landmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = make_round_context(WORLD, PLAN, round_=1)
    rng = np.random.default_rng(1)
    bases, truth = bases_at([30.0 * (i % 3) + rng.uniform(-2, 2) for i in range(60)]), np.arange(60) % 3
    whole = PACFL(groups=3)._cut_tree(bases, 3, ctx)
    monkeypatch.setattr(pacfl, "MANY", 50)
    monkeypatch.setattr(pacfl, "sample_landmarks", lambda n, rng: landmarks.sample_landmarks(n, rng, 20))
    few = PACFL(groups=3)._cut_tree(bases, 3, ctx)
    for labels in (whole, few):
        assert all(len(set(labels[truth == j])) == 1 for j in range(3))
        assert len(set(labels)) == 3


def test_one_group_is_fedavg_once_all_clients_train() -> None:
    plan = replace(PLAN, cohort=None)
    one = play(PACFL(groups=1), plan=plan, rounds=3)
    np.testing.assert_array_equal(one.states[-1].models, play(FLHC(warmup=0, groups=1), plan=plan, rounds=3).states[-1].models)  # type: ignore[attr-defined]
    np.testing.assert_allclose(one.states[-1].models, play(FedAvg(), plan=plan, rounds=3).states[-1].models, atol=1e-6)  # type: ignore[attr-defined]


def test_norms_that_stay_with_clients_do_not_matter() -> None:
    world = worlds.make_batch_norm_world()
    assert play(OwnNorm(method=PACFL(groups=2)), world=world, rounds=2).states[-1].inner.clustered  # type: ignore[attr-defined]


def ask_site(folder: Path, ask: AskSubspaces = ASK, **policy: Any) -> Any:
    audit = Audit(folder / "audit.jsonl")
    usual: dict[str, Any] = {"minimum_samples": 1, "asks": ("AskSubspaces",), "label_shares": True}
    made = Policy(**usual | policy)
    (reply,) = SiteWorker(WORLD, get_loop_engine(), made, audit, Ledger(folder / "privacy.json", audit)).answer([StampedAsk(ask, 3, 1)])
    return reply


def test_a_site_answers_only_where_its_policy_names_it(tmp_path: Path) -> None:
    assert isinstance(ask_site(tmp_path / "a"), Subspaces)
    noise = ClipNoise(mechanism="clip+noise", clip=0.5, noise=0.01)
    denials: list[tuple[dict[str, Any], str]] = [
        ({"asks": Policy().asks}, "AskSubspaces is not answered here"),
        ({"label_shares": False}, "AskSubspaces by class"),
        ({"privacy": noise}, "noise on directions"),
    ]
    for place, (policy, words) in enumerate(denials):
        denied = ask_site(tmp_path / f"{place}", **policy)
        assert isinstance(denied, Denial)
        assert words in denied.reason
    assert isinstance(ask_site(tmp_path / "b", replace(ASK, classes=0), label_shares=False), Subspaces)


def test_small_classes_look_like_empty_ones(tmp_path: Path) -> None:
    exact, reply = answer(), ask_site(tmp_path, minimum_samples=4)
    own = exact.of(reply.clients)
    kept = own.counts >= 4
    assert kept.any()
    assert not kept.all()
    assert reply.counts.tolist() == np.where(kept, own.counts, 0).tolist()
    assert np.array_equal(reply.bases, own.bases * kept[..., None, None])


def test_the_server_refuses_what_are_no_directions() -> None:
    reply = answer()
    check_reply(reply, ASK)
    for wrong in (replace(reply, bases=2 * reply.bases), replace(reply, counts=reply.counts + 100)):
        with pytest.raises(InvalidMessageError):
            check_reply(wrong, ASK)


def test_bad_input_is_named() -> None:
    with pytest.raises(UserError, match="no points to read a number"):
        PACFL(choice="silhouette")
    with pytest.raises(UserError, match="A sample has 5 numbers, and 4 are asked for"):
        answer(replace(ASK, size=4))
    with pytest.raises(UserError, match="no classes to describe"):
        answer(ASK, worlds.make_task_world("regression"))
    assert "AskSubspaces" in find_asks([PACFL()])
