"""The state of a federation, read from files alone: its sites, its runs, and what the logs of sites on this machine hold.

`coterie federation status` prints it, `--web` shows it as a page. Nothing is written or locked, and no site is asked. A damaged or half
written file is a sentence in `faults`, and the rest is there all the same.
"""

from collections.abc import Mapping
from pathlib import Path
from time import time
from typing import Any

from coterie._util.errors import UserError
from coterie._util.json_io import to_json_value
from coterie.deploy.certificates import read_expiry_dates, select_expiring
from coterie.deploy.files import escape_text, get_kit_files
from coterie.deploy.messages import read_schema
from coterie.deploy.orders import KINDS_OF_ORDER
from coterie.deploy.server.evaluation import describe_history
from coterie.deploy.server.federation import SCHEMA_FILE, FederationFolder, Presence, read_presence
from coterie.deploy.server.members import Members, read_stored_schema
from coterie.deploy.server.runs import END_STATES, ORDER_FILE, RunFolder, list_runs, read_journal
from coterie.deploy.site.audit import read_audit_head
from coterie.deploy.site.ledger import DATA, Book
from coterie.deploy.site.policy import NoPrivacy, Policy, read_policy
from coterie.evidence.manifest import is_study
from coterie.report.live.study_state import summarize_study

MOST_EVENTS = 20  # of a run's journal that are shown
EVENTS = ("began", "left", "returned", "removed", "fault", "late", "ended")


def summarize_federation(federation: FederationFolder) -> dict[str, Any]:
    """The state of a federation, as JSON. A site that is not there has no seconds."""
    faults: list[str] = []
    presence, runs = read_presence(federation.server), [_summarize_run(run, federation.folder) for run in list_runs(federation)]
    ends = read_expiry_dates(federation, faults)
    versions = _read_versions(federation, faults)
    sites = []
    for site in federation.sites:
        ended = ends.get(site)
        facts = {"version": versions.get(site), "certificate_ends": None if ended is None else f"{ended:%Y-%m-%d}"}
        sites.append(_describe_presence(site, presence) | facts | _summarize_kit(federation.kit(site), faults))
    tree = {
        "kind": "federation",
        "title": str(federation.folder),
        "time": time(),
        "server": f"{federation.host}:{federation.port}",
        "listening": presence.alive,
        "sites": sites,
        "removed": list(federation.removed),
        "runs": runs,
        "columns": _list_columns(federation, faults),
        "certificates_ending": {name: f"{when:%Y-%m-%d}" for name, when in select_expiring(ends).items()},
        "faults": faults,
    }
    return dict(to_json_value(tree))


def _describe_presence(site: str, presence: Presence) -> dict[str, Any]:
    """Whether a site is there, and since when it is, or is not. Of a server that has stopped only its last word is known."""
    seen = presence.sites if presence.alive else {}
    return {
        "site": site,
        "there": site in seen,
        "seen_seconds_ago": round(max(time() - seen[site], 0.0), 1) if site in seen else None,
        "since": presence.since.get(site) if presence.alive else None,
        "last_seen": presence.sites.get(site),
    }


def _read_versions(federation: FederationFolder, faults: list[str]) -> dict[str, str]:
    """By site, the version of Coterie that it stated in the last run it took part in."""
    found: dict[str, str] = {}
    for run in list_runs(federation):
        path = run.folder / "members.json"
        try:
            found |= Members.read(path).versions if path.exists() else {}
        except (UserError, ValueError, TypeError, AttributeError) as error:
            faults.append(str(error) if isinstance(error, UserError) else f"{path} cannot be read: restore it from a copy.")
    return found


def _summarize_kit(kit: Path, faults: list[str]) -> dict[str, Any]:
    """What the policy allows, the privacy spent and the head of the log, of a kit that is used on this machine: nowhere else are they
    known, since a site sends neither its policy nor its log."""
    nothing: dict[str, Any] = {"policy": None, "privacy": None, "audit": None}
    if not (kit / "policy.toml").exists() or not (kit / "audit.jsonl").exists():
        return nothing
    files, found = get_kit_files(kit), dict(nothing)
    try:
        policy = read_policy(files.policy)
        found["policy"] = _describe_policy(policy)
        found["privacy"] = _read_spending(files.ledger, policy)
        lines, last, torn = read_audit_head(files.audit)
        found["audit"] = {"lines": lines, "hash": last, "torn": torn, "bytes": files.audit.stat().st_size}
    except (UserError, OSError) as error:
        faults.append(str(error))
    return found


