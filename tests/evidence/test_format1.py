"""Evidence of format 1 opens: a small study that an earlier version wrote is kept beside this file."""

from pathlib import Path

import numpy as np
import pytest

import coterie as ct
from coterie._util.errors import UserError
from coterie.analysis.comparison import open_comparison
from coterie.evidence import Evidence, digest
from coterie.evidence.format1 import renamed
from coterie.run.result import Result

FOLDER = Path(__file__).parent / "format1"
# What the version that wrote it printed for the last round (`coterie show`), in percent.
PRINTED = {"fedsim(clusters=2)": 54.7, "neighbourprox": 55.3, "ifca(groups=2)+restarts(starts=2)": 55.8}


def test_its_scores_are_those_that_were_printed() -> None:
    table = Result(Evidence.open(FOLDER)).table()
    finals = table["final"].to_dict()
    assert {label: round(100 * finals[label], 1) for label in PRINTED} == PRINTED
    assert (table["seeds"] == 2).all()


def test_every_table_opens_with_the_keys_of_today() -> None:
    evidence = Evidence.open(FOLDER)
    for name in ("rounds", "clients", "central", "mixing", "groups", "clusters", "absences", "notes", "timings"):
        frame = evidence.frame(name)
        assert list(frame.columns[:4]) == ["draw", "method", "seed", "round"]
        assert frame["seed"].isin([0, 1]).all()
    assert len(evidence.frame("rounds")) == 4 * 2 * 4  # methods, seeds, rounds 0 to 3
    assert not evidence.frame("notes")["name"].isin(["clusters", "refused"]).any()
    clusters = evidence.frame("clusters")
    assert set(clusters["method"].astype(str)) == {"fedsim(clusters=2)"}
    mixed = evidence.frame("mixing")
    of_fedsim = mixed[(mixed["method"] == "fedsim(clusters=2)") & ~mixed["kept"]]
    assert sorted(zip(clusters["seed"], clusters["round"], clusters["client"], strict=True)) == sorted(
        zip(of_fedsim["seed"], of_fedsim["round"], of_fedsim["source"], strict=True)
    )
    assert np.isnan(evidence.frame("rounds")["clock"]).all()


def test_it_can_be_compared_and_hashed() -> None:
    assert len(digest(Evidence.open(FOLDER))) == 64
    found = open_comparison(FOLDER)
    assert set(found.federations[0].methods) == {"fedgroup(groups=2,alpha=2)", *PRINTED}


def test_it_cannot_be_resumed_and_says_so() -> None:
    with pytest.raises(UserError, match="can be read but not resumed"):
        ct.study("fedavg", data="digits/rotated(clients=6,groups=2)", out=FOLDER, resume=True)


def test_methods_have_the_names_of_today() -> None:
    assert renamed("moon(gamma=0.1)") == "neighbourprox(gamma=0.1)"
    assert renamed("ifca") == "ifca+restarts"
    assert renamed("ifca(groups=4,starts=1)+finetune") == "ifca(groups=4)+finetune"
    assert renamed("hypocluster(trial=2)+rate(lr=0.1)") == "hypocluster+restarts(trial=2)+rate(lr=0.1)"
    assert renamed("fedsim(clusters=auto,criterion=gap)") == "fedsim(clusters=auto,choice=gap)"
    assert renamed("fedavg+finetune(epochs=5)") == "fedavg+finetune(epochs=5)"
    assert renamed("mine(odd") == "mine(odd"
