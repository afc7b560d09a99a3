"""Orders of `federation schema`, `federation statistics` and `federation monitor`, killed by `kill -9` at server and sites: run again, they
complete, and no log, ledger or history is damaged."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from coterie.data.agreed_schema import AgreedColumn, AgreedSchema, format_agreed_schema
from coterie.deploy.server.evaluation import EvaluateOrder, History, keep_bundle, open_bundle
from coterie.deploy.site.audit import Audit, verify_audit
from coterie.deploy.site.ledger import Ledger
from deploy.different_tables import SITES, TableFed
from deploy.ordering import APPROVING_POLICY
from killing import killed_at

SCHEMA = AgreedSchema("outcome", ("no", "yes"), (AgreedColumn("age", bounds=(0.0, 120.0)),), ("?",))
KILLS = 4  # of each kind of order, spread over all that it does with files


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> TableFed:
    made = TableFed(tmp_path_factory.mktemp("killed"), APPROVING_POLICY, rows=24)
    (made.folder / "schema.toml").write_text(format_agreed_schema(SCHEMA))
    made.launch("first", rounds=1)
    return made


def count_steps(fed: TableFed) -> dict[str, int]:
    charges = {site: Ledger(fed.kit(site) / "privacy.json", Audit(fed.kit(site) / "audit.jsonl")).charges() for site in SITES}
    return {site: sum(charge.steps for own in held.values() for charge in own) for site, held in charges.items()}


def kill_and_repeat(fed: TableFed, work: Callable[[], object]) -> int:
    """Kill the work in forks, at file operations further and further apart, then do it here; how often it was killed."""
    number, killed = 1, 0
    while killed < KILLS and killed_at(fed.folder, number, work):
        number, killed = number * 4, killed + 1
        before = count_steps(fed)  # the ledger is the one that the log sealed
        assert all(verify_audit(fed.kit(site) / "audit.jsonl").faults == () for site in SITES)
        assert min(before.values()) > 0
    work()
    assert all(verify_audit(fed.kit(site) / "audit.jsonl").faults == () for site in SITES)
    return killed


@pytest.mark.parametrize(("kind", "file"), [("schema", "columns.json"), ("statistics", "statistics.json")])
def test_a_killed_order_about_tables_is_run_again(kind: str, file: str, fed: TableFed) -> None:
    before = count_steps(fed)
    settings = {"schema": None if kind == "schema" else SCHEMA.to_dict()}
    killed = kill_and_repeat(fed, lambda: fed.order(kind, settings, kind))
    assert killed == KILLS
    folder = fed.folder / "runs" / kind
    tree = json.loads((folder / file).read_text())
    assert set(tree if kind == "schema" else tree["sites"]) == set(SITES)
    assert not list(folder.glob("*.tmp*"))
    if kind == "statistics":  # an answer that was charged and did not leave stays charged, and no more than one an attempt
        assert all(before[site] < now <= before[site] + killed + 1 for site, now in count_steps(fed).items())


def test_a_killed_look_is_taken_again_and_the_history_only_grows(fed: TableFed) -> None:
    bundle = fed.folder / "runs" / "first" / "bundles" / "fedavg"
    found, digest = open_bundle(bundle)
    folder, lines = fed.folder / "runs" / "monitor", list[str]()
    keep_bundle(bundle, folder)
    wanted = EvaluateOrder("sites", found.model, digest, found.origin.method, looks=2)
    for look in (1, 2):
        killed = kill_and_repeat(fed, lambda: fed.order("evaluate", wanted.as_json(), "monitor", minimum=1))
        done = History(folder).read()
        assert [one.look for one in done] == list(range(1, len(done) + 1))
        assert len(done) >= look
        assert killed
        stored = (folder / "history.jsonl").read_text().splitlines()
        assert stored[: len(lines)] == lines  # what was there before stays as it was
        lines = stored
    first, second, *_ = History(folder).read()
    assert first.clients == second.clients  # the same bundle on the same rows


def test_half_a_page_is_never_left(fed: TableFed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of statistics appears whole: a reader that opens it in the middle of a run sees the one before."""
    page = fed.folder / "runs" / "statistics" / "statistics.html"
    before = page.read_text() if page.exists() else ""

    def stop(self: Path, *words: object, **more: object) -> int:
        raise AssertionError("not written in place")

    monkeypatch.setattr(Path, "write_text", stop)
    fed.order("statistics", {"schema": SCHEMA.to_dict()}, "statistics")
    assert page.read_text().startswith(before[:15])
    assert page.read_text().rstrip().endswith("</html>")
