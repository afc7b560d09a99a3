"""The egress record of a site: what left, when, how much, under which policy and privacy budget, from its audit log."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie._util.files import hash_file
from coterie._util.formatting import format_bytes, format_count
from coterie._util.json_io import read_json_object
from coterie.deploy.dossier.document import Block, Document, Gap, Items, Table, Text
from coterie.deploy.dossier.source import OFFICER
from coterie.deploy.files import escape_text, get_kit_files
from coterie.deploy.orders import LONGEST_NOTE, SHORT_HASH, OrderError
from coterie.deploy.site.approvals import Approvals
from coterie.deploy.site.audit import AuditCheck, verify_audit
from coterie.deploy.site.explain import explain_policy
from coterie.deploy.site.ledger import Ledger
from coterie.deploy.site.policy import NoPrivacy, read_policy

ALL = 1 << 62  # entries
MOST_ROWS, MOST_ORDERS = 200, 50  # rows of a table, and orders, that are listed


def write_egress_record(kit: Path, answers: Mapping[str, str], name: str | None = None) -> Document:
    """The record of one site, from its kit.

    Args:
        kit: The site's kit.
        answers: What people filled in, by key.
        name: The document's; by default ``egress``.
    """
    files = get_kit_files(kit)
    site = read_json_object(kit / "kit.json", site=str)["site"] if (kit / "kit.json").is_file() else kit.name
    log = verify_audit(files.audit, entries=ALL)
    blocks: list[Block] = [
        *_describe_log(log, kit),
        *_list_orders(kit),
        *_list_answers(log.entries),
        *_describe_policy(kit),
        Text("For the record of processing", 2),
        *(
            Gap(f"{key}_{site}", question, OFFICER, answers.get(f"{key}_{site}", ""))
            for key, question in (
                ("controller", "Which organisation is the controller, and how is it contacted?"),
                ("legal_basis", "On which legal basis are the data processed (for example Art. 6 and 9 GDPR)?"),
                ("recipients", "Who operates the server that received this, and in which country?"),
                ("retention", "How long are the received updates and this log kept?"),
            )
        ),
    ]
    lead = f"What left {site}, from its audit log of {format_count(log.lines, 'line')} with the last hash {log.last[:16]}."
    return Document(name or "egress", f"Egress record: {site}", lead, blocks)


def _describe_log(log: AuditCheck, kit: Path) -> Iterator[Block]:
    yield Text("The log", 2)
    times = [str(entry["time"])[:19].replace("T", " ") for entry in log.entries if entry.get("time")]
    rows = [("file", f"{kit.name}/audit.jsonl"), ("lines", f"{log.lines:,}"), ("last hash", log.last)]
    rows += [("from", f"{times[0]} UTC"), ("to", f"{times[-1]} UTC")] if times else []
    yield Table(("field", "value"), rows)
    if log.faults:
        yield Text("The log is not whole. What follows is from the lines that can be read, and cannot be relied on alone:")
        yield Items([escape_text(fault) for fault in log.faults[:MOST_ROWS]])
    else:
        yield Text("Every line holds the hash of the one before. All were checked for this record: none was changed, moved or removed.")
    yield Text("The site writes a line before anything leaves, and answers nothing that it cannot log.")


def _list_orders(kit: Path) -> Iterator[Block]:
    """Every order that reached the site, with the site's decision."""
    yield Text("Orders", 2)
    records = Approvals(kit).records()
    if not records:
        yield Text("None reached the site.")
    for order, record in list(records.items())[-MOST_ORDERS:]:
        try:
            terms = record.order
        except OrderError:
            yield Table(("order", order), [("decision", f"{record.state}; its terms cannot be read: orders.json was edited")])
            continue
        decided = f"{record.state}{f' by {record.by}' if record.by else ''}, {record.time[:19].replace('T', ' ')} UTC"
        rows = [
            ("run", escape_text(terms.run)),
            ("operator", escape_text(terms.operator) or "no name given"),
            ("purpose", escape_text(terms.purpose, LONGEST_NOTE) or "none stated"),
            ("ordered", escape_text(f"{', '.join(terms.methods)}; model {terms.model}; {terms.rounds} rounds", LONGEST_NOTE)),
            ("asks", ", ".join(terms.asks)),
            ("decision", f"{decided}{f': {escape_text(record.reason)}' if record.reason else ''}"),
            ("epsilon after it", "no epsilon bounds it" if record.epsilon is None else f"at most about {record.epsilon:.3g} of a client"),
        ]
        yield Table(("order", order), rows)
    if len(records) > MOST_ORDERS:
        yield Text(f"{len(records) - MOST_ORDERS:,} older orders are in orders.json.")


@dataclass
class _Sent:
    """What was sent of one kind."""

    answers: int = 0
    bytes: int = 0
    clients: set[str] = field(default_factory=set)
    denied: int = 0
    first: str = ""
    last: str = ""

    def add(self, entry: Mapping[str, Any]) -> None:
        when = str(entry.get("time", ""))[:19].replace("T", " ")
        self.first, self.last = self.first or when, when
        if entry.get("denied"):
            self.denied += 1
            return
        self.answers += 1
        self.bytes += entry["bytes_out"] if isinstance(entry.get("bytes_out"), int) else 0
        self.clients |= set(map(str, entry.get("clients") or ())) - set(map(str, entry.get("silent") or ()))


