"""`write_dossier`: from a study, a comparison, a federation or a site's kit to its papers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coterie._util.errors import UserError
from coterie._util.files import make_folder_inside, write_inside
from coterie._util.progress import track
from coterie.deploy.bundle.files import read_head
from coterie.deploy.dossier.document import Document, Gap, import_typst
from coterie.deploy.dossier.egress import write_egress_record, write_missing_record, write_simulated_record
from coterie.deploy.dossier.method_statement import write_method_statement
from coterie.deploy.dossier.model_card import write_model_card
from coterie.deploy.dossier.source import GAPS_FILE, Source, is_used_kit, open_source, read_answers
from coterie.deploy.server.federation import FEDERATION_FILE

FOLDER, README = "dossier", "README.md"


@dataclass(frozen=True)
class Dossier:
    """What was written."""

    folder: Path
    files: tuple[Path, ...]
    gaps: int  # without an answer
    notices: tuple[str, ...] = ()


def write_dossier(folder: Path | str, *, run: str | None = None, method: str | None = None, bundle: Path | None = None) -> Dossier:
    """Write the papers of a folder into ``dossier/`` in it, as HTML, PDF and, of the model card, Markdown.

    Everything is read and checked first: where something is damaged, nothing is written. What people filled in (`gaps.toml`) is kept.

    Args:
        folder: A study, a comparison, a federation, or a site's kit, of which the egress record alone is made.
        run: The run of a federation; by default the last with a study. Its papers are in ``dossier/RUN/``.
        method: The method that the model card is of; by default the recommended one.
        bundle: A bundle that gets the model card as its README.md.

    Example:
        >>> write_dossier("runs/heart").files  # doctest: +SKIP
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}: name a study, a comparison, a federation or a kit.")
    if is_used_kit(folder) and not (folder / FEDERATION_FILE).exists():
        if run is not None or method is not None or bundle is not None:
            raise UserError(f"{folder} is a site's kit, whose dossier is its egress record: omit --run, --method and --bundle.")
        answers = read_answers(folder / FOLDER / GAPS_FILE)
        return _write(_make_place(folder), [write_egress_record(folder, answers)])
    if bundle is not None:
        read_head(bundle)
    source, names = _open_with_answers(folder, run, method)
    documents = [write_model_card(source), write_method_statement(source), *_write_egress(source)]
    made = _write(_make_place(folder, *names), documents)
    if bundle is None:
        return made
    return replace(made, files=(*made.files, write_inside(bundle, README, documents[0].markdown())))


def make_model_card(folder: Path | str, method: str | None = None) -> str:
    """The model card of a study or a comparison as Markdown, with what people filled in; nothing is written.

    Args:
        folder: A study or a comparison.
        method: The method that the card is of; by default the recommended one.
    """
    source, _ = _open_with_answers(Path(folder), None, method)
    return write_model_card(source).markdown()


def _open_with_answers(folder: Path, run: str | None, method: str | None) -> tuple[Source, list[str]]:
    """What the papers are made from, and the folders below ``dossier/`` that are theirs."""
    source = open_source(folder, run=run, method=method)
    names = [source.run.run.name] if source.run is not None else []
    return replace(source, answers=read_answers(folder.joinpath(FOLDER, *names, GAPS_FILE))), names


def _make_place(folder: Path, *names: str) -> Path:
    try:
        place = make_folder_inside(folder, FOLDER)
        for name in names:
            place = make_folder_inside(place, name)
    except OSError as error:
        raise UserError(f"Cannot write to {folder}: {error.strerror or error}.") from error
    return place


def _write_egress(source: Source) -> list[Document]:
    """A record for each site of a federation; of a simulation, that nothing left."""
    if source.run is None:
        parts = [own.records for findings in source.comparison.federations for own in findings.draws.each]
        total = sum(float(np.nansum(records.costs[name])) for records in parts for name in ("bytes_up", "bytes_down"))
        return [write_simulated_record(total, len(source.findings.records.ids))]
    kits = source.run.kits
    return [
        write_egress_record(kits[site], source.answers, f"egress-{site}") if site in kits else write_missing_record(site, source.answers)
        for site in source.sites
    ]


def _write(place: Path, documents: Sequence[Document]) -> Dossier:
    """The documents, each file whole or not at all."""
    written, notices = list[Path](), list[str]()
    contents: list[tuple[str, str | bytes]] = []
    for document in documents:
        contents.append((f"{document.name}.html", document.html()))
        if document.front:
            contents.append((f"{document.name}.md", document.markdown()))
    try:
        import_typst()
        for document in track(documents, "writing PDF"):
            data, notice = document.pdf()
            contents.append((f"{document.name}.pdf", data))
            notices += [notice] if notice else []
    except UserError as error:
        notices.append(str(error))
    gaps = [gap for document in documents for gap in document.gaps]
    if not (place / GAPS_FILE).exists():
        contents.append((GAPS_FILE, _format_gaps(gaps)))
    try:
        written = [write_inside(place, name, content) for name, content in contents]
    except OSError as error:
        raise UserError(f"Cannot write the dossier to {place}: {error.strerror or error}.") from error
    return Dossier(place, tuple(written), len(gaps), tuple(notices))


def _format_gaps(gaps: Sequence[Gap]) -> str:
    """The file of gaps, empty: a person's answers stand in the papers when they are made again."""
    lines = ["# What no evidence holds. Fill in what you know, and run 'coterie dossier' again: the papers quote it as stated by you.\n"]
    return "\n".join([*lines, *(f'# {gap.who}: {gap.question}\n{json.dumps(gap.key)} = ""\n' for gap in gaps)])
