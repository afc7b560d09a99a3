"""Certificates of a federation: when they end, and new ones for the same keys.

A certificate is public and the key stays where it is, so that a renewed one may travel by any way.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from coterie.core.disk import write_whole
from coterie.core.errors import UserError, check_names
from coterie.core.json_object import read_object
from coterie.core.locks import locked
from coterie.deploy.federation import PROJECT, FederationFolder
from coterie.deploy.files import keep_private

DAYS = 360  # of a certificate
AUTHORITY = ("root_cert", "root_pri_key")  # its part of FLARE's file
SOON = timedelta(days=30)
DRAFT = "draft-"  # before the names of folders in which kits are made
SERVER, OPERATOR = "server", "operator"  # no site may be called so


def read_certificate(path: Path) -> x509.Certificate:
    """A certificate of a file."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is no certificate that can be read ({error}): restore it from a copy.") from error


def authority(federation: FederationFolder) -> tuple[x509.Certificate, RSAPrivateKey]:
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
    write_whole(path, json.dumps({name: state[name] for name in AUTHORITY}), 0o600)


def keep_only_authority(federation: FederationFolder) -> None:
    """Remove keys and certificates of sites, server and operator from the authority's folder: FLARE's provisioning leaves them there."""
    if not federation.authority.is_dir():
        return
    keep_private(federation.authority)
    with locked(federation.authority):  # kits may be in the making
        for left in (*federation.authority.glob(f"{DRAFT}*"), *federation.authority.glob(f"{PROJECT}/prod_*")):
            shutil.rmtree(left)
        if federation.authority_file.is_file():
            state = read_object(federation.authority_file, **dict.fromkeys(AUTHORITY, str))
            if state.keys() - set(AUTHORITY):
                write_authority(federation, state)


def certificate_paths(federation: FederationFolder) -> dict[str, Path]:
    """The server's, the operator's and every site's, as far as they are here: a kit may have been moved away."""
    named = {SERVER: federation.server / "startup" / "server.crt", OPERATOR: federation.admin / "startup" / "client.crt"}
    return named | {site: path for site in federation.sites if (path := federation.kit(site) / "startup" / "client.crt").is_file()}


def ending(federation: FederationFolder, within: timedelta = SOON) -> dict[str, datetime]:
    """Whose certificates have ended or will soon, and when."""
    found = {name: read_certificate(path).not_valid_after_utc for name, path in certificate_paths(federation).items() if path.is_file()}
    return {name: ends for name, ends in found.items() if ends < datetime.now(UTC) + within}


def check_server_certificate(federation: FederationFolder) -> None:
    """Refuse a server whose certificate does not count today: its sites would wait for ever."""
    path = certificate_paths(federation)[SERVER]
    if not path.is_file():
        raise UserError(f"{federation.server} is not whole: it lacks startup/server.crt; restore the folder from a copy.")
    renewal = f"renew it with 'coterie federation renew {federation.folder}'"
    check_dates(read_certificate(path), "The server's certificate", renewal)
    check_dates(read_certificate(path.with_name("rootCA.pem")), "The certificate of the federation's authority", "make a new federation")


def check_dates(certificate: x509.Certificate, what: str, remedy: str) -> None:
    """Refuse a certificate that is not valid now.

    Args:
        certificate: The certificate.
        what: What to call it, at the start of a sentence.
        remedy: What to do about one that has ended. One that is not valid yet is a matter of clocks.

    Raises:
        UserError: It is not valid yet, or no more.
    """
    now, begins, ends = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        raise UserError(
            f"{what} is not valid before {begins:%Y-%m-%d %H:%M} UTC, and this machine's clock says {now:%Y-%m-%d %H:%M}: check the clocks "
            "of this machine and of the operator's."
        )
    if now > ends:
        raise UserError(f"{what} ended on {ends:%Y-%m-%d}: {remedy}.")


def renew(federation: FederationFolder, names: Sequence[str] = (), days: int = DAYS) -> Iterator[tuple[str, Path, datetime]]:
    """Certificates anew, for the keys that were certified before: whose, where, until when. All that are here, unless some are named."""
    paths = certificate_paths(federation)
    for name in names:
        if name in federation.sites and name not in paths:
            place = federation.kit(name) / "startup" / "client.crt"
            raise UserError(f"The kit of {name} is not here: have a copy of its startup/client.crt sent, and put it at {place}.")
    check_names(names, paths, "certificate")
    keep_only_authority(federation)
    root, key = authority(federation)
    for name in names or paths:
        made = _anew(read_certificate(paths[name]), root, key, days)
        draft = paths[name].with_suffix(".new")
        draft.touch(mode=0o600)
        draft.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        draft.rename(paths[name])
        yield name, paths[name], made.not_valid_after_utc


def _anew(old: x509.Certificate, root: x509.Certificate, key: RSAPrivateKey, days: int) -> x509.Certificate:
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
