"""A policy file: what it may say, and what it lets a site answer."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.asks import Ask, AskErrors, Evaluate, Gradient, Losses, Share, Train
from coterie.core.descriptions import AskSubspaces, Describe
from coterie.core.local import Local, LocalRule
from coterie.core.serving import Serving
from coterie.deploy.messages import MessageError, SiteCard, from_message, to_message
from coterie.deploy.orders import ASKS
from coterie.deploy.site.data import SiteSettings
from coterie.deploy.site.permission import get_rule_name
from coterie.deploy.site.policy import (
    DEFAULT_POLICY,
    MODEL_WORDS,
    OWN_MODELS,
    OWN_RULES,
    POSITIONS,
    Policy,
    parse_policy,
    read_policy,
)
from coterie.deploy.site.process import Site
from coterie.engines.engine import StampedAsk
from coterie.methods.apfl import APFLRule
from coterie.methods.ditto import DittoRule
from coterie.methods.fedala import ALARule
from coterie.methods.moon import MOONRule
from coterie.methods.pfedgraph import GraphRule
from coterie.methods.private import PartRule
from coterie.methods.reporting_rules import LossRule, MixtureRule
from coterie.models.catalogue import models
from coterie.testing.worlds import make_world
from deploy.ordering import make_hello

CLIENTS = np.arange(3)
INITIAL = make_world().model.initial(0)(0)
DP = 'mechanism = "dp-sgd"\nnoise_multiplier = 1.0\nmax_grad_norm = 1.0\ndelta = 1e-5\nepsilon_limit = 8.0\n'


def questions() -> dict[str, Ask[Any]]:
    return {
        "Train": Train(CLIENTS, INITIAL, Local()),
        "Gradient": Gradient(CLIENTS, INITIAL),
        "Losses": Losses(CLIENTS, INITIAL),
        "AskErrors": AskErrors(CLIENTS, INITIAL),
        "Evaluate": Evaluate(Serving.one(CLIENTS, INITIAL)),
        "Describe": Describe(CLIENTS, INITIAL, size=5),
        "AskSubspaces": AskSubspaces(CLIENTS, size=5),
    }


def reason(policy: Policy, ask: Ask[Any], round_: int = 1, **stamp: Any) -> str:
    denied = policy.find_denial(StampedAsk(ask, 0, round_, **stamp), make_world())
    return "" if denied is None else denied.reason


def test_the_default_file_says_the_defaults() -> None:
    assert parse_policy(DEFAULT_POLICY) == Policy() == parse_policy("")
    for mechanism in ("clip+noise", "dp-sgd"):  # and its examples can be uncommented as they stand
        lines = DEFAULT_POLICY.replace('mechanism = "none"\n', "").split("\n")
        begin = next(i for i, line in enumerate(lines) if line == f'# mechanism = "{mechanism}"')
        for i in range(begin, len(lines)):
            if not lines[i].startswith("# "):
                break
            lines[i] = lines[i][2:]
        assert parse_policy("\n".join(lines)).privacy.mechanism == mechanism


def test_names_are_those_that_there_are() -> None:
    assert tuple(models) == OWN_MODELS
    assert set(OWN_MODELS) - set(Policy().models) == {"efficientnet_lite0", "fusion", "lm", "text"}  # which read what the server names
    rules = (
        ALARule(rate=1.0, adapts=(True,)),
        APFLRule(),
        DittoRule(lam=1.0, own_epochs=None),
        GraphRule(weight=0.1),
        LossRule(),
        MOONRule(mu=1.0, temperature=0.5),
        MixtureRule(components=2),
        PartRule(trains=(True,), is_shared=True),
    )
    assert tuple(get_rule_name(rule) for rule in rules) == OWN_RULES
    assert set(questions()) == set(ASKS)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("maximum_round = 3", "unknown key 'maximum_round': did you mean 'maximum_rounds'"),
        ("asks = ['Trian']", "wrong 'asks.0'"),
        ("minimum_samples = 0", "wrong 'minimum_samples'"),
        ("minimum_samples = 'few'", "wrong 'minimum_samples'"),
        ("models = ['mcrl']", "names 'mcrl' in 'models', which is unknown: did you mean 'mclr'"),
        ("sample_counts = false", "'class_counts'"),
        ("asks = ", "not valid TOML"),
        ("[privacy]\nmechanism = 'dp'", "no known 'privacy.mechanism': "),
        ("[privacy]\nclip = 1.0", "no known 'privacy.mechanism': "),
        ("[privacy]\nmechanism = 'clip+noise'\nclip = 1.0", "lacks the key 'privacy.noise'"),
        ("[privacy]\nmechanism = 'clip+noise'\nclip = 1.0\nnoise = 1.0\nepsilon = 1.0", "unknown key 'privacy.epsilon'"),
        ("[privacy]\n" + DP.replace("1e-5", "1.5"), "wrong 'privacy.delta'"),
    ],
)
def test_what_a_file_cannot_say(text: str, reported: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        read_policy(path)
    assert reported in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no policy file"):
        read_policy(tmp_path / "policy.toml")


def test_only_the_asks_that_are_named_are_answered() -> None:
    for name, ask in questions().items():
        assert reason(Policy(asks=ASKS), ask) == ""
        assert (reason(Policy(), ask) == "") is (name not in ("Describe", "AskSubspaces"))  # which show samples' means and directions
        others = tuple(other for other in ASKS if other != name)
        assert reason(Policy(asks=others), ask).startswith(f"{name} is not answered here")


@dataclass(frozen=True, kw_only=True)
class Mine(LocalRule):
    """A rule of somebody's own."""

    def objective(self, step: Any) -> Any:
        return step.loss(step.outputs())


