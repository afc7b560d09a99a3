"""The operator's side: certificates and kits, sessions with the server, and the supervisor of `coterie serve`, which submits jobs.

Kits come from one CA: the server's, the operator's and one for each site; more sites later, from the same CA. A site may also make its
key itself and send only a request to be signed: its kit then comes without a key.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from types import SimpleNamespace
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID
from nvflare.fuel.flare_api.api_spec import NoConnection
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.fuel.hci.client import api
from nvflare.lighter.constants import CtxKey
from nvflare.lighter.entity import Project
from nvflare.lighter.impl.cert import CertBuilder
from nvflare.lighter.impl.static_file import StaticFileBuilder
from nvflare.lighter.impl.workspace import WorkspaceBuilder
from nvflare.lighter.provisioner import Provisioner
from nvflare.lighter.utils import Identity, generate_cert, generate_keys, serialize_cert, serialize_pri_key, x509_name

from coterie._util.errors import UserError
from coterie._util.files import lock_file
from coterie.deploy.certificates import DAYS, DRAFT, keep_only_authority, load_authority, write_authority
from coterie.deploy.files import keep_private
from coterie.deploy.flare.jobs import ADMIN, ORGANISATION, ROLE, write_job, write_server_files, write_site_files
from coterie.deploy.flare.jobs import PROJECT_SERVER as SERVER
from coterie.deploy.flare.processes import wait_until
from coterie.deploy.server.federation import PROJECT, FederationFolder, check_site_name, list_connected_sites, read_presence
from coterie.deploy.server.runs import AGAIN, END_STATES, WAITING, RunFolder, list_runs, read_journal
from coterie.deploy.site.policy import DEFAULT_POLICY

AUTHORITY_DAYS = 3650


def create_federation(folder: Path, host: str, port: int, sites: Sequence[str]) -> FederationFolder:
    """A new federation."""
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: choose another folder, or add a site with 'coterie federation add'.")
    for site in sites:
        check_site_name(site)
    if len(set(sites)) != len(sites) or not sites:
        raise UserError("Name the sites, each once: --sites a,b,c.")
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    federation = FederationFolder(folder, host, port, tuple(sites))
    with _provision(federation, sites) as made:
        _copy_kit(made / SERVER, federation.server)
        _copy_kit(made / ADMIN, federation.admin)
        write_server_files(federation)
        for site in sites:
            _make_kit(federation, made, site)
    keep_private(federation.server)
    federation.write()
    return federation


def add_site(federation: FederationFolder, site: str, key: Any = None) -> FederationFolder:
    """One site more; the server need not be stopped for it. With a public key of its own, its kit has a certificate for that and no key."""
    check_site_name(site)
    if site in federation.sites:
        raise UserError(f"The federation has a site {site!r} already: its kit is {federation.kit(site)}.")
    if site in federation.removed:
        raise UserError(
            f"The site {site!r} was removed: give it another name, so that its old certificate stays worthless, "
            f"or take it back as it was with 'coterie federation add {federation.folder} {site} --again'."
        )
    grown = replace(federation, sites=(*federation.sites, site))
    with _provision(grown, [site]) as made:
        if key is not None:
            startup = made / site / "startup"
            (startup / "client.key").unlink()
            certificate, own = load_authority(grown)
            issuer = Identity(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
            subject = Identity(site, ORGANISATION, None)
            made_for = generate_cert(subject, issuer, signing_pri_key=own, subject_pub_key=key, valid_days=DAYS)
            (startup / "client.crt").write_bytes(serialize_cert(made_for))
        _make_kit(grown, made, site)
    grown.write()
    return grown


def request_certificate(site: str, folder: Path) -> Path:
    """At the site: a key, which stays, and a request to be sent to the operator."""
    check_site_name(site)
    if (folder / "client.key").exists():
        raise UserError(f"{folder} holds a key already: choose another --out, or remove {folder / 'client.key'} if it is not in use.")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key, _ = generate_keys()
    private = folder / "client.key"
    with os.fdopen(os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(serialize_pri_key(key))
    asked = x509.CertificateSigningRequestBuilder().subject_name(x509_name(site, ORGANISATION, None)).sign(key, hashes.SHA256())
    path = folder / f"{site}.csr"
    path.write_bytes(asked.public_bytes(serialization.Encoding.PEM))
    return path


def sign_request(federation: FederationFolder, site: str, asked: Path) -> FederationFolder:
    """At the operator's: a kit without a key, with the certificate that the site asked for. Nothing of the request but its key counts."""
    try:
        found = x509.load_pem_x509_csr(asked.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{asked} is no signing request that can be read ({error}).") from error
    named = [attribute.value for attribute in found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if not found.is_signature_valid or named != [site]:
        raise UserError(f"{asked} asks for {', '.join(map(str, named)) or 'no site'}, not for the site {site!r}.")
    return add_site(federation, site, found.public_key())


@contextmanager
def _provision(federation: FederationFolder, sites: Sequence[str]) -> Iterator[Path]:
    """Kits of the server, the operator and these sites, with new keys from the same authority, for as long as they are copied.

    FLARE keeps the keys of all it has made. The authority's folder keeps its own alone: a key that lies in two places is stolen from the
    one that is forgotten.
    """
    project = Project(PROJECT, "a federation")
    hosts = sorted({federation.host, "localhost", "127.0.0.1"})
    ports = {"fed_learn_port": federation.port, "admin_port": federation.port}
    project.set_server(SERVER, ORGANISATION, {**ports, "default_host": federation.host, "host_names": hosts})
    project.add_admin(ADMIN, ORGANISATION, {"role": ROLE})
    for site in sites:
        project.add_client(site, ORGANISATION, {})
    builders = [WorkspaceBuilder(), StaticFileBuilder(config_folder="config", scheme="grpc"), CertBuilder(root_valid_days=AUTHORITY_DAYS)]
    federation.authority.mkdir(exist_ok=True)
    keep_only_authority(federation)
    with lock_file(federation.authority), TemporaryDirectory(dir=federation.authority, prefix=DRAFT) as draft:
        state = Path(draft) / PROJECT / "state"
        state.mkdir(parents=True)
        if federation.authority_file.exists():
            shutil.copy(federation.authority_file, state)
        errors: list[str] = []
        ignored = dict.fromkeys(("debug", "info", "warning"), lambda message: None)
        context = Provisioner(draft, builders).provision(project, logger=SimpleNamespace(**ignored, error=errors.append))
        if context.get(CtxKey.BUILD_ERROR):
            raise UserError(f"The kits could not be made: {' '.join(errors)[:300]}")
        if not federation.authority_file.exists():
            write_authority(federation, json.loads((state / federation.authority_file.name).read_text(encoding="utf-8")))
        yield Path(context[CtxKey.CURRENT_PROD_DIR])


def _make_kit(federation: FederationFolder, made: Path, site: str) -> None:
    """A kit appears whole or not at all."""
    kit = federation.kit(site)
    kit.parent.mkdir(exist_ok=True, mode=0o700)
    with TemporaryDirectory(dir=kit.parent) as draft:
        new = Path(draft) / site
        _copy_kit(made / site, new)
        (new / "policy.toml").write_text(DEFAULT_POLICY, encoding="utf-8")
        (new / "kit.json").write_text(json.dumps({"site": site, "server": f"{federation.host}:{federation.port}"}), encoding="utf-8")
        write_site_files(new)
        keep_private(new)
        new.rename(kit)


def _copy_kit(made: Path, place: Path) -> None:
    """What FLARE made, without its scripts, notebooks and samples: they would start a client past the lock, and nothing reads them."""
    shutil.copytree(made, place, ignore=shutil.ignore_patterns("*.sh", "*.ipynb", "readme.txt", "*.sample"))
    keep_private(place)


ENDED = "FINISHED"


@contextmanager
def open_session(federation: FederationFolder, timeout: float = 15.0) -> Iterator[Session]:
    """A session, closed in any case: one left open keeps the process from ending."""
    api._print_hci_message = lambda message: None  # it would write into the middle of what a command prints
    try:
        session = new_secure_session(ADMIN, str(federation.admin.absolute()), timeout=timeout)
    except NoConnection as error:
        where = f"{federation.host}:{federation.port}"
        raise UserError(f"No server answers at {where}: start it there with 'coterie serve {federation.folder}'.") from error
    try:
        yield session
    finally:
        session.close()


def submit_job(session: Session, run: str, federation: FederationFolder) -> str:
    """Start a job, or the next one of a run whose order is in its folder; its number."""
    with TemporaryDirectory() as folder:
        return str(session.submit_job(str(write_job(Path(folder), run, federation.sites))))


def list_active_jobs(session: Session) -> dict[str, str]:
    """By run, the number of its job that has not ended."""
    jobs = session.list_jobs()
    return {str(job["job_name"]): str(job["job_id"]) for job in jobs if not str(job["status"]).startswith(ENDED)}


def send_site_command(federation: FederationFolder, what: str, site: str) -> bool:
    """Have a server that runs "disable" or "enable" a site; whether one runs."""
    if not read_presence(federation.server).alive:
        return False
    with open_session(federation) as session:
        (session.disable_client if what == "disable" else session.enable_client)(site)
    return True


MAX_ATTEMPTS = 3  # jobs of a run that may end without a round before it counts as failed
PATIENCE = 10.0  # seconds for jobs to end when the server is stopped


class Supervisor:
    """Only one process submits, so no run is ever submitted twice. What it knows is on disk: it may be killed at any time."""

    def __init__(self, federation: FederationFolder, report: Callable[[str], None]) -> None:
        self.federation, self.report = federation, report
        self._session: Any = None
        self._opened = ExitStack()
        self._attempts: dict[str, tuple[int, int]] = {}

    def look(self) -> None:
        """Submit what waits, resume what ended early, abort what is to be stopped."""
        open_runs = [run for run in list_runs(self.federation) if run.status not in END_STATES]
        open_runs.sort(key=lambda run: run.status == AGAIN and bool(run.pending_sites))  # one that waits for approvals lets others go first
        if not open_runs:
            return
        try:
            active = list_active_jobs(self._connect())
            for run in open_runs:
                self._attend(run, active)
        except UserError:
            self.close()
        except Exception as error:  # whatever a session that has gone stale may raise: the next look opens another
            self.report(f"The server did not answer ({type(error).__name__}: {str(error)[:200]}); trying again.")
            self.close()

    def halt(self) -> None:
        """Before the server stops: end its jobs, and note that their runs are resumed at the next start."""
        try:
            session = self._connect()
            active = list_active_jobs(session)
            runs = [run for run in list_runs(self.federation) if run.name in active]
            for run in runs:
                session.abort_job(active[run.name])
            wait_until(lambda: all(run.status in END_STATES for run in runs), PATIENCE)
            for run in runs:
                if run.status in ("aborted", "submitted", "running"):
                    run.set_status(AGAIN)
        except Exception as error:  # the server may be dead already
            self.report(f"Jobs could not be ended first ({type(error).__name__}).")
        finally:
            self.close()

    def close(self) -> None:
        """Close the session: one left open would keep this process from ending."""
        self._session = None
        self._opened.close()

    def _connect(self) -> Any:
        if self._session is None:
            self._session = self._opened.enter_context(open_session(self.federation))
        return self._session

    def _attend(self, run: RunFolder, active: dict[str, str]) -> None:
        if run.is_stop_requested:
            if run.name in active:
                self._session.abort_job(active[run.name])
            wait_until(lambda: run.status in END_STATES, 0 if run.status == WAITING else PATIENCE)
            run.set_status("aborted", reason="stopped by the operator")
            run.clear_stop()
            self.report(f"Run {run.name}: stopped.")
            return
        if active or run.status in END_STATES:
            return  # one job at a time: the next run waits for its turn
        order, _ = run.order()
        here = list_connected_sites(self.federation.server) - set(self.federation.removed)
        began = run.study.exists()
        if len(here) < (1 if began else order.minimum):
            return
        if not self._may_submit(run):
            run.set_status("failed", reason=f"its job ended {MAX_ATTEMPTS} times without a round: see {self.federation.server / 'log.txt'}")
            return
        run.set_status("submitted")
        submit_job(self._session, run.name, self.federation)
        active[run.name] = ""
        self.report(f"Run {run.name}: {'resuming' if began else 'starting'} with {', '.join(sorted(here))}.")

    def _may_submit(self, run: RunFolder) -> bool:
        if run.pending_sites:
            return True  # sites take the time they need to approve an order
        rounds = sum(line["what"] == "round" for line in read_journal(run.folder))
        before, attempts = self._attempts.get(run.name, (rounds, 0))
        attempts = 1 if rounds > before else attempts + 1
        self._attempts[run.name] = (rounds, attempts)
        return attempts <= MAX_ATTEMPTS


def supervise(federation: FederationFolder, ended: Callable[[], bool], report: Callable[[str], None], every: float = 1.0) -> None:
    """Look again and again until something has ended; what is left running is halted when this is interrupted."""
    supervisor = Supervisor(federation, report)
    try:
        while not ended():
            began = monotonic()
            supervisor.federation = FederationFolder.open(federation.folder)  # sites may have been added
            supervisor.look()
            wait_until(ended, max(every - (monotonic() - began), 0.1))
    except KeyboardInterrupt:
        supervisor.halt()
        raise
    finally:
        supervisor.close()
