"""Code that a file names runs only where somebody trusts it; nothing in the current folder stands in for an installed package."""

import json
import os
import pty
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import coterie as ct
from cli.processes import MAIN, coterie_process, environment
from cli.test_bundle_commands import Commands
from coterie._util.errors import UserError
from coterie.core.specs import UntrustedCodeError
from coterie.data.catalogue import sources
from coterie.deploy.bundle.export import load_served_models
from coterie.deploy.bundle.files import read_bundle
from coterie.methods.catalogue import build, methods
from coterie.models.catalogue import models
from coterie.reproduce import read_reproduction
from coterie.reproduce.rejudge import reproduce
from coterie.run.study_file import read_study_file

DATA = "digits/iid(clients=4)"
NET = """
from math import prod
from pathlib import Path
from torch import nn
Path(__file__).with_name("RAN").touch()
def net(input_shape, outputs, width=4) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), outputs))
"""

MINE = """
from dataclasses import dataclass
from pathlib import Path
import coterie as ct
Path(__file__).with_name("RAN").touch()
@dataclass(frozen=True, kw_only=True)
class Mine(ct.FedProx):
    \"\"\"My own.\"\"\"
"""
DATA_OF_ONES_OWN = """
import numpy as np
def own_net(_input_shape, _outputs) -> nn.Module:
    \"\"\"One layer.\"\"\"
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(_input_shape), _outputs))
def ours(rows: int = 20):
    \"\"\"Ours.\"\"\"
    x = np.arange(2.0 * rows, dtype=np.float32).reshape(rows, 2)
    return ct.Samples("ours", x, np.arange(rows) % 2, ("no", "yes"))
"""


@pytest.fixture
def coterie(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, here: Path) -> Commands:
    return Commands(capfd, monkeypatch)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module of somebody's in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    (tmp_path / "theirs.py").write_text(NET)
    return tmp_path


def study_file(folder: Path, model: str, **more: object) -> Path:
    path = folder / "study.toml"
    told = {"methods": ["fedavg"], "data": DATA, "model": model, "rounds": 1, **more}
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in told.items()))
    return path


def ran(here: Path) -> bool:
    return (here / "RAN").exists()


def test_a_study_file_runs_its_code_only_with_trust(coterie: Commands, here: Path) -> None:
    path = study_file(here, "theirs:net(width=2)")
    said = coterie.refused("run", path)
    assert (
        f"The study file {path} needs code that is not Coterie's, the model 'theirs:net(width=2)': if you trust it, add --trust-code"
        in said
    )
    assert not ran(here)
    coterie("run", path, "--trust-code")
    assert ran(here)


def test_not_even_trusted_names_call_what_is_no_module(coterie: Commands, here: Path) -> None:
    for model in ("os:system('touch PWNED')", "os:popen('touch PWNED')", "subprocess:Popen('touch PWNED', shell=true)"):
        path = study_file(here, model)
        assert "needs code" in coterie.refused("run", path)
        assert "name a subclass of torch.nn.Module" in coterie.refused("run", path, "--trust-code")
    assert "name a subclass of torch.nn.Module" in coterie.refused("run", "fedavg", "--data", DATA, "--model", "os:system('touch PWNED')")
    assert not (here / "PWNED").exists()


def test_a_grid_of_models_is_checked_point_by_point(here: Path) -> None:
    path = study_file(here, "mclr")
    path.write_text(path.read_text() + '[grid]\nmodel = ["mclr", "theirs:net"]\n')
    with pytest.raises(UntrustedCodeError, match="the model 'theirs:net'"):
        read_study_file(path)
    assert len(read_study_file(path, trust=True)) == 2
    assert not ran(here)


def test_what_is_typed_is_trusted_and_takes_the_place_of_the_file_s(coterie: Commands, here: Path) -> None:
    path = study_file(here, "os:system('touch PWNED')")
    coterie("run", path, "--model", "theirs:net")
    assert ran(here)
    assert not (here / "PWNED").exists()


