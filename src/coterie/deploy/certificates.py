"""Certificates of a federation: expiry, renewal, revocation of sites, and the check of a site's kit before it is used."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.x509.oid import NameOID

from coterie._util.errors import UserError, check_names, suggest_names
from coterie._util.files import lock_file, write_atomic
from coterie._util.json_io import format_json, read_json_object
from coterie.deploy.files import keep_private
from coterie.deploy.server.federation import FEDERATION_FILE, PROJECT, FederationFolder

DAYS = 360  # of a certificate
AUTHORITY = ("root_cert", "root_pri_key")  # its part of FLARE's file
EXPIRY_WARNING = timedelta(days=30)
DRAFT = "draft-"  # before the names of folders in which kits are made
SERVER, OPERATOR = "server", "operator"  # no site may be called so


def read_certificate(path: Path) -> x509.Certificate:
    """A certificate of a file."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is no certificate that can be read ({error}): restore it from a copy.") from error


def load_authority(federation: FederationFolder) -> tuple[x509.Certificate, RSAPrivateKey]:
    """The certificate that all others rest on, and its key."""
    path = federation.authority_file
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        key = serialization.load_pem_private_key(state["root_pri_key"].encode(), None)
        certificate = x509.load_pem_x509_certificate(state["root_cert"].encode())
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"The authority {path} cannot be read ({error}): restore the folder from a copy.") from error
    assert isinstance(key, RSAPrivateKey)
    return certificate, key


def write_authority(federation: FederationFolder, state: Mapping[str, Any]) -> None:
    """Keep the authority's key and certificate; of what else FLARE's provisioning knows, nothing."""
    path = federation.authority_file
    for folder in (path.parent.parent, path.parent):
        folder.mkdir(exist_ok=True, mode=0o700)
    write_atomic(path, json.dumps({name: state[name] for name in AUTHORITY}), 0o600)


def keep_only_authority(federation: FederationFolder) -> None:
    """Remove keys and certificates of sites, server and operator from the authority's folder: FLARE's provisioning leaves them there."""
    if not federation.authority.is_dir():
        return
    keep_private(federation.authority)
    with lock_file(federation.authority):  # kits may be in the making
        for left in (*federation.authority.glob(f"{DRAFT}*"), *federation.authority.glob(f"{PROJECT}/prod_*")):
            shutil.rmtree(left)
        if federation.authority_file.is_file():
            state = read_json_object(federation.authority_file, **dict.fromkeys(AUTHORITY, str))
            if state.keys() - set(AUTHORITY):
                write_authority(federation, state)


def list_certificate_paths(federation: FederationFolder) -> dict[str, Path]:
    """The server's, the operator's and every site's, as far as they are here: a kit may have been moved away."""
    named = {SERVER: federation.server / "startup" / "server.crt", OPERATOR: federation.admin / "startup" / "client.crt"}
    return named | {site: path for site in federation.sites if (path := federation.kit(site) / "startup" / "client.crt").is_file()}


def read_expiry_dates(federation: FederationFolder, faults: list[str] | None = None) -> dict[str, datetime]:
    """The ends of all certificates that are here, by name. With `faults`, one that cannot be read is a sentence there."""
    found = {}
    for name, path in list_certificate_paths(federation).items():
        try:
            if path.is_file():
                found[name] = read_certificate(path).not_valid_after_utc
        except UserError as error:
            if faults is None:
                raise
            faults.append(str(error))
    return found


def select_expiring(ends: Mapping[str, datetime], within: timedelta = EXPIRY_WARNING) -> dict[str, datetime]:
    """Those that have ended or will soon."""
    return {name: when for name, when in ends.items() if when < datetime.now(UTC) + within}


def check_server_certificate(federation: FederationFolder) -> None:
    """Refuse a server whose certificate does not count today: its sites would wait forever."""
    path = list_certificate_paths(federation)[SERVER]
    if not path.is_file():
        raise UserError(f"{federation.server} is not whole: it lacks startup/server.crt; restore the folder from a copy.")
    renewal = f"renew it with 'coterie federation renew {federation.folder}'"
    check_dates(read_certificate(path), "The server's certificate", renewal)
    check_dates(read_certificate(path.with_name("rootCA.pem")), "The certificate of the federation's authority", "make a new federation")


def check_dates(certificate: x509.Certificate, what: str, remedy: str) -> None:
    """Refuse a certificate that is not valid now. `remedy` is for one that has ended; one that is not valid yet is a matter of clocks."""
    now, begins, ends = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        raise UserError(
            f"{what} is not valid before {begins:%Y-%m-%d %H:%M} UTC, and this machine's clock is at {now:%Y-%m-%d %H:%M}: check the "
            "clocks of this machine and of the operator's."
        )
    if now > ends:
        raise UserError(f"{what} ended on {ends:%Y-%m-%d}: {remedy}.")


