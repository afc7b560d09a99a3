"""The page of an inspection: one file, no network."""

from html import escape

from coterie.heterogeneity.indices import INDICES
from coterie.inspect.answers import Answer, answers
from coterie.inspect.figures import client_gains, inspection_curves, inspection_map, pilot_arms, similarity
from coterie.inspect.inspection import Inspection
from coterie.inspect.recommendation import recommend
from coterie.report.page import Block, Html, Section, page, paragraph

HOW = (
    "Every client sent its mean gradient at one random model, on two halves of its data. No sample moved. What the two halves of a client "
    "have in common is the client; what differs is chance. The tests are explained in docs/inspect.md."
)


def inspection_page(found: Inspection) -> str:
    """The whole page as text."""
    title = f"Are there groups here? {found.data}"
    lead = f"{len(found.ids)} clients, model {found.model}. {found.sampled}".strip()
    return page(title, lead, sections(found))


def sections(found: Inspection) -> list[Section]:
    """Answers first, then what they rest on."""
    advised = recommend(found)
    told: list[Block] = [] if advised is None else [paragraph(str(advised), "answer"), paragraph(f"Next: {advised.command}", "note")]
    told += [Html("".join(map(_card, answers(found)))), paragraph(HOW, "note")]
    if found.left_out:
        told.append(paragraph(f"Left out, for want of samples or of an answer: {len(found.left_out)} clients.", "note"))
    made = [
        Section("The answers", told, "answers", "Answers"),
        Section("The clients", [similarity(found), inspection_map(found)], "clients", "Clients"),
        Section("The groups", [inspection_curves(found)], "groups", "Groups"),
    ]
    if found.pilot is not None:
        made.append(Section("The pilot", [pilot_arms(found.pilot), *client_gains(found)], "help", "Pilot"))
    return [*made, Section("How different the clients are", [_indices(found)], "indices", "Indices")]


def _card(answer: Answer) -> str:
    return f"<p>{escape(answer.question)} <strong>{escape(answer.short)}</strong><br>{escape(answer.evidence)}</p>"


def _indices(found: Inspection) -> Html:
    told = [(name, f"{value:.3g}", INDICES[name].leaves, INDICES[name].meaning) for name, value in found.indices.items()]
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in told)
    head = "<thead><tr><th>index</th><th>value</th><th>what leaves the client</th><th>meaning</th></tr></thead>"
    return Html(f'<div class="table"><table class="words">{head}<tbody>{rows}</tbody></table></div>')
