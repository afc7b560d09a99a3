"""Sites and server agree on columns before a run: other orders are settled by name, everything else is refused by name."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from coterie._util.errors import UserError
from coterie.cli.app import app
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.states import unpack
from coterie.data.schema import Schema, SchemaColumn
from coterie.deploy.bundle.bundle import Bundle
from coterie.deploy.bundle.files import read_bundle, write_bundle
from coterie.deploy.bundle.rows import read_rows
from coterie.deploy.messages import KINDS, LONGEST_SCHEMA, Denial, MessageError, SiteCard, from_message, read_schema, to_message
from coterie.deploy.server.federation import FederationFolder
from coterie.deploy.server.members import Members, choose_schema
from coterie.deploy.server.runner import run_order
from coterie.deploy.server.runs import Order
from coterie.deploy.server.status import summarize_federation
from coterie.deploy.server.validation import InvalidMessageError, read_card
from coterie.deploy.site.approvals import SiteMonitor
from coterie.deploy.site.data import SiteSettings
from coterie.deploy.site.process import Site
from coterie.evidence.settings import Settings
from coterie.run.waves import TimeBudget
from data.trial_files import CLASSES, LABEL, write_site, write_sites
from deploy.ordering import APPROVING_POLICY, make_hello

SITES = ("site_01", "site_02", "site_03", "site_04")
SETTINGS = Settings(methods=("fedavg",), data="sites", plan=Plan(rounds=2, local=Local(epochs=1, lr=0.1)))
FEATURES = ("mean_x", "mean_y", "energy", "age", "phone=HTC", "phone=Samsung", "phone=Sony")


def spec_of(file: Path, options: str = "") -> str:
    return f"csv({file},label={LABEL},categories=onehot,scale=standard{options})"


def make_kit(folder: Path, file: Path, options: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "policy.toml").write_text(APPROVING_POLICY)
    (folder / "kit.json").write_text(json.dumps({"site": folder.name, "server": "localhost:8102"}))
    SiteSettings(data=spec_of(file, options), engine="loop", threads=1).write(folder)
    return folder


@dataclass
class Fed:
    """A federation within this process: the server's code and the sites' code, with bytes in between."""

    folder: Path
    faults: Mapping[str, tuple[str, ...]]
    options: Mapping[str, str]
    run: str = "first"

    def __post_init__(self) -> None:
        write_sites(self.folder / "data", self.faults)
        self.kits = {
            site: make_kit(self.folder / "kits" / site, self.folder / "data" / f"{site}.csv", self.options.get(site, "")) for site in SITES
        }
        self.news = {site: SiteMonitor(kit) for site, kit in self.kits.items()}
        self.sites = {site: Site(kit) for site, kit in self.kits.items()}
        self.reported: list[str] = []

    def exchange(self, batches: Mapping[str, bytes]) -> dict[str, bytes]:
        return {site: self.sites[site].answer(data) for site, data in batches.items()}

    def launch(self, minimum: int = 1, rounds: int = 2, sites: tuple[str, ...] = SITES) -> "Fed":
        settings = replace(SETTINGS, plan=replace(SETTINGS.plan, rounds=rounds))
        order = Order(self.run, "study", settings.as_json(), SITES, minimum)
        where = {"clock": TimeBudget(60.0), "report": self.reported.append, "schema_file": self.folder / "schema.json"}
        assert run_order(order, self, sites, self.folder / "runs" / self.run, **where)  # type: ignore[arg-type]
        return self

    @property
    def members(self) -> Members:
        return Members.read(self.folder / "runs" / self.run / "members.json")

    def bundle(self, site: str) -> Bundle:
        return read_bundle(self.kits[site] / "bundles" / self.run / "fedavg")


def federate(folder: Path, faults: Mapping[str, tuple[str, ...]] | None = None, **options: str) -> Fed:
    return Fed(folder, faults or {}, options)


@pytest.fixture(scope="module")
def aligned(tmp_path_factory: pytest.TempPathFactory) -> Fed:
    return federate(tmp_path_factory.mktemp("aligned")).launch(minimum=4)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Fed:
    """Two sites have their columns from the last to the first."""
    return federate(tmp_path_factory.mktemp("mixed"), {"site_02": ("order",), "site_04": ("order",)}).launch(minimum=4)


def test_columns_in_another_order_give_the_same_models(aligned: Fed, mixed: Fed) -> None:
    for site in SITES:
        one, other = aligned.bundle(site), mixed.bundle(site)
        assert one.features == other.features == FEATURES
        assert np.array_equal(one.models, other.models)
        assert one.schema is not None
        assert other.schema is not None
        assert one.schema == other.schema
        assert one.schema.label == (LABEL,)
    assert mixed.reported == []
    assert read_schema(mixed.members.schema).features == FEATURES


def test_predictions_do_not_depend_on_the_order_of_columns(mixed: Fed, tmp_path: Path) -> None:
    bundle = mixed.bundle("site_02")
    straight = read_rows(write_site(tmp_path / "straight.csv", seed=7), bundle)
    turned = read_rows(write_site(tmp_path / "turned.csv", "order", seed=7), bundle)
    assert np.array_equal(straight.x, turned.x)
    assert np.array_equal(bundle.answer(straight.x).probabilities, bundle.answer(turned.x).probabilities)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("misspelt", r"lacks the column 'energy' \(did you mean 'enregy'\?\): the model takes mean_x"),
        ("unknown_word", r"has 'Pixel' in row \d+, which is no word of column 'phone': choose from HTC, Samsung, Sony"),
    ],
)
def test_predict_refuses_other_columns_and_words(fault: str, sentence: str, mixed: Fed, tmp_path: Path) -> None:
    file = write_site(tmp_path / "new.csv", fault, seed=7)
    with pytest.raises(UserError, match=sentence):
        read_rows(file, mixed.bundle("site_01"))
    import pandas as pd

    with pytest.raises(UserError, match=sentence):
        mixed.bundle("site_01").predict(pd.read_csv(file))


def test_a_bundle_whose_schema_is_of_other_columns_is_refused(mixed: Fed, tmp_path: Path) -> None:
    bundle = mixed.bundle("site_01")
    assert bundle.schema is not None
    turned = replace(bundle.schema, columns=bundle.schema.columns[::-1])
    write_bundle(replace(bundle, schema=turned), tmp_path / "turned")
    with pytest.raises(UserError, match="contradicts itself \\(a schema of other features than it names"):
        read_bundle(tmp_path / "turned")
    write_bundle(replace(bundle, schema=None), tmp_path / "without")
    assert read_bundle(tmp_path / "without").schema is None


@pytest.mark.parametrize("wrong", ["site_01", "site_03"])
@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("misspelt", "The site lacks the column 'energy' of the federation: did you mean 'enregy'?"),
        (
            "unknown_word",
            "The site has 'Pixel' in column 'phone', a word that the federation does not know: choose from HTC, Samsung, Sony",
        ),
    ],
)
def test_a_site_with_other_columns_or_words_is_refused_and_the_others_complete(
    fault: str, sentence: str, wrong: str, tmp_path: Path
) -> None:
    fed = federate(tmp_path, {wrong: (fault,), "site_04": ("order",)}).launch()
    (reported,) = fed.reported
    assert reported.startswith(f"Site '{wrong}' does not take part: the other side reports: {sentence}")
    assert str(tmp_path) not in reported  # a site's file names are its own
    assert not (fed.kits[wrong] / "bundles").exists()
    assert {fed.bundle(site).features for site in SITES if site != wrong} == {FEATURES}
    assert any(line.startswith(f"Refused of run first: {sentence}") for line in fed.news[wrong].wait(0))


def test_a_run_that_needs_the_site_that_is_refused_says_why(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"3 sites introduced themselves, 4 are needed\. Site 'site_02' does not take part: .*enregy"):
        federate(tmp_path, {"site_02": ("misspelt",)}).launch(minimum=4)


@pytest.mark.parametrize("lacking", ["site_01", "site_02"])
@pytest.mark.parametrize("stated", [False, True])
def test_a_site_that_lacks_a_class_joins(lacking: str, stated: bool, tmp_path: Path) -> None:
    options = {lacking: f",classes=({','.join(CLASSES)})"} if stated else {}
    fed = federate(tmp_path, {lacking: ("missing_class", "order")}, **options).launch(minimum=4)
    assert fed.members.classes == CLASSES
    assert fed.reported == ([] if stated else [f"No samples of a class: walk at {lacking}."])
    assert fed.bundle(lacking).classes == fed.bundle("site_03").classes == CLASSES
    world = fed.sites[lacking].world
    assert world is not None
    assert set(np.unique(world.federation.y)) == {0, 1}


def test_a_resumed_run_keeps_its_columns(tmp_path: Path) -> None:
    """Sites that alone have another order, or a misspelt column, do not change what the run began with."""
    fed = federate(tmp_path, {"site_02": ("order",), "site_03": ("misspelt",), "site_04": ("order",)})
    fed.launch(sites=("site_01",))
    began = fed.members.schema
    fed.launch(sites=("site_02", "site_03", "site_04"), rounds=3)
    assert fed.members.schema == began
    assert fed.members.here == frozenset()
    assert {member.site for member in fed.members.members} == {"site_01", "site_02", "site_04"}
    assert fed.bundle("site_04").features == FEATURES


def test_a_later_run_keeps_the_columns_of_the_first_while_sites_have_them(tmp_path: Path) -> None:
    fed = federate(tmp_path, {"site_02": ("order",), "site_03": ("order",)}).launch()
    fed.run = "second"
    fed.launch(sites=("site_02", "site_03"))  # which share another order
    assert fed.bundle("site_02").features == FEATURES
    write_sites(tmp_path / "data", dict.fromkeys(SITES, ("misspelt",)))
    fed.sites = {site: Site(kit) for site, kit in fed.kits.items()}
    fed.run = "third"
    fed.launch(minimum=4)  # the data of all sites are others now
    assert "enregy" in (fed.bundle("site_01").features or ())
    (tmp_path / "schema.json").write_text('{"schema": "{}"}')
    fed.run = "fourth"
    with pytest.raises(UserError, match=r"schema\.json holds a schema that cannot be read: restore the file, or delete it"):
        fed.launch()


def make_schema(*columns: SchemaColumn | str, classes: tuple[str, ...] = ("no", "yes")) -> str:
    made = tuple(column if isinstance(column, SchemaColumn) else SchemaColumn(column) for column in columns)
    whole = Schema(made, classes)
    return replace(whole, shape=(len(whole.features),)).to_json()


def make_phones(*words: str) -> SchemaColumn:
    return SchemaColumn("phone", "category", words)


def test_the_schema_is_the_one_that_most_sites_fit() -> None:
    ab, ba, abc = make_schema("a", "b"), make_schema("b", "a"), make_schema("a", "b", "c")
    assert choose_schema([ab, ba, ba]) == ab
    assert choose_schema([abc, ab, ba]) == ab
    assert choose_schema(["", ab, ba]) == ab
    assert choose_schema(["", "", ab]) == choose_schema([]) == ""
    assert choose_schema([ba, ba, ba], ab) == ab
    assert choose_schema([abc, abc, ba], ab) == abc
    few, many = make_schema("a", make_phones("x")), make_schema("a", make_phones("x", "y"))
    assert choose_schema([few, many, few]) == many
    three = make_schema("a", "b", classes=("maybe", "no", "yes"))
    assert choose_schema([ab, three]) == three
    # no site knows all words, and each word is known at two
    found = read_schema(choose_schema([make_schema("a", make_phones(*words)) for words in (("x", "y"), ("y", "z"), ("x", "z"))]))
    assert found.columns[1].categories == ("x", "y", "z")


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        "[" * 100_000,
        " " * (LONGEST_SCHEMA + 1),
        Schema().to_json(),
        make_schema("a", "\x1b[2J"),
        make_schema("x" * 201),
        make_schema("a", classes=("\u202e",)),
        make_schema("phone=x", make_phones("x")),
        make_schema("a").replace("[1]", "[Infinity]"),
    ],
    ids=range(10),
)
def test_a_schema_that_is_none_is_refused_on_both_sides(text: str, mixed: Fed) -> None:
    site = mixed.sites["site_01"]
    hello = make_hello(run="other")
    with pytest.raises(MessageError, match="schema"):
        site.answer(to_message(replace(hello, schema=text)))
    card = unpack(site.answer(to_message(hello)), KINDS)
    assert isinstance(card, SiteCard)
    with pytest.raises(MessageError, match="schema"):
        read_card(to_message(replace(card, schema=text)), hello, 1 << 24)


def test_a_card_must_have_the_features_of_its_schema(mixed: Fed) -> None:
    site, hello = mixed.sites["site_01"], make_hello(run="other")
    card = from_message(site.answer(to_message(hello)), SiteCard)
    for wrong in ({"features": card.features[::-1]}, {"classes": card.classes[::-1]}, {"input_shape": (7, 1)}):
        changed: Any = replace(card, **wrong)
        with pytest.raises(InvalidMessageError, match="the field schema of a SiteCard should be"):
            read_card(to_message(changed), hello, 1 << 24)


def test_a_site_that_ignores_the_schema_takes_no_part(tmp_path: Path) -> None:
    class Stubborn(Fed):
        def exchange(self, batches: Mapping[str, bytes]) -> dict[str, bytes]:
            response = super().exchange(batches)
            for site in {"site_02"} & set(response):
                card = unpack(response[site], KINDS)
                if isinstance(card, SiteCard):
                    own = self.sites[site]
                    hello = replace(make_hello(run=card.run, number=card.number), schema="")
                    card = unpack(own.answer(to_message(hello)), KINDS)
                    response[site] = to_message(replace(card, run=self.run, number=unpack(response[site], KINDS).number, order=self.order))
            return response

        order = Order("first", "study", SETTINGS.as_json(), SITES).terms().hash

    fed = Stubborn(tmp_path, {"site_02": ("order",)}, {}).launch()
    assert fed.reported == ["Site 'site_02' does not take part: it does not have the columns that the sites agreed on."]


def test_other_columns_do_not_draw_other_roundings(mixed: Fed) -> None:
    """A server could otherwise ask for card after card, and average what was rounded at random."""
    site = Site(mixed.kits["site_01"])
    schema = read_schema(mixed.members.schema)
    counts = set()
    for turn in range(4):
        columns = schema.columns[turn:] + schema.columns[:turn]
        asked = replace(make_hello(run="other"), schema=replace(schema, columns=columns).to_json())
        card = from_message(site.answer(to_message(asked)), SiteCard)
        assert card.features == replace(schema, columns=columns).features
        counts.add(card.actual.tobytes())
    assert len(counts) == 1
    assert site.worker is not None
    assert site.worker.data == mixed.sites["site_01"].worker.data  # type: ignore[union-attr]


def test_a_site_says_no_to_columns_that_it_cannot_have(mixed: Fed) -> None:
    site = Site(mixed.kits["site_01"])
    response = unpack(site.answer(to_message(replace(make_hello(run="other"), schema=make_schema("secret")))), KINDS)
    assert isinstance(response, Denial)
    assert "lacks the column 'secret'" in response.reason
    assert site.worker is None


def test_join_stops_on_data_that_would_give_meaningless_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = make_kit(tmp_path / "site_01", write_site(tmp_path / "bad.csv", "outlier", seed=1))

    def arrive(*_: object) -> None:
        raise UserError("got as far as the server")

    monkeypatch.setattr("coterie.deploy.certificates.check_kit", lambda kit: ("site_01", "localhost:8102"))
    monkeypatch.setattr("coterie.deploy.flare.processes.run_sites", arrive)
    command = ["join", str(kit), "--data", spec_of(tmp_path / "bad.csv")]
    with pytest.raises(UserError, match=r"mean_x.*accept="):
        CliRunner().invoke(app, command, catch_exceptions=False)
    with pytest.raises(UserError, match="got as far"):
        CliRunner().invoke(app, [*command, "--accept"], catch_exceptions=False)


def test_the_status_of_a_federation_has_the_columns_that_the_sites_agreed_on(aligned: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.deploy.server.status.read_expiry_dates", lambda federation, faults: {})  # there are no certificates
    found = summarize_federation(FederationFolder(aligned.folder, "127.0.0.1", 1, SITES))
    schema = aligned.bundle(SITES[0]).schema
    assert schema is not None
    assert found["columns"] == [column.name for column in schema.columns]
