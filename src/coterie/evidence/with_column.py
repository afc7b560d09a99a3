"""One column more in a data frame whose columns lie apart."""

import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def with_column(frame: "pd.DataFrame", at: int, name: str, values: "pd.Series") -> "pd.DataFrame":
    """The frame itself, the column put in its place.

    Columns lie apart on purpose, so that a large table is never held twice; where it has more than a hundred (62 classes have), pandas
    would tell the user to copy it.
    """
    from pandas.errors import PerformanceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PerformanceWarning)
        frame.insert(at, name, values)
    return frame
