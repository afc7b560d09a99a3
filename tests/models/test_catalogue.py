"""What every model must do, the listing, and the errors of a spec."""

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.functional import cross_entropy

from coterie._util.errors import UserError
from coterie.models import build_model, list_models, models

EVERY = [
    ("mclr", (6,)),
    ("mlp(5, 4)", (2, 3)),
    ("cnn", (8, 8)),
    ("cnn(fedsim_table)", (3, 9, 8)),
    ("lstm(hidden=6, dense=4)", (5, 3)),
    ("lstm(hidden=6, dense=4, relu=true, vocabulary=9, width=3)", (5,)),
    ("lstm(hidden=6, dense=0, vocabulary=9, width=3, train_embeddings=true)", (5,)),
    ("rnn(6)", (5, 3)),
]


def samples(spec: str, shape: tuple[int, ...], *leading: int) -> Tensor:
    return torch.randint(9, (*leading, *shape)) if "vocabulary" in spec else torch.randn(*leading, *shape)


def test_every_model_is_in_the_battery() -> None:
    # these have tests of their own: batch norm mixes samples, and encoders need files
    larger = {"resnet18", "resnet50", "densenet121", "efficientnet_lite0", "text", "lm", "fusion"}
    assert {spec.partition("(")[0] for spec, _ in EVERY} == set(models) - larger


@pytest.mark.parametrize(("spec", "shape"), EVERY)
def test_same_seed_same_bits(spec: str, shape: tuple[int, ...]) -> None:
    def state(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        return dict(build_model(spec, shape, 2).state_dict())

    first, again, other = state(7), state(7), state(8)
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize(("spec", "shape"), EVERY)
def test_mapping_over_stacked_parameters_equals_the_loop(spec: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    modules = [build_model(spec, shape, 2) for _ in range(3)]
    x, y = samples(spec, shape, 3, 4), torch.randint(2, (3, 4))
    stacked, buffers = stack_module_state(modules)

    def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits: Tensor = functional_call(modules[0], (parameters, buffers), (x,))
        return cross_entropy(logits, y)

    losses = vmap(loss)(stacked, buffers, x, y)
    gradients = vmap(grad(loss))(stacked, buffers, x, y)
    for k, module in enumerate(modules):
        expected = cross_entropy(module(x[k]), y[k])
        expected.backward()  # type: ignore[no-untyped-call]
        assert torch.allclose(losses[k], expected, atol=1e-5)
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None
            assert torch.allclose(gradients[name][k], parameter.grad, atol=1e-5), name


def test_clients_may_share_one_frozen_table() -> None:
    modules = [build_model("lstm(hidden=6, vocabulary=9, width=3)", (5,), 2) for _ in range(3)]
    for module in modules[1:]:
        module.load_state_dict({**module.state_dict(), "embedding.table": modules[0].state_dict()["embedding.table"]})
    stacked, _ = stack_module_state(modules)
    shared, x = dict(modules[0].named_buffers()), torch.randint(9, (3, 4, 5))

    def logits(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = functional_call(modules[0], (parameters, shared), (x,))
        return out

    assert torch.allclose(vmap(logits)(stacked, x), torch.stack([m(x[k]) for k, m in enumerate(modules)]), atol=1e-5)


@pytest.mark.parametrize(("spec", "shape"), EVERY)
def test_a_sample_does_not_see_its_neighbours(spec: str, shape: tuple[int, ...]) -> None:
    module, x = build_model(spec, shape, 2), samples(spec, shape, 4)
    assert torch.allclose(module(x)[1:2], module(x[1:2]), atol=1e-6)


def test_listing() -> None:
    rows = {row.name: row for row in list_models()}
    assert set(rows) >= {"cnn", "lstm", "mclr", "mlp", "rnn", "resnet18"}
    assert list(rows) == sorted(rows)
    assert rows["mclr"].settings == ""
    assert rows["mlp"].settings == "*hidden"
    assert rows["cnn"].settings == "variant=mcmahan"
    assert rows["lstm"].settings.startswith("hidden=100, layers=2, dense=30, relu=false, one_logit=true, vocabulary=none")
    assert all(row.about.endswith(".") and "\n" not in row.about for row in rows.values())


@pytest.mark.parametrize(
    ("spec", "outputs", "sentence"),
    [
        ("mpl", 2, "Unknown model 'mpl': did you mean 'mlp'"),
        ("mclr(3)", 2, "takes 0 settings without a name"),
        ("mclr(width=3)", 2, "has no setting 'width'"),
        ("mclr(_outputs=3)", 2, "has no setting '_outputs'"),
        ("mlp(", 2, "Cannot read"),
        ("mclr", 0, "at least one output"),
    ],
)
def test_errors(spec: str, outputs: int, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        build_model(spec, (4,), outputs)
