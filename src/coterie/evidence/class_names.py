"""What a roster's classes are called: beside its columns, not among them, so that no digest depends on names."""

import json
from collections.abc import Sequence

import pyarrow as pa

KEY = b"classes"


def with_class_names(roster: pa.Table, names: Sequence[str]) -> pa.Table:
    """The roster that knows them."""
    return roster.replace_schema_metadata({**(roster.schema.metadata or {}), KEY: json.dumps(list(names)).encode()})


def class_names(roster: pa.Table, count: int) -> tuple[str, ...]:
    """As many names as there are classes; of a roster that does not know them, their numbers."""
    try:
        found = json.loads((roster.schema.metadata or {}).get(KEY, b"null"))
    except ValueError:
        found = None
    return tuple(map(str, found if isinstance(found, list) and len(found) == count else range(count)))
