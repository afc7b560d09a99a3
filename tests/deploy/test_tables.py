"""Tables that differ between sites: a schema is proposed, checked and trained by; statistics leave as far as policies allow."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from coterie._util.errors import UserError
from coterie.cli.app import app
from coterie.core.states import unpack
from coterie.data.agreed_schema import MOST_COLUMNS, MOST_WORDS, AgreedSchema, format_agreed_schema, read_agreed_schema
from coterie.data.column_statistics import compute_moments
from coterie.data.readers.frames import read_raw_table
from coterie.data.schema import Schema
from coterie.data.site_table import conform_table, find_mapping, load_conformed, read_mapping
from coterie.deploy.bundle.files import read_bundle
from coterie.deploy.bundle.rows import read_rows
from coterie.deploy.messages import KINDS, MessageError, TableReply, read_schema, to_message
from coterie.deploy.orders import OrderError, OrderTerms
from coterie.deploy.server.evaluation import keep_bundle, open_bundle
from coterie.deploy.server.preparation import check_preparation
from coterie.deploy.server.proposal import propose_schema
from coterie.deploy.server.runs import Order
from coterie.deploy.site.approvals import SiteMonitor
from coterie.deploy.site.audit import verify_audit
from coterie.deploy.site.ledger import Ledger
from coterie.deploy.site.process import Site
from coterie.deploy.table_answers import (
    ColumnDescription,
    TableDescription,
    format_answer,
    read_description,
    read_findings,
    read_summaries,
)
from deploy.different_tables import SITES, TableFed
from deploy.ordering import APPROVING_POLICY

EXACT = APPROVING_POLICY.replace("rounding = 3", "rounding = 1")
DP = EXACT.replace(
    'mechanism = "none"', 'mechanism = "dp-sgd"\nnoise_multiplier = 1.0\nmax_grad_norm = 1.0\ndelta = 1e-5\nepsilon_limit = 9.0'
)


def agree(fed: TableFed) -> AgreedSchema:
    """Propose a schema, and map the units of the site that has others."""
    folder = fed.order("schema", {"schema": None}, "schema")
    (fed.folder / "schema.toml").write_text((folder / "proposal.toml").read_text())
    (fed.kit("south") / "mapping.toml").write_text("[columns.glucose]\nfactor = 18.016\n")
    return read_agreed_schema(fed.folder / "schema.toml")


def find(fed: TableFed, schema: AgreedSchema, run: str) -> dict[str, list[str]]:
    folder = fed.order("schema", {"schema": schema.to_dict()}, run)
    return {site: [one["sentence"] for one in own] for site, own in json.loads((folder / "findings.json").read_text()).items()}


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> TableFed:
    made = TableFed(tmp_path_factory.mktemp("tables"), EXACT)
    made.schema = agree(made)  # type: ignore[attr-defined]
    return made


@pytest.fixture
def schema(fed: TableFed) -> AgreedSchema:
    return fed.schema  # type: ignore[attr-defined, no-any-return]


def test_the_proposal_settles_names_units_words_and_marks(fed: TableFed, schema: AgreedSchema) -> None:
    columns = {column.name: column for column in schema.columns}
    assert set(columns) == {"age", "glucose", "ward"}
    assert columns["glucose"].synonyms == ("glucsoe",)
    assert columns["ward"].categories == ("hospice", "medicine", "surgery")
    assert (schema.label, schema.classes, schema.missing) == ("outcome", ("no", "yes"), ("?",))
    text = (fed.folder / "schema.toml").read_text()
    assert "# Only at east: 'hospice'." in text
    assert "# At south the middle value is" in text
    low, high = columns["glucose"].bounds or (0, 0)
    assert 0 <= low < 80 < 120 < high < 300


def test_a_description_has_no_range_or_word_of_few_rows(fed: TableFed) -> None:
    described = {
        site: {column["name"]: column for column in own["columns"]}
        for site, own in json.loads((fed.folder / "runs" / "schema" / "columns.json").read_text()).items()
    }
    west, north = described["west"], described["north"]
    assert [west[name][key] for name in west for key in ("rows", "low", "high", "middle")] == [None] * 16
    assert all(column["words"] == [] for column in west.values())
    assert north["age"]["marks"] == ["?"]
    assert north["age"]["missing"] is None  # three rows
    table = read_raw_table(f"csv({fed.files['north']},label=outcome)").frame
    glucose = np.sort(table["glucose"].to_numpy(np.float64))
    assert glucose[0] < north["glucose"]["low"] <= glucose[9]
    assert glucose[-10] <= north["glucose"]["high"] < glucose[-1] + 1


def test_sites_check_their_tables_and_the_count_of_few_rows_stays_there(fed: TableFed, schema: AgreedSchema) -> None:
    (fed.kit("south") / "mapping.toml").rename(fed.kit("south") / "kept.toml")
    narrow = replace(
        schema,
        missing=(),
        columns=tuple(
            replace(c, categories=("medicine", "surgery"), required=True) if c.name == "ward" else replace(c, synonyms=())
            for c in schema.columns
        ),
    )
    news = SiteMonitor(fed.kit("north"))
    found = find(fed, narrow, "check")
    (fed.kit("south") / "kept.toml").rename(fed.kit("south") / "mapping.toml")
    assert found["south"] == [
        "has 60 rows in column 'glucose' that look 18 times as small, as in other units: set factor = 18.016 for it in mapping.toml"
    ]
    assert found["east"] == [
        "has 15 rows with unknown categories in column 'ward' ('hospice'): add them to 'categories', or map them in mapping.toml",
        "lacks the column 'glucose' (did you mean 'glucsoe'?)",
    ]
    assert found["north"] == [
        "has fewer than 10 rows with words in column 'age', which should hold numbers: mark gaps in 'missing', or fix them"
    ]
    assert any("has 3 rows with words in column 'age'" in line and "'?'" in line for line in news.wait(0))
    assert verify_audit(fed.kit("north") / "audit.jsonl").faults == ()
    assert all(not own for own in find(fed, schema, "check-2").values())


@pytest.fixture(scope="module")
def trained(fed: TableFed) -> Path:
    made = fed.launch()
    assert fed.reported == ["Fewer than 10 training samples: west (4). Their own scores are uncertain."]
    return made


def test_all_sites_are_prepared_by_all_their_training_rows(fed: TableFed, schema: AgreedSchema, trained: Path) -> None:
    rows = []
    for site in SITES[:3]:  # the fourth has too few rows to report about
        raw = read_raw_table(f"csv({fed.files[site]},label=outcome)")
        own = load_conformed(raw, schema, read_mapping(fed.kit(site) / "mapping.toml"), site)
        assert own.raw is not None
        rows.append(np.asarray(own.raw, dtype=np.float64)[own.train.indices])
    mean, deviation = compute_moments(rows)
    bundles = {site: read_bundle(fed.kit(site) / "bundles" / "first" / "fedavg") for site in SITES}
    numbers = [place for place, name in enumerate(bundles["north"].features or ()) if "=" not in name]
    for bundle in bundles.values():
        assert bundle.preparation is not None
        scaling = bundle.preparation.scalings[""]
        assert np.allclose(scaling.mean[numbers], mean[numbers], rtol=1e-12)
        assert np.allclose(scaling.deviation[numbers], deviation[numbers], rtol=1e-12)
        assert np.array_equal(bundle.models, bundles["north"].models)
    assert bundles["west"].schema is not None
    assert bundles["west"].schema.agreed_schema == schema


def test_predict_prepares_rows_as_training_did(fed: TableFed, trained: Path, tmp_path: Path) -> None:
    bundle = read_bundle(fed.kit("south") / "bundles" / "first" / "fedavg")
    file = tmp_path / "new.csv"
    file.write_text("ward,age,glucose\nsurgery,40,70\nsurgery,40,140\n")
    answers = bundle.answer(read_rows(file, bundle).x).probabilities
    assert answers[0, 1] < answers[1, 1]


def test_predict_reads_the_names_units_and_words_of_the_kit(fed: TableFed, trained: Path, tmp_path: Path) -> None:
    """South counts in mmol/L and calls things by names of its own."""
    folder = fed.kit("south") / "bundles" / "first" / "fedavg"
    bundle = read_bundle(folder)
    usual, own = tmp_path / "usual.csv", tmp_path / "own.csv"
    usual.write_text("ward,age,glucose,outcome\nsurgery,40,72.064,no\nmedicine,?,144.128,yes\n")
    own.write_text("Station,alter,sugar,result\nChirurgie,40,4,nein\nmedicine,?,8,ja\n")
    mapping = tmp_path / "mapping.toml"
    mapping.write_text(
        '[columns.glucose]\nfrom = "sugar"\nfactor = 18.016\n[columns.age]\nfrom = "alter"\n'
        '[columns.ward]\nfrom = "Station"\nwords = {Chirurgie = "surgery"}\n[columns.outcome]\nwords = {nein = "no", ja = "yes"}\n'
    )
    expected = read_rows(usual, bundle, "outcome")
    found = read_rows(own, bundle, "result", mapping=read_mapping(mapping))
    np.testing.assert_allclose(found.x, expected.x, rtol=1e-6)
    assert found.y is not None
    assert expected.y is not None
    assert found.y.tolist() == expected.y.tolist() == [0, 1]
    assert find_mapping(folder) == fed.kit("south") / "mapping.toml"
    assert find_mapping(tmp_path / "bundle") is None
    runner = CliRunner()
    words = ["predict", str(folder), "--data", str(own), "--mapping", str(mapping), "--json"]
    done = runner.invoke(app, words)
    assert done.exit_code == 0, done.output
    with pytest.raises(UserError, match=r"own.csv lacks the column 'age'"):
        read_rows(own, bundle)
    own.write_text("ward,age,glucose\nsurgery,40,9000\n")
    with pytest.raises(UserError, match="in column 'glucose'"):
        read_rows(own, bundle)
    own.write_text("ward,age,glucose\nsurgery,40,90\nhotel,40,90\n")
    with pytest.raises(UserError, match=r"unknown categories in column 'ward' \('hotel'\)"):
        read_rows(own, bundle)


def test_training_from_a_bundle_is_prepared_as_the_bundle_was(fed: TableFed, schema: AgreedSchema, trained: Path, tmp_path: Path) -> None:
    kept = trained / "bundles" / "fedavg"
    bundle, digest = open_bundle(kept)
    delivered = read_bundle(fed.kit("north") / "bundles" / "first" / "fedavg")
    assert bundle.preparation is not None
    assert delivered.preparation is not None
    assert bundle.preparation.to_dict() == delivered.preparation.to_dict()
    before = read_schema(json.loads((trained / "members.json").read_text())["schema"]).scaling
    rows = fed.files["north"].read_text()
    frame = pd.read_csv(fed.files["north"])
    frame.assign(glucose=frame["glucose"] + 3).to_csv(fed.files["north"], index=False)  # the data have changed since
    keep_bundle(kept, fed.folder / "runs" / "second")
    run = fed.order("study", fed.settings(1), "second", start=digest)
    fed.files["north"].write_text(rows)
    assert read_schema(json.loads((run / "members.json").read_text())["schema"]).scaling == before
    assert "SummarizeTable" not in Order("second", "study", fed.settings(1), start=digest).terms().asks
    path = tmp_path / "schema.toml"
    path.write_text(format_agreed_schema(replace(schema, missing=("n/a",))))
    with pytest.raises(UserError, match=r"trained by another schema than .*schema.toml: restore that file"):
        check_preparation(bundle.schema, path)
    path.write_text(format_agreed_schema(schema))
    check_preparation(bundle.schema, path)
    assert bundle.schema is not None
    with pytest.raises(UserError, match="does not hold by what its columns were scaled"):
        check_preparation(replace(bundle.schema, scaling=None), path)
    with pytest.raises(UserError, match="does not hold by what its columns were scaled"):
        check_preparation(None, path)
    check_preparation(None, tmp_path / "nothing.toml")


def test_a_run_is_resumed_with_its_preparation(fed: TableFed, trained: Path) -> None:
    members = trained / "members.json"
    before = json.loads(members.read_text())["schema"]
    fed.launch(rounds=3)
    assert json.loads(members.read_text())["schema"] == before
    assert read_schema(before).scaling is not None


def test_statistics_by_column_and_site(fed: TableFed, schema: AgreedSchema) -> None:
    folder = fed.order("statistics", {"schema": schema.to_dict()}, "statistics")
    columns = {column["name"]: column for column in json.loads((folder / "statistics.json").read_text())["columns"]}
    table = conform_table(read_raw_table(f"csv({fed.files['north']},label=outcome)"), schema, {}).frame
    age = columns["age"]["sites"]["north"]
    assert age["count"] == 57
    assert age["missing"] is None
    assert age["mean"] == pytest.approx(table["age"].mean())
    assert age["variance"] == pytest.approx(table["age"].var(ddof=0))
    assert columns["ward"]["sites"]["east"]["histogram"] == [15, 23, 22]
    assert columns["age"]["sites"]["west"] == {
        "name": "age", "count": None, "missing": None, "mean": None, "variance": None, "histogram": [],
    }  # fmt: skip
    shown = [count for column in columns.values() for own in column["sites"].values() for count in own["histogram"] if count]
    assert min(shown) >= 10
    page = (folder / "statistics.html").read_text()
    assert "http" not in page.replace("http://www.w3.org", "")
    assert "north" in page


def test_a_single_rare_bin_does_not_leave_by_the_sum() -> None:
    from coterie.deploy.site.disclosure import Discloser
    from coterie.deploy.site.policy import parse_policy
    from coterie.deploy.site.tables import TableDiscloser

    policy = parse_policy("rounding = 1")
    discloser = TableDiscloser(policy, Discloser(policy, "00" * 32, 2))
    assert discloser._suppress([40, 3, 20], "a") == (40.0, None, None)
    assert discloser._suppress([40, 3, 4], "a") == (40.0, None, None)
    assert discloser._suppress([40, 0, 20], "a") == (40.0, 0.0, 20.0)
    assert discloser.count(9, "a") is None
    assert discloser.count(10, "a") == 10


def test_under_a_mechanism_statistics_are_noised_and_charged(tmp_path: Path, schema: AgreedSchema) -> None:
    fed = TableFed(tmp_path, DP)
    order = {"schema": schema.to_dict()}
    first = json.loads((fed.order("statistics", order, "one") / "statistics.json").read_text())
    second = json.loads((fed.order("statistics", order, "two") / "statistics.json").read_text())
    counts = [tree["columns"][0]["sites"]["north"]["count"] for tree in (first, second)]
    assert counts[0] != counts[1]
    assert all(abs(count - 60) < 40 for count in counts)
    charges = Ledger(fed.kit("north") / "privacy.json").charges()
    assert [(charge.mechanism, charge.steps) for charge in charges["north"]] == [("dp-sgd", 2)]
    for site in SITES:
        policy = fed.kit(site) / "policy.toml"
        policy.write_text(policy.read_text().replace("epsilon_limit = 9.0", "epsilon_limit = 0.5"))
    with pytest.raises(UserError, match="privacy budget does not suffice"):
        fed.order("statistics", order, "three")
    assert Ledger(fed.kit("north") / "privacy.json").charges() == charges  # what is refused costs nothing


def test_a_policy_may_refuse_and_the_others_prepare(tmp_path: Path, schema: AgreedSchema) -> None:
    fed = TableFed(tmp_path, EXACT)
    agree(fed)
    path = fed.kit("east") / "policy.toml"
    path.write_text(path.read_text().replace(', "SummarizeTable"', ""))
    fed.launch()
    assert any("'east' reports no sums to prepare columns by" in line and "SummarizeTable is not answered" in line for line in fed.reported)
    assert (fed.kit("east") / "bundles" / "first" / "fedavg").exists()


# bad input


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda text: text.replace("scale =", "scal ="), "has an unknown key 'scal'.*did you mean 'scale'"),
        (lambda text: text.replace("typical", "tipical"), "column 'age' has an unknown key 'tipical'"),
        (lambda text: text.replace('type = "number"', 'type = "text"', 1), "cannot be of type 'text'"),
        (lambda text: text.replace('scale = "standard"', 'scale = "robust"'), "cannot use scale = 'robust'"),
        (lambda text: text.replace('"glucsoe"', '"age"'), "uses the name 'age' twice"),
        (lambda text: text + "]", "is not valid TOML"),
        (lambda text: text.replace('classes = ["no", "yes"]', 'classes = ["no"]'), "two or more classes"),
        (lambda text: text.partition("[columns")[0], "lacks the key 'columns'"),
        (lambda text: text.replace('categories = ["hospice", "medicine", "surgery"]', ""), "list its 'categories'"),
    ],
)
def test_a_wrong_schema_file_is_refused_in_one_sentence(change: Callable[[str], str], sentence: str, fed: TableFed, tmp_path: Path) -> None:
    path = tmp_path / "schema.toml"
    path.write_text(change((fed.folder / "schema.toml").read_text()))
    with pytest.raises(UserError, match=sentence):
        read_agreed_schema(path)


@pytest.mark.parametrize("bounds", [[1, 1], [2, 1], [float("nan"), 1], [0, float("inf")], [0], "ab", [True, 2], [0, 10**400]])
def test_bounds_are_two_finite_numbers(bounds: Any, schema: AgreedSchema) -> None:
    tree = schema.to_dict()
    tree["columns"][0]["bounds"] = bounds
    with pytest.raises(UserError, match="two finite numbers"):
        AgreedSchema.from_dict(tree, "schema.toml")


def test_a_schema_file_can_be_read_again(schema: AgreedSchema, tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_text(format_agreed_schema(schema))
    assert read_agreed_schema(tmp_path / "schema.toml") == schema
    assert AgreedSchema.from_dict(json.loads(json.dumps(schema.to_dict())), "") == schema


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[columns.age]\nform = 'a'\n", "has an unknown key 'form'.*from"),
        ("[column.age]\n", "has an unknown key 'column'"),
        ("[columns.age]\nfactor = 0\n", "factor not 0"),
        ("[columns.age]\nfactor = nan\n", "finite numbers"),
        ("[columns.age]\nwords = 3\n", "a table of your words"),
        ("[columns.age\n", "is not valid TOML"),
    ],
)
def test_a_wrong_mapping_is_refused_in_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "mapping.toml").write_text(text)
    with pytest.raises(UserError, match=sentence):
        read_mapping(tmp_path / "mapping.toml")


def test_a_mapping_to_a_column_that_is_not_there(fed: TableFed, schema: AgreedSchema, tmp_path: Path) -> None:
    raw = read_raw_table(f"csv({fed.files['east']},label=outcome)")
    (tmp_path / "mapping.toml").write_text("[columns.glucose]\nfrom = 'glucsoes'\n[columns.agee]\nfactor = 2\n")
    found = conform_table(raw, schema, read_mapping(tmp_path / "mapping.toml")).findings
    assert [one.describe() for one in found] == [
        "has a mapping.toml that maps 'agee' from a column which its data do not have (did you mean 'age'?)",
        "has a mapping.toml that maps 'glucose' from a column which its data do not have (did you mean 'glucsoe'?)",
    ]
    with pytest.raises(UserError, match="maps 'agee'"):
        load_conformed(raw, schema, read_mapping(tmp_path / "mapping.toml"), "east")


def test_a_mapping_renames_scales_and_replaces_words(fed: TableFed, schema: AgreedSchema, tmp_path: Path) -> None:
    raw = read_raw_table(f"csv({fed.files['east']},label=outcome)")
    (tmp_path / "mapping.toml").write_text(
        "[columns.age]\nfrom='glucsoe'\nfactor=0.5\noffset=1\n[columns.ward]\nwords={hospice='surgery'}\n"
    )
    frame = conform_table(raw, schema, read_mapping(tmp_path / "mapping.toml")).frame
    assert frame["age"].tolist() == pytest.approx((raw.frame["glucsoe"] * 0.5 + 1).tolist())
    assert set(frame["ward"]) == {"medicine", "surgery"}


def test_a_few_impossible_values_become_gaps_and_many_are_refused(fed: TableFed, schema: AgreedSchema) -> None:
    raw = read_raw_table(f"csv({fed.files['north']},label=outcome)")
    frame = raw.frame.copy()
    frame.loc[:1, "glucose"] = -50.0
    own = load_conformed(raw._replace(frame=frame), schema, {}, "north")
    assert own.raw is not None
    place = list(own.provenance["features"]).index("glucose")
    assert int(np.isnan(np.asarray(own.raw)[:, place]).sum()) == 2
    frame.loc[:9, "glucose"] = -50.0
    with pytest.raises(UserError, match="The site has 10 rows with impossible values in column 'glucose'"):
        load_conformed(raw._replace(frame=frame), schema, {}, "north")
    with pytest.raises(UserError, match="impossible"):
        load_conformed(raw._replace(frame=frame), replace(schema, impute="none", missing=("?",)), {}, "north")


def test_types_that_conflict_are_noted_and_checked() -> None:
    number, word = ColumnDescription("x", "number", middle=1.0, low=0.0, high=2.0), ColumnDescription("x", "category", words=(("a", 20),))
    label = ColumnDescription("y", "category", words=(("no", 20), ("yes", 20)))
    sites = {"a": number, "b": number, "c": word}
    schema, notes = propose_schema({site: TableDescription("y", 60, (label, own)) for site, own in sites.items()})
    assert schema.columns[0].type == "number"
    assert notes.columns["x"] == ["At c a category, not a number: fix it there."]
    with pytest.raises(UserError, match="fewer than two classes"):
        propose_schema({"a": TableDescription("y", 60, (number,))})
    with pytest.raises(UserError, match="No column is at more than half"):
        propose_schema({"a": TableDescription("y", 60, (label, number)), "b": TableDescription("y", 60, (label,))})


# what a malicious site or server sends

COLUMN = asdict(ColumnDescription("x", "number"))
DESCRIPTION = {"label": "y", "rows": 60, "columns": [COLUMN], "event": ""}
BAD_DESCRIPTIONS: tuple[Any, ...] = (
    [],
    None,
    {},
    {**DESCRIPTION, "more": 1},
    {**DESCRIPTION, "label": "\x1b[2J"},
    {**DESCRIPTION, "rows": -1},
    {**DESCRIPTION, "rows": True},
    {**DESCRIPTION, "rows": 10**12},
    {**DESCRIPTION, "columns": [COLUMN, COLUMN]},
    {**DESCRIPTION, "columns": [3]},
    {**DESCRIPTION, "columns": [{**COLUMN, "name": str(i)} for i in range(MOST_COLUMNS + 1)]},
    *(
        {**DESCRIPTION, "columns": [{**COLUMN, **wrong}]}
        for wrong in (
            {"name": "a\nb"},
            {"name": "x" * 201},
            {"name": "\u202e"},
            {"name": ""},
            {"kind": "code"},
            {"kind": ["number"]},
            {"low": "0"},
            {"low": 10**400},
            {"middle": True},
            {"words": [["a", -1]]},
            {"words": [["a"]]},
            {"words": [[f"w{i}", 10] for i in range(MOST_WORDS + 1)]},
            {"marks": ["\x00"]},
            {"unit": "x" * 300},
        )
    ),
)


@pytest.mark.parametrize("tree", BAD_DESCRIPTIONS, ids=range(len(BAD_DESCRIPTIONS)))
def test_a_description_that_cannot_be_is_refused(tree: Any) -> None:
    with pytest.raises(MessageError):
        read_description(json.dumps(tree))


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"rows": NaN}', "nothing", " " * ((1 << 22) + 1), '{"label":"y","rows":1e999,"columns":[]}']
)
def test_what_is_no_json_is_refused(text: str, schema: AgreedSchema) -> None:
    for read in (read_description, lambda body: read_findings(body, schema), lambda body: read_summaries(body, schema)):
        with pytest.raises(MessageError):
            read(text)


def test_findings_and_statistics_of_other_columns_are_refused(schema: AgreedSchema) -> None:
    one = {"kind": "bounds", "column": "age", "rows": 12, "words": [], "factor": None}
    assert read_findings(json.dumps([one]), schema)[0].rows == 12
    wrongs: tuple[dict[str, Any], ...] = (
        {"column": "other"},
        {"kind": "units"},
        {"factor": 2.0},
        {"factor": -1},
        {"kind": "x"},
        {"rows": 1.5},
        {"words": [["a", "b"]]},
    )
    for wrong in wrongs:
        with pytest.raises(MessageError):
            read_findings(json.dumps([{**one, **wrong}]), schema)
    own: list[dict[str, Any]] = [
        {"name": c.name, "count": 20, "missing": 0, "mean": None, "variance": None, "histogram": []} for c in schema.columns
    ]
    assert len(read_summaries(json.dumps(own), schema)) == 3
    changes: tuple[tuple[int, dict[str, Any]], ...] = (
        (0, {"name": "b"}),
        (0, {"mean": 1.0}),
        (1, {"mean": 1.0, "variance": 1.0}),
        (0, {"histogram": [1] * 11}),
        (0, {"count": 1e300}),
    )
    for place, wrong in changes:
        changed = [{**each, **(wrong if i == place else {})} for i, each in enumerate(own)]
        with pytest.raises(MessageError):
            read_summaries(json.dumps(changed), schema)
    with pytest.raises(MessageError):
        read_summaries(json.dumps(own[:2]), schema)


def test_a_site_that_lies_is_refused_and_the_others_answer(tmp_path: Path) -> None:
    class Lying(TableFed):
        def tamper(self, site: str, data: bytes) -> bytes:
            found = unpack(data, KINDS)
            if site != "east" or not isinstance(found, TableReply):
                return data
            tree = json.loads(found.body)
            tree["columns"][0]["name"] = "\x1b]0;owned\x07"
            return to_message(replace(found, body=json.dumps(tree)))

    fed = Lying(tmp_path, EXACT)
    folder = fed.order("schema", {"schema": None}, "schema")
    assert set(json.loads((folder / "columns.json").read_text())) == {"north", "south", "west"}
    assert fed.reported == ["Site 'east' does not take part: a ColumnDescription whose name is not what it may be."]
    again = TableFed.order(fed, "schema", {"schema": None}, "schema")  # after a kill the same run is run again
    assert (again / "proposal.toml").exists()


def test_an_order_about_tables_has_one_question_and_a_schema_to_go_by(fed: TableFed, schema: AgreedSchema) -> None:
    from coterie.deploy.server.runs import Order

    terms = Order("r", "statistics", {"schema": schema.to_dict()}).terms()
    assert OrderTerms.read(terms.as_text()) == terms
    wrongs: tuple[dict[str, Any], ...] = (
        {"asks": ("DescribeTable", "CheckTable"), "kind": "schema"},
        {"asks": ("Train",)},
        {"plan": {"schema": None}},
        {"plan": {"schema": {}, "more": 1}},
        {"plan": {}},
        {"asks": ("DescribeTable",), "kind": "schema"},
    )
    for wrong in wrongs:
        with pytest.raises(OrderError):
            OrderTerms.read(replace(terms, **wrong).as_text())


def test_a_site_answers_no_table_question_outside_of_its_order(fed: TableFed, schema: AgreedSchema) -> None:
    from coterie.deploy.messages import PROTOCOL, Hello, TableAsk
    from coterie.deploy.server.runs import Order
    from deploy.ordering import make_terms

    site = Site(fed.kit("north"))
    terms = Order("r", "statistics", {"schema": schema.to_dict()}).terms()
    study = make_terms("r")
    for message, reason in (
        (TableAsk(PROTOCOL, "r", "1", "source", terms.hash), "has not introduced itself"),
        (TableAsk(PROTOCOL, "r", "1", "source", study.hash, terms.as_text()), "another order"),
        (TableAsk(PROTOCOL, "r", "1", "source", study.hash, study.as_text()), "about a model"),
        (Hello(PROTOCOL, "r", "1", "", "source", terms.hash, terms.as_text()), "whose order has none"),
    ):
        with pytest.raises(MessageError, match=reason):
            site.answer(to_message(message))
    bad = replace(terms, plan={"schema": {"label": "y"}})
    with pytest.raises(MessageError, match="lacks the key"):
        site.answer(to_message(TableAsk(PROTOCOL, "r", "1", "source", bad.hash, bad.as_text())))


@pytest.mark.parametrize(
    "wrong",
    [
        {"scaling": {"mean": [0.0], "deviation": [1.0]}},
        {"scaling": {"mean": [None] * 5, "deviation": [1.0] * 5}},
        {"scaling": {"mean": [0.0] * 5, "deviation": [-1.0] * 5}},
        {"scaling": {"mean": [0.0] * 5, "deviation": [1.0] * 5, "bound": 3}},
        {"agreed": {"label": "y"}},
        {"classes": ["yes", "no"]},
    ],
)
def test_a_schema_of_a_hello_is_that_of_its_agreed_one(wrong: dict[str, Any], schema: AgreedSchema) -> None:
    tree = json.loads(Schema.from_agreed(schema).to_json())
    assert read_schema(json.dumps(tree)).agreed_schema == schema
    with pytest.raises(MessageError, match="a schema that cannot be read"):
        read_schema(json.dumps({**tree, **wrong}))


def test_formatting_an_answer_keeps_it() -> None:
    made = TableDescription("y", 30, (ColumnDescription("x", "category", words=(("a", 12),)),))
    assert read_description(format_answer(made)) == made
