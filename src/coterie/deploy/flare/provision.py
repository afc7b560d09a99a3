"""Certificates and kits: a CA, a server, an operator, and a kit for each site; more sites later, from the same CA.

A site may also make its key itself and send only a request to be signed: its kit then comes without a key.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID
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
from coterie.deploy.flare.jobs import ADMIN, ORGANISATION, ROLE, write_server_files, write_site_files
from coterie.deploy.flare.jobs import PROJECT_SERVER as SERVER
from coterie.deploy.server.federation import PROJECT, FederationFolder, check_site_name
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
    grown = federation.but(sites=(*federation.sites, site))
    with _provision(grown, [site]) as made:
        if key is not None:
            startup = made / site / "startup"
            (startup / "client.key").unlink()
            (startup / "client.crt").write_bytes(serialize_cert(_certify(grown, site, key)))
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


def _certify(federation: FederationFolder, site: str, key: Any) -> x509.Certificate:
    certificate, own = load_authority(federation)
    issuer = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    subject = Identity(site, ORGANISATION, None)
    made: x509.Certificate = generate_cert(subject, Identity(issuer), signing_pri_key=own, subject_pub_key=key, valid_days=DAYS)
    return made


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
        log = _Log()
        context = Provisioner(draft, builders).provision(project, logger=log)
        if context.get(CtxKey.BUILD_ERROR):
            raise UserError(f"The kits could not be made: {' '.join(log.errors)[:300]}")
        if not federation.authority_file.exists():
            write_authority(federation, json.loads((state / federation.authority_file.name).read_text(encoding="utf-8")))
        yield Path(context[CtxKey.CURRENT_PROD_DIR])


class _Log:
    def __init__(self) -> None:
        self.errors: list[str] = []

    def debug(self, message: str) -> None: ...

    def info(self, message: str) -> None: ...

    def warning(self, message: str) -> None: ...

    def error(self, message: str) -> None:
        self.errors.append(message)


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
