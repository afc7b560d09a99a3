"""The commands of a real federation: what they refuse, and one federation of four hospitals that really runs."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from typer.testing import CliRunner

import coterie as package
from coterie._util.errors import UserError
from coterie.cli.app import app
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.deploy.certificates import RevokedSites, check_kit, restore_site, revoke_site
from coterie.deploy.flare.operator import add_site, create_federation, request_certificate, sign_request, supervise
from coterie.deploy.flare.processes import check_port, explain_refusal, run_server, run_sites, wait_until
from coterie.deploy.server.federation import FederationFolder, Presence, check_site_name, parse_address, read_presence, write_presence
from coterie.deploy.server.runner import ANSWERS_FILE, run_order
from coterie.deploy.server.runs import InspectOrder, Order, RunFolder, find_free_name, find_run, list_runs, make_run
from coterie.deploy.server.status import summarize_federation
from coterie.deploy.site.approvals import SiteMonitor
from coterie.deploy.site.data import SiteSettings
from coterie.deploy.site.policy import approve_orders
from coterie.deploy.site.process import Site
from coterie.evidence.reader import Evidence, read_notes
from coterie.evidence.restore import load_lanes
from coterie.evidence.settings import Settings
from coterie.inspect import InspectPlan, PilotPlan, inspect_data
from coterie.inspect.answers import write_answers
from coterie.run.execution import Execution
from coterie.run.study import Study
from coterie.run.waves import TimeBudget
from deploy.ordering import APPROVING_POLICY

pytest.importorskip("nvflare")
HOSPITALS = ("cleveland", "hungary", "switzerland", "va")
METHODS = (
    *("fedavg", "fedsim(clusters=2,sketch=16)", "fedgroup(groups=2,alpha=2)", "fesem(groups=2)"),
    *("simprox", "ifca(groups=2)"),
)
MODEL = "mlp(32)"
PLAN = Plan(rounds=2, local=Local(epochs=1, lr=0.05))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# What needs no server.


@pytest.fixture(autouse=True, scope="module")
def _signals_as_before() -> Iterator[None]:
    """Commands run within this process: their handlers must not stay behind for other tests."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> FederationFolder:
    return create_federation(tmp_path_factory.mktemp("federation") / "f", "127.0.0.1", free_port(), ["north", "south"])


@pytest.mark.parametrize(
    "text", ["host:²", "host:" + "9" * 5000, "", "host", "host:", ":80", "host:port", "host:0", "host:65536", "host:-1"]
)
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="HOST:PORT"):
        parse_address(text)


def test_an_address() -> None:
    assert parse_address("flare.hospital.org:8102") == ("flare.hospital.org", 8102)


@pytest.mark.parametrize("name", ["", "a b", "ä", "../x", "server", "admin", "x" * 61, "a.b", "a/b"])
def test_site_names_that_cannot_be(name: str) -> None:
    with pytest.raises(UserError, match="cannot be called"):
        check_site_name(name)


def test_a_folder_that_is_not_empty(federation: FederationFolder) -> None:
    with pytest.raises(UserError, match="not empty"):
        create_federation(federation.folder, "127.0.0.1", 1, ["a"])


def test_a_folder_that_is_no_federation(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no federation"):
        FederationFolder.open(tmp_path)


@pytest.mark.parametrize("sites", [[], ["a", "a"]])
def test_sites_are_named_once_each(tmp_path: Path, sites: list[str]) -> None:
    with pytest.raises(UserError, match="each once"):
        create_federation(tmp_path / "f", "127.0.0.1", 1, sites)


def test_a_kit_is_for_its_site(federation: FederationFolder) -> None:
    assert check_kit(federation.kit("north")) == ("north", f"127.0.0.1:{federation.port}")


def test_keys_are_for_their_owner_alone(federation: FederationFolder) -> None:
    assert federation.folder.stat().st_mode & 0o077 == 0
    assert (federation.folder / "authority" / "coterie" / "state" / "cert.json").stat().st_mode & 0o077 == 0


def copy_of(kit: Path, folder: Path) -> Path:
    return Path(subprocess.run(["cp", "-r", kit, folder / "kit"], check=True).args[3])


def test_a_kit_without_a_key(federation: FederationFolder, tmp_path: Path) -> None:
    kit = copy_of(federation.kit("north"), tmp_path)
    (kit / "startup" / "client.key").unlink()
    with pytest.raises(UserError, match="has no key"):
        check_kit(kit)


def test_a_kit_with_the_key_of_another(federation: FederationFolder, tmp_path: Path) -> None:
    kit = copy_of(federation.kit("north"), tmp_path)
    (kit / "startup" / "client.key").write_bytes((federation.kit("south") / "startup" / "client.key").read_bytes())
    with pytest.raises(UserError, match="does not fit its certificate"):
        check_kit(kit)


def test_a_kit_with_the_certificate_of_another(federation: FederationFolder, tmp_path: Path) -> None:
    kit = copy_of(federation.kit("north"), tmp_path)
    (kit / "startup" / "client.crt").write_bytes((federation.kit("south") / "startup" / "client.crt").read_bytes())
    with pytest.raises(UserError, match="is of 'south', the kit is for 'north'"):
        check_kit(kit)


def test_a_folder_that_is_no_kit(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a site's kit"):
        check_kit(tmp_path)


def _authority(name: str = "coterie") -> tuple[x509.Name, rsa.RSAPrivateKey]:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]), rsa.generate_private_key(65537, 2048)


