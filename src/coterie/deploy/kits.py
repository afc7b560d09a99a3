"""A site's kit looked at before it is used: FLARE itself would wait for ever and say nothing."""

from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import NameOID

from coterie.core.errors import UserError
from coterie.core.json_object import read_object
from coterie.deploy.certificates import check_dates, read_certificate

NEEDED = ("startup/fed_client.json", "startup/client.crt", "startup/client.key", "startup/rootCA.pem", "local/resources.json", "kit.json")


def check_kit(kit: Path) -> tuple[str, str]:
    """The site and the server that a kit is for, if it is whole, unexpired and fits together."""
    missing = [name for name in NEEDED if not (kit / name).is_file()]
    if missing == ["startup/client.key"]:
        raise UserError(
            f"The kit {kit} has no key: put the client.key that this site made with 'coterie federation request' into startup/."
        )
    if missing:
        raise UserError(
            f"{kit} is not a site's kit: it lacks {missing[0]}; take the folder that 'coterie federation init' made for the site."
        )
    told = read_object(kit / "kit.json", site=str, server=str)
    own, root = (read_certificate(kit / "startup" / name) for name in ("client.crt", "rootCA.pem"))
    named = own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    if named != told["site"]:
        raise UserError(f"The certificate in {kit} is of {named!r}, the kit is for {told['site']!r}: ask the operator for a new kit.")
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
    return str(told["site"]), str(told["server"])
