"""The hash that defines equality of evidence: what was studied and what was found, not how long it took or on what."""

import hashlib
import json

import numpy as np
import pyarrow as pa

from coterie.evidence.reader import Evidence
from coterie.evidence.tables import TABLES


def digest(evidence: Evidence) -> str:
    """SHA-256 over the settings and every table except the timings.

    Rows are taken lane by lane and round by round, so that it does not matter how lanes were spread over waves and segments; files are
    hashed by content, so neither does the version of the library that wrote them.
    """
    total = hashlib.sha256(json.dumps(evidence.settings.as_json(), sort_keys=True).encode())
    for name in TABLES:
        if name != "timings":
            total.update(name.encode())
            _add(total, evidence.table(name))
    _add(total, evidence.roster)
    return total.hexdigest()


def _add(total: "hashlib._Hash", table: pa.Table) -> None:
    if "lane" in table.column_names:
        order = np.lexsort((table["round"].to_numpy(), table["lane"].to_numpy()))
        table = table.take(pa.array(order))
    for name in table.column_names:
        total.update(name.encode())
        column = table[name].combine_chunks()
        if pa.types.is_string(column.type):
            total.update(json.dumps(column.to_pylist()).encode())
        else:
            values = column.to_numpy(zero_copy_only=False)
            total.update(np.ascontiguousarray(values).tobytes())