def test_a_study_file_names_a_ray_cluster_only_with_trust(coterie: Commands, here: Path) -> None:
    """A cluster runs code here: what it answers is unpickled."""
    with socket.create_server(("127.0.0.1", 0)) as cluster:
        cluster.settimeout(0)
        address = f"127.0.0.1:{cluster.getsockname()[1]}"
        path = study_file(here, "mclr")
        path.write_text(path.read_text() + f'[execution]\nray = "{address}"\n')
        says = f"The study file {path} sends the study to the Ray cluster '{address}', which may run code here: if you trust it, add"
        for command in (["run"], ["compare", "--out", here / "out"], ["plan"]):
            assert says in coterie.refused(*command, path)
        with pytest.raises(UntrustedCodeError):
            ct.compare(str(path), out=here / "out")
        with pytest.raises(UntrustedCodeError):
            read_study_file(path)
        with pytest.raises(BlockingIOError):
            cluster.accept()  # nobody called
    assert read_study_file(path, trust=True)[0].execution.ray == address
    assert read_study_file(path, other_ray=True)[0].execution.ray == address
    path.write_text(path.read_text().replace(address, "auto"))
    assert read_study_file(path)[0].execution.ray == "auto"  # one that the user has started


def test_methods_name_code_only_with_trust_and_only_methods(here: Path) -> None:
    for spec in ("os:system('false')", "theirs:net", "theirs:net+finetune"):
        with pytest.raises(UntrustedCodeError, match="needs code that is not Coterie's, the method"):
            build(spec)
    assert not ran(here)
    with pytest.raises(UserError, match=r"'os:system' is of type builtin_function_or_method: name a subclass of coterie\.Method"):
        build("os:system('false')", trust=True)
    with pytest.raises(UserError, match="Unknown wrapper"):
        build("fedavg+os:system('false')", trust=True)


def test_a_method_of_ones_own_runs_where_it_is_typed(coterie: Commands, here: Path) -> None:
    (here / "theirs.py").write_text(MINE)
    coterie("run", "theirs:Mine(mu=0.5)", "theirs:Mine+finetune", "--data", DATA, "--rounds", "1", "--out", "study")
    assert ran(here)
    (here / "RAN").unlink()
    sys.modules.pop("theirs")
    for command in ("show", "digest", "report"):
        coterie(command, "study")
    words = ("export", "study", "--method", "theirs:Mine(mu=0.5)", "--all", "--out", "bundles")
    assert "the method 'theirs:Mine(mu=0.5)': if you trust it" in coterie.refused(*words)
    path = study_file(here, "mclr", methods=["theirs:Mine"])
    for more in ([], ["--model", "mclr"]):  # another model says nothing of methods
        assert "the method 'theirs:Mine': if you trust it" in coterie.refused("run", path, *more)
    assert not ran(here)
    coterie(*words, "--trust-code")
    coterie("run", path, "--trust-code")
    assert ran(here)
    assert "has no setting 'nu': did you mean 'mu'" in coterie.refused("run", "theirs:Mine(nu=1)", "--data", DATA)


def test_installed_packages_add_names(coterie: Commands, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "theirs.py").write_text(MINE + NET + DATA_OF_ONES_OWN)
    about = here / "theirs-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    groups = {
        "methods": "mine = theirs:Mine\nbroken = theirs:nothing\nfedavg = theirs:Mine",
        "models": "net = theirs:own_net",
        "data": "ours = theirs:ours",
    }
    (about / "entry_points.txt").write_text("".join(f"[coterie.{group}]\n{lines}\n" for group, lines in groups.items()))
    monkeypatch.syspath_prepend(str(here))
    for registry in (methods, models, sources):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
        monkeypatch.delitem(registry.__dict__, "installed", raising=False)
    try:
        coterie(
            "run", "mine(mu=0.1)", "fedavg", "--data", "ours(rows=30)/iid(clients=3)", "--model", "net", "--rounds", "1", "--out", "study"
        )
        assert type(build("fedavg")) is ct.FedAvg  # our own names win
        assert "cannot be loaded" in coterie.refused("run", "broken", "--data", DATA)
        assert build("mine(mu=0.1)+finetune")
    finally:
        for registry in (methods, models, sources):
            registry.__dict__.pop("installed", None)


