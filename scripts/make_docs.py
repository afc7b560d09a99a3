"""Write the parts of the documentation that are made from the code: the command reference, the list of methods, the routing table, the
settings, measured costs of the methods.

python scripts/make_docs.py            # writes; costs where a page has none yet
python scripts/make_docs.py --costs    # measures the costs of all methods again
python scripts/make_docs.py --check    # exits with 1 if a part other than the costs is not up to date
"""

import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd

import coterie as ct
from coterie.core.settings import get_help, get_setting_types
from coterie.deploy.composition import COMPOSITIONS, REFUSED, SAME, SITE
from coterie.engines import routes
from coterie.methods.catalogue import methods, wrappers

DOCS = Path(__file__).resolve().parents[1] / "docs"
METHODS, ARCHITECTURE = DOCS / "reference" / "methods", DOCS / "explanation" / "architecture.md"
SETTINGS, WARDS = DOCS / "reference" / "study-files.md", DOCS / "howto" / "wards.md"
DATA = "digits/rotated(clients=40,groups=4)"
PLAN = ct.Plan(rounds=14, cohort=10, local=ct.Local(epochs=2, batch_size=10, lr=0.1), evaluate_every=14)
MARK = re.compile(r"<!-- cost:(\w+) -->(?:\n[^<]*<!-- /cost -->)?", re.DOTALL)
EMPTY_MARK = re.compile(r"<!-- cost:(\w+) -->(?!\n[^<]*<!-- /cost -->)")


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
    lines += ["", "Settings of each: `coterie methods NAME`. Costs on the pages: `python scripts/make_docs.py --costs`, on", f"`{DATA}`,"]
    lines += ["softmax regression (650 parameters), 10 of 40 clients a round, two local epochs."]
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


def wards() -> str:
    """The page of wards with what each method gives where a site answers as one client."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, found in COMPOSITIONS.items():
        groups.setdefault((found.kind, found.reason), []).append(f"`{name}`" if name in methods else f"`+{name}`")
    words = {SAME: "same", SITE: "a site is one client", REFUSED: "refused"}
    lines = ["| with `aggregate` | methods | why: the method |", "| --- | --- | --- |"]
    lines += [f"| {words[kind]} | {', '.join(names)} | {reason} |" for (kind, reason), names in groups.items()]
    table = "\n".join(lines)
    return re.sub(
        r"(<!-- composition -->\n).*?(<!-- /composition -->)", lambda m: f"{m[1]}{table}\n{m[2]}", WARDS.read_text(), flags=re.DOTALL
    )


def settings() -> str:
    """The page of study files with a table of every setting of the plan, of local training and of execution."""

    def write_table(mark: re.Match[str]) -> str:
        owner = getattr(ct, mark[1])
        kinds = get_setting_types(owner)
        lines = [f"<!-- settings:{mark[1]} -->", "| setting | default | meaning |", "| --- | --- | --- |"]
        for f in (f for f in dataclasses.fields(owner) if get_help(f)):
            name = f"`{f.name}` (`{f.metadata['flag']}`)" if f.metadata["flag"] else f"`{f.name}`"
            default = "" if f.default is None else f"`{f.default:g}`" if isinstance(f.default, float) else f"`{f.default}`"
            choices = ", ".join(f"`{word}`" for word in kinds[f.name].choices)
            lines.append(f"| {name} | {default} | {get_help(f)}{f' Choices: {choices}.' if choices else ''} |")
        return "\n".join([*lines, "<!-- /settings -->"])

    return re.sub(r"<!-- settings:(\w+) -->\n.*?<!-- /settings -->", write_table, SETTINGS.read_text(), flags=re.DOTALL)


def costs(names: list[str]) -> dict[str, str]:
    """For each of these methods, what its rounds cost in a small study, from the evidence of that study."""
    result = ct.study(names, data=f"{DATA[:-1]},validation=0.2)", plan=PLAN, seeds=[0])
    rounds = result.evidence.frame("rounds")
    seconds = result.evidence.frame("timings")
    server = seconds[seconds["phase"] == "server"].groupby(["method", "round"], observed=True)["seconds"].sum()
    return {name: _cost(name, rounds[rounds["method"] == name], server[name]) for name in names}


def _cost(name: str, rounds: "pd.DataFrame", server: "pd.Series[float]") -> str:
    """Medians over the later rounds, and the sum of the start and the first two, where cold starts and warm-ups are."""
    later, first = rounds[rounds["round"] > 2], rounds[rounds["round"] <= 2]
    columns = {"messages": 1, "bytes_down": 1000, "bytes_up": 1000, "passes": 1, "steps": 1}
    usual = [later[name].median() / unit for name, unit in columns.items()]
    begin = [first[name].sum() / unit for name, unit in columns.items()]
    rows = [
        f"| `{name}` | messages | kB down | kB up | client passes | client steps | server ms |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| a round, median | " + " | ".join(f"{v:,.0f}" for v in usual) + f" | {1000 * server[server.index > 2].median():.1f} |",
        "| start and first two rounds, sum | "
        + " | ".join(f"{v:,.0f}" for v in begin)
        + f" | {1000 * server[server.index <= 2].sum():.1f} |",
    ]
    return "\n".join(rows)


def write_costs(mark: re.Pattern[str]) -> None:
    """Fill these marks on the methods' pages. Times of the server differ from run to run, so filled marks are usually left alone."""
    pages = {page: mark.findall(page.read_text()) for page in sorted(METHODS.glob("*.md"))}
    names = [name for named in pages.values() for name in named]
    found = costs(names) if names else {}
    for page in (page for page, named in pages.items() if named):
        page.write_text(mark.sub(lambda m: f"<!-- cost:{m[1]} -->\n{found[m[1]]}\n<!-- /cost -->", page.read_text()))


def main() -> None:
    """Write, or check."""
    made = {
        DOCS / "reference" / "commands.md": commands(),
        METHODS / "README.md": listing(),
        ARCHITECTURE: architecture(),
        SETTINGS: settings(),
        WARDS: wards(),
    }
    if "--check" in sys.argv:
        stale = [path.name for path, text in made.items() if not path.exists() or path.read_text() != text]
        sys.exit(f"not up to date, run make docs: {', '.join(stale)}" if stale else 0)
    for path, text in made.items():
        path.write_text(text)
    write_costs(MARK if "--costs" in sys.argv else EMPTY_MARK)


if __name__ == "__main__":
    main()
