"""Kill a process at every operation with which it makes a study's folder, and begin again with what it left.

One child is forked for each, so that the imports are paid for once. Prints what happened as JSON.
"""

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from coterie._util.errors import UserError  # noqa: E402
from coterie.evidence.manifest import read_study_head  # noqa: E402
from coterie.evidence.settings import Settings  # noqa: E402
from coterie.evidence.verify import verify  # noqa: E402
from coterie.evidence.writer import Writer  # noqa: E402
from killing import killed_at  # noqa: E402

SETTINGS = Settings(methods=("fedavg",), data="tiny")
EXTRAS = {"execution": {"engine": "loop"}, "environment": {"python": "3"}, "data": {"0": {"labels": "none"}}}


def create(folder: Path) -> None:
    with Writer.create(folder, SETTINGS, EXTRAS, {0: pa.table({"id": ["a"], "train": [1], "group": [-1], "actual_0": [1]})}):
        pass


def main() -> None:
    """Until a child lives to its end."""
    stuck: list[str] = []
    with TemporaryDirectory() as root:
        number = 1
        while killed_at(folder := Path(root) / str(number), number, lambda: create(folder)):
            try:
                if not read_study_head(folder) or not (folder / "settings.json").exists():
                    create(folder)
                if not verify(folder).whole or ((folder / ".draft").exists() and any((folder / ".draft").iterdir())):
                    stuck.append(f"{number}: {verify(folder).damaged} {sorted(os.listdir(folder))}")
            except UserError as error:
                stuck.append(f"{number}: {error} {sorted(os.listdir(folder))}")
            number += 1
    print(json.dumps({"kills": number - 1, "stuck": stuck}))


if __name__ == "__main__":
    main()
