"""Spec strings to federations, and the sentences for those that are not."""

import numpy as np
import pytest

from coterie._util.errors import UserError
from coterie.data.catalogue import list_data, load


@pytest.mark.parametrize(
    ("spec", "name", "clients"),
    [
        ("digits/rotated(clients=40, groups=4)", "digits/rotated(clients=40,groups=4)", 40),
        (" synthetic(0.5, 0.5, clients=30) ", "synthetic(0.5,0.5,clients=30)", 30),
        ("synthetic(iid)", "synthetic(iid)", 30),
        ("heart", "heart", 4),
        ("digits/dirichlet(0.5)", "digits/dirichlet(0.5)", 20),
        ("digits/powerlaw(40)", "digits/powerlaw(40)", 40),
        ("digits/shards(clients=50)", "digits/shards(clients=50)", 50),
        ("digits/labelswap(groups=3)", "digits/labelswap(groups=3)", 40),
        ("digits/quantity(0.5)", "digits/quantity(0.5)", 20),
        ("digits/pathological(2, clients=30)", "digits/pathological(2,clients=30)", 30),
        ("digits/dirichlet(0.1,clients=25)/rotated(groups=4)", "digits/dirichlet(0.1,clients=25)/rotated(groups=4)", 25),
        ("digits/rotated/labelswap(groups=2)/outliers(0.2)/arrivals", "digits/rotated/labelswap(groups=2)/outliers(0.2)/arrivals", 40),
        ("heart/outliers(share=0.25)", "heart/outliers(share=0.25)", 4),
        ("synthetic(1,1)/noise", "synthetic(1,1)/noise", 30),
        ("digits/rotated/drift(at=5)", "digits/rotated/drift(at=5)", 40),
        ("digits/iid(clients=6)/mixed('digits/shards(clients=4)')", "digits/iid(clients=6)/mixed('digits/shards(clients=4)')", 10),
    ],
)
def test_loads_what_the_spec_names(spec: str, name: str, clients: int) -> None:
    made = load(spec)
    assert made.name == name
    assert len(made) == clients
    assert {"source", "licence", "citation", "partition", "left_over"} <= made.provenance.keys()


def test_the_data_seed_reaches_sources_and_partitions() -> None:
    for spec in ("digits/iid(clients=5)", "synthetic(1,1,clients=5)", "heart"):
        a, b, c = (load(spec, data_seed=s) for s in (0, 0, 1))
        assert a.data_seed == 0
        assert c.data_seed == 1
        assert np.array_equal(a.train.indices, b.train.indices)
        assert a.x.tobytes() != c.x.tobytes() or not np.array_equal(a.train.indices, c.train.indices)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("digit/iid(clients=10)", "Unknown data set 'digit': did you mean 'digits'?"),
        ("cifar/iid", "Unknown data set 'cifar': did you mean 'cifar10' or 'cifar100'"),
        ("digits/rotate", "Unknown partition or scenario 'rotate': did you mean 'rotated'"),
        ("digits/iid(clients=9)/rotated(clients=9)", "Scenario 'rotated' comes after clients are made, so its clients= belongs to what"),
        ("digits/rotated/iid", "'iid' divides 'digits' again: write one partition, right after the data set, then scenarios."),
        ("digits/iid/drift", "Scenario 'drift' follows a scenario whose groups can change"),
        ("digits/rotated/drift(at=0)", "at=0 should be a round"),
        ("digits/rotated/drift/outliers", "would change the world before it only; write drift last"),
        ("digits/drift", "Scenario 'drift' follows a scenario whose groups can change"),
        ("digits/rotated/drift(share=2)", "share=2 should be above 0 and at most 1"),
        ("digits/coloured", "have shape (8, 8), not (3, height, width)"),
        ("digits/iid(clients=4)/mixed('heart')", "cannot be mixed: their samples have shapes (8, 8) and (13,)"),
        ("digits/fedex_noise", "CIFAR-10 is missing"),
        ("femnist", "FEMNIST is missing: run 'coterie data get femnist'"),
        ("digits/iid(client=10)", "Partition 'iid' has no setting 'client': did you mean 'clients'?"),
        ("synthetic(0,0,client=3)", "Data set 'synthetic' has no setting 'client': did you mean 'clients'?"),
        ("digits/iid(_data_seed=3)", "Partition 'iid' has no setting '_data_seed'"),
        ("digits/iid(samples=3)", "Partition 'iid' has no setting 'samples'"),
        ("digits/iid(clients=ten)", "Partition 'iid' cannot use clients='ten': give a whole number."),
        ("digits/iid(clients=2.5)", "Partition 'iid' cannot use clients=2.5: give a whole number."),
        ("digits", "has to be divided among clients: write for example 'digits/iid(clients=10)'"),
        ("heart/iid(clients=4)", "has clients of its own, so 'iid(clients=4)' cannot divide it; write 'heart'."),
        ("synthetic(iid)/shards", "cannot divide it; write 'synthetic(iid)'."),
        ("synthetic(idd)", "the word iid"),
        ("digits/", "Cannot read ''"),
        ("digits/iid(clients=", "Cannot read"),
    ],
)
def test_says_in_one_sentence_what_is_wrong(spec: str, words: str) -> None:
    with pytest.raises(UserError) as error:
        load(spec)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_partition_is_found_before_any_data_are_read() -> None:
    with pytest.raises(UserError, match="Unknown partition or scenario 'idd'"):
        load("mnist/idd")
    with pytest.raises(UserError, match="has to be divided among clients"):
        load("mnist")


def test_describes_every_entry_with_its_settings() -> None:
    listed = {entry.name: entry for entry in list_data()}
    assert {"digits", "heart", "synthetic", "mnist", "femnist", "shakespeare", "csv", "hub", "iid", "natural", "rotated", "drift"} <= set(
        listed
    )
    assert [listed[n].kind for n in ("digits", "heart", "iid", "rotated")] == ["samples", "federation", "partition", "scenario"]
    assert listed["rotated"].settings == {"groups": 4, "shares": None, "clients": None, "test": None, "validation": None}
    assert listed["csv"].settings["path"] == "..."  # to be given
    assert listed["mnist"].settings == {}
    assert listed["synthetic"].settings["alpha"] == 0.0
    assert all(entry.doc.endswith(".") for entry in list_data())
