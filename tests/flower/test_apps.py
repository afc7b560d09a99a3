"""Server and client app with Flower's own messages, in this process: the same numbers as a simulation, and what is refused.

Runs where Flower is installed: `make test-flower`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import coterie as ct
from coterie._util.errors import UserError
from coterie.core.model import use_torch_seed

pytest.importorskip("flwr", reason="Flower has an environment of its own: make test-flower")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from coterie.flower import client_app, server_app
from flower.direct_grid import DirectGrid
from flower.small_app.small_app.client_app import load_data, make_data

KEY = ["method", "seed", "round", "id"]
NUMBERS = ["loss", "accuracy"]
DATA = make_data()
METHODS = ["fedavg", "fedsim(clusters=2)", "ifca(groups=2)", "fedgroup(groups=2)", "clove(groups=2)", "scaffold", "feddane", "ditto"]
FULL = client_app(model="mclr", data=load_data)


class Net(nn.Module):
    """Softmax regression with a frozen scale."""

    def __init__(self, *, frozen: bool = False) -> None:
        super().__init__()
        self.dense = nn.Linear(5, 3)
        if frozen:
            self.scale = nn.Parameter(torch.full((5,), 0.5), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.dense(x * self.scale if hasattr(self, "scale") else x)
        return found


def load_parts(context: Context) -> tuple[TensorDataset, TensorDataset]:
    own = int(context.node_config["partition-id"])
    rows = (DATA.train[own], DATA.test[own])
    train, test = (TensorDataset(torch.as_tensor(DATA.x[part]), torch.as_tensor(DATA.y[part])) for part in rows)
    return train, test


def train(message: Message, context: Context) -> Message:
    """As in Flower's quick start: load the state dict, train, send it back."""
    config = message.content["config"]
    dataset, net = load_parts(context)[0], Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=float(config.get("lr", 0.1)))
    received = [p.detach().clone() for p in net.parameters()]
    for _ in range(int(config.get("epochs", 1))):
        for x, y in DataLoader(dataset, batch_size=4):
            optimizer.zero_grad()
            pull = sum(((p - r) ** 2).sum() for p, r in zip(net.parameters(), received, strict=True))
            loss: Any = nn.functional.cross_entropy(net(x), y) + float(config.get("proximal-mu", 0.0)) / 2 * pull
            loss.backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": len(dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


def evaluate(message: Message, context: Context) -> Message:
    net, (x, y) = Net(), load_parts(context)[1].tensors
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    with torch.no_grad():
        outputs = net(x)
    scores = {"eval_loss": float(nn.functional.cross_entropy(outputs, y)), "eval_acc": float((outputs.argmax(1) == y).float().mean())}
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": len(y), **scores})}), reply_to=message)


FUNCTIONS = client_app(train, evaluate)


def run(method: Any, app: Any = FULL, nodes: int = 6, grid: Callable[..., DirectGrid] = DirectGrid, **settings: Any) -> ct.Result:
    found: list[ct.Result] = []
    whole: dict[str, Any] = {"model": "mclr", "rounds": 3, "lr": 0.1, "nodes": nodes, "wait": 0.2} | settings
    server_app(method, on_result=found.append, **whole)(grid(app, nodes), None)
    return found[0]


def assert_same(one: ct.Result, other: ct.Result) -> None:
    frames = [each.clients.sort_values(KEY, ignore_index=True) for each in (one, other)]
    assert frames[0][KEY].equals(frames[1][KEY])
    assert np.allclose(frames[0][NUMBERS], frames[1][NUMBERS], rtol=0, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("cohort", [None, 4])
def test_the_numbers_are_those_of_the_simulation(cohort: int | None) -> None:
    found = run(METHODS, cohort=cohort)
    simulated = ct.study(METHODS, data=DATA, rounds=3, lr=0.1, cohort=cohort)
    assert_same(found, simulated)
    assert len(set(found.clients["loss"].round(6))) > 50  # the methods differ, and learn


def test_a_network_on_loaders_of_the_nodes_is_that_of_the_simulation() -> None:
    def load(context: Context) -> Any:
        return tuple(DataLoader(part, batch_size=3, shuffle=True) for part in load_parts(context))

    found = run("fedsim(clusters=2)", client_app(model=Net, data=load), model=Net)
    assert_same(found, ct.study("fedsim(clusters=2)", data=DATA.replace(classes=("0", "1", "2")), model=Net, rounds=3, lr=0.1))


class Fixed(Net):
    """The same start for both frameworks."""

    def __init__(self) -> None:
        with use_torch_seed(0):
            super().__init__()


def test_own_functions_give_what_flowers_own_strategy_gives(tmp_path: Path) -> None:
    run("fedavg", FUNCTIONS, model=Fixed, out=tmp_path)
    served = ct.read_bundle(tmp_path / "bundles" / "fedavg", trust=True)
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=6)
    flowers = strategy.start(
        DirectGrid(FUNCTIONS, 6), ArrayRecord(Fixed().state_dict()), num_rounds=3, train_config=ConfigRecord({"lr": 0.1})
    )
    expected = np.concatenate([value.numpy().ravel() for value in flowers.arrays.values()])
    assert np.allclose(served.models[0], expected, rtol=0, atol=1e-6)


