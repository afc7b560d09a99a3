"""Numbers that cannot be: more hits than samples, clients that are in no roster, weights that are no numbers."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from coterie.core.arrays import Ints


def nonsense(table: str, batch: pa.RecordBatch, rosters: Mapping[int, pa.Table]) -> str | None:
    """What cannot be in a piece of a table, as a sentence without its end; None if all can. Only columns that were read are looked at."""
    if not len(batch):
        return None
    if table == "mixing" and "weight" in batch.schema.names and not np.isfinite(_numbers(batch, "weight")).all():
        return "a weight is no finite number"
    if table == "clients" and "client" in batch.schema.names:
        return _counts(batch, rosters)
    return None


def _counts(batch: pa.RecordBatch, rosters: Mapping[int, pa.Table]) -> str | None:
    """Hits lie between none and the test samples of their class, which the round itself says, or else the roster."""
    client, draw = _numbers(batch, "client"), _numbers(batch, "draw")
    hits = [name for name in batch.schema.names if name.startswith("hits_") and not batch.column(name).null_count]
    for number in np.unique(draw):
        roster = rosters.get(int(number))
        if roster is None:
            continue
        own = draw == number
        who = client[own]
        if who.min() < 0 or who.max() >= roster["id"].length() - roster["id"].null_count:
            return f"client {who.max() if who.min() >= 0 else who.min()} is in no roster"
        for name in hits:
            actual = name.replace("hits_", "actual_")
            said = actual in batch.schema.names and not batch.column(actual).null_count
            most: Ints = _numbers(batch, actual)[own] if said else roster[actual].to_numpy()[who]
            got = _numbers(batch, name)[own]
            if (wrong := (got > most) | (got < 0)).any():
                row = int(wrong.argmax())
                return f"client {who[row]} has {got[row]} right answers ({name}) of {most[row]} test samples"
    return None


def _numbers(batch: pa.RecordBatch, name: str) -> Ints:
    found: Ints = batch.column(name).to_numpy(zero_copy_only=False)
    return found
