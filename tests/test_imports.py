"""Imports point one way: what a package may know of the others, read from the source itself."""

import ast
from pathlib import Path

import pytest

import coterie

SOURCE = Path(coterie.__file__).parent
# Each package may import those of the lines above it, and itself; packages of one line do not know each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("_util",),
    ("core",),
    ("grouping", "models", "data", "statistics"),
    ("methods", "engines"),
    ("evidence",),
    ("analysis",),
    ("run",),
    ("report",),
    ("inspect", "reproduce", "testing"),
    ("deploy",),
    ("cli", "flower", "sklearn"),
)
RANK = {package: rank for rank, packages in enumerate(LAYERS) for package in packages}


def imports(path: Path) -> set[str]:
    """The packages of Coterie that a module imports, at its top, within a function, or by name with `import_module`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
        if isinstance(node, ast.ImportFrom) and node.module == "coterie":
            names = [f"coterie.{alias.name}" for alias in node.names]
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        if isinstance(node, ast.Call) and "import_module" in (getattr(node.func, "id", ""), getattr(node.func, "attr", "")):
            names = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        found |= {name.split(".")[1] for name in names if name.startswith("coterie.")}
    return found


def test_every_package_has_its_place() -> None:
    assert {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()} == set(RANK)
    assert {path.name for path in SOURCE.glob("*.py")} == {"__init__.py", "__main__.py"}  # nothing else lies flat at the top


@pytest.mark.parametrize("package", RANK)
def test_imports_point_one_way(package: str) -> None:
    wrong = [
        f"{path.relative_to(SOURCE)} imports {other}"
        for path in sorted((SOURCE / package).rglob("*.py"))
        for other in sorted(imports(path) - {package})
        if RANK[other] >= RANK[package]
    ]
    assert wrong == []


def test_the_core_needs_torch_in_one_file_only() -> None:
    """Rosters, asks and methods can be imported where torch is not."""
    heavy = {"torch", "pandas", "scipy", "sklearn", "pyarrow"}
    found = set()
    for path in (SOURCE / "core").glob("*.py"):
        for node in ast.parse(path.read_text()).body:  # at the top of the module
            names = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else []
            )
            if heavy & {name.split(".")[0] for name in names}:
                found.add(path.name)
    assert found == {"model.py"}