def test_functions_are_asked_what_they_answer_and_nothing_else_before_the_first_round() -> None:
    calls: list[str] = []

    def counted(message: Message, context: Context) -> Message:
        calls.append("train")
        return train(message, context)

    app = client_app(counted, evaluate)
    refused = {
        "fedsim(clusters=2)": "asks for Gradient, which the nodes' ClientApp does not answer: give client_app model= and data=",
        "ifca(groups=2)": "asks for Losses",
        "clove(groups=2)": "asks for Losses",
        "scaffold": "asks for Train with a linear term in your own train",
        "moon": r"asks for Train by a local rule \(MOONRule\)",
        "fedprox(mu=0.1)": "proximal=True",
        "fedem": "asks for Train by a local rule",
    }
    for method, sentence in refused.items():
        with pytest.raises(UserError, match=f"Method .* {sentence}"):
            run(method, app, model=Net)
    assert calls == []


def test_grouped_methods_run_on_train_and_evaluate_alone() -> None:
    result = run(["fedgroup(groups=2)", "flhc", "cfl"], FUNCTIONS, model=Net, cohort=4)
    assert set(result.table().index) == {"fedgroup(groups=2)", "flhc", "cfl"}
    assert result.evidence.settings.plan.counts == "believed"


def test_a_proximal_term_reaches_a_function_that_adds_it() -> None:
    free, held = (run(f"fedprox(mu={mu})", client_app(train, evaluate, proximal=True), model=Net) for mu in (0.0, 5.0))
    assert not np.allclose(free.clients["loss"], held.clients["loss"])


def test_functions_with_model_and_data_leave_other_asks_to_the_engine() -> None:
    app = client_app(train, evaluate, model=Net, data=load_parts)
    assert run("fedsim(clusters=2)", app, model=Net).last == 3
    with pytest.raises(UserError, match=r"linear term in your own train, .* leave that function out, or choose another method"):
        run("scaffold", app, model=Net)


def make_frozen() -> nn.Module:
    return Net(frozen=True)


def test_frozen_parameters_need_the_model_at_the_node() -> None:
    with pytest.raises(UserError, match=r"0 of 6 nodes take part; node 1 does not: 'scale' of the model is frozen and not sent"):
        run("fedavg", FUNCTIONS, model=make_frozen)
    seen: list[list[str]] = []

    def look(message: Message, context: Context) -> Message:
        seen.append(list(message.content["arrays"]))
        message.content["arrays"].pop("scale")
        return train(message, context)

    def look_on(message: Message, context: Context) -> Message:
        message.content["arrays"].pop("scale")
        return evaluate(message, context)

    run("fedavg", client_app(look, look_on, model=make_frozen), model=make_frozen)
    assert seen[0] == list(make_frozen().state_dict())


def test_a_run_is_resumed_and_ends_like_one_that_was_not_stopped(tmp_path: Path) -> None:
    run("fedsim(clusters=2)", rounds=2, out=tmp_path / "parts")
    resumed = run("fedsim(clusters=2)", rounds=4, out=tmp_path / "parts", resume=True)
    whole = run("fedsim(clusters=2)", rounds=4, out=tmp_path / "whole")
    assert_same(resumed, whole)
    bundle = ct.read_bundle(next((tmp_path / "parts" / "bundles").iterdir()))
    assert set(bundle.clients) == set(DATA.ids)


def test_asynchronous_rounds_take_the_first_replies() -> None:
    assert run("fedavg", cohort=4, buffer_size=2).last == 3


def spoil(node: int, change: Callable[[Any], Any]) -> Callable[[Message, Context], Message]:
    """The train function, with the arrays of one node changed."""

    def spoilt(message: Message, context: Context) -> Message:
        reply = train(message, context)
        if node in (0, context.node_id):
            state = reply.content["arrays"].to_torch_state_dict()
            reply.content["arrays"] = ArrayRecord(change(state))
        return reply

    return spoilt


def test_a_node_that_sends_no_numbers_is_absent_and_named() -> None:
    app = client_app(spoil(2, lambda state: {**state, "dense.bias": torch.full((3,), float("nan"))}), evaluate)
    result = run("fedavg", app, model=Net)
    absences = result.evidence.frame("absences")
    assert set(absences["why"]) == {"NOT_FINITE"}
    assert set(absences["client"]) == {1}


WRONG_STATES = {
    "names": (
        lambda state: {f"net.{name}": value for name, value in state.items()},
        r"train returned no array 'dense.weight' \(but net.dense",
    ),
    "shape": (
        lambda state: {**state, "dense.bias": torch.zeros(4)},
        r"train returned 'dense.bias' as float32 of shape \(4,\), where the model has shape",
    ),
}


