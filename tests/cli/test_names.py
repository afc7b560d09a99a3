"""Names from data are data: whatever a client, a class or a study is called, every command prints it as it is."""

import ast
import csv
from pathlib import Path

import pytest

import coterie as ct
from cli.test_bundle_commands import Commands
from coterie._util.errors import UserError, suggest_names
from coterie._util.formatting import escape_controls
from coterie.cli.console import PlainConsole, make_bold
from coterie.data.catalogue import load
from coterie.data.readers import leaf
from coterie.data.readers.frames import check_columns

CLIENTS = ("[/bold]", "[red]", ":smile:", "\x1b[2Jclear", "1", "01", "1.0", "NA")
SOURCE = Path(ct.__file__).parent


@pytest.fixture
def coterie(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Commands:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.chdir(tmp_path)
    return Commands(capfd, monkeypatch)


def odd_names(path: Path, head: tuple[str, ...] = ("who", "label", "a", "b")) -> str:
    """A table of clients, classes and columns that a careless program takes for something else; its spec."""
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = [(name, "[/x]" if i % 2 else "NA", i % 5, (i * 7) % 3 - 1) for name in CLIENTS for i in range(20)]
        csv.writer(file).writerows([head, *rows])
    return f"csv('{path.name}',label=label,client=who)/natural"


def test_ids_and_labels_stay_as_they_are_written(tmp_path: Path, coterie: Commands) -> None:
    federation = load(odd_names(tmp_path / "odd.csv"))
    assert set(federation.ids) == set(CLIENTS)
    assert federation.classes == ("NA", "[/x]")


def test_every_command_prints_names_as_they_are(tmp_path: Path, coterie: Commands) -> None:
    spec = odd_names(tmp_path / "odd.csv")
    told = coterie("data", spec)
    for name in CLIENTS:
        assert escape_controls(name) in told
    assert "\x1b[2J" not in told
    assert "[/x]" in told
    coterie("inspect", "--data", spec, "--references", "19", "--no-pilot", "--out", "inspected")
    coterie("run", "fedavg", "fedgroup(groups=2,pretrain=2)", "--data", spec, "--rounds", "2", "--out", "study")
    assert spec in coterie("show", "study")
    coterie("report", "study")
    assert "[/bold]" in coterie("export", "study", "--method", "fedavg", "--client", "[/bold]", "--out", "bundle")
    coterie("export", "study", "--method", "fedavg", "--all", "--out", "bundles")
    assert "[/x]" in coterie("predict", "bundle", "--data", "odd.csv", "--label", "label")
    assert spec in coterie("compare", "fedavg", "--data", spec, "--rounds", "1", "--seeds", "0-1", "--no-controls", "--out", "compared")
    assert "'[/bold]x'" in coterie.refused("export", "study", "--method", "fedavg", "--client", "[/bold]x", "--out", "another")
    assert "[/bold]" in coterie.refused("show", "[/bold]")
    assert "\\x1b[2J" in coterie.refused("show", "\x1b[2J")


def test_a_reproduction_prints_its_words_as_they_are(tmp_path: Path, coterie: Commands) -> None:
    (tmp_path / "table.toml").write_text(
        'title = "[/bold] title"\npaper = "[/p]"\nwhere = "[/w]"\nasks = "[/a]"\n'
        'deviations = ["d"]\n'
        'protocol = { section = "Table 1", split = "s", sizes = "s", rounds = "r", test_set = "t", optimiser = "o", metric = "m" }\n'
        '[study]\nmethods = ["fedavg", "local"]\ndata = "digits/iid(clients=4)"\nrounds = 1\n'
        '[[claims]]\nsays = "[/red] claim"\none = "fedavg"\ntwo = "local"\n'
    )
    told = coterie("reproduce", "table.toml", "--page", "pages")
    for word in ("[/bold] title", "[/p]", "[/w]", "[/a]", "[/red] claim"):
        assert word in told
    assert "[/p]" in coterie("reproduce", "--list", "--studies", tmp_path)


def test_the_console_gives_nothing_a_meaning(capfd: pytest.CaptureFixture[str]) -> None:
    from coterie.cli.terminal import make_listing

    console = PlainConsole()
    console.print(make_bold("[/bold]"), "[b]x[/b]", ":smile:", "a\x1b[31mb‮c")
    console.print(make_listing(("[/head]",), [("[/cell]",), ("\x07",)]))
    out = capfd.readouterr().out
    assert out.splitlines()[0] == "[/bold] [b]x[/b] :smile: a\\x1b[31mb\\u202ec"
    assert [line.strip() for line in out.splitlines()[1:]] == ["[/head]", "[/cell]", "\\x07"]


def test_no_command_makes_a_console_of_another_kind() -> None:
    """Right by construction: only a console without markup can be had in the command line."""
    found = [
        f"{path.name}:{node.lineno}"
        for path in sorted((SOURCE / "cli").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rich.console") and path.name != "console.py"
    ]
    assert found == []


def test_two_columns_of_one_name_are_refused(tmp_path: Path, coterie: Commands) -> None:
    spec = odd_names(tmp_path / "twice.csv", ("who", "label", "a", "a"))
    with pytest.raises(UserError, match="has two columns called 'a': rename one of them"):
        load(spec)
    odd_names(tmp_path / "odd.csv")
    coterie("run", "fedavg", "--data", "csv('odd.csv',label=label,client=who)/natural", "--rounds", "1", "--out", "study")
    coterie("export", "study", "--client", "1", "--out", "bundle")
    assert "has two columns called 'a'" in coterie.refused("predict", "bundle", "--data", "twice.csv", "--label", "label")


def test_a_cell_that_is_empty_has_no_value(tmp_path: Path, coterie: Commands) -> None:
    (tmp_path / "hole.csv").write_text("who,label,a\nx,1,2\n,0,3\n")
    with pytest.raises(UserError, match=r"line 3 of hole\.csv has no value in the client column 'who'"):
        load("csv('hole.csv',label=label,client=who)/natural")


def test_a_line_of_very_many_names_is_refused_without_reading_the_table(
    tmp_path: Path, coterie: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200,000 equal names take pandas minutes, and so would looking each of them up among all others."""
    import pandas as pd

    monkeypatch.setattr(pd, "read_csv", None)
    for names, told in ((["a"] * 200_000, "200,000 columns, more than 100,000"), (["a"] * 99_999, "two columns called 'a'")):
        (tmp_path / "wide.csv").write_text(f"{','.join(names)}\n{','.join(['1'] * len(names))}\n")
        with pytest.raises(UserError, match=told):
            load("csv('wide.csv',label=label,client=who)/natural")


def test_equal_names_are_found_in_one_pass() -> None:
    class Once(list[str]):
        def count(self, name: str) -> int:
            raise AssertionError("every name was compared with all others")

    with pytest.raises(UserError, match="two columns called 'c9'"):
        check_columns(Once([*(f"c{i}" for i in range(1000)), "c9"]), "The table")


def test_a_suggestion_is_short_whatever_is_known() -> None:
    assert len(suggest_names("label", (f"column {i} {'x' * 1000}" for i in range(5000)))) < 50_000
    assert suggest_names("labl", [*(f"column {i}" for i in range(5000)), "label"]) == "did you mean 'label'?"
    with pytest.raises(UserError, match="names the user 'b' twice"):
        read_users(["a", "b", "c", "b"])


def read_users(names: list[str]) -> None:
    class Once(list[str]):
        def count(self, name: str) -> int:
            raise AssertionError("every name was compared with all others")

    content = {"users": Once(names), "num_samples": [1] * len(names), "user_data": {name: {"x": [[1]], "y": [0]} for name in names}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaf, "read_json_data", lambda path: content)
        leaf._read_users(Path("all.json"))


def test_names_are_no_formulas_in_any_table(tmp_path: Path, coterie: Commands) -> None:
    """Clients, classes and methods of every CSV file that a command writes; the Markdown beside it has no markup of theirs."""
    clients, classes = ("=1+1", "@SUM(A1)", "+x", "-y", "|a`<b>"), ("=yes", "-no")
    with (tmp_path / "odd.csv").open("w", encoding="utf-8", newline="") as file:
        rows = [(name, classes[i % 2], i % 5, (i * 7) % 3 - 1) for name in clients for i in range(20)]
        csv.writer(file).writerows([("who", "label", "a", "b"), *rows])
    spec = "csv('odd.csv',label=label,client=who)/natural"
    coterie("run", "fedavg", "fesem(groups=2)", "--data", spec, "--rounds", "1", "--out", "study")
    coterie("show", "study", "--groups", "--out", "groups.csv")
    coterie("report", "study")
    coterie("export", "study", "--method", "fedavg", "--client", "=1+1", "--out", "bundle")
    coterie("predict", "bundle", "--data", "odd.csv", "--label", "label", "--out", "said.csv")
    written = [path for path in tmp_path.rglob("*.csv") if path.name != "odd.csv" and "cache" not in path.parts]
    assert {"groups.csv", "said.csv", "clients.csv"} <= {path.name for path in written}
    cells = [cell for path in written for line in csv.reader(path.read_text(encoding="utf-8").splitlines()) for cell in line]
    assert not [cell for cell in cells if cell[:1] in "=+-@\t\r" and cell and not is_number(cell)]
    assert {"'=1+1", "'@SUM(A1)", "'+x", "'-y", "'=yes"} <= set(cells)
    pages = "".join(path.read_text() for path in (tmp_path / "study").rglob("*.md"))
    assert "<b>" not in pages.replace("\\<b>", "")


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
