"""Count words, sentence lengths and words to avoid over the documentation, and over messages and docstrings of the source.

    python scripts/prose.py            # a table by part of the tree
    python scripts/prose.py --list     # also each hit as file:line, with what to write instead, and each page that is too long
    python scripts/prose.py --check    # the same, and exits with 1 if there is any

Words are counted outside code blocks, comments and generated parts (from `<!-- name -->` to `<!-- /name -->` or `<!-- end -->`). The length
of sentences is taken from paragraphs and list items. Words to avoid are looked for there, in headings, in tables and in generated parts;
text in `code font` is exempt. A page is generated if GENERATED has it or its first line is a comment that starts with "generated".
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_WORDS = 1200  # of a page that people write
LONGER = {"SECURITY.md": 1700}  # its table of attacks has a row for each
FRONT = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
GENERATED = ("docs/reference/commands.md", "docs/reference/methods/README.md")
PROGRAM = (
    r"answer|bundle|column|command|error|file|head|interval|kit|label|line|log|manifest|message|page|plan|policy|program|report|row|server|site"
    r"|table|test|text|verdict"
)
TAKES_PART = r"answer(?:s|ed)?|gains?|gained|is|are|was|were|loses?|lost|repl(?:y|ies|ied)|sends?|sent|takes?|took|trains?|trained"
HINTS = {  # what to avoid: what to write
    r"tells?|told|telling": "report, print, show, raise; distinguish",
    rf"(?:{PROGRAM})s? (?:says?|said)|does not say": "report, print, show, raise",
    r"mend(?:s|ed|ing)?": "fix",
    r"to be had": "(not) available",
    r"deal(?:s|ing)? out|dealt(?: out)?": "partition, assign",
    r"go(?:es|ing)? on with|went on with": "resume, continue",
    r"anew": "restart, start over; again",
    r"lea(?:ve|ves|ving) away|left away": "omit",
    r"noughts?": "zeros",
    rf"everybody|somebody|nobody|everyone|someone|(?<!people\s)(?<!person\s)who (?:{TAKES_PART})": "all clients, a client, which clients",
    r"aloft|on (?:its|their) way": "pending",
    r"(?:drawn )?by lots?": "random",
    r"(?:keeps? |kept )?company": "similarity, co-occurrence",
    r"carr(?:y|ies|ied|ying) out": "run, executed",
    r"what came of (?:it|them)": "result",
    r"to the (?:bit|digit)": "bitwise identical; identical to the printed precision",
    r"hostile": "malicious",
    r"right in (?:100|a hundred)": "% accuracy",
    r"unless given": "default: X",
    r"not shown|shown to|(?:better|claim|difference|effect|gain|harm|loss|opposite|worse) (?:is|are|was|were) shown": "(not) significant",
    r"(?<!clinical\s)trials?|tried": "test, tested; evaluated",
    r"like sizes?": "similar size",
}
HITS = re.compile("|".join(rf"(?P<h{i}>\b(?:{find})\b)" for i, find in enumerate(HINTS)).replace(" ", r"\s+"), re.IGNORECASE)
FENCE = re.compile(r"^ *(```|~~~).*?^ *\1", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
PART = re.compile(r"<!-- (?!/|end\b)(\w[^>]*?) -->.*?<!-- (?:/[\w:-]+|end) -->", re.DOTALL)
CODE = re.compile(r"``.+?``|`[^`]*`", re.DOTALL)
TARGET = re.compile(r"(?<=\])\([^)\s]*(?: \"[^\"]*\")?\)|https?://\S+")
WORD = re.compile(r"\S*\w\S*")
BLOCK = re.compile(r"\n[ \t]*\n|\n(?=[ \t]*(?:[-*+]|\d+\.)[ \t])|\n(?=[ \t]+\w+: )")
END = re.compile(
    r"(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bvs\.)(?<!\bal\.)(?<!\bcf\.)(?<!\bEq\.)(?<!\bSec\.)(?<!\bFig\.)(?<=[.!?])[\"')*_]*\s+(?=[^\sa-z])"
)
PLAIN_WORDS = re.compile(r"[A-Za-z]+,? (?:[A-Za-z'-]+,? ){2,}[A-Za-z'-]+")  # four in a row: a string that people read


@dataclass
class Text:
    """What a page, or the strings of a module, come to."""

    path: str
    words: int = 0
    sentences: list[int] = field(default_factory=list)  # words in each
    hits: list[tuple[int, str, str]] = field(default_factory=list)  # line, what was found, what to write

    @property
    def is_too_long(self) -> bool:
        return self.path.endswith(".md") and self.words > LONGER.get(self.path, MOST_WORDS)


def blank(pattern: re.Pattern[str], text: str) -> str:
    """The text without what the pattern finds, every line where it was."""
    return pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def count_sentences(prose: str) -> list[int]:
    """Words in each sentence of paragraphs and list items; headings and tables are left out."""
    prose = re.sub(r"^ *(?:#|\||!\[).*$", "", prose, flags=re.MULTILINE)
    pieces = (piece for block in BLOCK.split(prose) for piece in END.split(block))
    return [words for piece in pieces if (words := len(WORD.findall(piece))) > 1]


def find_hits(text: str) -> Iterator[tuple[int, str, str]]:
    """Words to avoid: the line (from 1), what was found and what to write."""
    for found in HITS.finditer(text):
        hint = list(HINTS.values())[int((found.lastgroup or "h0")[1:])]
        yield text.count("\n", 0, found.start()) + 1, " ".join(found[0].split()), hint


def read_page(path: Path, name: str) -> Text:
    """Count a page."""
    raw = path.read_text(encoding="utf-8")
    shown = blank(TARGET, blank(COMMENT, blank(FENCE, raw)))
    written = blank(TARGET, blank(COMMENT, blank(PART, blank(FENCE, raw))))
    code_as_word = CODE.sub("code", written)
    return Text(name, len(WORD.findall(written)), count_sentences(code_as_word), list(find_hits(blank(CODE, shown))))


def find_docstrings(tree: ast.Module) -> list[ast.Constant]:
    """The docstrings of a module and of what it defines."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef))
    firsts = (node.body[0] for node in nodes if node.body)
    values = (first.value for first in firsts if isinstance(first, ast.Expr))
    return [value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]


