"""Sets of methods: each stands for its methods wherever methods are named; what cannot run is left out of a set, and refused by name."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import coterie as ct
from coterie._util.errors import DesignWarning, UserError
from coterie.analysis.comparison import open_comparison
from coterie.analysis.overview import make_overview
from coterie.cli.app import app
from coterie.core.plan import Plan
from coterie.data.catalogue import load
from coterie.engines.world import World
from coterie.methods import catalogue
from coterie.methods.catalogue import METHOD_SETS, expand_sets
from coterie.methods.fedavg import FedAvg
from coterie.report.report import write_report
from coterie.run.method_sets import ChosenMethods, check_method, fit_to_data
from coterie.run.study_file import read_study_file

DATA = "digits/rotated(clients=6,groups=2)"


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """A set of which one method is not known and another wants more groups than there are clients."""
    monkeypatch.setitem(METHOD_SETS, "@two", ("fedprox(mu=0.1)", "nosuchmethod", "ifca(groups=7)", "ifca(groups=2)"))


def problem(data: str = DATA) -> Any:
    return World.from_spec(load(data), "mclr").problem


def test_a_set_stands_for_its_methods_and_none_is_there_twice() -> None:
    words, brought = expand_sets(["ifca(groups=4)", "@papers", FedAvg(), "@papers"])
    assert words == ["ifca(groups=4)", *(spec for spec in METHOD_SETS["@papers"] if spec != "ifca(groups=4)"), FedAvg()]
    assert brought == set(METHOD_SETS["@papers"]) - {"ifca(groups=4)"}  # named by hand, it is not optional


def test_an_unknown_set_is_refused() -> None:
    with pytest.raises(UserError, match="Unknown set of methods '@rival': did you mean '@rivals'"):
        expand_sets(["@rival"])


@pytest.mark.parametrize("name", ["@baselines", "@papers"])
def test_every_method_of_a_set_can_be_made_and_starts(name: str) -> None:
    chosen = ChosenMethods.resolve(name).fit([problem()], Plan())
    assert chosen.labels == METHOD_SETS[name]
    assert not chosen.notices


def test_methods_that_this_version_lacks_are_left_out_of_the_set_of_rivals() -> None:
    known = [spec for spec in METHOD_SETS["@rivals"] if _is_known(spec)]
    if not known:
        with pytest.raises(UserError, match="No method of @rivals can run here"):
            ChosenMethods.resolve("@rivals")
        return
    assert list(ChosenMethods.resolve("@rivals").labels) == known


def _is_known(spec: str) -> bool:
    try:
        catalogue.build(spec)
    except UserError:
        return False
    return True


def test_what_cannot_run_is_left_out_with_its_sentence(two: None) -> None:
    chosen = fit_to_data(ChosenMethods.resolve("@two"), DATA, 0, Plan(), "mclr")
    assert chosen.labels == ("fedprox(mu=0.1)", "ifca(groups=2)")
    assert [notice.partition(":")[0] for notice in chosen.notices] == ["nosuchmethod is left out", "ifca(groups=7) is left out"]
    assert "makes 7 groups, and there are 6 clients" in chosen.notices[1]


def test_what_is_named_is_refused_instead(two: None) -> None:
    with pytest.raises(UserError, match="Unknown method 'nosuchmethod'"):
        ChosenMethods.resolve(["@two", "nosuchmethod"])


def test_a_method_is_checked_up_to_its_first_question() -> None:
    gate = catalogue.build("fedex(combiner=gate)")
    with pytest.raises(UserError, match="accuracy gate counts on validation parts"):
        check_method("fedex(combiner=gate)", gate, problem(), Plan())
    check_method("fedex(combiner=gate)", gate, problem("digits/rotated(clients=6,groups=2,validation=0.2)"), Plan())


def test_a_mixture_of_models_has_one_stage() -> None:
    mixture, own = (catalogue.build(f"fedex(groups=2,combiner={how})+finetune") for how in ("mean", "own"))
    with pytest.raises(UserError, match="A mixture of models cannot be fine-tuned"):
        check_method("fedex", mixture, problem(), Plan())
    check_method("fedex", own, problem(), Plan())
    chosen = ChosenMethods.resolve(["fedex(groups=2)", "fedavg", "local", "ifca+finetune"]).add_stages(3)
    assert chosen.labels == ("fedex(groups=2)", "fedavg", "local", "ifca+finetune", "fedavg+finetune(epochs=3)")
    assert [notice.partition(":")[0] for notice in chosen.notices] == [
        "fedex(groups=2) is judged as it is served only. A mixture of models cannot be fine-tuned, since clients share them"
    ]


@pytest.mark.usefixtures("two")
def test_a_study_runs_a_set_and_warns() -> None:
    with pytest.warns(UserWarning, match="is left out") as found:
        result = ct.study("@two", data=DATA, rounds=1)
    assert list(result.table().index) == ["fedprox(mu=0.1)", "ifca(groups=2)"]
    assert len([one for one in found if "left out" in str(one.message)]) == 2


@pytest.mark.usefixtures("two")
def test_a_study_file_and_the_command_line_take_sets(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(f'methods = ["fedavg", "@two"]\ndata = "{DATA}"\nrounds = 1\n')
    (file,) = read_study_file(path)
    assert file.settings.methods == ("fedavg", *METHOD_SETS["@two"])
    assert file.optional == set(METHOD_SETS["@two"])
    for words in ([str(path)], ["fedavg", "@two", "--data", DATA, "--rounds", "1"]):
        done = CliRunner().invoke(app, ["run", *words])
        assert done.exit_code == 0, done.output
        assert "nosuchmethod is left out" in done.output
        assert "ifca(groups=2)" in done.output
    done = CliRunner().invoke(app, ["run", "@none", "--data", DATA])
    assert isinstance(done.exception, UserError)
    assert "Unknown set of methods" in str(done.exception)


@pytest.mark.usefixtures("two")
def test_a_comparison_of_a_set_at_both_stages(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "data": DATA,
        "rounds": 2,
        "draws": 3,
        "seeds": [0],
        "controls": True,
        "finetune": 2,
        "out": tmp_path / "out",
    }
    with pytest.warns(DesignWarning):
        ct.compare("@two", stages=True, **settings)
    overview = make_overview(open_comparison(tmp_path / "out").federations[0])
    pairs = {served.spec: tuned.spec for served, tuned in overview.list_stages()}
    tuned = [f"{spec}+finetune(epochs=2)" for spec in ("fedavg", "fedprox(mu=0.1)", "ifca(groups=2)")]
    assert sorted(pairs.values()) == sorted(tuned)
    assert next(iter(pairs)) == "fedavg"  # the baseline first
    findings = open_comparison(tmp_path / "out").federations[0]
    for served, after in overview.list_stages()[1:]:
        assert served.own_stage_gain is not None
        assert served.own_stage_gain.mean == findings.gap(served.spec, "fedavg").mean
        assert after.own_stage_gain is not None
        assert after.own_stage_gain.mean == findings.gap(after.spec, "fedavg+finetune(epochs=2)").mean
    text = write_report(tmp_path / "out").page.read_text(encoding="utf-8")
    assert "No gain is across stages" in text
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "out")])
    assert "gains over FedAvg at the same stage" in " ".join(shown.output.split())
    with pytest.warns(DesignWarning):
        ct.compare("@two", stages=True, resume=True, **settings)  # the same set resumes


def test_the_list_of_methods_has_the_sets() -> None:
    done = CliRunner().invoke(app, ["methods"])
    assert all(name in done.output for name in METHOD_SETS)