def _certificate(issuer: x509.Name, key: rsa.RSAPrivateKey, public: rsa.RSAPublicKey, subject: x509.Name, ends: datetime) -> bytes:
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public).serial_number(7)
    made = made.not_valid_before(datetime.now(UTC) - timedelta(days=9)).not_valid_after(ends)
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize(("days", "own_root", "fault"), [(-1, True, "ended on"), (1, False, "not of the federation's authority")])
def test_certificates_that_count_for_nothing(federation: FederationFolder, tmp_path: Path, days: int, own_root: bool, fault: str) -> None:
    """An expired one, and one of another authority."""
    kit = copy_of(federation.kit("north"), tmp_path)
    root, key = _authority()
    own = rsa.generate_private_key(65537, 2048)
    north = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "north")])
    ends = datetime.now(UTC) + timedelta(days=days)
    (kit / "startup" / "client.crt").write_bytes(_certificate(root, key, own.public_key(), north, ends))
    private = own.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (kit / "startup" / "client.key").write_bytes(private)
    if own_root:
        (kit / "startup" / "rootCA.pem").write_bytes(_certificate(root, key, key.public_key(), root, datetime.now(UTC) + timedelta(days=9)))
    with pytest.raises(UserError, match=fault):
        check_kit(kit)


def test_a_site_that_makes_its_own_key(federation: FederationFolder, tmp_path: Path) -> None:
    asked = request_certificate("west", tmp_path / "west")
    with pytest.raises(UserError, match="not for the site 'east'"):
        sign_request(federation, "east", asked)
    kit = sign_request(FederationFolder.open(federation.folder), "west", asked).kit("west")
    with pytest.raises(UserError, match="has no key"):
        check_kit(kit)
    (kit / "startup" / "client.key").write_bytes((tmp_path / "west" / "client.key").read_bytes())
    assert check_kit(kit)[0] == "west"
    (tmp_path / "no.csr").write_text("no")
    with pytest.raises(UserError, match="no signing request"):
        sign_request(federation, "east", tmp_path / "no.csr")


def test_a_site_that_is_removed_stays_out(federation: FederationFolder) -> None:
    grown = add_site(FederationFolder.open(federation.folder), "late")
    seen = RevokedSites(federation.folder)
    assert seen() == frozenset()
    left = revoke_site(grown, "late")
    assert seen() == {"late"}
    assert json.loads((federation.server / "disabled_clients.json").read_text()) == {"disabled_clients": ["late"]}
    with pytest.raises(UserError, match="was removed: give it another name"):
        add_site(left, "late")
    with pytest.raises(UserError, match="has no site 'late'"):
        revoke_site(left, "late")
    assert restore_site(left, "late").removed == ()
    assert seen() == frozenset()


def test_a_port_that_is_taken() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(UserError, match="cannot listen"):
            check_port("127.0.0.1", listener.getsockname()[1])


def test_the_status_of_nothing(federation: FederationFolder) -> None:
    found = summarize_federation(FederationFolder.open(federation.folder))
    assert not found["listening"]
    assert found["runs"] == []
    assert not any(site["there"] for site in found["sites"])
    printed = CliRunner().invoke(app, ["federation", "status", str(federation.folder)])
    assert "not running" in printed.output
    assert "No runs yet" in printed.output


