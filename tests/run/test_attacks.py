"""Hostile clients: who they are, what they answer, what they train on, and that scores are of the others."""

from typing import Any

import numpy as np
import pytest

import coterie as ct
from coterie._util.errors import UserError
from coterie.analysis.record_reader import read_records
from coterie.core.asks import Gradient, Gradients, Losses, LossTable, Train, Trained
from coterie.core.local import Local
from coterie.core.plan import Attack, Plan, parse_attack
from coterie.core.rng import make_key
from coterie.core.roster import Roster
from coterie.core.vectors import Sketch, project
from coterie.data.poisoning import make_trigger_set, poison_federation
from coterie.evidence.reader import read_notes
from coterie.run.conditions import MaliciousClients
from coterie.testing import worlds

CLIENTS = np.arange(4)
ROSTER = Roster.from_sizes([f"client-{i}" for i in range(4)], np.array([5, 6, 7, 8]))
MODELS = np.array([[1.0, 1.0], [10.0, 0.0]], np.float32)
ASK = Train(CLIENTS, MODELS, Local(), start=np.array([0, 0, 1, 1]))
UPDATES = np.array([[1, 0], [0, 2], [3, 0], [0, 4]], np.float32)
REPLY = Trained(CLIENTS, (MODELS[ASK.start] + UPDATES).astype(np.float32), ROSTER.sizes, np.ones(4, np.int64))


def attack(text: str) -> Attack:
    made = parse_attack(text)
    assert made is not None
    return made


def updates_under(text: str, hostile: tuple[int, ...] = (1, 2), round_: int = 1) -> np.ndarray:
    side = MaliciousClients(attack(text), ROSTER, 0, np.array(hostile))
    return np.asarray(side.answer(ASK, REPLY, round_).vectors - MODELS[ASK.start])


def test_who_is_hostile_is_keyed_by_seed_and_client() -> None:
    roster = Roster.from_sizes([f"client-{i}" for i in range(40)], np.ones(40, np.int64))
    first = attack("signflip").select_malicious(roster, 0)
    assert len(first) == 8  # a fifth of 40
    assert (
        first.tolist()
        == attack("noise(factor=1)").select_malicious(roster, 0).tolist()
        != attack("signflip").select_malicious(roster, 1).tolist()
    )
    assert set(attack("signflip(share=0.1)").select_malicious(roster, 0)) < set(first)  # a larger share adds to a smaller one
    renamed = Roster.from_sizes(reversed(roster.ids), roster.sizes)
    assert [renamed.ids[i] for i in attack("signflip").select_malicious(renamed, 0)[::-1]] == [roster.ids[i] for i in first]
    assert len(attack("signflip(share=0.01)").select_malicious(ROSTER, 0)) == 1


def test_updates_by_hand() -> None:
    np.testing.assert_array_equal(updates_under("signflip"), [[1, 0], [0, -2], [-3, 0], [0, 4]])
    np.testing.assert_array_equal(updates_under("scale"), [[1, 0], [0, -20], [-30, 0], [0, 4]])
    np.testing.assert_array_equal(updates_under("scale(factor=3)"), [[1, 0], [0, 6], [9, 0], [0, 4]])
    np.testing.assert_array_equal(updates_under("signflip(collude=true)"), [[1, 0], [-1.5, -1], [-1.5, -1], [0, 4]])


def test_noise_is_as_long_as_said_and_shared_by_those_who_collude() -> None:
    noise = updates_under("noise(factor=2)") - UPDATES
    np.testing.assert_allclose(np.linalg.norm(noise, axis=1), [0, 4, 6, 0], rtol=1e-6)
    directions = noise[1:3] / np.linalg.norm(noise[1:3], axis=1, keepdims=True)
    assert abs(directions[0] @ directions[1]) < 0.9999
    together = updates_under("noise(factor=2,collude=true)") - UPDATES
    np.testing.assert_allclose(together[1] / 4, together[2] / 6, rtol=1e-5)
    assert not np.allclose(updates_under("noise", round_=2), updates_under("noise"))


def test_the_key_of_noise_has_the_name_of_the_ask() -> None:
    """The class names of asks that carry vectors are part of random keys: another name is another draw."""
    keys: list[tuple[object, ...]] = []

    def keep_key(*words: Any) -> int:
        keys.append(words)
        return make_key(*words)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coterie.run.conditions.make_key", keep_key)
        updates_under("noise(share=0.5,collude=true)")
    assert keys == [(0, "hostile noise", 1, "Train", 0)] * 2
    assert (Gradient.__name__, Train.__name__) == ("Gradient", "Train")