def _list_answers(entries: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    asked = [entry for entry in entries if "ask" in entry]
    yield Text("What left", 2)
    by_kind, by_day, reasons = defaultdict[Any, _Sent](_Sent), defaultdict[str, _Sent](_Sent), defaultdict[str, int](int)
    for entry in asked:
        kind = str(entry.get("order", ""))[:SHORT_HASH], str(entry["ask"]), str(entry.get("part") or ""), str(entry.get("purpose") or "")
        by_kind[kind].add(entry)
        by_day[str(entry.get("time", ""))[:10]].add(entry)
        if entry.get("denied"):
            reasons[str(entry["denied"])] += 1
    total = sum(own.bytes for own in by_day.values())
    cards = [entry for entry in entries if entry.get("event") == "hello" and entry.get("state") == "approved"]
    answered = sum(own.answers for own in by_day.values())
    yield Text(
        f"{format_count(answered, 'answer')} to asks with {format_bytes(total)} in all, and {format_count(len(cards), 'site card')}."
    )
    rows = [
        (order, ask, escape_text(f"{part} {f'({purpose})' if purpose else ''}"), f"{own.answers:,}", f"{len(own.clients):,}", *_format(own))
        for (order, ask, part, purpose), own in by_kind.items()
    ]
    titles = ("order", "ask", "part of the data", "answers", "clients", "bytes out", "refused", "first (UTC)", "last (UTC)")
    yield Table(titles, rows[:MOST_ROWS], "By order and kind of ask. The log has the hash of every message that left.")
    days = [(day, f"{own.answers:,}", *_format(own)[:2]) for day, own in sorted(by_day.items())]
    yield Table(("day (UTC)", "answers", "bytes out", "refused"), days[-MOST_ROWS:], "By day.", numbers=True)
    if cards:
        ids = sorted({str(client) for entry in cards for client in entry.get("clients") or ()})
        yield Text(
            f"A site card holds the ids of clients ({escape_text(', '.join(ids), 500)}), their numbers of samples (1 for each where the "
            "policy does not let them out), counts by class where 'class_counts' is true, and names of columns and classes. Its bytes "
            "are not logged."
        )
    if reasons:
        ranked = sorted(reasons.items(), key=lambda item: -item[1])
        yield Table(("refused by the site, because", "times"), [(escape_text(why), f"{count:,}") for why, count in ranked[:MOST_ROWS]])
    others = defaultdict[str, int](int)
    for entry in entries:
        if "event" in entry and entry["event"] != "hello":
            others[str(entry["event"])] += 1
    events = [(escape_text(event), f"{count:,}") for event, count in sorted(others.items())]
    yield Table(("other lines of the log", "times"), events[:MOST_ROWS], "Nothing leaves with them but receipts of delivered models.")


def _format(own: _Sent) -> tuple[str, str, str, str]:
    return format_bytes(own.bytes), f"{own.denied:,}", own.first, own.last


def _describe_policy(kit: Path) -> Iterator[Block]:
    """The policy as it is now, and the privacy that is spent."""
    files = get_kit_files(kit)
    policy = read_policy(files.policy)
    yield Text("Policy", 2)
    yield Text(
        f"As policy.toml is now (SHA-256 {hash_file(files.policy)}). Every line above was decided by the policy of its time; the log does "
        "not hold earlier versions of the file."
    )
    ledger = Ledger(files.ledger) if files.ledger.exists() else None
    for part in explain_policy(policy, ledger):
        if part.heading != "Spent so far":
            yield Text(part.heading, 3)
            yield Text(" ".join(escape_text(line) for line in part.lines))
    yield Text("Privacy budget", 2)
    if ledger is None:
        yield Text("Nothing was charged yet.")
        return
    private, book = policy.privacy, ledger.charges()
    exact = sum(charge.steps for charges in book.values() for charge in charges if charge.mechanism == "exact")
    if isinstance(private, NoPrivacy):
        yield Text(f"No mechanism: {format_count(exact, 'answer')} from training samples left without noise, and no epsilon covers them.")
        return
    limit = "none" if private.epsilon_limit is None else f"{private.epsilon_limit:g}"
    spent = ledger.spent(private)
    rows = [(escape_text(client), f"{epsilon:.3g}", limit, f"{private.delta:g}") for client, epsilon in sorted(spent.items())]
    yield Table(
        ("client", "epsilon spent", "limit", "delta"),
        rows[:MOST_ROWS],
        f"Mechanism {private.mechanism}, over all rounds and runs.",
        numbers=True,
    )
    if exact:
        yield Text(f"{format_count(exact, 'answer')} left without noise, before the mechanism was set: no epsilon covers them.")


def write_missing_record(site: str, answers: Mapping[str, str]) -> Document:
    """In place of a record, for a site whose log is not on this machine."""
    blocks: list[Block] = [
        Text(
            "The log of this site is at the site, and the server has no copy. There, 'coterie dossier KIT' makes the record from the kit's "
            "audit.jsonl."
        ),
        Gap(f"egress_{site}", "Where is the egress record that the site made?", OFFICER, answers.get(f"egress_{site}", "")),
    ]
    return Document(f"egress-{site}", f"Egress record: {site}", "Not known on this machine.", blocks)


def write_simulated_record(bytes_: float, clients: int) -> Document:
    """For a simulation, in which nothing left a site."""
    blocks: list[Block] = [
        Text(
            f"This is a simulation: {format_count(clients, 'client')} and the server were one program, and no data, update or score left a "
            "machine. There are no sites, no policies and no audit logs."
        ),
        Text(f"The same messages between real sites would have had {format_bytes(bytes_)} in all, over all methods, draws and seeds."),
    ]
    return Document("egress", "Egress record", "A simulation: nothing left a site.", blocks)
