"""A policy in words, and its command."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from coterie._util.errors import UserError
from coterie.cli.app import app
from coterie.deploy.site.audit import Audit
from coterie.deploy.site.explain import explain_policy
from coterie.deploy.site.ledger import Charge, Ledger
from coterie.deploy.site.policy import DEFAULT_POLICY, ClipNoise, DpSgd, NoPrivacy, Policy

DP = DpSgd(mechanism="dp-sgd", noise_multiplier=1.0, max_grad_norm=1.0, delta=1e-5, epsilon_limit=8.0)
NOISE = ClipNoise(mechanism="clip+noise", clip=0.5, noise=2.0)


def words(policy: Policy, ledger: Ledger | None = None) -> str:
    return "\n".join(line for part in explain_policy(policy, ledger) for line in (part.heading, *part.lines))


def test_the_unit_of_protection_and_the_limit_are_said() -> None:
    assert "one sample of this site" in words(Policy(privacy=DP))
    assert "at most 8" in words(Policy(privacy=DP))
    assert "all data of a client, in each answer it sends" in words(Policy(privacy=NOISE))
    assert "counted but not limited" in words(Policy(privacy=NOISE))
    assert "each client's mean loss under every model sent, noised and charged" in words(Policy(privacy=NOISE))
    assert "without its number of samples" in words(Policy(privacy=NOISE))
    assert "rounded to what 3 samples can change" in words(Policy())
    assert "charged to a budget of their own" in words(Policy(privacy=DP))
    assert "not protected by dp-sgd here" in words(Policy(privacy=DP.model_copy(update={"protect_tests": False})))
    assert "No mechanism" in words(Policy())


def test_only_what_is_answered_is_said_to_be() -> None:
    response = words(Policy(privacy=DP))
    assert "Train is answered" in response
    assert "Gradient is answered" not in response
    assert "The asks Gradient, Losses, AskErrors, Describe, AskSubspaces." in response
    assert "Losses is answered" not in words(Policy(asks=("Train",)))


def test_counts_and_foreign_code_are_said() -> None:
    assert "without its number of samples" in words(Policy(sample_counts=False, class_counts=False))
    assert "how many test samples of each class" in words(Policy())
    assert "how many training and test samples of each class" in words(Policy(label_shares=True))
    assert "my.net:Net is not Coterie's" in words(Policy(models=("mclr", "my.net:Net")))
    assert "fewer than 5 samples" in words(Policy(minimum_samples=5))


def test_what_is_spent_is_said(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "privacy.json")
    assert "Nothing yet." in words(Policy(privacy=DP), ledger)
    ledger.charge({"ward-3": Charge("dp-sgd", 1.0, 1.0, 1)}, DP)
    ledger.charge({"ward-3": Charge("exact", 0.0, 1.0, 2)}, NoPrivacy())
    assert "ward-3: epsilon 4." in words(Policy(privacy=DP), ledger)
    assert "2 answers from training samples left without noise" in words(Policy(privacy=DP), ledger)


def test_commands(tmp_path: Path) -> None:
    run = CliRunner().invoke
    path = tmp_path / "policy.toml"
    with pytest.raises(UserError, match="holds no policy"):
        run(app, ["policy", "explain", str(tmp_path)], catch_exceptions=False)
    assert run(app, ["policy", "default"]).output == DEFAULT_POLICY
    path.write_text(DEFAULT_POLICY)
    reported = run(app, ["policy", "explain", str(tmp_path), "--model", "mclr"]).output
    assert "650 numbers for mclr on 64 features and 10 classes" in reported
    assert "Privacy\n  No mechanism" in reported
    assert "is a policy: it answers Train" in run(app, ["policy", "check", str(path)]).output
    path.write_text("ask = []")
    with pytest.raises(UserError, match="unknown key 'ask'"):
        run(app, ["policy", "check", str(path)], catch_exceptions=False)
    Audit(tmp_path / "audit.jsonl").append({"ask": "Train"})
    assert run(app, ["policy", "audit", str(tmp_path)]).exit_code == 0
    (tmp_path / "audit.jsonl").write_text((tmp_path / "audit.jsonl").read_text().replace("Train", "AskErrors"))
    assert run(app, ["policy", "audit", str(tmp_path)]).exit_code == 1
