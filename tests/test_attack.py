"""A short part of `make drill`: every kind of attack once, each as a user would meet it."""

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from attack_kinds import KINDS

SCRIPT = Path(__file__).parents[1] / "scripts" / "attack.py"


def test_nothing_is_silently_wrong_stuck_or_a_traceback() -> None:
    """In a process of its own: trials are forks of it, which must have no threads."""
    words = [sys.executable, str(SCRIPT), "--trials", str(len(KINDS)), "--seed", "5"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert f"{len(KINDS)} trials, 0 faults" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_every_attack_on_a_federation_names_tests_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of `scripts/attack_federation.py` goes by their names."""
    spec = spec_from_file_location("attack_federation", SCRIPT.with_name("attack_federation.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # where dataclasses look for it
    spec.loader.exec_module(module)
    for attack in module.ATTACKS:
        for test in attack.tests:
            file, _, name = test.partition("::")
            assert f"\ndef {name}(" in (Path(__file__).parent / file).read_text(encoding="utf-8"), f"{attack.name}: {test}"