def test_nothing_is_launched_without_a_server(federation: FederationFolder) -> None:
    found = CliRunner().invoke(app, ["launch", "fedavg", "--federation", str(federation.folder)])
    assert isinstance(found.exception, UserError)
    assert "No server runs" in str(found.exception)


def test_presence_is_of_a_process(tmp_path: Path) -> None:
    assert not read_presence(tmp_path).alive
    write_presence(tmp_path, {"a": 1.0}, {"a": "x"})
    assert read_presence(tmp_path).alive
    assert not Presence(0.0, {}).alive
    (tmp_path / "connected.json").write_text("{")
    assert not read_presence(tmp_path).alive


def test_names_of_runs(tmp_path: Path) -> None:
    folder = FederationFolder(tmp_path, "127.0.0.1", 1, ("a",))
    for name in ("", "a b", "../a", ".a", "-a", "ä"):
        with pytest.raises(UserError, match="cannot be called"):
            make_run(folder, name)
    run = make_run(folder, find_free_name(folder, "study"))
    order = Order("study", "study", {"plan": {"rounds": 1}}, ("a",), 1)
    run.place(order, 5.0)
    assert run.order() == (order, 5.0)
    assert run.status == "waiting"
    assert find_free_name(folder, "study") == "study-2"
    assert [run.name for run in list_runs(folder)] == ["study"]
    with pytest.raises(UserError, match="already"):
        make_run(folder, "study")
    with pytest.raises(UserError, match="did you mean 'study'"):
        find_run(folder, "studi")


def test_a_launch_that_was_killed_leaves_a_name_that_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = FederationFolder(tmp_path, "127.0.0.1", 1, ("a",))
    order = Order("study", "study", {"plan": {"rounds": 1}}, ("a",), 1)
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "set_status", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            make_run(folder, "study").place(order, 5.0)
    assert (folder.runs / "study").exists()
    assert list_runs(folder) == []
    assert find_free_name(folder, "study") == "study"
    make_run(folder, "study").place(order, 5.0)
    assert find_run(folder, "study").status == "waiting"


@pytest.mark.parametrize(
    ("logged", "means"),
    [
        ("registration rejected: Client 'a' is disabled", "removed a"),
        ("registration rejected: Maximum number of clients reached", "no more sites"),
        ("Handshake failed CERTIFICATE_VERIFY_FAILED", "another authority"),
        ("Retrying in 8 seconds", "did not take a in within 9 s"),
    ],
)
def test_what_flare_logs_is_explained_in_sentences(logged: str, means: str) -> None:
    assert means in explain_refusal(logged, "a", "host:1", 9.0)


def test_there_is_no_way_without_tls(federation: FederationFolder) -> None:
    """Every process is started secure, and no option changes that."""
    source = Path(sys.modules["coterie.deploy.flare.processes"].__file__ or "").read_text()
    assert source.count("secure_train=") == source.count("secure_train=true") == 1
    assert json.loads((federation.server / "startup" / "fed_server.json").read_text())["servers"][0]["service"]["scheme"] == "grpc"
    for command in (["serve"], ["join"], ["federation", "init"]):
        printed = CliRunner().invoke(app, [*command, "--help"]).output.lower()
        assert not any(word in printed for word in ("insecure", "plain", "no-tls", "no-ssl"))


def test_news_of_a_site(federation: FederationFolder) -> None:
    kit = federation.kit("south")
    news = SiteMonitor(kit)
    with (kit / "audit.jsonl").open("a") as audit:
        audit.write(json.dumps({"run": "r", "event": "ledger sealed"}) + "\n")
        audit.write(json.dumps({"run": "r", "ask": "Train", "denied": None}) + "\n")
        audit.write(json.dumps({"run": "r", "ask": "Evaluate", "denied": "Not this."}) + "\n" + '{"run": "r2"')
    (kit / "bundles" / "r" / "fedavg").mkdir(parents=True)
    assert [line.split(":")[0] for line in news.wait(0)] == ["Run r asks", "Run r was denied", "Run r has ended"]
    assert news.wait(0) == []


class Here:
    """Carries messages to sites that answer within this process, under their policies."""

    def __init__(self, kits: dict[str, Path]) -> None:
        self.sites = {site: Site(kit) for site, kit in kits.items()}

    def exchange(self, batches: Mapping[str, bytes]) -> dict[str, bytes]:
        return {site: self.sites[site].answer(data) for site, data in batches.items()}


