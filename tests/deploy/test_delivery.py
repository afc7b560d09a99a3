"""What a site receives at the end: under names that are names, whole or not at all, and again where it was cut short."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.core.serving import Serving
from coterie.core.states import unpack
from coterie.deploy.bundle.files import read_bundle, write_delivery
from coterie.deploy.files import escape_text, is_name, make_folder_name
from coterie.deploy.messages import KINDS, PROTOCOL, Delivery, MessageError, Receipt, ReplyBatch, from_message, to_message
from coterie.deploy.orders import OrderTerms
from coterie.deploy.server.federation import FederationFolder, check_site_name
from coterie.deploy.server.runs import Journal, Order, make_run, read_journal
from coterie.deploy.site.data import SiteSettings
from coterie.deploy.site.process import Site
from deploy.ordering import APPROVE_ANY, make_hello, make_terms

NO_NAMES = (
    "",
    ".",
    "..",
    "../x",
    "../../escaped/x",
    "/tmp/escaped",
    "a/b",
    "a\\b",
    ".hidden",
    "-x",
    "a b",
    "a\n",
    "a\0",
    "ä",
    "x" * 101,
    3,
    None,
)


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    folder = tmp_path / "outer" / "kit"
    folder.mkdir(parents=True)
    (folder / "policy.toml").write_text(APPROVE_ANY)
    SiteSettings(data="heart", clients=("va",), engine="loop", threads=1).write(folder)
    return folder


def greeted(kit: Path, terms: OrderTerms) -> Site:
    site = Site(kit)
    site.answer(to_message(make_hello(terms)))
    return site


def delivery_of(site: Site, terms: OrderTerms, value: float = 0.0, **changes: Any) -> bytes:
    assert site.world is not None
    serving = Serving.one(np.array([0]), np.full(site.world.model.layout.size, value, dtype=np.float32))
    made = Delivery(PROTOCOL, terms.run, "3", terms.methods[0], 0, 5, ("va",), serving, ("global",), terms.hash)
    return to_message(replace(made, **changes))


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_is_no_name_is_no_run_no_site_no_order_and_no_folder(name: Any, kit: Path) -> None:
    assert not is_name(name)
    terms = make_terms("first")
    site = greeted(kit, terms)
    around = files_in(kit.parents[1])
    with pytest.raises(MessageError):
        site.answer(delivery_of(site, terms, run=name))
    assert site.world is not None
    with pytest.raises(MessageError):  # and where it is written it is looked at again
        write_delivery(replace(unpack(delivery_of(site, terms), KINDS), run=name), site.world, kit / "bundles")
    assert files_in(kit.parents[1]) - around <= {"outer/kit/audit.jsonl"}
    with pytest.raises(MessageError, match="ReplyBatch with a run"):
        from_message(to_message(ReplyBatch(PROTOCOL, name, "1", (), ())), ReplyBatch)
    with pytest.raises(MessageError, match="Receipt with a folder"):
        from_message(to_message(Receipt(PROTOCOL, "r", "1", name)), Receipt)
    with pytest.raises(UserError, match="cannot be called"):
        Order.read({"run": name, "kind": "study", "settings": {}})
    if isinstance(name, str):
        with pytest.raises(UserError, match="cannot be called"):
            make_run(FederationFolder(kit, "127.0.0.1", 1, ("a",)), name)
        with pytest.raises(UserError, match="cannot be called"):
            check_site_name(name)


@pytest.mark.parametrize("method", ["..", "../../up", ".", "", "/tmp/x", "local", None, 3])
def test_a_method_that_the_order_does_not_name_is_not_delivered(method: Any, kit: Path) -> None:
    terms = make_terms("first")
    site = greeted(kit, terms)
    with pytest.raises(MessageError):
        site.answer(delivery_of(site, terms, method=method))
    assert not (kit / "bundles").exists()


@pytest.mark.parametrize("spec", ["..", "../../up", "fedgroup(groups=2,alpha=2)", ".x", "-x", "x" * 500, "méthode", "a:b", "=x"])
def test_any_spec_makes_a_folder_in_its_place(spec: str, tmp_path: Path) -> None:
    name = make_folder_name(spec)
    assert is_name(name)
    assert (tmp_path / name).resolve().parent == tmp_path.resolve()


def test_a_second_delivery_takes_the_place_of_the_first(kit: Path) -> None:
    terms = make_terms("first")
    site = greeted(kit, terms)
    folder = kit / "bundles" / "first" / "fedavg"
    for value, round_ in ((1.0, 5), (2.0, 5), (3.0, 6)):
        response = from_message(site.answer(delivery_of(site, terms, value, round_=round_)), Receipt)
        assert (response.folder, response.order) == ("fedavg", terms.hash)
        assert read_bundle(folder).models[0, 0] == value
    with pytest.raises(MessageError, match="round 4 after that of round 6"):
        site.answer(delivery_of(site, terms, 4.0, round_=4))
    assert read_bundle(folder).models[0, 0] == 3.0
    assert [path.name for path in folder.parent.iterdir()] == ["fedavg"]


def test_half_a_bundle_is_repaired(kit: Path) -> None:
    """The process was killed after the models and before the head, or between the two renamings."""
    terms = make_terms("first")
    site = greeted(kit, terms)
    folder = kit / "bundles" / "first" / "fedavg"
    folder.mkdir(parents=True)
    (folder / "models.safetensors").write_bytes(b"half")
    (folder.parent / ".draft-x").mkdir()
    (folder.parent / ".old-x").mkdir()
    site.answer(delivery_of(site, terms, 1.0))
    assert read_bundle(folder).models[0, 0] == 1.0
    assert [path.name for path in folder.parent.iterdir()] == ["fedavg"]


def test_a_delivery_that_cannot_be_written_leaves_the_one_before(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terms = make_terms("first")
    site = greeted(kit, terms)
    site.answer(delivery_of(site, terms, 1.0))
    folder = kit / "bundles" / "first" / "fedavg"
    with pytest.raises(MessageError, match="makes no bundle"):
        site.answer(
            to_message(replace(unpack(delivery_of(site, terms), KINDS), serving=Serving.one(np.array([0]), np.zeros(3, dtype=np.float32))))
        )

    def full(*reported: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("coterie.deploy.bundle.files.write_atomic", full)
    with pytest.raises(MessageError, match="No space left"):
        site.answer(delivery_of(site, terms, 2.0))
    assert read_bundle(folder).models[0, 0] == 1.0
    assert [path.name for path in folder.parent.iterdir()] == ["fedavg"]


def test_nothing_is_delivered_outside_of_an_approved_order(kit: Path) -> None:
    terms, other = make_terms("first"), make_terms("second")
    site = greeted(kit, terms)
    for wrong in ({"order": other.hash}, {"order": ""}, {"run": "second"}, {"run": "second", "order": other.hash}, {"ids": ("hungary",)}):
        with pytest.raises(MessageError):
            site.answer(delivery_of(site, terms, **wrong))
    assert not (kit / "bundles").exists()


def test_a_bundle_is_its_owner_s(kit: Path) -> None:
    terms = make_terms("first")
    site = greeted(kit, terms)
    site.answer(delivery_of(site, terms))
    assert os.stat(kit / "bundles" / "first" / "fedavg").st_mode & 0o077 == 0


def signs(texts: Sequence[str]) -> set[str]:
    return {sign for text in texts for sign in text if not sign.isprintable()}


def test_what_a_site_says_does_not_reach_the_operator_s_terminal_as_it_is(tmp_path: Path) -> None:
    """Reasons, names and versions are shown by `coterie launch` and by `coterie federation status`."""
    journal = Journal(tmp_path)
    journal.fault("Site 'va' does not take part: \x1b[2J\x1b]0;owned\x07 \r\n" + "x" * 10_000_000)
    journal.end("refused", reason="\x1b[31m")
    lines = read_journal(tmp_path)
    assert len(lines) == 2
    assert signs([str(value) for line in lines for value in line.values()]) == set()
    assert (tmp_path / "journal.jsonl").stat().st_size < 10_000
    assert escape_text("a\x1b\nb") == "a\\x1b\\nb"
    with pytest.raises(MessageError) as error:
        from_message(to_message(KINDS["Denial"]("\x1b[2J" + "x" * 10_000)), Receipt)
    assert signs([str(error.value)]) == set()
    assert len(str(error.value)) < 500
