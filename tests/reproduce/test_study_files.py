"""Study files: the repository's own are right, and wrong ones are refused with a sentence."""

import re
from pathlib import Path

import pytest

from coterie._util.errors import UserError
from coterie.core.specs import parse_path
from coterie.data.catalogue import list_data
from coterie.methods.catalogue import build
from coterie.models.catalogue import list_models as describe_models
from coterie.reproduce import find_study, list_studies, read_reproduction
from coterie.reproduce.claims import LESS_IS_BETTER

STUDIES = Path(__file__).parents[2] / "studies"
MEASURED = {"pni": {"pni"}, "ternary": {"distances"}, "features": {"pairs", "alike", "apart"}, "map": {"clusters"}}


@pytest.mark.parametrize("name", sorted(list_studies(STUDIES)))
def test_a_study_names_what_exists(name: str) -> None:
    study = read_reproduction(find_study(name, STUDIES))
    words, models = {entry.name for entry in list_data()}, {row[0] for row in describe_models()}
    rows = {}
    for part in study.parts:
        settings = study.get_settings(part).settings
        assert {step.name for step in parse_path(settings.data)} <= words
        assert settings.model.partition("(")[0] in models
        for method in (*settings.methods, *study.get_last_only(part)):
            build(method)
        rows[part.name] = MEASURED.get(part.measure, {*settings.methods, *study.get_last_only(part)})
    for claim in study.claims:
        if claim.kind == "average":
            continue  # it is over claims that are looked at here, in parts whose rows may have other names
        for part_name in claim.parts or [claim.part]:
            for row in filter(None, (claim.one, claim.two)):
                assert row.partition(" | ")[0] in rows[part_name], claim.says
    for published in study.published:
        assert {row.partition(" | ")[0] for row in published.values} <= rows[published.part]


@pytest.mark.parametrize("name", sorted(list_studies(STUDIES)))
def test_a_claims_words_and_sign_are_the_same(name: str) -> None:
    """Less time and less change are better, so they are positive; a paper's number is a field, so that its sign is the claim's."""
    for claim in read_reproduction(find_study(name, STUDIES)).claims:
        if claim.kind == "difference" and claim.score in LESS_IS_BETTER and re.search(r"\b(less|faster|more stable)\b", claim.says):
            assert claim.direction > 0, claim.says
        if claim.kind == "difference" and re.search(r"\b(is|are) (below|behind)\b", claim.says):
            assert claim.direction < 0, claim.says
        assert not re.search(r"\bpaper [+-]\d", claim.says), claim.says


def test_every_table_of_the_papers_has_a_study() -> None:
    wanted = {
        *("fedsim_table4_mnist", "fedsim_table4_goodreads", "fedsim_table4_other", "fedsim_table7", "fedsim_table7_redrawn"),
        *("fedsim_section52", "fedsim_figure8", "fedsim_figure10", "fedgroup_table1", "fedgroup_table3", "fedgroup_figure5"),
        *("fedex_figure1", "fedex_tables", "fesem_table2", "fesem_table3", "ifca_rotated_mnist", "simprox_cifar"),
        *("fedsim_section42", "fedsim_table3", "fedsim_figure1", "fedsim_figure4", "fedgroup_groups"),
        *("simprox_mnist", "simprox_banking77", "simprox_medic"),
    }
    assert wanted <= set(list_studies(STUDIES))


def test_installed_studies_are_found_outside_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "site-packages" / "coterie" / "reproduce"
    (installed / "studies").mkdir(parents=True)
    (installed / "studies" / "mine.toml").write_text(GOOD)
    monkeypatch.setattr("coterie.reproduce.study_files.__file__", str(installed / "study_files.py"))
    assert find_study("mine") == installed / "studies" / "mine.toml"


