"""Certificates that end are renewed for the same keys."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from typer.testing import CliRunner

from coterie._util.errors import UserError
from coterie.cli.app import app
from coterie.deploy.certificates import (
    check_kit,
    check_server_certificate,
    list_certificate_paths,
    load_authority,
    read_certificate,
    read_expiry_dates,
    renew_certificates,
    select_expiring,
)
from coterie.deploy.flare.operator import create_federation
from coterie.deploy.server.federation import FederationFolder
from coterie.deploy.server.status import summarize_federation


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> FederationFolder:
    return create_federation(tmp_path_factory.mktemp("federation") / "f", "127.0.0.1", 8102, ["north", "south"])


@pytest.fixture
def federation(made: FederationFolder, tmp_path: Path) -> FederationFolder:
    shutil.copytree(made.folder, tmp_path / "f")
    return FederationFolder.open(tmp_path / "f")


def let_end(federation: FederationFolder, *names: str) -> None:
    """As if a year had gone by."""
    for _ in renew_certificates(federation, names, days=1):
        pass


def test_nothing_ends_soon_in_a_new_federation(federation: FederationFolder) -> None:
    assert select_expiring(read_expiry_dates(federation)) == {}
    assert set(select_expiring(read_expiry_dates(federation), timedelta(days=400))) == {"server", "operator", "north", "south"}


def test_renewed_certificates_keep_everything_but_their_time(federation: FederationFolder) -> None:
    before = {name: read_certificate(path) for name, path in list_certificate_paths(federation).items()}
    ends = {name: until for name, _, until in renew_certificates(federation)}
    root, _ = load_authority(federation)
    assert list(ends) == ["server", "operator", "north", "south"]
    for name, path in list_certificate_paths(federation).items():
        now = read_certificate(path)
        now.verify_directly_issued_by(root)
        assert now.subject == before[name].subject
        assert now.public_key() == before[name].public_key()
        assert list(now.extensions) == list(before[name].extensions)
        assert now.serial_number != before[name].serial_number
        assert now.not_valid_after_utc == ends[name] > datetime.now(UTC) + timedelta(days=359)
    assert check_kit(federation.kit("north")) == ("north", "127.0.0.1:8102")


def test_one_that_ends_is_told_and_renewed_by_name(federation: FederationFolder) -> None:
    let_end(federation, "north")
    assert set(summarize_federation(federation)["certificates_ending"]) == {"north"}
    response = CliRunner().invoke(app, ["federation", "status", str(federation.folder)])
    assert "The certificate of north ends on" in response.output
    before = read_certificate(list_certificate_paths(federation)["south"])
    done = CliRunner().invoke(app, ["federation", "renew", str(federation.folder), "north"])
    assert done.exit_code == 0
    assert "startup/ of its kit" in " ".join(done.output.split())
    assert select_expiring(read_expiry_dates(federation)) == {}
    assert read_certificate(list_certificate_paths(federation)["south"]) == before


def test_no_certificate_outlives_the_authority(federation: FederationFolder) -> None:
    root, _ = load_authority(federation)
    ((_, _, until),) = renew_certificates(federation, ["north"], days=10**5)
    assert until == root.not_valid_after_utc


def test_a_site_that_is_unknown_or_whose_kit_has_gone_is_named(federation: FederationFolder) -> None:
    with pytest.raises(UserError, match="Unknown certificate 'nroth': did you mean 'north'"):
        list(renew_certificates(federation, ["nroth"]))
    shutil.rmtree(federation.kit("north"))
    with pytest.raises(UserError, match="The kit of north is not here: have a copy"):
        list(renew_certificates(federation, ["north"]))
    assert [name for name, _, _ in renew_certificates(federation)] == ["server", "operator", "south"]


def test_a_server_whose_certificate_has_ended_does_not_start(federation: FederationFolder) -> None:
    check_server_certificate(federation)
    path = list_certificate_paths(federation)["server"]
    root, key = load_authority(federation)
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    old = read_certificate(path)
    past = x509.CertificateBuilder().subject_name(old.subject).issuer_name(root.subject).public_key(old.public_key()).serial_number(7)
    past = past.not_valid_before(datetime.now(UTC) - timedelta(days=9)).not_valid_after(datetime.now(UTC) - timedelta(days=1))
    path.write_bytes(past.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    with pytest.raises(UserError, match="renew it with 'coterie federation renew"):
        check_server_certificate(federation)
    assert [name for name, _, _ in renew_certificates(federation, ["server"])] == ["server"]
    check_server_certificate(federation)


def let_begin(federation: FederationFolder, path: Path, begins: datetime) -> None:
    """Replace a certificate by one of the same key that is valid from then on, for a day."""
    root, key = load_authority(federation)
    old = read_certificate(path)
    made = x509.CertificateBuilder().subject_name(old.subject).issuer_name(root.subject).public_key(old.public_key()).serial_number(7)
    made = made.not_valid_before(begins).not_valid_after(begins + timedelta(days=1))
    path.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


@pytest.mark.parametrize("name", ["client.crt", "rootCA.pem"])
def test_a_certificate_that_is_not_valid_yet_is_a_matter_of_clocks(federation: FederationFolder, name: str) -> None:
    begins = datetime.now(UTC) + timedelta(hours=3)
    let_begin(federation, federation.kit("north") / "startup" / name, begins)
    with pytest.raises(UserError, match=f"is not valid before {begins:%Y-%m-%d %H:%M} UTC.*check the clocks"):
        check_kit(federation.kit("north"))
    let_begin(federation, federation.kit("north") / "startup" / name, begins - timedelta(days=2))
    with pytest.raises(UserError, match="ended on"):
        check_kit(federation.kit("north"))


def test_so_is_that_of_a_server(federation: FederationFolder) -> None:
    let_begin(federation, federation.server / "startup" / "server.crt", datetime.now(UTC) + timedelta(hours=3))
    with pytest.raises(UserError, match=r"The server's certificate is not valid before .*check the clocks"):
        check_server_certificate(federation)
    let_begin(federation, federation.server / "startup" / "server.crt", datetime.now(UTC) - timedelta(days=3))
    with pytest.raises(UserError, match=r"The server's certificate ended on .*federation renew"):
        check_server_certificate(federation)
