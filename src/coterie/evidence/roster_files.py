"""The lists of clients in a study's folder, one for each draw."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from coterie.core.disk import flush
from coterie.core.errors import UserError


def roster_path(folder: Path, draw: int) -> Path:
    """Where the clients of a draw are listed."""
    return folder / "rosters" / f"{draw}.parquet"


def read_roster(path: Path) -> pa.Table:
    """A list of clients; one that is missing or damaged is named."""
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path} cannot be read ({str(error).splitlines()[0]}): restore it from a copy of the study.") from error


def write_roster(path: Path, roster: pa.Table) -> None:
    """Put a list of clients in its place, whole or not at all."""
    draft = path.with_name(f".{path.name}")
    pq.write_table(roster, draft)
    flush(draft)
    draft.replace(path)
    flush(path.parent)
