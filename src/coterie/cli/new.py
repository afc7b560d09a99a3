"""`coterie new`: a package of your own that adds to Coterie, with tests that pass at once."""

import re
from keyword import iskeyword
from pathlib import Path
from typing import Annotated

import typer

from coterie._util.errors import UserError

app = typer.Typer(help="Start a package that adds to Coterie.", no_args_is_help=True)

METHOD = '''"""NAME: what it does, in one sentence.

Cite the paper here, and put its equation numbers at the lines that implement them.
"""

from dataclasses import dataclass

from coterie.core.asks import Train
from coterie.core.method import Context, Round
from coterie.core.mixing import Mixing
from coterie.core.settings import setting
from coterie.core.states import Models
from coterie.methods.one_model import OneModelMethod


@dataclass(frozen=True, kw_only=True)
class CLASS(OneModelMethod):
    """FedAvg whose clients count by a power of their number of samples.

    Example: the spec ``NAME(power=0.5)``.
    """

    power: float = setting(0.5, "A client of n samples counts n to this power: 1 is FedAvg, 0 counts all alike.", minimum=0)

    def round(self, state: Models, ctx: Context) -> Round[Models]:
        cohort = ctx.cohort()
        trained = yield from Train(cohort, state.models, ctx.local)  # clients that do not answer are not in it
        weights = trained.sizes.astype(float) ** self.power
        return state.with_models(ctx.mix(Mixing.average(trained.clients, weights), trained, state.models))
'''

TEST = '''"""The contracts of every method, an identity, and one round by hand."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from coterie.core.states import Models
from coterie.methods.catalogue import build
from coterie.testing import worlds
from coterie.testing.contracts import CHECKS, Checked
from coterie.testing.fakes import FakeEngine
from coterie.testing.play import make_round_context, play, run_generator

from NAME.method import CLASS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_contract(check: Callable[[Checked], None]) -> None:
    check(Checked(CLASS))


def test_with_the_power_one_it_is_fedavg() -> None:
    assert play(CLASS(power=1.0)).data == play(build("fedavg")).data


def test_a_round_by_hand() -> None:
    """Clients of 1, 1, 4 and 4 samples move to 0, 0, 3 and 3: roots 1, 1, 2, 2 give (2 * 3 + 2 * 3) / 6 = 2."""
    world = worlds.make_world()
    ctx = make_round_context(world)
    replies = dict(zip(ctx.cohort().tolist(), ((0.0, 1), (0.0, 1), (3.0, 4), (3.0, 4)), strict=True))

    def answer(ask: Any, client: int) -> Mapping[str, Any]:
        value, samples = replies[client]
        return {"vectors": np.full(18, value), "sizes": samples, "steps": 1}

    state = run_generator(CLASS(power=0.5).round(Models(np.zeros((1, 18), np.float32)), ctx), world, engine=FakeEngine(answer))
    np.testing.assert_allclose(state.models, np.full((1, 18), 2.0), rtol=1e-6)


def test_the_installed_name_is_this_method() -> None:
    assert isinstance(build("NAME(power=0.3)"), CLASS)
'''

PROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "PACKAGE"
version = "0.1.0"
description = "NAME, a federated method for Coterie"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["coterie"]

[project.optional-dependencies]
test = ["pytest"]

[project.entry-points."coterie.methods"]
NAME = "NAME.method:CLASS"

[tool.setuptools.packages.find]
where = ["src"]
"""

PAGE = """# NAME

A federated method for [Coterie](https://pypi.org/project/coterie/): what it does, in one sentence.

```sh
pip install -e '.[test]'
pytest
coterie compare 'NAME(power=0.5)' --data 'digits/rotated(clients=20,groups=2)' --rounds 10 --draws 6 --out runs/NAME
```

| setting | default | what it is |
| --- | --- | --- |
| `power` | 0.5 | a client of n samples counts n to this power |

## Details

The equations, and the lines of [method.py](src/NAME/method.py) that implement them.

## Deviations from the paper

None known.
"""

WORKFLOW = """name: CI

on: [push, pull_request]

jobs:
  test:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with: { python-version: "3.12", cache: pip }
      - run: pip install --extra-index-url https://download.pytorch.org/whl/cpu '.[test]'
      - run: pytest
"""

FILES = {
    "pyproject.toml": PROJECT,
    "README.md": PAGE,
    "src/NAME/__init__.py": '"""NAME, a federated method for Coterie."""\n',
    "src/NAME/method.py": METHOD,
    "tests/test_method.py": TEST,
    ".github/workflows/ci.yml": WORKFLOW,
    ".gitignore": "__pycache__/\n*.egg-info/\n.venv/\nruns/\n",
}


@app.callback()
def start_package() -> None:
    """Start a package that adds to Coterie."""


@app.command()
def method(
    name: Annotated[str, typer.Argument(help="The method's name in specs: small letters, digits and underscores.")],
    out: Annotated[Path | None, typer.Option(help="The folder to make. Default: the name, with hyphens.")] = None,
) -> None:
    """Write a package with a method, its tests, its page and a workflow."""
    from coterie.cli.console import PlainConsole

    folder = write_package(name, out)
    PlainConsole().print(
        f"{folder} holds the method {name}: a short variant of FedAvg to start from.\n"
        f"  pip install -e '{folder}[test]' && pytest {folder}\n"
        f"  coterie run fedavg {name} --data heart\n"
        f"The method is {folder}/src/{name}/method.py."
    )


def write_package(name: str, out: Path | None = None) -> Path:
    """Write the package and return its folder.

    Raises:
        UserError: The name is no name of a package or taken, or the folder is there.
    """
    from coterie.methods.catalogue import PRESETS, methods, wrappers

    if not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name) or iskeyword(name):
        raise UserError(f"{name!r} is no name for a method: use small letters, digits and underscores, such as 'my_method'.")
    if name in {*methods, *wrappers, *PRESETS, "coterie"}:
        raise UserError(f"There is a method {name!r} already: choose another name.")
    folder = out or Path(name.replace("_", "-"))
    if folder.exists():
        raise UserError(f"{folder} is there already: choose another --out.")
    words = {"PACKAGE": name.replace("_", "-"), "CLASS": "".join(map(str.capitalize, name.split("_"))), "NAME": name}
    for path, text in FILES.items():
        place = folder / path.replace("NAME", name)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(re.sub("PACKAGE|CLASS|NAME", lambda found: words[found[0]], text), encoding="utf-8")
    return folder
