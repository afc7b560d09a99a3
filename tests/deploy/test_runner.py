"""Which sites are there at the beginning of a run, and orders that are refused before any site is asked."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from coterie._util.errors import UserError
from coterie.core.plan import Plan
from coterie.deploy.messages import PROTOCOL, Hello, from_message, to_message
from coterie.deploy.server.introduction import TooFewSitesError, introduce_sites
from coterie.deploy.server.runner import run_order
from coterie.deploy.server.runs import Order
from coterie.deploy.site.data import SiteSettings, load_site_data
from coterie.deploy.site.process import make_site_card, serve_connection
from coterie.engines.world import World
from coterie.evidence.settings import Settings
from deploy.ordering import APPROVING_POLICY, make_hello, make_terms


class Says:
    """Every site says the same."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer

    def exchange(self, batches: Mapping[str, bytes]) -> dict[str, bytes]:
        return {} if self.answer is None else dict.fromkeys(batches, self.answer)


def introduce(answer: bytes | None, folder: Path) -> list[str]:
    reported: list[str] = []
    introduce_sites(Order("a-run", "study", {}, minimum=2), make_terms("a-run"), Says(answer), ["a", "b"], folder, reported.append)
    return reported


def test_sites_that_are_silent_may_be_back_in_a_moment(tmp_path: Path) -> None:
    with pytest.raises(TooFewSitesError, match="0 sites introduced themselves, 2 are needed"):
        introduce(None, tmp_path)


def test_sites_that_say_nonsense_are_named_and_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Site 'a' does not take part: no message that can be read") as error:
        introduce(b"nonsense that is longer", tmp_path)
    assert not isinstance(error.value, TooFewSitesError)


def test_a_site_that_met_an_error_says_no_more_than_that(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Site 'a' does not take part: nothing but an error of the other side: see its own log"):
        introduce(b"", tmp_path)


def kit_of(folder: Path, policy: str = APPROVING_POLICY) -> Path:
    (folder / "policy.toml").write_text(policy)
    SiteSettings(data="heart", clients=("va",), engine="loop", threads=1).write(folder)
    return folder


def answered(kit: Path, message: bytes) -> bytes:
    """What a site's process says to a message."""
    ours, theirs = Pipe()
    ours.send_bytes(message)
    worker = threading.Thread(target=serve_connection, args=(theirs, kit))
    worker.start()
    response = ours.recv_bytes()
    ours.close()
    worker.join()
    return response


def test_a_site_of_another_version_says_so(tmp_path: Path) -> None:
    hello = to_message(replace(make_hello(run="a-run"), protocol=PROTOCOL + 1))
    response = answered(kit_of(tmp_path), hello)
    with pytest.raises(
        UserError, match=f"the other side reports: a message of protocol {PROTOCOL + 1}, this side speaks {PROTOCOL}: install the same"
    ):
        introduce(response, tmp_path / "server")
    assert "install the same version" in (tmp_path / "site.log").read_text()


def test_a_model_that_a_policy_does_not_name_is_told_to_the_server(tmp_path: Path) -> None:
    response = answered(kit_of(tmp_path), to_message(make_hello(run="a-run", model="os:system")))
    with pytest.raises(UserError, match="The model 'os:system' may not run here: the site's policy names"):
        introduce(response, tmp_path / "server")


class Answering:
    """Sites that answer as the real ones do, with versions of their own."""

    def __init__(self, **versions: str) -> None:
        self.versions = versions

    def exchange(self, batches: Mapping[str, bytes]) -> dict[str, bytes]:
        return {site: self.card(site, from_message(data, Hello)) for site, data in batches.items()}

    def card(self, site: str, hello: Hello) -> bytes:
        world = World.from_spec(load_site_data("heart", (site,)), hello.model)
        return to_message(replace(make_site_card(hello, world), version=self.versions.get(site, hello.version)))


def test_versions_that_differ_are_told_and_take_part(tmp_path: Path) -> None:
    reported: list[str] = []
    order, terms = Order("a-run", "study", {}), make_terms("a-run")
    members, _ = introduce_sites(order, terms, Answering(va="0.0.1"), ["hungary", "va"], tmp_path, reported.append)
    assert len(members.members) == 2
    (sentence,) = reported
    assert sentence.startswith("Site 'va' has coterie 0.0.1, the server ")


def test_an_attack_is_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    settings = Settings(methods=("fedavg",), data="sites", plan=Plan(attack="signflip"))
    asked: Any = None  # a carrier that could not carry anything
    with pytest.raises(UserError, match="a real federation has real clients"):
        run_order(Order("run", "study", settings.as_json()), asked, ["a"], tmp_path, clock=asked, report=asked)
    assert not list(tmp_path.iterdir())