GOOD = """
title = "t"
paper = "p"
where = "w"
asks = "a"
deviations = ["d"]
protocol = { section = "Table 1", split = "s", sizes = "s", rounds = "r", test_set = "t", optimiser = "o", metric = "m" }
study = { methods = ["fedavg"], data = "synthetic(0,0)" }
[[claims]]
says = "s"
one = "fedavg"
two = "local"
"""
AVERAGE = """
[[claims]]
says = "a"
kind = "average"
of = [{}]
"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("title = ", "not valid TOML"),
        (GOOD + "colour = 1", "'claims.0.colour' is wrong"),
        (GOOD.replace('asks = "a"', ""), "'asks' is wrong"),
        (GOOD.replace('data = "synthetic(0,0)"', "rounds = 1"), "lacks the key 'data'"),
        (GOOD + 'part = "nowhere"', "a claim about the part 'nowhere'"),
        (GOOD + 'kind = "level"', "without a number"),
        (GOOD.replace("data =", "rouns = 3, data ="), "unknown key 'rouns'"),
        (GOOD.replace('deviations = ["d"]', ""), "lacks 'deviations': write what the paper states about it, and in which section"),
        (GOOD.replace('deviations = ["d"]', "deviations = []"), "'deviations' is wrong"),
        (GOOD.replace('deviations = ["d"]', 'deviations = [" "]'), "'deviations.0' is wrong .write what the paper states about it"),
        (GOOD.replace("Table 1", "somewhere"), "'protocol.section' is wrong .name the section, table or figure by its number"),
        (
            GOOD.replace('split = "s"', 'split = " "'),
            "'protocol.split' is wrong .write what the paper states about it, or that it is not stated",
        ),
        (GOOD.replace('split = "s"', 'splits = "s"'), "lacks 'protocol.split'"),
        *((GOOD.replace(f"{name} = ", f"no_{name} = "), f"lacks 'protocol.{name}'") for name in ("sizes", "rounds", "test_set", "metric")),
        (GOOD + 'of = ["s"]', "the claim 's' with 'of', which only averages have"),
        (GOOD.replace('one = "fedavg"', ""), "the claim 's' without a row: add 'one'"),
        (GOOD + AVERAGE.format('"s", "t"'), "the average 'a' over 't', which is no difference of this file"),
        (GOOD + AVERAGE.format('"s"'), "the average 'a': name two or more differences in 'of'"),
        (GOOD + AVERAGE.format('"s", "s"'), "of different parts and of one score"),
        (GOOD + '\n[[parts]]\ncost = "an hour"', "'parts.0.cost' is wrong .write minutes and how they were estimated"),
        (GOOD + '\n[[curves]]\npart = "nowhere"\nfile = "f"\ncolumns = {}', "has curves for the part 'nowhere'"),
    ],
)
def test_a_wrong_file_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=sentence):
        read_reproduction(path)


def test_a_good_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "good.toml"
    path.write_text(GOOD)
    assert read_reproduction(path).claims[0].direction == 1


def test_an_average_has_the_parts_rows_and_score_of_its_differences(tmp_path: Path) -> None:
    path = tmp_path / "average.toml"
    parts = '[[parts]]\nname = "all"\n[[parts]]\nname = "other"\n'
    other = '[[claims]]\nsays = "t"\npart = "other"\none = "fedsim"\ntwo = "fedavg"\n'
    path.write_text(GOOD.replace("[[claims]]", f"{parts}[[claims]]") + other + AVERAGE.format('"s", "t"'))
    study = read_reproduction(path)
    average = study.claims[2]
    assert (average.parts, average.one, average.two, average.score) == (["all", "other"], "fedavg", "local", "mean")
    assert study.get_claims(study.part("all")) == [study.claims[0], average]


def test_unknown_studies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'fedsim_table7'"):
        find_study("fedsim_tabel7", STUDIES)
    with pytest.raises(UserError, match=r"Cannot read the study file .*none\.toml"):
        read_reproduction(find_study(str(tmp_path / "none.toml")))
