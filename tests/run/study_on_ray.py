"""A program: a study of five methods on a Ray cluster, a worker of which is killed, by its process id, when the first report is there.

Prints the digest, the process that was killed, and what was said of it.
"""

import json
import os
import signal
import sys
from pathlib import Path

import psutil

from coterie.evidence import digest
from coterie.evidence.records import RoundRecord
from coterie.evidence.settings import Settings
from coterie.run.callbacks import Callback
from coterie.run.execution import Execution
from coterie.run.lanes import Lane
from coterie.run.study import Study


class KillsATask(Callback):
    """Ends a process of the cluster that carries out a wave, as kill -9 does."""

    killed = 0

    def __init__(self, head: int) -> None:
        self.head = head  # the process that holds the cluster: only what it began is touched

    def on_notice(self, sentence: str) -> None:
        print(sentence)

    def on_round(self, lane: Lane, record: RoundRecord) -> None:
        if not self.killed:
            own = [child for child in psutil.Process(self.head).children(recursive=True) if child.name().startswith("ray::_run_wave")]
            if own:
                self.killed = own[-1].pid
                os.kill(self.killed, signal.SIGKILL)


if __name__ == "__main__":
    address, head, settings, out = sys.argv[1:]
    watcher = KillsATask(int(head))
    study = Study.prepare(Settings.from_json(json.loads(settings)))
    result = study.run(out=Path(out), execution=Execution(ray=address, checkpoint_every=1), callbacks=[watcher])
    print("killed", watcher.killed)
    print("digest", digest(result.evidence))
