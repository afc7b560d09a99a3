"""Write the parts of the documentation that are made from the code: the command reference, the list of methods, the routing table, measured
costs of the methods.

python scripts/make_docs.py            # writes
python scripts/make_docs.py --check    # exits with 1 if a part other than the costs is not up to date
"""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd

import coterie as ct
from coterie.engines import routes
from coterie.methods.catalogue import methods, wrappers

DOCS = Path(__file__).resolve().parents[1] / "docs"
METHODS, ARCHITECTURE = DOCS / "reference" / "methods", DOCS / "explanation" / "architecture.md"
DATA = "digits/rotated(clients=40,groups=4)"
PLAN = ct.Plan(rounds=14, cohort=10, local=ct.Local(epochs=2, batch_size=10, lr=0.1), evaluate_every=14)
MARK = re.compile(r"<!-- cost:(\w+) -->(?:\n.*?<!-- /cost -->)?", re.DOTALL)


def commands() -> str:
    """The command reference, from the command line itself."""
    words = [sys.executable, "-m", "typer", "coterie.cli.app", "utils", "docs", "--name", "coterie"]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return text.replace("&#x27;", "'").rstrip() + "\n"


def listing() -> str:
    """Every method with its page and first line."""
    lines = ["# Methods", "", "| method | what it does |", "| --- | --- |"]
    pages = {name: page.name for page in sorted(METHODS.glob("*.md")) for name in MARK.findall(page.read_text())}
    if missing := [name for name in methods if name not in pages]:
        sys.exit(f"docs/reference/methods has no page with the mark <!-- cost:{missing[0]} -->: write one for the method {missing[0]!r}.")
    for name in methods:
        first = (inspect.getdoc(methods[name]) or "").splitlines()[0].replace("|", r"\|")
        lines.append(f"| [`{name}`]({pages[name]}) | {first} |")
    lines += ["", "Around any method, behind a plus sign (see [wrappers](wrappers.md)):", "", "| wrapper | what it does |", "| --- | --- |"]
    lines += [f"| `{name}` | {(inspect.getdoc(wrappers[name]) or '').splitlines()[0]} |" for name in wrappers]
    lines += ["", "Settings of each: `coterie methods NAME`."]
    lines += ["", "```{toctree}", ":hidden:", ":glob:", "", "*", "```"]
    return "\n".join(lines) + "\n"


def architecture() -> str:
    """The page of the architecture with the routing table."""
    lines = ["| row | trainings | route | backend | why |", "| --- | --- | --- | --- | --- |"]
    rows = enumerate(routes.TABLE, start=1)
    lines += [f"| {number} | {row.condition} | `{row.route}` | {row.backend} | {row.why} |" for number, row in rows]
    table = "\n".join(lines)
    page = (ARCHITECTURE).read_text()
    return re.sub(r"(<!-- routes -->\n).*?(<!-- /routes -->)", lambda m: f"{m[1]}{table}\n{m[2]}", page, flags=re.DOTALL)


def costs() -> dict[str, str]:
    """For each method, what its rounds cost in a small study, from the evidence of that study."""
    result = ct.study(list(methods), data=f"{DATA[:-1]},validation=0.2)", plan=PLAN, seeds=[0])
    rounds = result.evidence.frame("rounds")
    seconds = result.evidence.frame("timings")
    server = seconds[seconds["phase"] == "server"].groupby(["method", "round"], observed=True)["seconds"].sum()
    return {name: _cost(rounds[rounds["method"] == name], server[name]) for name in methods}


def _cost(rounds: "pd.DataFrame", server: "pd.Series[float]") -> str:
    """Medians over the later rounds, and the sum of the start and the first two, where cold starts and warm-ups are."""
    later, first = rounds[rounds["round"] > 2], rounds[rounds["round"] <= 2]
    columns = {"messages": 1, "bytes_down": 1000, "bytes_up": 1000, "passes": 1, "steps": 1}
    usual = [later[name].median() / unit for name, unit in columns.items()]
    begin = [first[name].sum() / unit for name, unit in columns.items()]
    rows = [
        "| | messages | kB down | kB up | client passes | client steps | server ms |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| a round, median | " + " | ".join(f"{v:,.0f}" for v in usual) + f" | {1000 * server[server.index > 2].median():.1f} |",
        "| start and first two rounds, sum | "
        + " | ".join(f"{v:,.0f}" for v in begin)
        + f" | {1000 * server[server.index <= 2].sum():.1f} |",
    ]
    return "\n".join(rows)


def write_costs() -> None:
    """Fill the marks on the methods' pages."""
    found = costs()
    note = f"Measured on `{DATA}`, softmax regression (650 parameters), 10 of 40 clients a round, two local epochs:"
    for page in sorted(METHODS.glob("*.md")):
        text = page.read_text()
        filled = MARK.sub(lambda m: f"<!-- cost:{m[1]} -->\n`{m[1]}`. {note}\n\n{found[m[1]]}\n<!-- /cost -->", text)
        if filled != text:
            page.write_text(filled)


def main() -> None:
    """Write, or check."""
    made = {DOCS / "reference" / "commands.md": commands(), METHODS / "README.md": listing(), ARCHITECTURE: architecture()}
    if "--check" in sys.argv:
        stale = [path.name for path, text in made.items() if not path.exists() or path.read_text() != text]
        sys.exit(f"not up to date, run make docs: {', '.join(stale)}" if stale else 0)
    for path, text in made.items():
        path.write_text(text)
    write_costs()


if __name__ == "__main__":
    main()