def test_evidence_is_shown_without_its_code_and_exported_only_with_trust(coterie: Commands, here: Path) -> None:
    coterie("run", "fedavg", "local", "--data", DATA, "--rounds", "2", "--model", "theirs:net", "--out", "study")
    (here / "RAN").unlink()
    sys.modules.pop("theirs")
    for command in (["show"], ["digest"], ["report"]):
        coterie(*command, "study")
    assert "if you trust it, add --trust-code" in coterie.refused("export", "study", "--method", "fedavg", "--all", "--out", "bundles")
    with pytest.raises(UntrustedCodeError):
        load_served_models("study", "fedavg")
    assert not ran(here)
    coterie("export", "study", "--method", "fedavg", "--client", "client-0", "--out", "bundle", "--trust-code")
    assert ran(here)

    (here / "RAN").unlink()
    sys.modules.pop("theirs")
    rows = here / "rows.npy"
    np.save(rows, np.zeros((2, *ct.load("digits/iid(clients=4)").input_shape), np.float32))
    assert "if you trust it, add --trust-code" in coterie.refused("predict", "bundle", "--data", rows)
    with pytest.raises(UntrustedCodeError):
        read_bundle("bundle", "theirs:other")
    assert not ran(here)
    coterie("predict", "bundle", "--data", rows, "--trust-code")
    coterie("predict", "bundle", "--data", rows, "--model", "theirs:net")
    assert ran(here)


def test_a_reproduction_runs_its_code_only_with_trust(coterie: Commands, here: Path) -> None:
    path = here / "table.toml"
    path.write_text(
        'title = "t"\npaper = "p"\nwhere = "w"\nasks = "a"\n'
        'deviations = ["d"]\n'
        'protocol = { section = "Table 1", split = "s", sizes = "s", rounds = "r", test_set = "t", optimiser = "o", metric = "m" }\n'
        f'[study]\nmethods = ["fedavg", "local"]\ndata = "{DATA}"\nmodel = "theirs:net"\nrounds = 1\n'
        '[[claims]]\nsays = "s"\none = "fedavg"\ntwo = "local"\n'
    )
    study = read_reproduction(path)
    assert "if you trust it" in coterie.refused("reproduce", path)
    text = path.read_text()
    on_ray = text.replace("theirs:net", "mclr").replace("[[claims]]", '[study.execution]\nray = "192.0.2.1:6379"\n[[claims]]', 1)
    path.write_text(on_ray)
    assert "sends the study to the Ray cluster '192.0.2.1:6379'" in coterie.refused("reproduce", path)
    path.write_text(text)
    with pytest.raises(UntrustedCodeError):
        reproduce(study, out=here / "out")
    assert not ran(here)
    assert not (here / "reproduced").exists()
    coterie("reproduce", path, "--trust-code")
    assert ran(here)


def test_a_planted_module_does_not_run(here: Path) -> None:
    """A `typer.py` beside a downloaded study ran on `coterie show`: the current folder was first on the path."""
    for name in ("typer", "torch", "numpy", "pandas", "rich", "inspect", "json", "nvflare"):
        (here / f"{name}.py").write_text("from pathlib import Path\nPath(__file__).with_name('PLANTED').touch()\n")
    found = coterie_process("show", "nowhere", cwd=here)
    assert found.stderr.decode() == "coterie: nowhere holds no study: name the folder that --out made.\n"
    found = coterie_process("run", "fedavg", "--data", DATA, "--rounds", "1", "--model", "theirs:net", cwd=here)
    assert found.returncode == 0, found.stderr.decode()
    assert ran(here)
    assert not (here / "PLANTED").exists()


@pytest.mark.parametrize(("answer", "code"), [("n", 2), ("y", 0)])
def test_at_a_terminal_the_user_is_asked(here: Path, answer: str, code: int) -> None:
    path = study_file(here, "theirs:net")
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*MAIN, "run", path.name], cwd=here, env=environment(), stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs
    ) as run:
        os.close(theirs)
        os.write(ours, f"{answer}\n".encode())
        said = b""
        while True:
            try:
                piece = os.read(ours, 1000)
            except OSError:  # the terminal's other side is closed
                break
            if not piece:
                break
            said += piece
    os.close(ours)
    text = re.sub(r"\s+", " ", said.decode())
    assert "needs code that is not Coterie's, the model 'theirs:net'. Run that code? [y/N]" in text
    assert run.returncode == code
    assert ran(here) == (code == 0)
    assert ("add --trust-code" in text) == (code == 2)
