"""The method statement: versions, settings, seeds, digests, and how to verify them."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from coterie._util.json_io import read_json_object
from coterie.analysis.verdict import TEST_NAMES, describe_score
from coterie.deploy.dossier.document import Block, Document, Items, Table, Text
from coterie.deploy.dossier.source import OPERATOR, Source
from coterie.deploy.files import escape_text
from coterie.deploy.server.runs import read_journal
from coterie.evidence.folder import list_segments
from coterie.report.wording import describe_method


def write_method_statement(source: Source) -> Document:
    """What was run, with which software, and how anyone with the folder can check it."""
    findings = source.findings
    blocks = [
        *_describe_design(source),
        *_list_versions(source),
        *_list_digests(source),
        *_describe_run(source),
        *_describe_verification(source),
        source.ask("deviations", "Where was the plan of the study deviated from, and why?", OPERATOR),
        source.ask("registration", "Was the study registered or approved (ethics committee), and under which number?", OPERATOR),
    ]
    lead = f"How {', '.join(findings.methods)} were run and compared on {findings.data}."
    return Document("method", "Method statement", lead, blocks)


def _describe_design(source: Source) -> Iterator[Block]:
    yield Text("Design", 2)
    for findings in source.comparison.federations:
        settings = findings.records.settings
        if len(source.comparison.federations) > 1:
            yield Text(findings.data, 3)
        rows = [
            ("data", settings.data),
            ("model", settings.model),
            ("draws of the data", _join(settings.draws)),
            ("seeds", _join(settings.seeds)),
        ]
        rows += [(name.replace("_", " "), _format_value(value)) for name, value in vars(settings.plan).items() if name != "local"]
        rows += [(f"local {name.replace('_', ' ')}", _format_value(value)) for name, value in vars(settings.plan.local).items()]
        yield Table(("setting", "value"), rows)
        methods = [(label, findings.roles.of[label], describe_method(label) or "a method of the user's own") for label in findings.methods]
        yield Table(("method", "role", "what it does"), methods)
        test = (
            f"{TEST_NAMES[findings.test]}, after Holm's correction" if findings.test is not None else "none, since repetitions are too few"
        )
        yield Text(
            f"Compared is the {describe_score(findings)}, over {findings.repetitions}; the test that decides is {test}. Differences below "
            f"{100 * findings.margin:g} points count as none. All methods have the same data, initial models, cohorts and batches, since "
            "every random draw comes from a key of seed, purpose, round and client."
        )


def _format_value(value: object) -> str:
    return "not set" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _join(numbers: tuple[int, ...]) -> str:
    whole = len(numbers) > 2 and numbers == tuple(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]} to {numbers[-1]}" if whole else ", ".join(map(str, numbers))


def _list_versions(source: Source) -> Iterator[Block]:
    yield Text("Software and machine", 2)
    for findings in source.comparison.federations:
        folder = findings.records.evidence.folder
        assert folder is not None
        tree = read_json_object(folder / "environment.json")
        yield Table(("part", "value"), list(_flatten(tree)), f"Recorded in {folder.name}/environment.json when the study began.")


def _flatten(tree: Any, name: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{name}{key} ")
        elif value is not None:
            yield f"{name}{key}", str(value)


def _list_digests(source: Source) -> Iterator[Block]:
    yield Text("Digests", 2)
    kinds = (("all numbers", source.digests), ("counts alone", source.counts))
    rows = [(source.folder.name if name == "." else name, kind, digest) for kind, found in kinds for name, digest in found.items()]
    yield Table(
        ("study", "digest of", "SHA-256"), rows, "Equal digests mean equal evidence. Counts do not depend on how a processor rounds."
    )
    hashes = []
    for findings in source.comparison.federations:
        folder = findings.records.evidence.folder
        assert folder is not None
        for draw, own in (read_json_object(folder / "data.json") if (folder / "data.json").exists() else {}).items():
            hashes += [(f"{folder.name}, draw {draw}", name, value) for name, value in (_flatten(own) if isinstance(own, dict) else ())]
    if hashes:
        yield Table(("study", "part of the data", "SHA-256"), hashes, "Hashes of the data as they were when each draw began.")
    elif source.run is not None:
        yield Text("The data stayed at the sites: the server has no hash of them.")


def _describe_run(source: Source) -> Iterator[Block]:
    """When it ran, and, of a federation, which order the sites approved."""
    yield Text("When and where", 2)
    times = []
    for findings in source.comparison.federations:
        folder = findings.records.evidence.folder
        assert folder is not None
        written = [(segment / "lanes.json").stat().st_mtime for segment in list_segments(folder)]
        when = f"{_format_time(min(written))} to {_format_time(max(written))}" if written else "no round"
        times.append((folder.name, when))
    yield Table(("study", "rounds were written"), times, "By the times of the files: a copy may have others.")
    run = source.run
    if run is None:
        yield Text("A simulation: clients, server and data were on one machine or cluster, and nothing left it.")
        return
    jobs = [line for line in read_journal(run.run.folder) if isinstance(line, dict) and line.get("what") in ("began", "ended")]
    rows = [
        (_format_time(line["time"]), line["what"], escape_text(", ".join(map(str, line.get("sites", ()))) or str(line.get("status", ""))))
        for line in jobs
    ]
    yield Table(("time", "job", "sites or status"), rows, f"Jobs of the run {run.run.name}, from its journal.")
    terms = run.order.terms() if not run.order.trusted else None
    approved = f"The order's hash, which every site approved and which every message carries, is {terms.hash}." if terms is not None else ""
    yield Text(f"Ordered by {escape_text(run.order.operator) or 'no name given'}. {approved}".strip())
    yield Table(("site", "version of Coterie"), [(site, run.members.versions.get(site, "not recorded")) for site in source.sites])


def _format_time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _describe_verification(source: Source) -> Iterator[Block]:
    yield Text("How to verify", 2)
    steps = [
        "coterie verify DIR: every file, checkpoint and row is as it was written (it was, when this dossier was made).",
        "coterie digest DIR: prints the digests above.",
        "coterie report DIR: makes tables and figures from the evidence again; coterie dossier DIR makes this dossier again.",
    ]
    if source.run is None:
        steps.append("coterie run with the settings above, on the same data and machine: gives the same digest; elsewhere, that of counts.")
    else:
        steps.append("coterie policy audit KIT --last HASH, at a site: its log is whole, and the hash that was noted is in it.")
    yield Items(steps)
