"""A reproduction as files to keep: a page in Markdown, the scores of every seed as CSV, what else it was judged from as JSON, figures."""

from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

from coterie._util.errors import UserError
from coterie._util.files import write_inside
from coterie._util.formatting import format_code_span, format_count, format_csv, format_markdown_table
from coterie.reproduce.claims import ClaimResult
from coterie.reproduce.csv_files import format_curves, format_weights
from coterie.reproduce.figures import draw_figures
from coterie.reproduce.page_text import (
    PageWords,
    choose_words,
    describe_curves,
    describe_scores,
    describe_settings,
    describe_weights,
    make_claim_cells,
    make_score_frame,
    render_scores,
)
from coterie.reproduce.provenance import describe_provenance, format_record, get_seeds_and_draws, make_record
from coterie.reproduce.rejudge import ReproductionResult
from coterie.reproduce.study_files import FIELDS, MIN_REPETITIONS, SHOWN_RULE, Reproduction


def write_page(outcome: ReproductionResult, folder: Path, command: str) -> Path:
    """NAME.md, NAME.csv, NAME.json and NAME*.svg in a folder; the page's path. What is judged again comes with the scores it is from."""
    name = outcome.study.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        figures = draw_figures(outcome, folder)
        csv = make_score_frame(outcome)
        if len(csv):
            kept = outcome.kept or make_record(outcome.runs, outcome.values, command, date.today().isoformat())
            write_inside(folder, f"{name}.csv", format_csv(csv))
            write_inside(folder, f"{name}.json", format_record(kept))
            if curves := format_curves(outcome.values):
                write_inside(folder, f"{name}-curves.csv", curves)
            if weights := format_weights(outcome.values):
                write_inside(folder, f"{name}-weights.csv", weights)
        path = write_inside(folder, f"{name}.md", "\n".join(render_page(outcome, figures, command, has_csv=len(csv) > 0)) + "\n")
    except OSError as error:
        raise UserError(f"Cannot write to {folder}: {error.strerror or error}.") from error
    return path


def render_page(outcome: ReproductionResult, figures: Sequence[str], command: str, has_csv: bool) -> Iterator[str]:
    """The page, verdict first."""
    study, result, words = outcome.study, outcome.result, choose_words(outcome.study)
    yield f"# {study.title}\n"
    yield f"{study.source_text}. {study.asks}\n"
    yield f"**Verdict: {result.sentence}.**\n"
    yield from render_verdict(outcome)
    for figure in figures:
        yield f"\n![{study.title}]({figure})"
    yield from render_scores(outcome)
    yield "\n## How\n"
    yield f"{_describe_origin(outcome, command)}{describe_scores(outcome)}"
    if any(" | " in row for values in outcome.values.values() for row in values.rows):
        yield "Rows named METHOD | MODEL are one model, or one way to combine several, on the server's own test set."
    if has_csv:
        yield f"The scores of every seed: [{study.name}.csv]({study.name}.csv)" + describe_curves(outcome)
        yield from describe_weights(outcome)
    yield from _render_protocol(study, words)
    yield f"\n{words.deviations}\n"
    yield from (f"- {sentence}" for sentence in study.deviations)
    yield f"\nRules. {words.holds}\n"
    yield from (f"- *{kind}*: {words.rule(kind)}." for kind in dict.fromkeys(claim.kind for claim in study.claims))
    yield f"- {SHOWN_RULE}. It is *contradicted* when the opposite is shown, *inconclusive* when neither is (or with fewer than {MIN_REPETITIONS} runs)."
    yield f"- {words.counted}"
    yield "\nSettings of each part:\n"
    kept = outcome.kept or make_record(outcome.runs, outcome.values, command, "")
    for run in outcome.runs:
        text = describe_settings(study, run, outcome.values[run.part.name])
        known = kept.parts.get(run.part.name)
        yield text if run.why_not or known is None else f"{text} {describe_provenance(known.made or get_seeds_and_draws(run))}."


def render_verdict(outcome: ReproductionResult) -> Iterator[str]:
    """The claims and controls in tables, what makes rows of them variants, and what these runs cannot tell."""
    result, words = outcome.result, choose_words(outcome.study)
    yield from format_markdown_table([words.says, *words.numbers], map(make_claim_cells, result.claims))
    if result.controls:
        yield "\nWhat the controls say:\n"
        yield from format_markdown_table(["control", *words.numbers], map(make_claim_cells, result.controls))
    run = [own for own in result.claims if own.outcome != "not run"]
    yield from _list_reasons(words.not_own_row, run, [[own.variant] if own.variant else [] for own in run])
    yield from _list_reasons("What these runs cannot tell:", run, [list(own.unknown) for own in run])


def _list_reasons(title: str, claims: Sequence[ClaimResult], reasons: Sequence[Sequence[str]]) -> Iterator[str]:
    """Each reason once, with how many of the claims it is about unless it is all."""
    count = {reason: sum(reason in own for own in reasons) for own in reasons for reason in own}
    if count:
        yield f"\n{title}\n"
        yield from (f"- {text}" + (f" ({format_count(n, 'claim')})" if n < len(claims) else "") + "." for text, n in count.items())


def _render_protocol(study: Reproduction, words: PageWords) -> Iterator[str]:
    """What the paper says of how it was done, or what was written down in place of that."""
    yield f"\n{words.protocol}\n"
    yield from format_markdown_table(
        ["", words.protocol_column], [[title, getattr(study.protocol, name)] for name, title in FIELDS.items()]
    )
    if study.protocol.unsaid:
        yield "\nWhat it leaves open, and what was taken:\n"
        yield from (f"- {sentence}" for sentence in study.protocol.unsaid)


def _describe_origin(outcome: ReproductionResult, command: str) -> str:
    today, kept = date.today().isoformat(), outcome.kept
    if kept is None:
        return f"{format_code_span(command)}, {today}."
    parts = [kept.parts[run.part.name] for run in outcome.runs if not run.why_not and run.part.name in kept.parts]
    others = dict.fromkeys(f"{format_code_span(part.command)}, {part.date}" for part in parts if part.command not in ("", kept.command))
    by = f" by {' and '.join(others)}" if others else ""
    if not outcome.again:
        return f"{format_code_span(command)}, {today}; the other parts{by}, from the scores that were kept."
    earlier = f"; other parts{by}" if by else ""
    return f"{format_code_span(kept.command)}, {kept.date}{earlier}; judged again from the scores of every seed, {today}: nothing was run anew."
