"""One CSV a site, as sites keep them: found, read, and refused in a sentence that names the option to give."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie._util.errors import UserError
from coterie.core.specs import parse_path
from coterie.data.catalogue import load
from coterie.data.readers.table_files import FileRows, Row, get_file_rows
from coterie.deploy.site.data import SiteSettings, load_site_data, select_clients
from coterie.deploy.site.policy import DEFAULT_POLICY
from coterie.deploy.site.process import Site
from data.trial_files import CLASSES, LABEL, PHONES, write_site, write_sites

HOW = f"label={LABEL},categories=onehot"


def refused(spec: str) -> str:
    with pytest.raises(UserError) as error:
        load(spec)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("path", ["sites/*.csv", "sites", "sites/"])
def test_a_file_is_a_client_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    write_sites(tmp_path / "sites")
    monkeypatch.chdir(tmp_path)
    made = load(f"csv('{path}',{HOW})")
    assert made.ids == ("site_01", "site_02", "site_03", "site_04")
    assert made.train.sizes.tolist() == [54] * 4
    assert made.classes == CLASSES
    assert made.provenance["clients_by"] == "file"
    assert len(load(f"csv('{path}',{HOW})/iid(clients=3)")) == 3
    assert load(made.name).ids == made.ids  # the name is a spec


def test_a_column_says_otherwise(tmp_path: Path) -> None:
    write_sites(tmp_path, sites=2)
    assert load(f"csv('{tmp_path}/*.csv',client=phone,label={LABEL})").ids == PHONES


def test_columns_in_another_order_are_put_in_order(tmp_path: Path) -> None:
    same, other = write_sites(tmp_path / "same"), write_sites(tmp_path / "other", {"site_02": ("order",), "site_03": ("order",)})
    one, two = (load(f"csv('{folder}',{HOW})") for folder in (same, other))
    assert np.array_equal(one.x, two.x)
    assert np.array_equal(one.y, two.y)
    assert one.provenance["features"] == two.provenance["features"]


def test_files_of_other_columns_are_refused_by_name(tmp_path: Path) -> None:
    write_sites(tmp_path, {"site_03": ("misspelt",)})
    said = refused(f"csv('{tmp_path}',{HOW})")
    assert "site_03.csv lacks the column 'energy' that site_01.csv has: did you mean 'enregy'?" in said
    frame = pd.read_csv(tmp_path / "site_01.csv")
    frame.assign(ward=1).to_csv(tmp_path / "site_03.csv", index=False)
    assert "site_03.csv has a column 'ward' that site_01.csv lacks: rename it, or drop it with drop='ward'" in refused(
        f"csv('{tmp_path}',{HOW})"
    )


def test_a_bare_path_is_a_client_and_needs_a_label_that_can_be_guessed(tmp_path: Path) -> None:
    path = write_site(tmp_path / "site_01.csv")
    said = refused(str(path))
    assert "name the label column, as in csv(" in said
    assert "label='activity'" in said
    pd.read_csv(path).rename(columns={LABEL: "Label"}).drop(columns="phone").to_csv(path, index=False)
    assert load(str(path)).ids == ("site_01",)
    assert len(load(f"{path}/iid(clients=3)")) == 3
    assert [step.name for step in parse_path("a/b.parquet/iid(clients=2)/rotated")] == ["parquet", "iid", "rotated"]


def test_a_site_names_its_only_client(tmp_path: Path) -> None:
    path = write_site(tmp_path / "data.csv")
    for spec in (f"csv('{path}',{HOW})", f"csv('{tmp_path}/*.csv',{HOW})", f"csv('{path}',client='*',{HOW})"):
        assert load_site_data(spec, site="north").ids == ("north",)
    assert load_site_data(f"csv('{path}',label={LABEL},client=phone)", site="north").ids == PHONES
    write_site(tmp_path / "more.csv")
    assert load_site_data(f"csv('{tmp_path}',{HOW})", site="north").ids == ("data", "more")
    with pytest.raises(UserError, match="has to be divided among clients: write for example client=COLUMN, a folder"):
        load(f"csv('{path}',{HOW})")


def test_the_process_of_a_site_takes_the_name_of_its_kit(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(DEFAULT_POLICY)
    (tmp_path / "kit.json").write_text('{"site": "north", "server": "hub"}')
    SiteSettings(f"csv('{write_site(tmp_path / 'data.csv')}',{HOW})").write(tmp_path)
    assert Site(tmp_path).data.federation.ids == ("north",)


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for place in ("north", "south"):
        write_site(tmp_path / place / "data.csv")
    assert load(f"csv('{tmp_path}/*/data.csv',{HOW})").ids == ("north", "south")
    (tmp_path / "north").rename(tmp_path / "west")  # the files are the same: what is kept of them must not be
    assert load(f"csv('{tmp_path}/*/data.csv',{HOW})").ids == ("south", "west")


@pytest.mark.parametrize(
    ("fault", "option", "remedy"),
    [
        ("semicolons", "looks semicolon-separated: add sep=';'.", "sep=';'"),
        ("latin1", "is not text in utf-8 but looks like Latin-1: add encoding=latin-1.", "encoding=latin-1"),
        ("utf16", "looks like UTF-16: add encoding=utf-16.", "encoding=utf-16"),
        ("question_marks", "'?', which is no number, in line 5 of data.csv (8 more) of column 'age'", "missing='?',impute=median"),
        ("decimal_commas", "looks semicolon-separated: add sep=';'.", "sep=semicolon,decimal=','"),
        ("empty_column", "line 2 of data.csv has no number in column 'age'", "impute=median"),
    ],
)
def test_what_a_file_looks_like_is_named_with_the_option(tmp_path: Path, cache: Path, fault: str, option: str, remedy: str) -> None:
    path = write_site(tmp_path / "data.csv", fault)
    said = refused(f"csv('{path}',client='*',{HOW})")
    assert option in said
    assert not [file for file in cache.rglob("*") if file.is_file()]
    made = load(f"csv('{path}',client='*',{HOW},{remedy})")
    plain = load(f"csv('{write_site(tmp_path / 'plain' / 'data.csv')}',client='*',{HOW})")
    kept = [place for place, name in enumerate(plain.provenance["features"]) if name != "age"]
    assert np.array_equal(made.x[:, kept], plain.x[:, kept])


def test_decimal_commas_are_named(tmp_path: Path) -> None:
    path = write_site(tmp_path / "data.csv", "decimal_commas")
    assert "a number with a decimal comma: add decimal=','." in refused(f"csv('{path}',{HOW},sep=';')")


def test_a_mark_at_the_beginning_is_no_part_of_a_name(tmp_path: Path) -> None:
    path = write_site(tmp_path / "data.csv")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load(f"csv('{path}',client='*',{HOW})").provenance["features"][0] == "mean_x"


def test_files_written_in_different_ways_are_read_together(tmp_path: Path) -> None:
    write_sites(tmp_path, {"site_02": ("semicolons",), "site_04": ("latin1",)})
    said = refused(f"csv('{tmp_path}',{HOW})")
    assert "site_04.csv is not text in utf-8 but looks like Latin-1: add encoding=(utf-8,latin-1)." in said or "sep=(',',';')" in said
    made = load(f"csv('{tmp_path}',{HOW},sep=(',',';'),encoding=('utf-8','latin-1'))")
    assert "phone=Söny" in made.provenance["features"]


def test_marks_of_gaps_are_gaps(tmp_path: Path) -> None:
    frame = pd.DataFrame({"site": list("ab") * 20, "age": [*range(36), -9, -9, -9, -9], "job": ["?", "x", "y", "x"] * 10})
    frame["ill"] = ["yes", "no"] * 10 + ["no", "yes"] * 10
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    how = "label=ill,client=site,categories=onehot,impute=median,missing=('?',-9)"
    made = [load(f"{kind}('{tmp_path}/t.{kind}',{how})") for kind in ("csv", "parquet")]
    made.append(
        ct.Federation.from_frame(
            frame, label="ill", client="site", categories="onehot", impute="median", missing=("?", -9), name=made[0].name
        )
    )
    for found in made:
        assert found.provenance["features"] == ["age", "job=x", "job=y"]
        assert found.x[-1, 0] not in (-9, 0)
        assert np.array_equal(found.x, made[0].x)
    assert "has no value in the label column" in refused(f"csv('{tmp_path}/t.csv',label=job,client=site,drop=ill,missing='?')")


def test_lines_are_those_of_an_editor(tmp_path: Path) -> None:
    path = write_site(tmp_path / "data.csv", "blank_lines", "question_marks")
    lines = path.read_text().splitlines()
    wanted = next(number for number, line in enumerate(lines, 1) if "?" in line)
    second = [number for number, line in enumerate(lines, 1) if "?" in line][2]  # behind a blank line
    said = refused(f"csv('{path}',client='*',{HOW})")
    assert f"line {wanted} of data.csv" in said
    made = load(f"csv('{path}',client='*',{HOW},missing='?',impute=mean)")
    rows = get_file_rows(made.provenance)
    assert rows is not None
    gaps = np.flatnonzero(np.isnan(np.asarray(made.raw)[:, 3]))
    assert rows.locate(int(gaps[0])) == Row("data.csv", wanted)
    assert rows.locate(int(gaps[2])) == Row("data.csv", second)
    path.write_text('a,says,label\n1,"two\nlines",x\n2,one,y\n')
    again = get_file_rows(load(f"csv('{path}',client='*',drop=says)").provenance)
    assert again is not None
    assert [again.locate(sample).row for sample in range(2)] == [2, 4]


def test_lines_stay_with_their_rows_where_clients_are_picked(tmp_path: Path) -> None:
    write_sites(tmp_path, sites=3)
    made = load(f"csv('{tmp_path}',{HOW})")
    held = select_clients(made, ["site_03"])
    rows = get_file_rows(held.provenance)
    assert rows is not None
    assert (rows.locate(0), rows.locate(59)) == (Row("site_03.csv", 2), Row("site_03.csv", 61))
    some = FileRows(((0, "a", 2), (3, "b", 2))).select(np.array([1, 2, 3, 5]))
    assert [some.locate(i) for i in range(4)] == [("a", 3), ("a", 4), ("b", 2), ("b", 4)]