def _describe_policy(policy: Policy) -> dict[str, Any]:
    privacy = policy.privacy
    return {
        "asks": list(policy.asks),
        "models": list(policy.models),
        "privacy": privacy.mechanism,
        "epsilon_limit": getattr(privacy, "epsilon_limit", None),
        "delta": getattr(privacy, "delta", None),
        "minimum_samples": policy.minimum_samples,
        "rounding": policy.rounding,
        "maximum_rounds": policy.maximum_rounds,
    }


def _read_spending(path: Path, policy: Policy) -> dict[str, Any]:
    """By client, epsilon so far, and the answers that left without noise."""
    if not path.exists():
        return {"epsilon": {}, "exact": 0}
    try:
        book = Book.read(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"The privacy ledger {path} cannot be read ({error}): restore it from a copy.") from error
    own = {name: charges for name, charges in book.charges.items() if not name.startswith(DATA)}
    exact = sum(charge.steps for charges in own.values() for charge in charges if charge.mechanism == "exact")
    return {"epsilon": {} if isinstance(policy.privacy, NoPrivacy) else book.spent(policy.privacy), "exact": exact}


def _list_columns(federation: FederationFolder, faults: list[str]) -> list[str]:
    """The columns that the sites of the last run agreed on; none where samples have no named columns."""
    try:
        text = read_stored_schema(federation.folder / SCHEMA_FILE)
    except UserError as error:
        faults.append(str(error))
        return []
    return [escape_text(column.name) for column in read_schema(text).columns] if text else []


def _summarize_run(run: RunFolder, federation: Path) -> dict[str, Any]:
    """A run's status and events, and the state of its study, or the history of its looks."""
    lines = [line for line in read_journal(run.folder) if isinstance(line, dict) and isinstance(line.get("what"), str)]
    began = [line for line in lines if line["what"] == "began"]
    found: dict[str, Any] = {
        "run": run.name,
        "kind": "study",
        "status": "unreadable",
        "faults": [],
        "rounds": None,
        "study": None,
        "history": None,
    }
    try:
        found |= run.status_details
        order, _ = run.order()
        found |= {"kind": order.kind, "methods": list(order.settings.get("methods", ()))}
        found["rounds"] = order.settings["plan"]["rounds"] if KINDS_OF_ORDER[order.kind].has_rounds else None
    except (UserError, KeyError, TypeError, ValueError, AttributeError) as error:
        damaged = f"{run.folder / ORDER_FILE} cannot be used: restore it from a copy."
        found["faults"].append(str(error) if isinstance(error, UserError) else damaged)
    try:
        found["history"] = describe_history(run.folder, federation) if found["kind"] == "evaluate" else None
    except (UserError, OSError) as error:
        found["faults"].append(str(error))
    if is_study(run.study):
        found["study"] = summarize_study(run.study)
        if found["status"] in (*END_STATES, "unreadable"):
            found["study"]["seconds_left"] = None
    rounds = [line["round"] for line in lines if line["what"] == "round" and isinstance(line.get("round"), int)]
    return found | {
        "round": max(rounds, default=None),
        "sites": list(began[-1].get("sites", ())) if began else [],
        "groups": found["study"].get("groups", {}) if found["study"] else {},
        "late": sum(line["what"] == "late" for line in lines),
        "events": [_describe_event(line) for line in lines if line["what"] in EVENTS][-MOST_EVENTS:],
    }


def _describe_event(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of a journal: when, and a sentence."""
    what, site = line["what"], line.get("site", "a site")
    words = {
        "began": f"a job began with {', '.join(map(str, line.get('sites', ())))}",
        "left": f"{site} has left",
        "returned": f"{site} has returned",
        "removed": f"{site} was removed",
        "late": f"an answer of {site} came too late and does not count",
        "fault": str(line.get("sentence", "")),
        "ended": f"the job ended ({line.get('status', '')}){': ' + str(line['reason']) if line.get('reason') else ''}",
    }
    return {"time": line.get("time"), "text": escape_text(words[what], 500)}
