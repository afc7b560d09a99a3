"""What a dossier is made from: a checked study or comparison, and, of a federation, its run, its sites and the logs that are here."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie._util.errors import UserError
from coterie._util.progress import track
from coterie.analysis.comparison import Comparison, open_comparison
from coterie.analysis.findings import Findings
from coterie.analysis.verdict import recommend
from coterie.deploy.dossier.document import Gap
from coterie.deploy.server.federation import FEDERATION_FILE, FederationFolder
from coterie.deploy.server.members import Members
from coterie.deploy.server.runs import Order, RunFolder, find_run, list_runs
from coterie.evidence.manifest import find_studies, is_study
from coterie.evidence.verify import combine_digests, compute_digests, verify

GAPS_FILE = "gaps.toml"
OPERATOR, OFFICER, DEVELOPER = "the operator of the federation", "the data protection officer of the site", "the developers of the model"


@dataclass(frozen=True)
class FederatedRun:
    """A run of a real federation."""

    federation: FederationFolder
    run: RunFolder
    order: Order
    members: Members

    @property
    def kits(self) -> dict[str, Path]:
        """By site of the run, its kit, where the site's own process has run from it on this machine."""
        found = {site: self.federation.kit(site) for site in dict.fromkeys(self.members.sites.values())}
        return {site: kit for site, kit in found.items() if is_used_kit(kit)}


def is_used_kit(folder: Path) -> bool:
    """Whether a folder is a site's kit with a log."""
    return (folder / "policy.toml").is_file() and (folder / "audit.jsonl").is_file()


@dataclass(frozen=True)
class Source:
    """A study or comparison whose every file was checked, and the answers to what no file can hold."""

    folder: Path
    comparison: Comparison
    digests: Mapping[str, str]
    counts: Mapping[str, str]  # the digests of counts alone
    method: str | None = None  # that the model card is of, where one was named
    run: FederatedRun | None = None
    answers: Mapping[str, str] = field(default_factory=dict)

    @property
    def findings(self) -> Findings:
        """Those of the first study."""
        return self.comparison.federations[0]

    @property
    def digest(self) -> str:
        return self.digests["."] if list(self.digests) == ["."] else combine_digests(self.digests)

    @property
    def sites(self) -> dict[str, list[str]]:
        """By site, its clients. In a simulation every client is one."""
        if self.run is None:
            return {name: [name] for name in self.findings.records.ids}
        found: dict[str, list[str]] = {}
        for client, site in self.run.members.sites.items():
            found.setdefault(site, []).append(client)
        return found

    def choose_method(self, findings: Findings) -> tuple[str, str]:
        """The method that the card is of, and why."""
        if self.method is not None:
            if self.method not in findings.methods:
                raise UserError(f"The study has no method {self.method!r}: choose from {', '.join(findings.methods)}.")
            return self.method, "It was named for this card."
        found = recommend(findings)
        if found is None:
            why = "The study has too few runs to recommend a method, so the card is of the baseline; --method names another."
            return findings.roles.baseline, why
        return found.label, str(found)

    def ask(self, key: str, question: str, who: str) -> Gap:
        """A gap, with the answer that a person gave."""
        return Gap(key, question, who, self.answers.get(key, ""))


def open_source(folder: Path, *, run: str | None = None, method: str | None = None) -> Source:
    """Check everything that a dossier rests on and read it; damage is refused before anything is written.

    Args:
        folder: A study, a comparison, or a federation.
        run: The run of a federation; by default the last that has a study.
        method: The method that the model card is of; by default the recommended one.
    """
    found = None
    place = folder
    if (folder / FEDERATION_FILE).is_file():
        found = _open_run(FederationFolder.open(folder), run)
        place = found.run.study
    elif run is not None:
        raise UserError(f"{folder} is no federation, which --run is about: omit it.")
    for study in track(find_studies(place), "checking"):
        checked = verify(study)
        if not checked.whole:
            raise UserError(f"{study} is damaged: {checked.damaged[0].removesuffix('.')}. 'coterie verify {study}' shows what is intact.")
    comparison = open_comparison(place)
    if comparison.faults:
        raise UserError(comparison.faults[0])
    digests, counts = compute_digests(place), compute_digests(place, counts=True)
    made = Source(place, comparison, digests, counts, method, found)
    made.choose_method(made.findings)
    return made


def _open_run(federation: FederationFolder, name: str | None) -> FederatedRun:
    studies = [run for run in list_runs(federation) if is_study(run.study)]
    if name is None and not studies:
        raise UserError(f"The federation {federation.folder} has no run with a study yet: order one with 'coterie launch'.")
    run = studies[-1] if name is None else find_run(federation, name)
    if not is_study(run.study):
        raise UserError(f"The run {run.name!r} has no study: choose from {', '.join(one.name for one in studies) or 'none'}.")
    order, _ = run.order()
    return FederatedRun(federation, run, order, Members.read(run.folder / "members.json"))


def read_answers(path: Path) -> dict[str, str]:
    """What people filled in; nothing where the file is not there yet."""
    if not path.exists():
        return {}
    try:
        tree: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not valid TOML ({error}): correct it, or remove it to have an empty one written.") from error
    if wrong := [key for key, value in tree.items() if not isinstance(value, str)]:
        raise UserError(f"{path} should hold a text for {wrong[0]!r}: put it in quotation marks.")
    return {key: value.strip() for key, value in tree.items()}