def test_a_mimic_sends_an_honest_client_s_update_from_its_own_model() -> None:
    one, two = updates_under("mimic(collude=true)")[1:3]
    np.testing.assert_array_equal(one, two)
    assert one.tolist() in (UPDATES[0].tolist(), UPDATES[3].tolist())
    np.testing.assert_array_equal(updates_under("mimic(collude=true)", round_=9)[1], one)  # the same client in every round
    np.testing.assert_array_equal(updates_under("mimic", (0, 1, 2, 3)), UPDATES)  # nobody to copy


def test_false_counts_and_true_losses() -> None:
    side = MaliciousClients(attack("count(times=10)"), ROSTER, 0, np.array([1]))
    assert side.answer(ASK, REPLY, 1).sizes.tolist() == [5, 60, 7, 8]
    np.testing.assert_array_equal(side.answer(ASK, REPLY, 1).vectors, REPLY.vectors)
    table = LossTable(CLIENTS, np.ones((4, 2)), ROSTER.sizes)
    assert side.answer(Losses(CLIENTS, MODELS), table, 1).sizes.tolist() == [5, 60, 7, 8]
    flips = MaliciousClients(attack("signflip"), ROSTER, 0, np.array([1]))
    assert flips.answer(Losses(CLIENTS, MODELS), table, 1) is table
    slopes = Gradients(CLIENTS, UPDATES, ROSTER.sizes, np.zeros(4))
    np.testing.assert_array_equal(flips.answer(Gradient(CLIENTS, MODELS), slopes, 1).vectors[1], -UPDATES[1])


def test_a_lie_in_a_sketch_is_the_sketch_of_the_lie() -> None:
    """A projection is linear: what is turned round, scaled or copied in few numbers is what it would have been in all of them."""
    sketch = Sketch(2, 7)
    vectors = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    models = np.full((1, 5), 3.0, np.float32)
    whole = Gradients(CLIENTS, vectors, ROSTER.sizes, np.zeros(4))
    sketched = project(vectors, sketch).astype(np.float32)
    short = Gradients(CLIENTS, sketched, ROSTER.sizes, np.zeros(4))
    moved = Trained(CLIENTS, sketched, ROSTER.sizes, np.ones(4, np.int64))
    for text in ("signflip", "scale", "signflip(collude=true)", "mimic", "mimic(collude=true)"):
        side = MaliciousClients(attack(text), ROSTER, 0, np.array([1, 2]))
        lies = project(side.answer(Gradient(CLIENTS, models), whole, 1).vectors, sketch)
        np.testing.assert_allclose(side.answer(Gradient(CLIENTS, models, sketch=sketch), short, 1).vectors, lies, rtol=1e-4, atol=1e-5)
        # a sketch of an update holds nothing of the model that was sent
        np.testing.assert_allclose(
            side.answer(Train(CLIENTS, models, Local(), sketch=sketch), moved, 1).vectors, lies, rtol=1e-4, atol=1e-5
        )
        assert not np.allclose(lies[1:3], short.vectors[1:3])
        np.testing.assert_allclose(lies[[0, 3]], short.vectors[[0, 3]], rtol=1e-5)


@pytest.mark.parametrize("spec", ["fedsim(clusters=2,sketch=8)", "fedgroup(groups=2,start_from=w0,sketch=8)"])
def test_a_guard_holds_out_whoever_lies_in_a_sketch(spec: str) -> None:
    """Sign flips of rotated digits: of 24 clients five, all of them and nobody else, from sketches (FedGroup) or models (FedSim)."""
    settings: dict[str, Any] = {"data": "digits/rotated(clients=24,groups=2)", "lr": 0.1, "epochs": 3, "attack": "signflip"}
    evidence = ct.study(f"{spec}+guard", rounds=1, **settings).evidence
    hostile = next(value for _, _, value in read_notes(evidence, "hostile_clients"))
    held = {round_: clients for _, round_, clients in read_notes(evidence, "held_out")}
    assert len(hostile) == 5
    assert held[0 if "fedgroup" in spec else 1] == hostile
    assert not any(
        clients for _, _, clients in read_notes(ct.study(f"{spec}+guard", rounds=1, **{**settings, "attack": None}).evidence, "held_out")
    )


