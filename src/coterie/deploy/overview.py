"""How a federation stands, from its folder alone: sites, runs, and the groups of the last evidence."""

from collections.abc import Mapping
from time import time
from typing import Any

from coterie.core.errors import UserError
from coterie.core.plain import plain
from coterie.deploy.certificates import ending
from coterie.deploy.federation import FederationFolder
from coterie.deploy.journal import journal_lines
from coterie.deploy.presence import read_presence
from coterie.deploy.runs import RunFolder, runs_of
from coterie.evidence.reader import Evidence
from coterie.evidence.source import segments
from coterie.evidence.wholeness import is_study


def overview(federation: FederationFolder) -> dict[str, Any]:
    """As JSON knows it. A site that is not there has no seconds; one that was removed says so."""
    presence = read_presence(federation.server)
    seen = presence.sites if presence.alive else {}
    sites = [
        {"site": site, "there": site in seen, "seen_seconds_ago": round(max(time() - seen[site], 0.0), 1) if site in seen else None}
        for site in federation.sites
    ]
    runs = [_run(run) for run in runs_of(federation)]
    address = f"{federation.host}:{federation.port}"
    tree = {"server": address, "listening": presence.alive, "sites": sites, "removed": list(federation.removed), "runs": runs}
    tree["certificates_ending"] = {name: f"{ends:%Y-%m-%d}" for name, ends in ending(federation).items()}
    return dict(plain(tree))


def _run(run: RunFolder) -> dict[str, Any]:
    lines = journal_lines(run.folder)
    rounds = [line["round"] for line in lines if line["what"] == "round"]
    began = [line["sites"] for line in lines if line["what"] == "began"]
    order, _ = run.order()
    return {
        "run": run.name,
        "kind": order.kind,
        **run.told,
        "round": max(rounds, default=None),
        "rounds": order.settings["plan"]["rounds"] if order.kind == "study" else None,
        "sites": began[-1] if began else [],
        "groups": _groups(run) if is_study(run.study) else {},
    }


def _groups(run: RunFolder) -> Mapping[str, Mapping[str, int]]:
    """By method that groups, the group of each client after the last round on disk, with the first seed."""
    try:
        evidence = Evidence.open(run.study)
    except UserError:  # it is not whole, which the next job mends, and whoever looks at the study itself is told
        return {}
    if not segments(run.study):
        return {}
    settings, frame = evidence.settings, evidence.frame("groups")
    ids = evidence.rosters[settings.draws[0]].column("id").to_pylist()
    frame = frame[frame["seed"] == settings.seeds[0]]
    found = {}
    for method in settings.methods:
        own = frame[frame["method"] == method]
        if len(own) and own["group"].max() > 0:
            last = own[own["round"] == own["round"].max()]
            found[method] = {str(ids[client]): int(group) for client, group in zip(last["client"], last["group"], strict=True)}
    return found
