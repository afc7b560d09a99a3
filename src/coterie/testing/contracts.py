"""The checks that every method must pass. Coterie's own tests run them over the whole catalogue.

A method outside the catalogue is checked by ``check(Checked(make))`` for each check in CHECKS.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from coterie.core.arrays import Floats, Ids
from coterie.core.asks import ModelAsk, Refusal, Train, Trained
from coterie.core.local import Local
from coterie.core.method import Method
from coterie.core.mixing import mix
from coterie.core.plan import Plan
from coterie.core.serving import Serving
from coterie.core.states import flatten, from_bytes, to_bytes
from coterie.engines.engine import StampedAsk
from coterie.engines.world import World
from coterie.evidence.records import RUNNING
from coterie.methods.fedavg import FedAvg
from coterie.run.driver import drive
from coterie.run.lanes import make_lanes
from coterie.testing import worlds
from coterie.testing.play import (
    PLAN,
    AlteredEngine,
    History,
    corrupt_reply,
    drop_replies,
    get_loop_engine,
    make_round_context,
    pass_unchanged,
    play,
    reverse_clients,
    run_generator,
    zero_updates,
)


@dataclass(frozen=True)
class Checked:
    """A method under test: how to make it, and its exceptions."""

    make: Callable[[], Method[Any]]
    aggregate_is_final: bool = True  # False: models are not what `mix` gives, as after a server optimiser or of a median

    def play(self, **options: Any) -> History:
        return play(self.make(), **options)


@lru_cache(maxsize=4)
def play_undisturbed(method: Method[Any], rounds: int = 2) -> tuple[History, list[StampedAsk]]:
    """An undisturbed run with its asks, cached since many checks compare with it."""
    engine = AlteredEngine(pass_unchanged)
    return play(method, engine=engine, rounds=rounds), engine.asked


def list_models(state: Any) -> list[Floats]:
    """All the models in a state, wherever it keeps them."""
    return [array for path, array in flatten(state)[0].items() if path.removesuffix(".rows").split(".")[-1] == "models"]


def assert_finite(history: History) -> None:
    """The last state holds models, and all of them are finite."""
    held = list_models(history.states[-1])
    assert held
    assert all(np.isfinite(array).all() for array in held)


def count_asks(subject: Checked, round_: int) -> tuple[Ids, int]:
    """The clients that a round asks, and how many questions it has for them."""
    asks = [s.ask for s in play_undisturbed(subject.make())[1] if s.round_ == round_]
    clients = np.unique(np.concatenate([ask.clients for ask in asks if isinstance(ask, ModelAsk)] or [np.zeros(0, np.int64)]))
    return clients, len(asks)


def check_is_a_frozen_record_of_settings(subject: Checked) -> None:
    """A frozen dataclass of keyword settings: two made alike are equal."""
    method = subject.make()
    assert is_dataclass(method)
    assert type(method).__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert all(f.kw_only for f in fields(method))
    assert method == subject.make()
    assert hash(method) == hash(subject.make())


def check_sees_a_roster_and_replies_only(subject: Checked) -> None:
    """Its generators are given a state and a context, nothing else."""
    kind = type(subject.make())
    assert list(inspect.signature(kind.start).parameters) == ["self", "init", "ctx"]
    assert list(inspect.signature(kind.round).parameters) == ["self", "state", "ctx"]
    assert list(inspect.signature(kind.serve).parameters) == ["self", "state", "clients", "ctx"]


def check_same_seed_same_bytes(subject: Checked) -> None:
    """A seed gives bitwise identical states, another seed others."""
    first, again, other = play_undisturbed(subject.make())[0], subject.play(), subject.play(seed=1)
    assert first.data == again.data
    assert first.data[-1] != other.data[-1]


def check_trains(subject: Checked) -> None:
    """Guards the other checks: two rounds that change nothing would pass most of them."""
    history, _ = play_undisturbed(subject.make())
    assert history.data[1] != history.data[0]
    assert history.data[2] != history.data[1]
    assert_finite(history)


def check_order_of_arrival_is_irrelevant(subject: Checked) -> None:
    """Replies that come in backwards leave the same states."""
    assert subject.play(engine=AlteredEngine(reverse_clients)).data == play_undisturbed(subject.make())[0].data


def check_absent_is_as_if_not_picked(subject: Checked) -> None:
    """Clients that answer nothing in a round (the start is round 0) leave what the run leaves in which they could not be picked."""
    clients, _ = count_asks(subject, 1)
    whole = play_undisturbed(subject.make())[0].data
    assert subject.play(missing=(clients[:0], (0, 1))).data == whole
    for gone in (clients[-1:], clients[::2]):
        for rounds in ((0,), (1,)):
            silent = subject.play(engine=AlteredEngine(drop_replies(gone, rounds)))
            unpicked = subject.play(missing=(gone, rounds))
            assert silent.data == unpicked.data, f"without {gone.tolist()} in round {rounds[0]}"
    assert silent.data != whole


def check_each_ask_may_lose_replies(subject: Checked) -> None:
    """A client may answer one ask of a round and miss the next."""
    clients, asks = count_asks(subject, 1)
    for number in range(asks):
        for gone in (clients[:1], clients[1::2], clients):
            assert_finite(subject.play(engine=AlteredEngine(drop_replies(gone, (1,), number))))


def check_empty_cohort_leaves_the_state(subject: Checked) -> None:
    """A round in which no client answers changes nothing and mixes nothing."""
    clients = worlds.make_world().problem.roster.clients
    for history in (
        subject.play(engine=AlteredEngine(drop_replies(clients, (2,)))),
        subject.play(missing=(clients, (2,))),
    ):
        assert history.data[2] == history.data[1]
        assert history.records[2].notes.mixing is None


def check_state_survives_as_bytes(subject: Checked) -> None:
    """A run resumed from a state that was read back has the same states."""
    whole, _ = play_undisturbed(subject.make(), 3)
    for done in (0, 2):
        state = from_bytes(whole.data[done])
        assert to_bytes(state) == whole.data[done]
        assert subject.play(rounds=3, begin=(state, done)).data == whole.data[done + 1 :]


def check_state_in_state_out(subject: Checked) -> None:
    """A round makes a new state and leaves the old one as it was: a checkpoint in another thread may still be writing it."""
    history, _ = play_undisturbed(subject.make(), 3)
    assert [to_bytes(state) for state in history.states] == history.data


def check_matrix_is_what_happened(subject: Checked) -> None:
    """The recorded matrix, applied to the replies and the models before, gives the models after; its rows sum to one."""
    history, asked = play_undisturbed(subject.make(), 3)
    replies = {s.round_: get_loop_engine().run([s])[0] for s in asked if isinstance(s.ask, Train)}
    for before, after, record in zip(history.states, history.states[1:], history.records[1:], strict=False):
        mixing = record.notes.mixing
        if mixing is None:
            continue
        if mixing.averages:
            np.testing.assert_allclose(mixing.replies.sum(1) + mixing.before.sum(1), 1.0, rtol=0, atol=1e-12)
            assert mixing.replies.min() >= 0
        if subject.aggregate_is_final:
            (old,), (new,) = list_models(before), list_models(after)
            trained: Trained = replies[record.round_].of(mixing.clients)
            again = mix(mixing, trained.vectors, old)
            assert again.tobytes() == new.tobytes(), "the matrix does not give the models; of a median: Checked(aggregate_is_final=False)"


def check_invalid_replies_are_refused(subject: Checked) -> None:
    """NaN, infinity or the wrong length: refused with a reason, and the run is the one in which the client did not answer."""
    clients, _ = count_asks(subject, 1)
    bad, without = int(clients[-1]), drop_replies(clients[-1:], (1,))

    def silent(stamped: StampedAsk, number: int, reply: Any) -> Any:
        return without(stamped, number, reply) if isinstance(stamped.ask, ModelAsk) else reply

    expected = subject.play(engine=AlteredEngine(silent)).data

    def poison(value: Any, with_: float) -> Any:
        spoilt = np.array(value, dtype=np.float64)
        spoilt.flat[-1:] = with_  # a column may be empty
        return spoilt

    for reason, spoil in (
        (Refusal.NOT_FINITE, lambda v: poison(v, np.nan)),
        (Refusal.NOT_FINITE, lambda v: poison(v, -np.inf)),
        (Refusal.WRONG_SHAPE, lambda v: np.append(v, 0.0)),
        (Refusal.UNREADABLE, lambda v: "nonsense"),
    ):
        history = subject.play(engine=AlteredEngine(corrupt_reply(bad, 1, spoil)))
        assert reason.name in [absence.why for absence in history.records[1].absences if absence.client == bad]
        assert history.records[2].absences == ()
        assert history.data == expected, reason


def check_odd_cohorts(subject: Checked) -> None:
    """One client, a cohort of one, identical clients, updates of zero, a world of dropouts and stragglers: defined cases."""
    whole = replace(PLAN, cohort=None)
    assert_finite(subject.play(world=worlds.make_single_client_world(), plan=whole))
    assert_finite(subject.play(plan=replace(PLAN, cohort=1)))
    assert_finite(subject.play(world=worlds.make_identical_world()))
    assert_finite(subject.play(plan=replace(PLAN, dropout=0.5, stragglers=0.5), rounds=4))
    still = subject.play(engine=AlteredEngine(zero_updates), plan=whole)
    assert_finite(still)
    for after in list_models(still.states[-1]):  # a method may let go of models, as `restarts` does
        alike = [before for before in list_models(still.states[0]) if before.shape == after.shape]
        assert not alike or any(np.allclose(before, after, rtol=1e-6, atol=1e-6) for before in alike)


def check_batch_norm(subject: Checked) -> None:
    """A model with statistics and counters stays valid: no running variance turns negative, whatever moves the weights."""
    plan = replace(PLAN, cohort=3, local=Local(epochs=2, batch_size=None, lr=0.1))
    world = worlds.make_batch_norm_world()
    history = subject.play(world=world, plan=plan, rounds=3)
    assert_finite(history)
    variance = next(s for s in world.model.layout.slices if s.name.endswith("running_var"))
    assert all((array[:, variance.begin : variance.end] > 0).all() for array in list_models(history.states[-1]))


def check_serves_every_client(subject: Checked) -> None:
    """All clients, some, one, none, in any order, newcomers too; the same client gets the same model each time."""
    state = play_undisturbed(subject.make())[0].states[-1]
    before = to_bytes(state)
    known = worlds.make_world().problem.roster.clients
    all_models = _serve_models(subject, state, worlds.make_world(), known)
    for clients in (np.array([1, 4]), np.array([5]), np.array([4, 0, 3]), np.zeros(0, np.int64), known):
        some = _serve_models(subject, state, worlds.make_world(), clients)
        assert all(some[client].tobytes() == all_models[client].tobytes() for client in some)
    grown = worlds.make_newcomer_world()
    _serve_models(subject, state, grown, grown.problem.roster.clients)
    _serve_models(subject, state, grown, np.array([7]))
    assert to_bytes(state) == before


def _serve_models(subject: Checked, state: Any, world: World, clients: Ids) -> dict[int, Floats]:
    """The model each client is served; for a mixture, all the models it is made of."""
    serving: Serving = run_generator(subject.make().serve(state, clients, make_round_context(world, round_=2)), world, round_=2)
    assert serving.clients.tolist() == clients.tolist()
    assert serving.rows.shape == clients.shape
    low = 0 if serving.combiner is None else -1
    assert all(low <= row < len(serving.models) for row in serving.rows)
    assert np.isfinite(serving.models).all()
    assert serving.models.shape[1] == world.model.layout.size
    return {int(c): serving.models if r < 0 else serving.models[r] for c, r in zip(clients, serving.rows, strict=True)}


def check_named_models_and_groups(subject: Checked) -> None:
    """Models for the central test set have names of their own; every client has a group or none."""
    method, state = subject.make(), play_undisturbed(subject.make())[0].states[-1]
    named, groups = method.central(state), method.members(state)
    if named is not None:
        assert len(set(named.names)) == len(named.names) == len(named.serving.clients) == len(named.serving.rows)
        assert len(set(named.serving.clients.tolist())) == len(named.names)  # a reply holds one row a client
    if groups is not None:
        assert len(groups) == len(worlds.make_world().problem.roster)
        assert groups.min() >= -1


def check_newcomers_may_join(subject: Checked) -> None:
    """The roster only grows: a round after two clients have joined works on the state of the round before."""
    state = play_undisturbed(subject.make())[0].states[1]
    plan = replace(PLAN, cohort=None)
    assert_finite(subject.play(world=worlds.make_newcomer_world(), plan=plan, rounds=3, begin=(state, 1)))


def check_other_lanes_change_nothing(subject: Checked) -> None:
    """A second method or a second seed in the same study leaves this one's bits alone."""
    plan = replace(PLAN, evaluate_every=1)
    alone = _run_states(subject.make(), plan, others=(), seeds=(0,))
    assert _run_states(subject.make(), plan, others=(FedAvg(weighting="uniform"),), seeds=(0,)) == alone
    assert _run_states(subject.make(), plan, others=(), seeds=(7, 0)) == alone
    looked_at, unseen = from_bytes(alone[-1]), play_undisturbed(subject.make())[0].states[-1]
    for a, b in zip(list_models(looked_at), list_models(unseen), strict=True):  # a method may keep what it serves with, but trains alike
        assert a.tobytes() == b.tobytes()


def _run_states(method: Method[Any], plan: Plan, others: tuple[Method[Any], ...], seeds: tuple[int, ...]) -> list[bytes]:
    lanes = make_lanes([*(("other", other) for other in others), ("subject", method)], seeds, worlds.make_world().problem, plan)
    data = []

    def watch(lane: Any, record: Any) -> None:
        if lane.label == "subject" and lane.seed == 0:
            data.append(to_bytes(lane.state))

    drive(lanes, get_loop_engine(), 2, watch)
    assert all(lane.status == RUNNING for lane in lanes)
    return data


CHECKS: tuple[Callable[[Checked], None], ...] = tuple(value for name, value in dict(globals()).items() if name.startswith("check_"))