def test_labels_are_falsified_for_hostile_clients_training_parts_only() -> None:
    before = worlds.make_federation()
    hostile = np.array([0, 4])
    for text in ("labelflip", "labelflip(collude=true)"):
        after = poison_federation(before, attack(text), hostile, 0)
        assert after.train.sizes.tolist() == before.train.sizes.tolist()
        for client in range(len(before)):
            own, same = after.y[after.train[client]], before.y[before.train[client]]
            assert (own != same).any() if client in hostile else (own == same).all()
            np.testing.assert_array_equal(after.x[after.train[client]], before.x[before.train[client]])
            np.testing.assert_array_equal(after.y[after.test[client]], before.y[before.test[client]])
    np.testing.assert_array_equal(after.y[after.train[0]], 2 - before.y[before.train[0]])  # C - 1 - c, of three classes


def test_a_backdoor_marks_half_and_is_measured_on_honest_clients_other_classes() -> None:
    before, door = worlds.make_federation(), attack("backdoor(target=1)")
    after = poison_federation(before, door, np.array([0]), 0)
    top = before.x.max()
    marked = after.x[after.train[0]][:, -1] == top
    assert marked.sum() == 6  # half of 12
    assert (after.y[after.train[0]][marked] == 1).all()
    np.testing.assert_array_equal(after.y[after.train[0]][~marked], before.y[before.train[0]][~marked])
    judged = make_trigger_set(before, door, np.array([0]))  # type: ignore[arg-type]
    assert len(judged.test[0]) == 0
    assert judged.test.sizes[1] == (before.y[before.test[1]] != 1).sum()
    assert (judged.x[judged.test.indices][:, -1] == top).all()
    with pytest.raises(UserError, match="no class"):
        poison_federation(before, attack("backdoor(target=9)"), np.array([0]), 0)


@pytest.mark.parametrize("text", ["signflip(share=1)", "signflip(shar=0.1)", "flip", "noise(factor=-1)", "signflip(share=0)"])
def test_a_wrong_attack_is_refused_where_the_plan_is_made(text: str) -> None:
    with pytest.raises(UserError):
        Plan(attack=text)


def test_scores_are_of_honest_clients_who_are_named_in_the_evidence() -> None:
    result = ct.study(["fedavg"], data=worlds.make_federation(), rounds=1, seeds=[0, 1], attack="labelflip(share=0.34)")
    records = read_records(result.evidence)
    assert records.malicious is not None
    named = {key.seed: clients for key, _, clients in read_notes(result.evidence, "hostile_clients")}
    roster = Roster.from_sizes(records.ids, records.train)
    for place, seed in enumerate((0, 1)):
        hostile = attack("labelflip(share=0.34)").select_malicious(roster, seed)
        assert named[seed] == hostile.tolist() == np.flatnonzero(records.malicious[place]).tolist()
        honest = ~records.malicious[place]
        expected = records.credits[0, place, -1, honest].sum() / records.test[honest].sum()
        assert result.scores["final"][place] == pytest.approx(expected)
    assert records.malicious[0].tolist() != records.malicious[1].tolist()
    assert result.remarks == ["2 of 6 clients are malicious (labelflip(share=0.34)): every score is of the honest ones."]


@pytest.mark.parametrize("text", ["signflip", "labelflip", "backdoor"])
def test_engines_agree_under_attack(text: str) -> None:
    runs = [
        ct.study(["fedavg"], data=worlds.make_federation(), rounds=2, attack=text, execution=ct.Execution(engine=engine)).rounds["loss"]
        for engine in ("loop", "batched")
    ]
    np.testing.assert_allclose(runs[0], runs[1], rtol=1e-4)
    assert not np.allclose(runs[0], ct.study(["fedavg"], data=worlds.make_federation(), rounds=2).rounds["loss"])


def test_how_far_a_backdoor_got_is_noted() -> None:
    result = ct.study(["fedavg"], data=worlds.make_federation(), rounds=1, attack="backdoor")
    assert [(round_, 0 <= share <= 1) for _, round_, share in read_notes(result.evidence, "backdoor_success")] == [(0, True), (1, True)]


def test_believed_counts_move_the_model_and_checked_ones_do_not() -> None:
    def loss(**settings: Any) -> float:
        return float(ct.study(["fedavg"], data=worlds.make_federation(), rounds=1, **settings).rounds["loss"].iloc[-1])

    refused = ct.study(["fedavg"], data=worlds.make_federation(), rounds=1, attack="count").evidence.frame("absences")
    assert refused["why"].tolist() == ["MISCOUNTED"]
    assert loss(attack="count", counts="believed") != loss(attack="count")