def test_an_inspection_of_sites(tmp_path: Path) -> None:
    """With the policy that kits come with, class counts stay with the sites: that is reported, and there is a way without."""
    kits = {site: tmp_path / site for site in HOSPITALS}
    for site, kit in kits.items():
        kit.mkdir()
        (kit / "policy.toml").write_text(APPROVING_POLICY.replace("rounding = 3", "rounding = 1").replace("samples = 10", "samples = 5"))
        SiteSettings("heart", (site,), engine="loop").write(kit)
    run = RunFolder(tmp_path / "inspect")

    def inspect(plan: InspectPlan) -> bool:
        order = Order("inspect", "inspect", InspectOrder("sites", plan=plan).as_json(), HOSPITALS, 4)
        run.place(order, 60.0)
        return run_order(run.order()[0], Here(kits), HOSPITALS, run.folder, clock=TimeBudget(60.0), report=pytest.fail)

    with pytest.raises(UserError, match="no_labels="):
        inspect(InspectPlan(pilot=None))
    assert inspect(InspectPlan(labels=False, pilot=PilotPlan(rounds=1, randoms=2)))
    assert (run.folder / "inspection.html").stat().st_size > 1000
    written = json.loads((run.folder / ANSWERS_FILE).read_text())
    assert written["clients"] == 4
    direct = inspect_data("heart", plan=InspectPlan(labels=False, pilot=PilotPlan(rounds=1, randoms=2)), execution=Execution(engine="loop"))
    assert [answer["short"] for answer in written["answers"]] == [answer.short for answer in write_answers(direct)]


# One federation that runs.


@dataclass
class Running:
    federation: FederationFolder


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("running") / "a federation"  # a path with a space
    found = create_federation(folder, "127.0.0.1", free_port(), HOSPITALS)
    over = Event()
    with ExitStack() as processes:
        server = processes.enter_context(run_server(found))
        for site in HOSPITALS:
            SiteSettings("heart", (site,), engine="loop", threads=1).write(found.kit(site))
            policy = found.kit(site) / "policy.toml"  # to the digit as in simulation: IFCA chooses by losses, and Switzerland has 9 to test
            policy.write_text(policy.read_text().replace("rounding = 3", "rounding = 1").replace("samples = 10", "samples = 5"))
            approve_orders(found.kit(site) / "policy.toml", any=True)
        kits = {site: found.kit(site) for site in HOSPITALS}
        processes.enter_context(run_sites(kits, f"{found.host}:{found.port}", 90.0))
        attending = Thread(target=supervise, args=(found, lambda: over.is_set() or server.poll() is not None, lambda line: None, 0.3))
        attending.start()
        try:
            yield Running(found)
        finally:
            over.set()
            attending.join(30)


