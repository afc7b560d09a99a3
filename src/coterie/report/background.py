"""What was studied and with what: settings, methods in full, versions, and how the trainings were carried out."""

from typing import Any

from coterie.analysis.comparison import Comparison
from coterie.core.errors import UserError
from coterie.core.json_object import read_object
from coterie.report.page import Block, Html, paragraph
from coterie.report.subject import Subject
from coterie.report.tables import words_table


def settings_blocks(subject: Subject, comparison: Comparison) -> tuple[list[Block], list[str]]:
    """The blocks of the section, and files that could not be read."""
    settings, records = subject.findings.records.settings, subject.findings.records
    plan, local = settings.plan, settings.plan.local
    rows = [
        ("data", settings.data),
        ("draws of the data", _listed(subject.findings.repetitions.draws)),
        ("clients", f"{len(records.ids):,} with {int(records.train.sum()):,} training and {int(records.test.sum()):,} test samples"),
        ("model", settings.model),
        ("seeds", f"{_listed(settings.seeds)}; compared: {subject.findings.repetitions}"),
        ("rounds", f"{subject.findings.scope.last} of {plan.rounds}, evaluated every {plan.evaluate_every}"),
        *((name.replace("_", " "), str(value)) for name, value in vars(plan).items() if name not in ("rounds", "evaluate_every", "local")),
        *((f"local {name.replace('_', ' ')}", str(value)) for name, value in vars(local).items()),
    ]
    methods = [(subject.name(label), label) for label in subject.styles]
    blocks: list[Block] = [words_table(rows), Html("<h3>Methods in full</h3>"), words_table(methods)]
    if chosen := comparison.tuning.get(folder.name if (folder := records.evidence.folder) is not None else ""):
        rates = [(label, _chosen(found)) for label, found in chosen.items()]
        blocks += [Html("<h3>Learning rates chosen on validation parts</h3>"), words_table(rates)]
    versions, faults = _versions(subject)
    if versions:
        blocks += [Html("<h3>Versions and machine</h3>"), words_table(versions)]
    blocks.append(
        paragraph("Every number comes from the evidence in this folder; coterie digest prints the hash that defines its equality.", "note")
    )
    return blocks, faults


def _chosen(found: dict[str, Any]) -> str:
    edge = "; the edge of what was tried, a rate beyond may do better" if found["at_edge"] else ""
    return f"{found['chosen']:g} of {', '.join(f'{rate:g}' for rate in found['rates'])}{edge}"


def _versions(subject: Subject) -> tuple[list[tuple[str, str]], list[str]]:
    folder, rows, faults = subject.findings.records.evidence.folder, [], []
    for name in ("environment", "execution", "routes") if folder is not None else ():
        path = folder / f"{name}.json"  # type: ignore[operator]
        if not path.exists():
            continue
        try:
            tree = read_object(path)
        except UserError as error:
            faults.append(str(error))
            continue
        packages = tree.pop("packages", {})
        packages = packages if isinstance(packages, dict) else {}
        rows += [(str(key), str(value)) for key, value in {**packages, **tree}.items() if value is not None]
    return rows, faults


def _listed(seeds: tuple[int, ...]) -> str:
    whole = seeds == tuple(range(seeds[0], seeds[-1] + 1)) and len(seeds) > 2
    return f"{seeds[0]} to {seeds[-1]}" if whole else ", ".join(map(str, seeds))
