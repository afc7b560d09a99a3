"""The package as a whole: its public names, and what loading it costs."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import coterie
from coterie.methods.catalogue import methods, wrappers

HEAVY = ("torch", "pandas", "scipy", "sklearn", "numba", "pyarrow", "altair", "pydantic")


def test_every_public_name_is_listed_once_and_loads() -> None:
    tree = ast.parse(Path(coterie.__file__).with_suffix(".pyi").read_text())
    listed = [(alias.name, node.module) for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert len(listed) == len(dict(listed)) > 60
    assert dict(listed) == vars(coterie)["_HOME"]
    assert coterie.__all__ == sorted(dict(listed))
    for name in coterie.__all__:
        assert getattr(coterie, name) is not None


def test_help_waits_for_nothing_heavy() -> None:
    code = f"import sys; import coterie.cli.app; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_class_and_function_has_a_docstring() -> None:
    for name in coterie.__all__:
        value = getattr(coterie, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            text = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
            assert text, name
            assert not text.startswith(f"{name}("), name  # what a dataclass writes by itself
            assert text.strip().partition("\n\n")[0].rstrip().endswith((".", "?")), name


def test_what_a_spec_can_name_is_public() -> None:
    for registry in (methods, wrappers):
        assert {registry[name].__name__ for name in registry if registry[name].__module__.startswith("coterie.")} <= set(coterie.__all__)