def find_messages(tree: ast.Module, docstrings: list[ast.Constant]) -> Iterator[tuple[ast.expr, str]]:
    """Strings of at least four plain words in a row that are no docstrings, and f-strings with what is filled in as one word."""
    skip = {id(node) for node in docstrings}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skip |= {id(part) for part in node.values}
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skip:
            text = node.value
        else:
            continue
        if PLAIN_WORDS.search(text):
            yield node, text


def read_module(path: Path, name: str) -> tuple[Text, Text]:
    """Count a module: its docstrings and its messages."""
    source = path.read_text(encoding="utf-8")
    tree, lines = ast.parse(source), source.splitlines()
    nodes = find_docstrings(tree)
    made = Text(name), Text(name)
    for text, strings in zip(made, ([(node, str(node.value)) for node in nodes], find_messages(tree, nodes)), strict=True):
        for node, string in strings:
            text.words += len(WORD.findall(string))
            text.sentences += count_sentences(CODE.sub("code", string))
            for line, found, hint in find_hits(blank(CODE, string)):
                span = range(node.lineno, (node.end_lineno or node.lineno) + 1)  # a string in several pieces has its lines elsewhere
                near = (number for number in span if found in lines[number - 1])
                text.hits.append((next(near, min(node.lineno + line - 1, span[-1])), found, hint))
    return made


def is_measured(path: Path, name: str) -> bool:
    """Whether the page's length counts: it is neither generated nor a page of results."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return name not in GENERATED and "results" not in Path(name).parts and not first.startswith("<!-- generated")


def read_tree(root: Path) -> dict[str, list[Text]]:
    """Every text by part of the tree."""
    parts: dict[str, list[Text]] = {"front": [read_page(root / name, name) for name in FRONT if (root / name).exists()]}
    for path in [*sorted((root / "docs").rglob("*.md")), *sorted((root / "results").glob("*.md"))]:
        name = path.relative_to(root).as_posix()
        folder = path.relative_to(root).parts[:-1]
        part = "/".join(folder[:2]) if is_measured(path, name) else "results" if "results" in folder else "generated"
        parts.setdefault(part, []).append(read_page(path, name))
    for path in sorted((root / "src").rglob("*.py")):
        docstrings, messages = read_module(path, path.relative_to(root).as_posix())
        parts.setdefault("src docstrings", []).append(docstrings)
        parts.setdefault("src messages", []).append(messages)
    return parts


def make_table(parts: dict[str, list[Text]]) -> Iterator[str]:
    """The lines of the table."""
    yield f"{'part':<20}{'pages':>7}{'words':>10}{'words a sentence':>18}{'too long':>10}{'hits':>7}"
    everything = [text for texts in parts.values() for text in texts]
    for part, texts in [*parts.items(), ("all", everything)]:
        sentences = [words for text in texts for words in text.sentences]
        mean = sum(sentences) / max(1, len(sentences))
        hits, words = sum(len(text.hits) for text in texts), sum(text.words for text in texts)
        long = "" if part in ("results", "generated", "all") or part.startswith("src") else sum(text.is_too_long for text in texts)
        yield f"{part:<20}{len({text.path for text in texts}):>7}{words:>10,}{mean:>18.1f}{long:>10}{hits:>7}"


def make_list(parts: dict[str, list[Text]]) -> Iterator[str]:
    """Every page that is too long, and every hit."""
    for part, texts in parts.items():
        for text in texts:
            if text.is_too_long and part not in ("results", "generated"):
                yield f"{text.path}: {text.words:,} words, at most {LONGER.get(text.path, MOST_WORDS):,}"
            yield from (f"{text.path}:{line}: {found!r}, write: {hint}" for line, found, hint in text.hits)


def main(words: list[str] | None = None) -> int:
    """Print the table, and what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="the tree to count; default: this one")
    parser.add_argument("--list", action="store_true", help="also print each hit as file:line")
    parser.add_argument("--check", action="store_true", help="print each hit and exit with 1 if there is any, or a page is too long")
    given = parser.parse_args(words)
    parts = read_tree(given.root)
    print("\n".join(make_table(parts)))
    found = list(make_list(parts))
    if given.list or given.check:
        print("\n".join(["", *found]))
    return int(given.check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