def test_reasons_against_an_ask() -> None:
    train = Train(CLIENTS, INITIAL, Local())
    own = replace(train, local=Local(rule=Mine()))
    assert reason(Policy(maximum_rounds=5), train, 5) == ""
    assert "ends with round 5" in reason(Policy(maximum_rounds=5), train, 6)
    assert "'mclr' may not run here" in reason(Policy(models=("mlp",)), train)
    assert "may not run here" in reason(Policy(), own)
    assert reason(Policy(rules=(f"{__name__}:Mine",)), own) == ""
    assert "label counts" in reason(Policy(), replace(train, share=Share(label=1)))
    assert reason(Policy(label_shares=True), replace(train, share=Share(label=1))) == ""
    assert reason(Policy(), replace(train, share=Share(fold=1))) == ""


def test_a_foreign_model_runs_only_where_it_is_named() -> None:
    foreign = "my.package:Net(width=8)"
    denied = Policy().deny_model(foreign)
    assert denied is not None
    assert "my.package:Net" in denied.reason
    assert Policy(models=("my.package:Net",)).deny_model(foreign) is None
    assert Policy().deny_model("mlp(8)") is None


NAMING_FILES = [
    "lstm(vocabulary=9,embeddings='/etc/passwd')",
    "rnn(embeddings=policy.toml)",
    "lstm(100,2,30,false,true,none,300,'startup/client.key')",
    "lstm(embeddings=('/etc/passwd',))",
    "resnet18(stem='/etc/passwd')",
    "resnet18(norm=cifar)",
    "cnn(http://example.org/x)",
    "mlp('8')",
    "text('/home/models')",
    "text(bert-tiny,layers='a+b')",
    "lm(some/hub-name)",
    "efficientnet_lite0(weights=/etc/passwd)",
    "fusion(image='efficientnet_lite0(weights=/etc/passwd)')",
    "my.package:Net(folder=data)",
    "mlp(8" + ",8" * 1000 + ")",
    "mlp((((",
]


