"""What is tried on studies, kind by kind; how a trial is carried out and judged is in `attacking`."""

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import integrity
from attacking import SETTINGS, Attack, Ended, Kind

PLANTED = "open('ran', 'w').close()\n"
NASTY = (
    "[/bold]",
    "[link=x]",
    "<script>alert(1)</script>",
    "\x1b[31mred",
    "'; --",
    "a" * 255,
    "ümläut ⚕",
    "=1+1",
    "../../up",
    "NA",
    "01",
    "1.0",
)


def damage(kind: str, harm: Callable[[Path, random.Random], str]) -> Kind:
    """A study is damaged, then shown and gone on with."""

    def trial(attack: Attack, chance: random.Random) -> None:
        folder = attack.copy()
        what = harm(folder, chance)
        shown = attack.show(folder)
        attack.judge(f"{kind}: show", what, shown, right=lambda: shown.said == attack.shown)
        end, right = attack.resumed(folder)
        attack.judge(f"{kind}: resume", what, end, right=right)

    return trial


def _flip(folder: Path, chance: random.Random) -> str:
    path = chance.choice(integrity.files_of(folder))
    return f"{path.relative_to(folder)} at {integrity.flip(path, chance.randrange(10**9))}"


def _cut(folder: Path, chance: random.Random) -> str:
    path = chance.choice(integrity.files_of(folder))
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data))])
    return f"{path.relative_to(folder)} cut short"


def _lose(folder: Path, chance: random.Random) -> str:
    path = chance.choice(integrity.files_of(folder))
    path.unlink()
    return f"{path.relative_to(folder)} lost"


def _segments(folder: Path, chance: random.Random) -> str:
    there = len(integrity.numbered(folder))
    one, other = chance.sample(range(there), 2)
    match chance.randrange(4):
        case 0:
            integrity.remove_segment(folder, one)
            return f"segment {one} removed"
        case 1:
            integrity.swap_segments(folder, one, other)
            return f"segments {one} and {other} swapped"
        case 2:
            integrity.overwrite_table(folder, chance.choice(("rounds", "clients", "mixing")), one, other)
            return f"a table of segment {other} overwritten by {one}'s"
    integrity.rewrite_table(folder, "clients", one, integrity.double_hits)
    return f"hits of segment {one} doubled"


def _reversed(folder: Path, chance: random.Random) -> str:
    integrity.reverse_methods(folder)
    return "methods reversed"


def kill(whole: bool) -> Kind:
    """A run is killed while its folder is made, or anywhere; the same command goes on."""

    def trial(attack: Attack, chance: random.Random) -> None:
        folder, number = attack.root / f"study-{attack.trials}", chance.randrange(1, 180 if whole else 30)
        killed = attack.coterie(*attack.words, "--out", str(folder), kill_at=number, below=folder)
        end, right = attack.resumed(folder)
        if end.code == 2:
            end = Ended(-signal.SIGALRM, end.said)  # what was killed must go on: a refusal is stuck
        attack.judge("killed anywhere" if whole else "killed at creation", f"operation {number}", killed, end, right=right)

    return trial


def changed_data(attack: Attack, chance: random.Random) -> None:
    """The file behind a study is another one when it goes on; with the same size and time, too."""
    place = attack.root / f"data-{attack.trials}"
    place.mkdir()
    table, folder = place / "t.csv", attack.root / f"study-{attack.trials}"
    text = integrity.csv_of([f"ward {i}" for i in range(5)], seed=chance.randrange(10**6))
    table.write_text(text)
    words = ("run", "fedavg", "--data", f"csv('{table}',label=label,client=client)", *SETTINGS)
    begun = attack.coterie(*words, "--out", str(folder))
    lines = text.splitlines()
    match chance.randrange(3):
        case 0:
            own = chance.randrange(1, len(lines))
            cells = lines[own].split(",")
            cells[2] = "1" if cells[2] == "0" else "0"
            lines[own] = ",".join(cells)
            integrity.with_same_times(table, "\n".join(lines) + "\n")
        case 1:
            table.write_text("\n".join(line for line in lines if not line.endswith("ward 4")) + "\n")
        case 2:
            table.write_text(text.replace("ward 3", "ward 9"))
    end = attack.coterie(*words, "--out", str(folder), "--resume")
    attack.judge("changed data", table.name, begun, end, right=lambda: False)


