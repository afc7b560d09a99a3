"""The live page: what it shows of a federation and a study, what it lets in, and that no text of a site becomes markup."""

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser
from http.client import HTTPConnection
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from coterie._util.errors import UserError
from coterie.cli.app import app
from coterie.deploy.server.evaluation import EvaluateOrder, History, Look, Score
from coterie.deploy.server.federation import FederationFolder, note_changes, read_presence, write_presence
from coterie.deploy.server.runs import Order, RunFolder
from coterie.deploy.server.status import summarize_federation
from coterie.report.live import server as live
from coterie.report.live.page import render_page, render_sections
from coterie.report.live.server import LiveServer, SharedState
from coterie.report.live.study_state import summarize_folder, summarize_study
from deploy.small_federation import HOSPITALS, MALICIOUS, run_small_federation
from report.made_up import evidence, folder

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
LEVELS = {"fedavg": [0.6, 0.62], "fedgroup(groups=2)": [0.7, 0.72]}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> FederationFolder:
    return run_small_federation(tmp_path_factory.mktemp("live") / "fed")


class Elements(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def show(state: Mapping[str, Any]) -> Elements:
    return Elements(render_page(state, render_sections(state), "1", "n"))


def assert_harmless(page: Elements) -> None:
    """Nothing but the page's own script and style, and nothing that loads, runs or leads away."""
    assert [attributes for tag, attributes in page.found if tag == "script"] == [{"nonce": "n"}]
    assert not {tag for tag, _ in page.found} & {"img", "iframe", "object", "embed", "link", "form", "a", "base", "b"}
    names = {name for _, attributes in page.found for name in attributes}
    assert not [name for name in names if name.startswith("on") or name in ("src", "href", "style")]


# What is shown.


def test_a_federation_is_shown_with_sites_runs_groups_refusals_privacy_and_logs(federation: FederationFolder) -> None:
    state = summarize_federation(federation)
    sites = {site["site"]: site for site in state["sites"]}
    assert [sites[site]["there"] for site in HOSPITALS] == [True, True, False]
    assert sites["va"]["since"] == 2000.0
    assert set(sites["hungary"]["privacy"]["epsilon"]) == {"hungary"}
    assert sites["hungary"]["policy"]["epsilon_limit"] == 10.0
    assert sites["cleveland"]["privacy"]["exact"] > 0
    assert len(sites["va"]["audit"]["hash"]) == 64
    [run] = state["runs"]
    assert (run["status"], run["round"], run["rounds"]) == ("complete", 3, 3)
    study = run["study"]
    assert study["done"] == study["total"] == 12
    assert study["curves"]["fedavg"]["rounds"] == [0, 1, 2, 3]
    assert study["bytes"]["fedavg"]["up"] > 0
    [refused] = [row for row in study["refused"] if row["client"] == "va"][:1]
    assert MALICIOUS in refused["reason"]
    text = show(state).text
    for words in ("2 of 3 sites connected", "removed by the operator", "va has left", "epsilon", "Groups of", sites["va"]["audit"]["hash"]):
        assert words in text


def add_monitor(federation: FederationFolder, looks: int = 8) -> Path:
    """A monitor that finds in look 7 that va's error has risen in look 6; its folder."""
    run = RunFolder(federation.runs / "monitor")
    wanted = EvaluateOrder("sites", "mclr", "0" * 64, "fedavg", 30, 86400.0)
    run.place(Order("monitor", "evaluate", wanted.as_json(), HOSPITALS, 1), 60.0)
    for number in range(1, looks + 1):
        right = {"cleveland": 80, "hungary": 85 - number % 2, "va": 78 if number < 6 else 40}
        clients = {name: Score(name, hits, 100, 0.5) for name, hits in right.items()}
        History(run.folder).append(Look(number, 86400.0 * number, "0" * 64, clients, ()))
    run.set_status("complete")
    return run.folder


def test_a_monitor_is_shown_with_what_has_changed_since_when_and_how_to_train_on(federation: FederationFolder, tmp_path: Path) -> None:
    shutil.copytree(federation.folder, tmp_path / "fed")
    copy = FederationFolder.open(tmp_path / "fed")
    folder = add_monitor(copy, 5)
    assert "No change was noticed in 5 looks." in show(summarize_federation(copy)).text
    shutil.rmtree(folder)
    add_monitor(copy)
    state = summarize_federation(copy)
    history = {run["run"]: run for run in state["runs"]}["monitor"]["history"]
    assert [(change["client"], change["look"], change["time"]) for change in history["changes"]] == [("va", 7, 7 * 86400.0)]
    assert history["changed"]["va"][-1] == [8, 0.4]
    page = show(state)
    assert_harmless(page)
    for words in (
        "1 change noticed",
        "look 7, 1970-01-08",
        "22 % to 60 %",
        f"--from {folder / 'bundle'}",
        "Look 8 of 30",
        "Accuracy of the bundle",
    ):
        assert words in page.text
    (folder / "history.jsonl").write_text("{}\n")
    page = show(summarize_federation(copy))
    assert "history.jsonl is damaged at line 1" in page.text
    assert "cleveland" in page.text


def test_the_terminal_and_the_page_have_one_state(federation: FederationFolder) -> None:
    done = CliRunner().invoke(app, ["federation", "status", str(federation.folder), "--json"])
    printed = json.loads(done.stdout.splitlines()[-1])
    shown = summarize_federation(federation)
    changing = ("time", "sites")
    assert {name: value for name, value in printed.items() if name not in changing} == {
        name: value for name, value in shown.items() if name not in changing
    }


def test_no_text_of_a_site_becomes_markup(federation: FederationFolder, tmp_path: Path) -> None:
    page = show(summarize_federation(federation))
    assert_harmless(page)
    assert MALICIOUS in page.text  # as text
    ids = [f'{MALICIOUS} " {number}' for number in range(6)]
    study = folder(tmp_path / "s", evidence(LEVELS, ids=ids, groups={"fedgroup(groups=2)": np.arange(6) % 2}))
    page = show(summarize_folder(study))
    assert_harmless(page)
    assert ids[0] in page.text


def test_a_study_of_a_thousand_clients_names_some_of_each_group(tmp_path: Path) -> None:
    study = folder(tmp_path / "s", evidence(LEVELS, clients=1000, groups={"fedgroup(groups=2)": np.arange(1000) % 2}))
    state = summarize_folder(study)
    assert len(state["studies"][0]["groups"]["fedgroup(groups=2)"]) == 1000
    html = render_page(state, render_sections(state), "1", "n")
    assert "and 488 more" in html
    assert len(html) < 60_000


def test_a_study_that_has_stopped_a_folder_before_its_first_round_and_one_without_any(tmp_path: Path) -> None:
    study = folder(tmp_path / "s", evidence(LEVELS))
    assert summarize_study(study)["status"] == "complete"
    assert summarize_folder(tmp_path / "later")["studies"] == []
    (tmp_path / "empty").mkdir()
    assert "Nothing is written yet" in show(summarize_folder(tmp_path / "empty")).text


# What is damaged.


def test_damaged_files_are_named_and_the_rest_is_shown(federation: FederationFolder, tmp_path: Path) -> None:
    shutil.copytree(federation.folder, tmp_path / "fed")
    federation = FederationFolder.open(tmp_path / "fed")
    run = federation.runs / "first"
    (run / "status.json").write_text('{"stat')
    (run / "members.json").write_text("[]")
    with (run / "journal.jsonl").open("a") as journal:
        journal.write('[1, 2]\n"x"\n{"what": "rou')
    (federation.kit("va") / "privacy.json").write_text("{}")
    with (federation.kit("cleveland") / "audit.jsonl").open("a") as log:
        log.write('{"half":')
    (federation.server / "connected.json").write_text('{"time": "x"')
    next((run / "study" / "segments").glob("*/rounds.parquet")).write_bytes(b"PAR1")
    state = summarize_federation(federation)
    faults = [*state["faults"], *state["runs"][0]["faults"], *state["runs"][0]["study"]["faults"]]
    for name in ("status.json", "members.json", "privacy.json", "rounds.parquet"):
        assert any(name in fault for fault in faults), name
    page = show(state)
    assert "Part of the files cannot be read now" in page.text
    assert "(and half a line)" in page.text
    assert "cleveland" in page.text


def test_a_folder_that_goes_away_is_a_sentence_on_the_page() -> None:
    there = True

    def read() -> dict[str, Any]:
        if not there:
            raise UserError("fed holds no federation.")
        return {"kind": "study", "title": "s", "time": 0.0, "studies": []}

    shared = SharedState(read)
    shared.get()
    there = False
    shared.expire()
    assert "fed holds no federation." in shared.get()[1]["faults"]


# Who may look.


def ask(url: str, path: str = "", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    host, _, rest = url.removeprefix("http://").partition("/")
    connection = HTTPConnection(host, timeout=20)
    try:
        connection.request(method, path or f"/{rest}", headers=headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def served(federation: FederationFolder) -> Iterator[LiveServer]:
    page = LiveServer(lambda: summarize_federation(federation))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "LAST_LOOK", 0.0)
        with page:
            for _ in range(100):
                try:
                    ask(page.url)
                    break
                except OSError:
                    sleep(0.05)
            yield page


def test_the_page_is_shown_under_its_token_with_a_strict_policy(served: LiveServer) -> None:
    status, headers, body = ask(served.url)
    assert status == 200
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'nonce-")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    nonce = policy.split("'nonce-")[1].split("'")[0]
    assert f'<script nonce="{nonce}">'.encode() in body
    assert b"http://" not in body
    assert b"https://" not in body
    assert nonce not in ask(served.url)[1]["content-security-policy"]


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "DELETE"])
@pytest.mark.parametrize("path", ["/", "/{short}/", "/{wrong}/", "/{wrong}/state.json", "/?token={token}", "/x/{token}/", "//", "/%00/"])
def test_without_the_token_there_is_an_empty_403(served: LiveServer, path: str, method: str) -> None:
    token = served.token
    path = path.format(short=token[:-1], wrong=token.swapcase(), token=token)
    status, headers, body = ask(served.url, path, method)
    assert (status, body) == (403, b"")
    assert "content-type" not in headers


