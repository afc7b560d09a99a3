"""What a kit lets FLARE do: one kind of job, one class, five commands; the private socket; and the executor, whose trainer may die."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare")

import nvflare
from nvflare.apis.fl_constant import AdminCommandNames, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.fuel.sec.authz import AuthzContext, Person
from nvflare.lighter.utils import load_private_key_file, sign_folders
from nvflare.security.security import FLAuthorizer

from coterie._util.errors import UserError
from coterie.core.asks import Train
from coterie.core.local import Local
from coterie.data.catalogue import load
from coterie.deploy.flare import operator, protection
from coterie.deploy.flare.jobs import (
    ADMIN,
    BODY,
    CONTROLLER,
    EXECUTOR,
    KIT,
    ORGANISATION,
    ROLE,
    SERVER_APP,
    SITE_APP,
    CoterieExecutor,
    find_job_fault,
    write_job,
    write_server_files,
    write_site_files,
)
from coterie.deploy.flare.transport import SOCKET_FOLDER, PrivateSocketDriver, make_socket_folder
from coterie.deploy.messages import PROTOCOL, AskBatch, ReplyBatch, SiteCard, from_message, to_message
from coterie.deploy.server.federation import FederationFolder
from coterie.deploy.site.data import SiteSettings
from coterie.engines.engine import StampedAsk
from coterie.engines.world import World
from deploy.ordering import APPROVING_POLICY, make_hello, make_terms
from deploy.running import free_port


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> FederationFolder:
    return operator.create_federation(tmp_path_factory.mktemp("jobs") / "federation", "127.0.0.1", free_port(), ["a", "b"])


def signed(app: Path, kit: Path) -> None:
    for name in [*app.rglob("__nvfl_sig.json"), *app.rglob("__nvfl_submitter.crt"), *app.rglob(".__nvfl*")]:
        name.unlink()
    sign_folders(str(app), load_private_key_file(str(kit / "startup" / "client.key")), str(kit / "startup" / "client.crt"))


def fault(federation: FederationFolder, app: Path, by: Path | None = None) -> str:
    signed(app, by or federation.admin)
    return find_job_fault(app, federation.kit("a") / "startup" / "rootCA.pem", at_site=app.name == SITE_APP)


def test_our_own_job_is_taken(federation: FederationFolder, tmp_path: Path) -> None:
    job = write_job(tmp_path, "a-run", ["a", "b"])
    assert fault(federation, job / SERVER_APP) == ""
    assert fault(federation, job / SITE_APP) == ""
    reported = (job / SITE_APP / "config" / "config_fed_client.json").read_text()
    assert "a-run" not in reported  # sites are reported no more than that there is a job
    assert str(federation.folder) not in "".join(path.read_text() for path in job.rglob("*.json"))


@pytest.mark.parametrize("signer", ["a site", "nobody", "another federation"])
def test_a_job_that_the_operator_has_not_signed_is_refused(federation: FederationFolder, tmp_path: Path, signer: str) -> None:
    app = write_job(tmp_path / "jobs", "a-run", ["a"]) / SITE_APP
    authority = federation.kit("a") / "startup" / "rootCA.pem"
    if signer == "nobody":
        assert find_job_fault(app, authority, at_site=True)
        return
    other = (
        federation.kit("b") if signer == "a site" else operator.create_federation(tmp_path / "other", "127.0.0.1", free_port(), ["a"]).admin
    )
    assert fault(federation, app, other) == "a job that the operator of this federation has not signed"


def change(tree: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**tree, **changes}


EVIL = {"id": "x", "path": "coterie.deploy.flare.processes._start_process", "args": {}}


@pytest.mark.parametrize(
    "changes",
    [
        {"components": [EVIL]},
        {"executors": [{"tasks": ["*"], "executor": {"path": EXECUTOR, "args": {"x": {"path": "os.system", "args": {}}}}}]},
        {"task_result_filters": [{"tasks": ["*"], "filters": [EVIL]}]},
        {"default_task_fetch_interval": 0},
        {"more": 1},
    ],
)
def test_a_site_s_job_with_anything_else_in_it_is_refused(federation: FederationFolder, tmp_path: Path, changes: dict[str, Any]) -> None:
    app = write_job(tmp_path, "a-run", ["a"]) / SITE_APP
    path = app / "config" / "config_fed_client.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()), **changes)))
    assert fault(federation, app) == "a job that does something else than Coterie's"


@pytest.mark.parametrize("run", ["../x", "/tmp/x", "", None, ["a"], "a/b", "x" * 300])
def test_a_server_s_job_of_a_run_that_leads_elsewhere_is_refused(federation: FederationFolder, tmp_path: Path, run: Any) -> None:
    app = write_job(tmp_path, "a-run", ["a"]) / SERVER_APP
    path = app / "config" / "config_fed_server.json"
    tree = json.loads(path.read_text())
    tree["workflows"][0]["args"]["run"] = run
    path.write_text(json.dumps(tree))
    assert fault(federation, app) == "a job of a run without a name"


@pytest.mark.parametrize("name", ["custom/evil.py", "config/evil.py", "config/log_config.json", "config/comm_config.json", "x"])
def test_a_job_with_more_files_is_refused(federation: FederationFolder, tmp_path: Path, name: str) -> None:
    app = write_job(tmp_path, "a-run", ["a"]) / SITE_APP
    (app / name).parent.mkdir(exist_ok=True)
    (app / name).write_text("{}")
    assert fault(federation, app) == "a job with other files than Coterie's"


@pytest.mark.parametrize("at", ["site", "server"])
def test_a_job_names_one_class(federation: FederationFolder, at: str) -> None:
    kit, ours = (federation.kit("a"), EXECUTOR) if at == "site" else (federation.server, CONTROLLER)
    workspace = SimpleNamespace(get_resources_file_path=lambda: str(kit / "local" / "resources.json"))
    check = ComponentPathAuthorizer()
    check.authorize_component_config({"path": ours, "args": {}}, workspace=workspace)
    others = ["coterie.deploy.flare.processes._start_process", "coterie.deploy.flare.processes.Path", f"{ours}2", "subprocess.Popen"]
    others += [{EXECUTOR: CONTROLLER, CONTROLLER: EXECUTOR}[ours], "nvflare.app_common.np.np_model_persistor.NPModelPersistor"]
    for path in others:
        with pytest.raises(Exception, match="not in allow_list"):
            check.authorize_component_config({"path": path, "args": {}}, workspace=workspace)


def rights(kit: Path) -> set[str]:
    """What an operator may do there."""
    authorizer = FLAuthorizer(ORGANISATION, json.loads((kit / "local" / "authorization.json").read_text()))
    names = {value for name, value in vars(AdminCommandNames).items() if name.isupper()}
    names |= {"byoc", "shell_commands", "clone_job", "download_job", "view", "manage_job", "operate", "server-predeployed-flwr"}
    boss = Person(ADMIN, ORGANISATION, ROLE)
    return {name for name in names if authorizer.authorize(AuthzContext(user=boss, submitter=boss, right=name))[0]}


def test_an_operator_s_rights(federation: FederationFolder) -> None:
    assert rights(federation.kit("a")) == {"submit_job"}
    assert rights(federation.server) == {"submit_job", "list_jobs", "abort_job", "enable_client", "disable_client"}


def test_what_a_kit_says_of_flare_is_not_believed(federation: FederationFolder, tmp_path: Path) -> None:
    kit = Path(shutil.copytree(federation.kit("a"), tmp_path / "kit"))
    before = {path: path.read_text() for path in [*kit.glob("local/*"), kit / "startup" / "fed_client.json"]}
    for path in before:
        path.write_text("{}")
    (kit / "local" / "authorization.json.default").write_text('{"permissions": {"project_admin": "any"}}')
    write_site_files(kit)
    assert {path: path.read_text() for path in before} == before
    assert sorted(path.name for path in kit.glob("local/*")) == ["authorization.json", "log_config.json", "resources.json"]


@pytest.mark.parametrize("name", ["local/custom/x.py", "local/privacy.json", "startup/a__resources.json", "startup/signature.json"])
def test_a_kit_with_more_in_it_is_refused(federation: FederationFolder, tmp_path: Path, name: str) -> None:
    kit = Path(shutil.copytree(federation.kit("a"), tmp_path / "kit"))
    (kit / name).parent.mkdir(exist_ok=True)
    (kit / name).write_text("{}")
    with pytest.raises(UserError, match="no part of a kit"):
        write_site_files(kit)


def test_the_server_s_files_say_where_it_is_now(federation: FederationFolder, tmp_path: Path) -> None:
    moved = FederationFolder(Path(shutil.copytree(federation.folder, tmp_path / "moved")), "127.0.0.1", 1234, ("a",))
    write_server_files(moved)
    reported = (moved.server / "local" / "resources.json").read_text()
    assert str(moved.server) in reported
    assert str(federation.server) not in reported


def test_another_flare_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    protection.check_flare_version()
    for version in ("2.8.3", "2.10.0", "3.0"):
        monkeypatch.setattr(nvflare, "__version__", version)
        with pytest.raises(UserError, match=r"written for 2\.9"):
            protection.check_flare_version()


class Monitor:
    """What FLARE's connection manager does with a driver's connections."""

    def __init__(self) -> None:
        self.came = threading.Semaphore(0)

    def state_change(self, connection: Any) -> None:
        if connection.state.name == "CONNECTED":
            connection.register_frame_receiver(SimpleNamespace(process_frame=lambda frame: None))
            self.came.release()


@pytest.mark.parametrize("deep", [False, True])
def test_a_socket_is_private_however_long_its_path_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deep: bool) -> None:
    workspace = tmp_path / ("deep " * 30 if deep else "kit")  # longer than a socket's path may be
    workspace.mkdir()
    monkeypatch.chdir(workspace)
    (workspace / SOCKET_FOLDER).mkdir(mode=0o755)
    (workspace / SOCKET_FOLDER / "4194305").touch()  # left by a process that is gone
    url, _ = PrivateSocketDriver.get_urls("private", {})
    assert [*(workspace / SOCKET_FOLDER).iterdir()] == []
    from nvflare.fuel.f3.drivers.connector_info import ConnectorInfo
    from nvflare.fuel.f3.drivers.net_utils import parse_url
    from nvflare.fuel.utils.constants import Mode

    server, client, monitor = PrivateSocketDriver(), PrivateSocketDriver(), Monitor()
    threads = []
    for driver, mode in ((server, Mode.PASSIVE), (client, Mode.ACTIVE)):
        driver.register_conn_monitor(monitor)
        connector = ConnectorInfo("x", driver, parse_url(url), mode, 0, 0, False, threading.Event())
        threads.append(threading.Thread(target=driver.listen if mode == Mode.PASSIVE else driver.connect, args=(connector,), daemon=True))
        threads[-1].start()
        for _ in range(100):
            if server.server is not None:
                break
            threading.Event().wait(0.05)
    assert monitor.came.acquire(timeout=10)
    assert monitor.came.acquire(timeout=10)
    assert (workspace / SOCKET_FOLDER).stat().st_mode & 0o777 == 0o700
    if os.getuid() == 0:  # not even where the folder is open does another user get in
        (workspace / SOCKET_FOLDER).chmod(0o777)
        (workspace / SOCKET_FOLDER / str(os.getpid())).chmod(0o777)
        os.chmod(tmp_path.parents[1], 0o755)
        code = f"import os, socket; os.chdir({str(workspace / SOCKET_FOLDER)!r}); os.setuid(65534); s = socket.socket(socket.AF_UNIX)"
        code += f"; s.settimeout(5); s.connect({str(os.getpid())!r}); print(s.recv(1))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.stdout.strip() == "b''" or "ConnectionResetError" in done.stderr, done.stdout + done.stderr
    client.shutdown()
    server.shutdown()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    assert not (workspace / SOCKET_FOLDER / str(os.getpid())).exists()


def test_a_folder_of_sockets_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / SOCKET_FOLDER).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Exception, match="not a folder of this user"):
        make_socket_folder(tmp_path)


def response(executor: CoterieExecutor, message: object) -> bytes:
    asked = Shareable()
    asked[BODY] = to_message(message)
    reply = executor.execute("coterie", asked, FLContext(), Signal())
    assert reply.get_return_code() == ReturnCode.OK
    found: bytes = reply[BODY]
    return found


def test_a_trainer_that_dies_is_replaced_and_answers_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KIT, str(tmp_path))
    (tmp_path / "policy.toml").write_text(APPROVING_POLICY)
    SiteSettings(data="heart", clients=("va",), engine="loop", threads=1).write(tmp_path)
    executor, terms = CoterieExecutor(), make_terms()
    try:
        card = from_message(response(executor, make_hello(terms)), SiteCard)
        assert card.ids == ("va",)
        size = World.from_spec(load("heart"), "mclr").model.layout.size
        models, first = np.zeros((1, size), dtype=np.float32), np.zeros(1, dtype=np.int64)
        batch = AskBatch(PROTOCOL, "r", "2", ("va",), (StampedAsk(Train(first, models, Local(), start=first), 0, 1),), terms.hash)
        before = from_message(response(executor, batch), ReplyBatch)
        os.kill(executor.child.pid, signal.SIGKILL)
        after = from_message(response(executor, batch), ReplyBatch)
        assert (before.answers[0].vectors == after.answers[0].vectors).all()
    finally:
        executor._end()


def test_the_job_process_does_not_load_what_trains() -> None:
    loaded = "import sys, coterie.deploy.flare.jobs; print([name for name in ('torch', 'pyarrow', 'pandas') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.strip() == "[]"