def two_at_once(attack: Attack, chance: random.Random) -> None:
    """Two processes on one folder: one is refused, or comes when the other has ended."""
    folder = attack.root / f"study-{attack.trials}"
    words = (*attack.words, "--out", str(folder), "--resume")
    first = attack.begin(*words)
    time.sleep(chance.uniform(0, 0.6))
    second = attack.begin(*words)
    ends = sorted((attack.wait(*first), attack.wait(*second)), key=lambda end: -end.code)
    attack.judge("two at once", str([end.code for end in ends]), *ends, right=lambda: attack.resumed(folder)[1]())


def code_in_files(attack: Attack, chance: random.Random) -> None:
    """Code that a file names, or that lies beside it, does not run unasked."""
    place = attack.root / f"planted-{attack.trials}"
    place.mkdir()
    names = ("typer", "rich", "numpy", "pyarrow", "torch", "json", "payload", "sitecustomize", "pandas", "coterie_plugin")
    for name in names:
        (place / f"{name}.py").write_text(PLANTED)
    model = chance.choice(
        ("payload:anything", "os:system('touch ran')", "os:system", "builtins:exec", "subprocess:run('touch ran')", "mclr")
    )
    method = chance.choice(("fedavg", "payload:Mine", "os:system"))
    (place / "s.toml").write_text(f'methods = ["{method}"]\ndata = "heart"\nmodel = "{model}"\nrounds = 1\n')
    words = chance.choice((("run", "s.toml"), ("show", str(attack.clean)), ("digest", str(attack.clean)), ("methods",), ("data",)))
    end = attack.coterie(*words, cwd=place)
    kind = "code in study files" if words[0] == "run" else "code beside a command"
    attack.judge(kind, f"{model} {method}", end, right=lambda: not (place / "ran").exists())
    if (place / "ran").exists():
        attack.faults.append(f"{words} ran planted code")


def nasty_names(attack: Attack, chance: random.Random) -> None:
    """Names from data are data, wherever they are shown."""
    place = attack.root / f"names-{attack.trials}"
    place.mkdir()
    chosen = chance.sample(NASTY, 4)
    quoted = ['"' + name.replace('"', '""') + '"' for name in chosen]
    (place / "t.csv").write_text(integrity.csv_of(quoted, seed=chance.randrange(1000)))
    data, out = f"csv('{place / 't.csv'}',label=label,client=client)", place / "study"
    first = attack.coterie("data", data)
    ends = [first, attack.coterie("run", "fedavg", "--data", data, *SETTINGS, "--rounds", "1", "--out", str(out))]
    if ends[-1].code == 0:
        ends += [attack.coterie(command, str(out)) for command in ("show", "report", "verify")]
    page = out / "report.html"
    attack.judge(
        "names from data", str(chosen), *ends, right=lambda: page.is_file() and "<script>alert(1)" not in page.read_text(encoding="utf-8")
    )


def odd_labels(attack: Attack, chance: random.Random) -> None:
    """Labels that are no classes: huge, fractions, dates, all different."""
    place = attack.root / f"labels-{attack.trials}"
    place.mkdir()
    make: Callable[[int], str] = chance.choice(
        (
            lambda i: str(10**9 + i),
            lambda i: f"{i / 7:.5f}",
            lambda i: f"2020-01-{i % 28 + 1}",
            lambda i: "nan",
            lambda i: str(-i),
            lambda i: "",
        )
    )
    rows = [f"{chance.random():.3f},{make(i)},{'ab'[i % 2]}" for i in range(4000)]
    (place / "t.csv").write_text("\n".join(["x,label,client", *rows]) + "\n")
    end = attack.coterie("data", f"csv('{place / 't.csv'}',label=label,client=client)")
    attack.judge("odd labels", make(3), end, right=lambda: True)


KINDS: dict[str, Kind] = {
    "flipped bit": damage("flipped bit", _flip),
    "cut file": damage("cut file", _cut),
    "lost file": damage("lost file", _lose),
    "segments": damage("segments", _segments),
    "settings": damage("settings", _reversed),
    "killed at creation": kill(whole=False),
    "killed anywhere": kill(whole=True),
    "changed data": changed_data,
    "two at once": two_at_once,
    "code": code_in_files,
    "names": nasty_names,
    "labels": odd_labels,
}
WEIGHTS = (10, 4, 4, 8, 1, 6, 6, 4, 3, 4, 3, 2)