@pytest.mark.parametrize("host", ["evil.example:80", "evil.example", "127.0.0.1.evil.example:1", ""])
def test_another_host_is_refused_even_with_the_token(served: LiveServer, host: str) -> None:
    assert ask(served.url, Host=host)[::2] == (403, b"")


def test_the_page_is_read_only_and_listens_on_loopback_alone(served: LiveServer) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert ask(served.url, method=method)[0] == 405
    assert served._socket.getsockname()[0] == "127.0.0.1"


def test_two_viewers_share_one_reading(federation: FederationFolder) -> None:
    calls = 0

    def read() -> dict[str, Any]:
        nonlocal calls
        calls += 1
        sleep(0.05)
        return summarize_federation(federation)

    shared = SharedState(read)
    threads = [threading.Thread(target=shared.get) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == 1


def test_a_viewer_fetches_sections_only_when_they_have_changed(served: LiveServer) -> None:
    first = json.loads(ask(f"{served.url}sections")[2])
    assert "<h2>Sites</h2>" in first["sections"]["sites"]
    again = json.loads(ask(f"{served.url}sections?after={first['version']}")[2])
    assert again["sections"] is None or again["version"] != first["version"]
    assert json.loads(ask(f"{served.url}state.json")[2])["kind"] == "federation"


def test_the_page_ends_with_ctrl_c() -> None:
    page = LiveServer(lambda: {"kind": "study", "title": "s", "time": 0.0, "studies": []})
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what a command starts with; other tests may have set another
    try:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            page.run()
    finally:
        signal.signal(signal.SIGINT, before)


def test_looking_changes_no_file(federation: FederationFolder) -> None:
    def list_files() -> dict[Path, tuple[int, int]]:
        found = (path for path in federation.folder.rglob("*") if path.is_file())
        return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in found}

    before = list_files()
    show(summarize_federation(federation))
    assert list_files() == before


# What is refused.


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("show", "{folder}", "--web"), "holds no study"),
        (("federation", "status", "{folder}", "--web"), "holds no federation"),
        (("run", "fedavg", "--data", "heart", "--rounds", "1", "--web"), "name one"),
    ],
)
def test_a_page_of_nothing(words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        CliRunner().invoke(app, [word.format(folder=tmp_path) for word in words], catch_exceptions=False)


def test_a_port_that_is_taken(served: LiveServer) -> None:
    read: Callable[[], dict[str, Any]] = lambda: {"kind": "study", "title": "s", "time": 0.0, "studies": []}  # noqa: E731
    with pytest.raises(UserError, match="choose another"):
        LiveServer(read, served._socket.getsockname()[1])


def test_since_when_sites_are_there_or_gone(tmp_path: Path) -> None:
    since = note_changes({}, {}, {"a": "1", "b": "1"}, 10.0)
    since = note_changes(since, {"a": "1", "b": "1"}, {"a": "1"}, 20.0)
    since = note_changes(since, {"a": "1"}, {"a": "2"}, 30.0)
    assert since == {"a": 30.0, "b": 20.0}
    write_presence(tmp_path, {"a": 1.0}, {"a": "2"}, since)
    assert read_presence(tmp_path).since == since