@pytest.mark.parametrize("fault", WRONG_STATES)
def test_an_app_whose_states_do_not_fit_ends_the_run_in_a_sentence(fault: str) -> None:
    change, sentence = WRONG_STATES[fault]
    with pytest.raises(UserError, match=f"No node answers Train. Node 1: {sentence}"):
        run("fedavg", client_app(spoil(0, change), evaluate), model=Net)
    assert run("fedavg", client_app(spoil(3, change), evaluate), model=Net).last == 3  # one node's fault is its own


def test_other_types_of_numbers_are_the_same_numbers() -> None:
    app = client_app(spoil(0, lambda state: {name: value.double() for name, value in state.items()}), evaluate)
    assert_same(run("fedavg", app, model=Net), run("fedavg", FUNCTIONS, model=Net))


def test_a_node_that_leaves_in_mid_round_is_absent_from_then_on() -> None:
    count = {"node": 0}

    def leave(node: int, message: Message) -> Message | None:
        count["node"] += node == 2
        return message if node != 2 or count["node"] <= 4 else None  # card, evaluation, training, evaluation; then no more

    result = run("fedavg", grid=lambda app, nodes: DirectGrid(app, nodes, leave), timeout=0.3)
    ids = result.clients.groupby("round")["id"].apply(set)
    assert ids[1] == set(DATA.ids)
    assert ids[2] == set(DATA.ids) - {"1"}


BAD_RUNS: list[tuple[dict[str, Any], str]] = [
    ({"method": "fedsimm"}, "did you mean 'fedsim'"),
    ({"method": "fedavg", "rouns": 3}, "There is no setting 'rouns'"),
    ({"method": "fedavg", "nodes": 0}, "nodes=0 should be 1 or more"),
    ({"method": "fedavg", "attack": "signflip(share=0.2)"}, "is simulated, and a real federation has real clients"),
    ({"method": "fedavg", "cohort": 7}, "cohort"),
    ({"method": "fedavg", "model": "mlp(4)"}, "The model of the nodes is another than the server's: the parameter"),
    ({"method": "fedsim(clusters=9)"}, "9"),
]


@pytest.mark.parametrize(("settings", "sentence"), BAD_RUNS, ids=[sentence[:20] for _, sentence in BAD_RUNS])
def test_what_cannot_run_is_refused_in_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        run(**settings)


def test_too_few_nodes_are_waited_for_and_then_refused() -> None:
    with pytest.raises(UserError, match=r"6 of 9 nodes are connected after 0.2 s: start the others, or name fewer in nodes="):
        run("fedavg", grid=lambda app, nodes: DirectGrid(app, 6), nodes=9)


def test_an_app_that_is_not_coteries_is_named() -> None:
    from flwr.clientapp import ClientApp

    with pytest.raises(UserError, match=r"node 1 does not: its ClientApp failed .*: make it with coterie.flower.client_app"):
        run("fedavg", ClientApp())


BAD_DATA: list[tuple[Callable[[Context], Any], str]] = [
    (lambda context: 3, r"data should return \(train, test\)"),
    (lambda context: load_parts(context)[:1], r"data should return \(train, test\)"),
    (lambda context: 1 / 0, "ZeroDivisionError: division by zero"),
    (lambda context: (TensorDataset(torch.zeros(2, 5), torch.tensor([0, 7])),) * 2, "a label is 7, and the model has 3 outputs"),
    (lambda context: (TensorDataset(torch.zeros(2, 5), torch.tensor([0.5, 1.0])),) * 2, "labels should be class numbers"),
    (lambda context: (TensorDataset(torch.zeros(2, 4), torch.tensor([0, 1])),) * 2, "mat1 and mat2|cannot take samples"),
]


@pytest.mark.parametrize(("load", "sentence"), BAD_DATA)
def test_data_that_cannot_be_used_are_refused_before_the_first_round(load: Callable[[Context], Any], sentence: str) -> None:
    with pytest.raises(UserError, match=f"0 of 2 nodes take part; node 1 does not: .*{sentence}"):
        run("fedavg", client_app(model=Net, data=load), nodes=2, model=Net)


def test_an_app_without_functions_or_data_is_refused() -> None:
    for given in ({}, {"train": train}, {"model": Net}, {"data": load_parts}, {"train": 3, "evaluate": evaluate}):
        with pytest.raises(UserError, match=r"client_app|should be a function"):
            client_app(**given)


def test_the_same_app_still_answers_flowers_strategies() -> None:
    content = RecordDict({"arrays": ArrayRecord(Net().state_dict()), "config": ConfigRecord({"lr": 0.1})})
    grid = DirectGrid(FUNCTIONS, 1)
    (reply,) = grid.send_and_receive([Message(content, dst_node_id=1, message_type="train")])
    assert reply.content["metrics"]["num-examples"] == len(DATA.train[0])
