"""Kill a process at every operation with which it makes a study's folder, and begin again with what it left.

One child is forked for each, so that the imports are paid for once. Prints what happened as JSON.
"""

import json
import os
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from coterie.core.errors import UserError
from coterie.evidence.head import read_study_head
from coterie.evidence.settings import Settings
from coterie.evidence.verify import verify
from coterie.evidence.writer import Writer

EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "shutil.rmtree")
SETTINGS = Settings(methods=("fedavg",), data="tiny")
EXTRAS = {"execution": {"engine": "loop"}, "environment": {"python": "3"}, "data": {"0": {"labels": "none"}}}


def create(folder: Path) -> None:
    with Writer.create(folder, SETTINGS, EXTRAS, {0: pa.table({"id": ["a"], "train": [1], "group": [-1], "actual_0": [1]})}):
        pass


def killed(folder: Path, number: int) -> bool:
    """Make the folder in a child that is killed at its n-th operation; whether it came so far."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    seen = 0

    def count(event: str, words: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in EVENTS and words and str(words[0]).startswith(str(folder)):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    create(folder)
    os._exit(0)


def main() -> None:
    """Until a child lives to its end."""
    stuck: list[str] = []
    with TemporaryDirectory() as root:
        number = 1
        while killed(folder := Path(root) / str(number), number):
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
