"""Federations whose samples have several inputs: every route, every way in, and all the way to a prediction."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import coterie as ct
from coterie._util.errors import UserError
from coterie.cli.app import app
from coterie.core.asks import Train
from coterie.core.local import Local
from coterie.data.content import hash_contents
from coterie.data.federation import Federation
from coterie.deploy.bundle.files import read_bundle, write_bundle
from coterie.engines.batched import BatchedEngine
from coterie.engines.engine import StampedAsk
from coterie.engines.loop import LoopEngine
from coterie.engines.world import World
from coterie.models.catalogue import resolve_model
from run.several_inputs import WORDS, Fused

SIZES = (1, 4, 9, 2, 17, 11)  # ragged: one sample, last partial batches


def rows(n: int = sum(SIZES) + 12) -> tuple[dict[str, Any], np.ndarray]:
    rng = np.random.default_rng(0)
    words, numbers = rng.integers(0, WORDS, (n, 3)), rng.normal(size=(n, 2)).astype(np.float32)
    return {"words": words, "numbers": numbers}, ((words[:, 0] > WORDS // 2) ^ (numbers[:, 0] > 0)).astype(np.int64)


def federation(named: bool = True, **settings: Any) -> Federation:
    x, y = rows()
    owners = np.repeat([f"site {i}" for i in range(len(SIZES))], np.array(SIZES) + 2)
    split = np.concatenate([["train"] * n + ["test"] * 2 for n in SIZES]).tolist()
    return Federation.from_arrays(x if named else tuple(x.values()), y, owners, split=split, **settings)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("local", [Local(epochs=3, batch_size=4, lr=0.1), Local(epochs=2, batch_size=4, lr=0.01, optimizer="adam", mu=0.5)])
def test_the_stacked_route_is_the_loop(named: bool, local: Local) -> None:
    made = federation(named)
    text, make = resolve_model(Fused)
    world = World.from_spec(made, text, make=make)
    start = world.problem.initial(0)()[None]
    ask = StampedAsk(Train(np.arange(len(made)), start, local), 3, 1)
    with LoopEngine(world) as loop, BatchedEngine(world) as batched:
        (one,), (two,) = loop.run([ask]), batched.run([ask])
        assert list(batched.routes().values()) == ["stacked: vmap"]
    assert (np.abs(one.vectors - start) > 1e-3).any()
    np.testing.assert_allclose(one.vectors, two.vectors, atol=1e-5)


def test_the_loop_trains_what_torch_trains_by_hand() -> None:
    made, (x, y) = federation(), rows()
    text, make = resolve_model(Fused)
    world = World.from_spec(made, text, make=make)
    start = world.problem.initial(0)()[None]
    with LoopEngine(world) as loop:
        (found,) = loop.run([StampedAsk(Train(np.array([3]), start, Local(batch_size=None, lr=0.5)), 0, 1)])
    module = Fused({"words": (3,), "numbers": (2,)}, 2)
    nn.utils.vector_to_parameters(torch.from_numpy(start[0]), module.parameters())
    own = made.train[3]
    outputs = module(words=torch.from_numpy(x["words"][own]), numbers=torch.from_numpy(x["numbers"][own]))
    torch.autograd.backward(nn.functional.cross_entropy(outputs, torch.from_numpy(y[own])))
    by_hand = np.concatenate([(w - 0.5 * w.grad).detach().numpy().ravel() for w in module.parameters() if w.grad is not None])
    np.testing.assert_allclose(found.vectors[0], by_hand, atol=1e-6)


@pytest.mark.parametrize("model", [Fused, "run.several_inputs:Fused", Fused({"words": (3,), "numbers": (2,)}, 2)])
def test_a_study_from_arrays_to_a_prediction(model: Any, tmp_path: Path) -> None:
    made, (x, _) = federation(), rows()
    result = ct.study(["fedavg", "ifca(groups=2)", "ditto"], data=made, model=model, rounds=2, lr=0.1)
    assert not result.problems
    bundle = ct.get_bundle(result, "site 4", "fedavg")
    shares = bundle.predict_proba({name: values[:5] for name, values in x.items()})
    assert shares.shape == (5, 2)
    if isinstance(model, str):
        write_bundle(bundle, tmp_path / "bundle")
        again = read_bundle(tmp_path / "bundle", trust=True)
        assert (again.predict_proba({name: values[:5] for name, values in x.items()}) == shares).all()
        np.savez(tmp_path / "rows.npz", **{name: values[:5] for name, values in x.items()})
        told = CliRunner().invoke(
            app, ["predict", str(tmp_path / "bundle"), "--data", str(tmp_path / "rows.npz"), "--trust-code", "--json"]
        )
        assert told.exit_code == 0, told.output
        assert '"rows": 5' in told.output
    with pytest.raises(UserError, match="a dictionary of words, numbers"):
        bundle.predict((x["words"][:5], x["numbers"][:5]))


def test_scores_are_those_of_the_module_itself() -> None:
    made, (x, y) = federation(), rows()
    result = ct.study("fedavg", data=made, model=Fused, rounds=1)
    bundle = ct.get_bundle(result, "site 0")
    own = np.concatenate([*made.test])
    guessed = bundle.predict({name: values[own] for name, values in x.items()})
    assert result.table()["final"].iloc[0] == pytest.approx(float((guessed.astype(int) == y[own]).mean()))


def test_inspect_takes_them() -> None:
    x, y = rows(400)
    made = Federation.from_arrays(x, y, [f"site {i % 20}" for i in range(400)])
    assert ct.inspect_data(made, model=Fused).model == "run.several_inputs:Fused"


class Pairs:
    """What a torch Dataset is: pairs of features and a class."""

    def __init__(self, sites: slice, *, named: bool) -> None:
        x, self.y = rows()
        self.x, self.rows, self.named = x, range(len(self.y))[sites], named

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        own = {name: torch.from_numpy(values[self.rows[i]]) for name, values in self.x.items()}
        return (own if self.named else tuple(own.values())), int(self.y[self.rows[i]])


@pytest.mark.parametrize("named", [True, False])
def test_torch_data_sets_may_give_several(named: bool) -> None:
    made = Federation.from_datasets({"a": Pairs(slice(0, 20), named=named), "b": Pairs(slice(20, 40), named=named)})
    assert made.inputs is not None
    assert made.inputs.tokens == (True, False)
    assert made.inputs.names == (("words", "numbers") if named else ())
    assert len(ct.study("fedavg", data=made, model=Fused, rounds=1).table()) == 1


class Columns:
    """What a Hugging Face data set is: columns."""

    column_names = ("tokens", "age", "dose", "label")

    def __getitem__(self, name: str) -> list[Any]:
        x, y = rows()
        columns = {"tokens": x["words"], "age": x["numbers"][:, 0], "dose": x["numbers"][:, 1], "label": y}
        return list(columns[name].tolist())


def test_columns_become_several_inputs_by_name() -> None:
    made = Federation.from_datasets({"a": Columns(), "b": Columns()}, inputs={"words": "tokens", "numbers": ["age", "dose"]})
    assert made.inputs is not None
    assert made.inputs.shape == {"words": (3,), "numbers": (2,)}
    with pytest.raises(UserError, match="no column 'sex'"):
        Federation.from_datasets({"a": Columns()}, inputs={"words": "tokens", "numbers": ["sex"]})


def test_a_file_of_arrays(tmp_path: Path) -> None:
    x, y = rows()
    np.savez(tmp_path / "rows.npz", **x, y=y, client=np.array([f"site {i % 3}" for i in range(len(y))]))
    spec = f"npz({str(tmp_path / 'rows.npz')!r},inputs=[words,numbers])"
    ran = CliRunner().invoke(app, ["run", "fedavg", "--data", spec, "--model", "run.several_inputs:Fused", "--rounds", "1"])
    assert ran.exit_code == 0, ran.output


def test_the_hash_tells_how_rows_are_read() -> None:
    x, y = rows()
    one = Federation.from_arrays({"words": x["words"], "numbers": x["numbers"]}, y, ["a", "b"] * (len(y) // 2))
    two = Federation.from_arrays({"numbers": x["words"], "words": x["numbers"]}, y, ["a", "b"] * (len(y) // 2))
    assert hash_contents(one) != hash_contents(two)


def test_amounts_side_by_side_suit_a_model_of_one_input_and_words_do_not() -> None:
    x, y = rows()
    owners = ["a", "b"] * (len(y) // 2)
    several = Federation.from_arrays((x["numbers"], x["numbers"] ** 2), y, owners)
    one = Federation.from_arrays(np.hstack([x["numbers"], x["numbers"] ** 2]), y, owners)
    tables = [ct.study("fedavg", data=made, model="mlp(8)", rounds=2).table()["loss"].iloc[0] for made in (several, one)]
    assert tables[0] == tables[1]
    with pytest.raises(UserError, match="words among them"):
        ct.study("fedavg", data=federation(), model="mlp(8)", rounds=1)


def test_noise_is_not_added_to_words() -> None:
    from coterie.data.scenarios import noise

    with pytest.raises(UserError, match="tokens"):
        noise(federation(), groups=2)
