"""Documents: headings, paragraphs, tables and marked gaps, as HTML with a print style, as Markdown and as PDF.

PDF is made by Typst (`coterie[dossier]`): one wheel without system libraries, with fonts of its own, that writes PDF/A. The text reaches
it as data, never as markup.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from importlib.resources import files
from typing import Any

from coterie._util.errors import UserError
from coterie._util.formatting import escape_controls, escape_markdown, format_markdown_table


@dataclass(frozen=True)
class Text:
    """A paragraph, or a heading of a level from 2 on."""

    text: str
    level: int = 0  # 0: a paragraph
    kind: str = "text"


@dataclass(frozen=True)
class Gap:
    """What cannot be known from evidence: a person fills it in, in the file of gaps. An answer is marked as theirs."""

    key: str
    question: str
    who: str  # fills it in
    answer: str = ""
    kind: str = "gap"


@dataclass(frozen=True)
class Items:
    """A list."""

    items: Sequence[str]
    kind: str = "items"


@dataclass(frozen=True)
class Table:
    """A table; the first column is text, columns after it are aligned as `numbers` says."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    numbers: bool = False  # whether all but the first column are numbers
    kind: str = "table"


Block = Text | Gap | Items | Table
GAP_MARK = "To be filled in by"


@dataclass(frozen=True)
class Document:
    """A paper of the dossier. `name` is its files'; `front` is the YAML front matter of its Markdown, where it has one."""

    name: str
    title: str
    lead: str
    blocks: Sequence[Block]
    front: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gaps(self) -> list[Gap]:
        """Those without an answer."""
        return [block for block in self.blocks if isinstance(block, Gap) and not block.answer]

    def html(self) -> str:
        """A page that needs nothing else, with a print style."""
        style = files("coterie.report").joinpath("style.css").read_text(encoding="utf-8")
        body = "\n".join(map(_render_block, self.blocks))
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="color-scheme" content="light dark">\n'
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
            f"<title>{escape(self.title)}</title>\n<style>{style}{DOCUMENT_STYLE}</style>\n</head>\n<body>\n"
            f"<header><h1>{escape(self.title)}</h1><p>{escape(self.lead)}</p></header>\n<main>{body}</main>\n</body>\n</html>\n"
        )

    def markdown(self) -> str:
        """The same as Markdown, after its front matter."""
        front = ["---", *_format_yaml(self.front), "---", ""] if self.front else []
        lines = [*front, f"# {escape_markdown(self.title)}", "", escape_markdown(self.lead), ""]
        for block in self.blocks:
            lines += [*_format_block(block), ""]
        return "\n".join(lines)

    def pdf(self) -> tuple[bytes, str]:
        """The same as PDF/A, and a notice where it is a plain PDF, since no font on this machine has one of its signs.

        Raises:
            UserError: Typst is not installed, or does not accept the document.
        """
        typst = import_typst()
        tree = {"title": self.title, "lead": self.lead, "blocks": [asdict(block) for block in self.blocks], "mark": GAP_MARK}
        template = files("coterie.deploy.dossier").joinpath("document.typ").read_bytes()
        options = {"format": "pdf", "sys_inputs": {"document": json.dumps(_escape_texts(tree), ensure_ascii=False)}, "timestamp": 0}
        try:
            return bytes(typst.compile(template, pdf_standards="a-2b", **options)), ""
        except RuntimeError as error:
            notice = f"{self.name}.pdf is no PDF/A ({str(error).splitlines()[0]}): install a font with that sign, or use the HTML file."
        try:
            return bytes(typst.compile(template, **options)), notice
        except RuntimeError as error:
            raise UserError(f"Typst cannot write {self.name}.pdf ({str(error).splitlines()[0]}): print the HTML file.") from error


def _escape_texts(tree: Any) -> Any:
    """The tree with control signs in its texts spelt out: no font has them."""
    if isinstance(tree, str):
        return escape_controls(tree)
    if isinstance(tree, Mapping):
        return {name: _escape_texts(value) for name, value in tree.items()}
    return [_escape_texts(value) for value in tree] if isinstance(tree, (list, tuple)) else tree


def import_typst() -> Any:
    """The library that writes PDF."""
    try:
        import typst
    except ImportError:
        raise UserError("PDF needs Typst, which is not installed: pip install 'coterie[dossier]'.") from None
    return typst


DOCUMENT_STYLE = """
main { padding-bottom: 40px; } main h2 { margin-top: 30px; } main h3 { margin-top: 18px; }
.gap { border: 2px dashed var(--worse); padding: 8px 12px; margin: 10px 0; max-width: 75ch; } .gap strong { color: var(--worse); }
.gap .line { border-bottom: 1px solid var(--soft); height: 26px; }
.answered { border-left: 4px solid var(--link); padding: 2px 12px; max-width: 75ch; }
table.texts td, table.texts th { text-align: left; white-space: normal; overflow-wrap: break-word; vertical-align: top; }
table.numbers td, table.numbers th { white-space: normal; }
@media print { .gap, table { break-inside: auto; } h2, h3 { break-after: avoid; } thead { display: table-header-group; } }
"""


def _render_block(block: Block) -> str:
    match block:
        case Text(text, level):
            return f"<h{level}>{escape(text)}</h{level}>" if level else f"<p>{escape(text)}</p>"
        case Gap(_, question, who, answer):
            if answer:
                return f'<p class="answered"><strong>{escape(question)}</strong> {escape(answer)} <em>(stated by {escape(who)})</em></p>'
            return (
                f'<div class="gap"><strong>{GAP_MARK} {escape(who)}:</strong> {escape(question)}<div class="line"></div>'
                '<div class="line"></div></div>'
            )
        case Items(items):
            return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"
        case Table(titles, rows, caption, numbers):
            head = "".join(f"<th>{escape(title)}</th>" for title in titles)
            body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
            above = f'<p class="caption">{escape(caption)}</p>' if caption else ""
            kind = "numbers" if numbers else "texts"
            return f'{above}<div class="table"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _format_block(block: Block) -> list[str]:
    match block:
        case Text(text, level):
            return [f"{'#' * level} {escape_markdown(text)}" if level else escape_markdown(text)]
        case Gap(_, question, who, answer):
            if answer:
                return [f"**{escape_markdown(question)}** {escape_markdown(answer)} *(stated by {escape_markdown(who)})*"]
            return [f"> **{GAP_MARK} {escape_markdown(who)}:** {escape_markdown(question)}"]
        case Items(items):
            return [f"- {escape_markdown(item)}" for item in items]
        case Table(titles, rows, caption, numbers):
            rule = ["---", *["---:" if numbers else "---"] * (len(titles) - 1)]
            return [*([escape_markdown(caption), ""] if caption else []), *format_markdown_table(titles, rows, rule)]


def _format_yaml(tree: Any, indent: str = "") -> Iterator[str]:
    """Mappings and lists as YAML blocks; texts and numbers as JSON, which is YAML, too."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}:"
            yield from _format_yaml(value, indent + "  ")
        elif isinstance(value, list):
            yield f"{indent}{name}:"
            for item in value:
                if isinstance(item, Mapping):
                    first, *rest = _format_yaml(item, indent + "  ")
                    yield f"{indent}- {first.strip()}"
                    yield from rest
                else:
                    yield f"{indent}- {json.dumps(item)}"
        else:
            yield f"{indent}{name}: {json.dumps(value)}"
