"""What lies in kits and bundles is for their owner alone; and no key lies where it is not needed."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare")

from coterie._util.errors import UserError
from coterie.deploy.bundle.bundle import Bundle, Origin
from coterie.deploy.bundle.files import write_bundle
from coterie.deploy.certificates import check_kit, keep_only_authority, load_authority, renew_certificates, revoke_site
from coterie.deploy.files import keep_private
from coterie.deploy.flare.jobs import SERVER_APP, SITE_APP, write_job
from coterie.deploy.flare.operator import add_site, create_federation, request_certificate, sign_request
from coterie.deploy.server.federation import FederationFolder
from coterie.deploy.site.data import SiteSettings

KEY = b"PRIVATE KEY-----"


@pytest.fixture(autouse=True, scope="module")
def _usual_umask() -> Iterator[None]:
    """As on most machines: what is written without a thought can be read by all."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> FederationFolder:
    """One that has seen every command that makes files."""
    folder = tmp_path_factory.mktemp("private")
    made = add_site(create_federation(folder / "f", "127.0.0.1", 8102, ["a", "b"]), "c")
    made = sign_request(made, "d", request_certificate("d", folder / "mine"))
    made = revoke_site(made, "b")
    list(renew_certificates(made))
    SiteSettings("heart").write(made.kit("a"))
    return made


def open_to_others(folder: Path) -> list[Path]:
    return [path for path in (folder, *folder.rglob("*")) if not path.is_symlink() and path.stat().st_mode & 0o077]


def test_a_federation_s_files_are_its_operator_s_alone(federation: FederationFolder, tmp_path: Path) -> None:
    assert open_to_others(federation.folder) == []
    assert open_to_others(shutil.copytree(federation.kit("a"), tmp_path / "handed over")) == []
    assert {path.name for path in open_to_others(federation.folder.parent / "mine")} == {"d.csr"}  # to be sent


def test_a_kit_that_was_opened_on_its_way_is_closed(federation: FederationFolder, tmp_path: Path) -> None:
    kit = Path(shutil.copytree(federation.kit("a"), tmp_path / "kit"))
    outside = tmp_path / "outside"
    outside.write_text("not the kit's")
    outside.chmod(0o644)
    (kit / "link").symlink_to(outside)
    for path in (kit, kit / "startup", kit / "startup" / "client.key"):
        path.chmod(0o755)
    keep_private(kit)
    assert open_to_others(kit) == []
    assert (kit / "startup" / "client.key").stat().st_mode & 0o777 == 0o700
    assert outside.stat().st_mode & 0o777 == 0o644
    assert check_kit(kit)[0] == "a"


def test_a_kit_that_cannot_be_closed_is_refused(federation: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a disk without permissions, or where the kit is another's."""
    kit = Path(shutil.copytree(federation.kit("a"), tmp_path / "kit"))
    kit.chmod(0o755)
    monkeypatch.setattr(Path, "chmod", lambda path, mode: None)
    with pytest.raises(UserError, match=r"can be read by others.*chmod -R go-rwx"):
        keep_private(kit)


def test_kits_hold_no_scripts_that_start_a_client_past_the_lock(federation: FederationFolder) -> None:
    names = {path.name for path in federation.folder.rglob("*") if path.is_file()}
    assert not [name for name in names if name.endswith((".sh", ".ipynb", ".sample"))]


def test_the_authority_keeps_its_own_key_and_no_other(federation: FederationFolder) -> None:
    files = {path for path in federation.authority.rglob("*") if path.is_file()}
    assert files == {federation.authority_file}
    assert set(json.loads(federation.authority_file.read_text())) == {"root_cert", "root_pri_key"}
    keys = sorted(str(path.relative_to(federation.folder)) for path in federation.folder.rglob("*") if _has_key(path))
    kits = [f"kits/{site}/startup/client.key" for site in "abc"]  # d has made its own
    assert keys == sorted(["admin/startup/client.key", "authority/coterie/state/cert.json", "server/startup/server.key", *kits])


def _has_key(path: Path) -> bool:
    return path.is_file() and KEY in path.read_bytes()


def test_what_earlier_provisioning_left_is_removed(federation: FederationFolder, tmp_path: Path) -> None:
    old = FederationFolder.open(Path(shutil.copytree(federation.folder, tmp_path / "f")))
    state = json.loads(old.authority_file.read_text())
    old.authority_file.write_text(json.dumps(state | {"a": {"cert": "...", "pri_key": "..."}}))
    for left in (old.authority / "coterie" / "prod_00" / "a" / "startup", old.authority / "draft-x" / "coterie"):
        shutil.copytree(old.kit("a") / "startup", left)
    keep_only_authority(old)
    assert json.loads(old.authority_file.read_text()) == state
    assert [path for path in old.authority.rglob("*") if path.is_file()] == [old.authority_file]
    assert load_authority(old)[0] == load_authority(federation)[0]
    assert check_kit(add_site(old, "e").kit("e"))[0] == "e"
    shutil.rmtree(old.authority)  # an operator may keep it elsewhere
    keep_only_authority(old)
    assert not old.authority.exists()


def test_a_bundle_is_its_owner_s_alone(tmp_path: Path) -> None:
    models = np.zeros((1, 6), dtype=np.float32)
    origin = Origin("fedavg", "heart", 0, 0, 1)
    bundle = Bundle(origin=origin, model="mclr", input_shape=(2,), classes=("no", "yes"), models=models, names=("all",), clients={"a": 0})
    write_bundle(bundle, tmp_path / "bundle")
    assert open_to_others(tmp_path / "bundle") == []


def test_sites_get_the_part_of_a_job_that_is_theirs(federation: FederationFolder, tmp_path: Path) -> None:
    """The server's part names the run; neither has folders or the order."""
    job = write_job(tmp_path, "first", federation.sites)
    meta = json.loads((job / "meta.json").read_text())
    assert meta["deploy_map"] == {SERVER_APP: ["server"], SITE_APP: ["a", "c", "d"]}  # b was removed
    assert [path.name for path in (job / SITE_APP / "config").iterdir()] == ["config_fed_client.json"]
    theirs = b"".join(path.read_bytes() for path in (job / SITE_APP).rglob("*") if path.is_file())
    assert str(federation.folder).encode() not in theirs
    assert b"fedavg" not in theirs