def coterie(*words: str, code: int = 0) -> str:
    """A command as a user gives it; what it wrote."""
    paths = {"PYTHONPATH": str(Path(package.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", "from coterie.cli import main; main()", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
        env=os.environ | paths,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def invoke(*words: str) -> str:
    """A command within this process, which spares the time to start one."""
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.exception
    return done.output


def test_a_second_server_is_refused(running: Running) -> None:
    assert f"runs already, as process {os.getpid()}:" in coterie("serve", str(running.federation.folder), code=2)


def test_a_launch_gives_what_the_simulation_gives(running: Running, tmp_path: Path) -> None:
    """Of FedSim's gradients 16 projections each, by the run's one key: the same clusters at the server."""
    folder = str(running.federation.folder)
    words = ["--rounds", "2", "--epochs", "1", "--lr", "0.05", "--seeds", "0,1", "--data", "heart", "--model", MODEL, "--name", "first"]
    assert "4 sites take part" in invoke("launch", *METHODS, "--federation", folder, *words)
    study = running.federation.runs / "first" / "study"
    bounded = replace(PLAN, most_share=1 / 3)  # the default of four sites; Cleveland has 41 % of the patients, Hungary 35 %
    assert Evidence.open(study).settings.plan.most_share == 1 / 3
    limited = [names for _, round_, names in read_notes(Evidence.open(study), "limited_sites") if round_ == 1]
    assert "cleveland" in limited[0]
    settings = Settings(methods=METHODS, data="heart", model=MODEL, plan=bounded, seeds=(0, 1))
    Study.prepare(settings).run(out=tmp_path / "sim", execution=Execution(engine="loop"))
    real, simulated = load_lanes(study).lanes, load_lanes(tmp_path / "sim").lanes
    assert real.keys() == simulated.keys()
    for key, lane in simulated.items():
        ours, theirs = real[key].state, lane.state
        assert ours is not None
        assert theirs is not None
        for name, value in vars(theirs).items():
            if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size:
                scale = max(float(np.nanmax(np.abs(value))), 1e-12)
                assert float(np.nanmax(np.abs(getattr(ours, name) - value))) / scale < 1e-5, (key, name)
    asks = [json.loads(line).get("ask") for line in (running.federation.kit("va") / "audit.jsonl").read_text().splitlines()]
    assert {"SketchedGradient", "Train"} <= set(asks)
    assert "Gradient" not in asks


def test_a_bundle_is_watched(running: Running) -> None:
    """What the first run delivered, looked at twice by the same order; the history is the same however often it is shown."""
    folder, run = str(running.federation.folder), find_run(running.federation, "first")
    bundle = str(next(path for path in sorted((run.folder / "bundles").iterdir()) if path.name.startswith("fedgroup")))
    words = ["federation", "monitor", folder, "--bundle", bundle, "--every", "1", "--looks", "2"]
    assert "No change was noticed in 2 looks." in invoke(*words)
    history = running.federation.runs / "monitor" / "history.jsonl"
    before = history.read_bytes()
    assert "No change was noticed in 2 looks." in invoke(*words)  # complete: nothing is asked again
    assert "No change was noticed in 2 looks." in invoke("federation", "monitor", folder, "--show")
    assert history.read_bytes() == before
    found = {one["run"]: one for one in summarize_federation(running.federation)["runs"]}
    assert (found["monitor"]["status"], found["monitor"]["round"], found["monitor"]["rounds"]) == ("complete", 2, 2)


def test_what_is_made_of_it(running: Running) -> None:
    run = find_run(running.federation, "first")
    shown = CliRunner().invoke(app, ["show", str(run.study)])
    assert "fedsim" in shown.output, shown.exception
    assert "share no scores" not in shown.output
    made = CliRunner().invoke(app, ["report", str(run.study)])
    assert made.exit_code == 0, made.exception
    assert (run.study / "report.html").stat().st_size > 10_000
    for site in HOSPITALS:
        assert len(list((running.federation.kit(site) / "bundles" / "first").iterdir())) == len(METHODS)
    found = summarize_federation(running.federation)
    assert all(site["there"] for site in found["sites"])
    assert found["runs"][0]["status"] == "complete"
    assert set(found["runs"][0]["groups"]["fedgroup(groups=2,alpha=2)"]) == set(HOSPITALS)


def test_a_run_that_was_left_alone_and_a_site_that_is_removed(running: Running) -> None:
    """Launched without waiting; one site keeps its scores, another is removed in the middle; then looked at to the end."""
    federation, folder = running.federation, str(running.federation.folder)
    policy = federation.kit("hungary") / "policy.toml"
    policy.write_text(policy.read_text().replace(', "Evaluate"', ""))
    invoke("launch", "fedavg", "--federation", folder, "--rounds", "12", "--epochs", "1", "--name", "second", "--detach")
    run = RunFolder(federation.runs / "second")
    assert wait_until(lambda: (summarize_federation(federation)["runs"][-1]["round"] or 0) >= 2, 300.0)
    assert "va is removed." in invoke("federation", "remove", folder, "va")
    printed = invoke("launch", "--federation", folder, "--resume", "--name", "second")
    assert "fedavg" in printed
    assert "1 clients share no scores, by their sites' policies: hungary" in " ".join(printed.split())
    absences = CliRunner().invoke(app, ["federation", "status", folder, "--json"])
    assert json.loads(absences.stdout.splitlines()[-1])["removed"] == ["va"]
    audit = [json.loads(line) for line in (federation.kit("va") / "audit.jsonl").read_text().splitlines()]
    assert max(line["round"] for line in audit if line.get("run") == "second" and "ask" in line) < 12
    assert run.status == "complete"
    assert "Run second is complete already." in invoke("launch", "--federation", folder, "--resume", "--name", "second", "--detach")
    assert not (federation.kit("va") / "bundles" / "second").exists()