def renew_certificates(federation: FederationFolder, names: Sequence[str] = (), days: int = DAYS) -> Iterator[tuple[str, Path, datetime]]:
    """New certificates, for the keys that were certified before: names, files and ends. Default: all that are here."""
    paths = list_certificate_paths(federation)
    for name in names:
        if name in federation.sites and name not in paths:
            place = federation.kit(name) / "startup" / "client.crt"
            raise UserError(f"The kit of {name} is not here: have a copy of its startup/client.crt sent, and put it at {place}.")
    check_names(names, paths, "certificate")
    keep_only_authority(federation)
    root, key = load_authority(federation)
    for name in names or paths:
        made = _reissue(read_certificate(paths[name]), root, key, days)
        draft = paths[name].with_suffix(".new")
        draft.touch(mode=0o600)
        draft.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        draft.rename(paths[name])
        yield name, paths[name], made.not_valid_after_utc


def _reissue(old: x509.Certificate, root: x509.Certificate, key: RSAPrivateKey, days: int) -> x509.Certificate:
    """The same subject, key and extensions for so many days more, and never longer than the authority itself."""
    now = datetime.now(UTC)
    ends = min(now + timedelta(days=days), root.not_valid_after_utc)
    if ends <= now:
        raise UserError(f"The federation's authority itself ended on {root.not_valid_after_utc:%Y-%m-%d}: make a new federation.")
    made = x509.CertificateBuilder().subject_name(old.subject).issuer_name(root.subject).public_key(old.public_key())
    made = made.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(minutes=5)).not_valid_after(ends)
    for extension in old.extensions:
        made = made.add_extension(extension.value, extension.critical)
    return made.sign(key, hashes.SHA256())


NEEDED_FILES = (
    "startup/fed_client.json",
    "startup/client.crt",
    "startup/client.key",
    "startup/rootCA.pem",
    "local/resources.json",
    "kit.json",
)


def check_kit(kit: Path) -> tuple[str, str]:
    """The site and the server that a kit is for, if it is whole, unexpired and fits together."""
    missing = [name for name in NEEDED_FILES if not (kit / name).is_file()]
    if missing == ["startup/client.key"]:
        raise UserError(
            f"The kit {kit} has no key: put the client.key that this site made with 'coterie federation request' into startup/."
        )
    if missing:
        raise UserError(
            f"{kit} is not a site's kit: it lacks {missing[0]}; take the folder that 'coterie federation init' made for the site."
        )
    details = read_json_object(kit / "kit.json", site=str, server=str)
    own, root = (read_certificate(kit / "startup" / name) for name in ("client.crt", "rootCA.pem"))
    named = own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    if named != details["site"]:
        raise UserError(f"The certificate in {kit} is of {named!r}, the kit is for {details['site']!r}: ask the operator for a new kit.")
    try:
        own.verify_directly_issued_by(root)
    except (InvalidSignature, ValueError, TypeError) as error:
        raise UserError(f"The certificate in {kit} is not of the federation's authority: ask the operator for a new kit.") from error
    renewal = "ask the operator for a new one ('coterie federation renew'); it takes the place of startup/client.crt"
    check_dates(own, f"The certificate in {kit}", renewal)
    check_dates(root, f"The certificate of the authority in {kit}", "ask the operator for a kit of a new federation")
    key = serialization.load_pem_private_key((kit / "startup" / "client.key").read_bytes(), None)
    if key.public_key() != own.public_key():
        raise UserError(f"The key in {kit} does not fit its certificate: put the one there that the certificate was asked with.")
    return str(details["site"]), str(details["server"])


DISABLED_FILE = "disabled_clients.json"  # FLARE reads it when the server starts


def revoke_site(federation: FederationFolder, site: str) -> FederationFolder:
    """Take a site out for good; jobs that run now see it at their next question."""
    if site not in federation.sites:
        raise UserError(f"The federation {federation.folder} has no site {site!r}: {suggest_names(site, federation.sites)}")
    left = replace(federation, sites=tuple(name for name in federation.sites if name != site), removed=(*federation.removed, site))
    left.write()
    write_disabled(left)
    return left


def restore_site(federation: FederationFolder, site: str) -> FederationFolder:
    """A removed site may come in again, with the certificate that it had."""
    back = replace(federation, sites=(*federation.sites, site), removed=tuple(name for name in federation.removed if name != site))
    back.write()
    write_disabled(back)
    return back


def write_disabled(federation: FederationFolder) -> None:
    """For the next start of the server."""
    write_atomic(federation.server / DISABLED_FILE, format_json({"disabled_clients": sorted(federation.removed)}), 0o600)


class RevokedSites:
    """The removed sites of the federation's file now; looked at often, so it is read only when it has changed."""

    def __init__(self, folder: Path) -> None:
        self.path, self._seen, self._names = folder / FEDERATION_FILE, -1, frozenset[str]()

    def __call__(self) -> frozenset[str]:
        try:
            changed = self.path.stat().st_mtime_ns
            if changed != self._seen:
                self._names = frozenset(json.loads(self.path.read_text(encoding="utf-8"))["removed"])
                self._seen = changed
        except (OSError, ValueError, KeyError):
            pass  # being written, or gone: what was known counts
        return self._names