@pytest.mark.parametrize("spec", NAMING_FILES)
def test_a_spec_from_a_server_names_nothing_of_the_site(spec: str) -> None:
    policy = Policy(models=(*OWN_MODELS, "my.package:Net"))
    assert policy.deny_model(spec) is not None
    assert policy.deny_model("efficientnet_lite0(imagenet,train=all)") is None
    assert policy.deny_model("resnet18(imagenet,group)") is None
    assert policy.deny_model("my.package:Net(width=8)") is None


def test_files_are_the_sites_own() -> None:
    policy = parse_policy('models = ["lstm", "text"]\n[model_files]\nglove = "/data/glove.npz"\n"bert-tiny" = "/models/bert"\n')
    assert policy.deny_model("lstm(embeddings=glove)") is None
    assert policy.local_model("lstm(hidden=4,embeddings=glove)") == "lstm(hidden=4,embeddings='/data/glove.npz')"
    assert policy.local_model("text(bert-tiny,train=head)") == "text('/models/bert',train=head)"
    assert policy.local_model("lstm(hidden=4)") == "lstm(hidden=4)"
    for spec in ("lstm(embeddings='/data/glove.npz')", "lstm(embeddings=other)"):
        assert policy.deny_model(spec) is not None


def test_a_server_cannot_ask_whether_a_file_exists(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("")
    SiteSettings("heart", ("va",), engine="loop").write(tmp_path)
    site, reported = Site(tmp_path), set()
    for path in (tmp_path / "policy.toml", tmp_path / "missing.npz"):
        with pytest.raises(MessageError) as refused:
            from_message(site.answer(to_message(make_hello(model=f"lstm(vocabulary=9,embeddings={str(path)!r})"))), SiteCard)
        reported.add(str(refused.value).replace(str(path)[:40], ""))
    assert len(reported) == 1
    assert "names no file" in reported.pop()


def test_the_words_that_models_know_are_their_own_choices() -> None:
    for name in OWN_MODELS:
        settings = models.settings(name)
        choices = {key: get_args(p.annotation) for key, p in settings.items() if get_origin(p.annotation) is Literal}
        assert MODEL_WORDS.get(name, {}) == choices, name
        assert list(settings)[: len(POSITIONS.get(name, ()))] == list(POSITIONS.get(name, ()))


def test_what_no_honest_server_sends() -> None:
    assert "not here" in reason(Policy(), Train(np.array([6]), INITIAL, Local()))
    assert "not here" in reason(Policy(), Gradient(np.array([-1]), INITIAL))
    assert "asked twice" in reason(Policy(), Train(np.array([1, 1]), INITIAL, Local()))
    assert "of shape (1, 18)" in reason(Policy(), Gradient(CLIENTS, INITIAL[:-1]))
    assert "a site has one" in reason(Policy(), Gradient(CLIENTS, INITIAL), draw=1)
    assert "does not hold it" in reason(Policy(), Evaluate(Serving.one(CLIENTS, INITIAL), part="central"))


def test_under_dp_sgd_only_what_it_protects_is_answered() -> None:
    policy = parse_policy("label_shares = true\n[privacy]\n" + DP)
    asks = questions()
    assert reason(policy, asks["Train"]) == reason(policy, asks["Evaluate"]) == ""
    for name in ("Gradient", "Losses", "AskErrors"):
        assert reason(policy, asks[name]).startswith(f"{name} is not answered under dp-sgd")
    assert "not answered under dp-sgd" in reason(policy, Evaluate(Serving.one(CLIENTS, INITIAL), part="validation"))
    for share in (Share(fold=0), Share(label=0)):
        assert "depends on all the others" in reason(policy, Train(CLIENTS, INITIAL, Local(), share=share))
    ruled = Train(CLIENTS, INITIAL, Local(rule=DittoRule(lam=1.0, own_epochs=None)), extra={"own": np.zeros((3, 18), np.float32)})
    assert "local rule" in reason(policy, ruled)
