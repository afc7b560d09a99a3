"""A reproduction as files to keep: a page in Markdown, the scores of every seed as CSV, what else it was judged from as JSON, figures."""

from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

from coterie.core.counted import counted
from coterie.core.errors import UserError
from coterie.core.inside import write_inside
from coterie.core.table_text import code_span, csv_text, markdown_lines
from coterie.reproduce.curve_files import curves_text
from coterie.reproduce.figure import draw_figures
from coterie.reproduce.file import Reproduction
from coterie.reproduce.kept import kept_of, kept_text
from coterie.reproduce.made import made_text, seeds_and_draws
from coterie.reproduce.outcomes import ClaimResult
from coterie.reproduce.protocol import FIELDS
from coterie.reproduce.reproduced import Reproduced
from coterie.reproduce.rows import cells
from coterie.reproduce.rules import FEWEST, SHOWN
from coterie.reproduce.score_tables import frame_of, score_lines
from coterie.reproduce.told import curves_told, judged_on, settings_told, weights_told
from coterie.reproduce.weight_files import weights_text
from coterie.reproduce.wording import PageWords, wording_of


def write_page(outcome: Reproduced, folder: Path, command: str) -> Path:
    """NAME.md, NAME.csv, NAME.json and NAME*.svg in a folder; the page's path. What is judged again comes with the scores it is from."""
    name = outcome.study.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        figures = draw_figures(outcome, folder)
        csv = frame_of(outcome)
        if len(csv):
            kept = outcome.kept or kept_of(outcome.runs, outcome.values, command, date.today().isoformat())
            write_inside(folder, f"{name}.csv", csv_text(csv))
            write_inside(folder, f"{name}.json", kept_text(kept))
            if curves := curves_text(outcome.values):
                write_inside(folder, f"{name}-curves.csv", curves)
            if weights := weights_text(outcome.values):
                write_inside(folder, f"{name}-weights.csv", weights)
        path = write_inside(folder, f"{name}.md", "\n".join(page_lines(outcome, figures, command, has_csv=len(csv) > 0)) + "\n")
    except OSError as error:
        raise UserError(f"Cannot write to {folder}: {error.strerror or error}.") from error
    return path


def page_lines(outcome: Reproduced, figures: Sequence[str], command: str, has_csv: bool) -> Iterator[str]:
    """The page, verdict first."""
    study, result, words = outcome.study, outcome.result, wording_of(outcome.study)
    yield f"# {study.title}\n"
    yield f"{study.whence}. {study.asks}\n"
    yield f"**Verdict: {result.sentence}.**\n"
    yield from verdict_lines(outcome)
    for figure in figures:
        yield f"\n![{study.title}]({figure})"
    yield from score_lines(outcome)
    yield "\n## How\n"
    yield f"{_when(outcome, command)}{judged_on(outcome)}"
    if any(" | " in row for values in outcome.values.values() for row in values.rows):
        yield "Rows named METHOD | MODEL are one model, or one way to combine several, on the server's own test set."
    if has_csv:
        yield f"The scores of every seed: [{study.name}.csv]({study.name}.csv)" + curves_told(outcome)
        yield from weights_told(outcome)
    yield from _protocol(study, words)
    yield f"\n{words.deviations}\n"
    yield from (f"- {sentence}" for sentence in study.deviations)
    yield f"\nRules. {words.holds}\n"
    yield from (f"- *{kind}*: {words.rule(kind)}." for kind in dict.fromkeys(claim.kind for claim in study.claims))
    yield f"- {SHOWN}. It is *contradicted* when the opposite is shown, *inconclusive* when neither is (or with fewer than {FEWEST} runs)."
    yield f"- {words.counted}"
    yield "\nSettings of each part:\n"
    kept = outcome.kept or kept_of(outcome.runs, outcome.values, command, "")
    for run in outcome.runs:
        text = settings_told(study, run, outcome.values[run.part.name])
        known = kept.parts.get(run.part.name)
        yield text if run.why_not or known is None else f"{text} {made_text(known.made or seeds_and_draws(run))}."


def verdict_lines(outcome: Reproduced) -> Iterator[str]:
    """The claims and controls in tables, what makes rows of them variants, and what these runs cannot tell."""
    result, words = outcome.result, wording_of(outcome.study)
    yield from markdown_lines([words.says, *words.numbers], map(cells, result.claims))
    if result.controls:
        yield "\nWhat the controls say:\n"
        yield from markdown_lines(["control", *words.numbers], map(cells, result.controls))
    run = [own for own in result.claims if own.outcome != "not run"]
    yield from _told(words.not_own_row, run, [[own.variant] if own.variant else [] for own in run])
    yield from _told("What these runs cannot tell:", run, [list(own.unknown) for own in run])


def _told(title: str, claims: Sequence[ClaimResult], reasons: Sequence[Sequence[str]]) -> Iterator[str]:
    """Each reason once, with how many of the claims it is about unless it is all."""
    count = {reason: sum(reason in own for own in reasons) for own in reasons for reason in own}
    if count:
        yield f"\n{title}\n"
        yield from (f"- {text}" + (f" ({counted(n, 'claim')})" if n < len(claims) else "") + "." for text, n in count.items())


def _protocol(study: Reproduction, words: PageWords) -> Iterator[str]:
    """What the paper says of how it was done, or what was written down in place of that."""
    yield f"\n{words.protocol}\n"
    yield from markdown_lines(["", words.protocol_column], [[title, getattr(study.protocol, name)] for name, title in FIELDS.items()])
    if study.protocol.unsaid:
        yield "\nWhat it leaves open, and what was taken:\n"
        yield from (f"- {sentence}" for sentence in study.protocol.unsaid)


def _when(outcome: Reproduced, command: str) -> str:
    today, kept = date.today().isoformat(), outcome.kept
    if kept is None:
        return f"{code_span(command)}, {today}."
    parts = [kept.parts[run.part.name] for run in outcome.runs if not run.why_not and run.part.name in kept.parts]
    others = dict.fromkeys(f"{code_span(part.command)}, {part.date}" for part in parts if part.command not in ("", kept.command))
    by = f" by {' and '.join(others)}" if others else ""
    if not outcome.again:
        return f"{code_span(command)}, {today}; the other parts{by}, from the scores that were kept."
    earlier = f"; other parts{by}" if by else ""
    return f"{code_span(kept.command)}, {kept.date}{earlier}; judged again from the scores of every seed, {today}: nothing was run anew."
