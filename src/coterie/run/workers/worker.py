"""A worker process of this machine: it loads a study once and runs tasks until the connection closes or the driver ends."""

import os
import signal
import sys
import traceback
from contextlib import ExitStack
from multiprocessing.connection import Connection
from threading import Thread
from time import sleep
from typing import Any

from coterie._util.errors import UserError
from coterie.engines.engine import Engine
from coterie.run.environment import WorkerHost
from coterie.run.workers.executor import TaskCompleted, TaskFailed, WaveTask, run_task
from coterie.run.workers.processes import read_shared_file

POLL_SECONDS = 0.5  # seconds between looks at whether the driver is there


def run_worker(line: Connection, freight: int) -> None:
    """Carry out errands as they come, until the line is closed."""
    try:
        study = read_shared_file(freight)
    except (AttributeError, ImportError) as error:
        line.send(
            TaskFailed(f"A worker cannot find what the study is made of ({error}): let it stand in a module that can be imported.", True)
        )
        return
    engine: Engine | None = None
    with ExitStack() as held:
        while (errand := _receive_task(line)) is not None:
            try:
                line.send(WorkerHost.here())
                if engine is None:
                    engine = held.enter_context(study.engine(errand.execution, errand.routes))
                for report in run_task(study.lanes(), errand, engine):
                    line.send(report)
                line.send(TaskCompleted())
            except UserError as error:
                line.send(TaskFailed(str(error), True))
            except ConnectionError:  # the driver is gone
                return
            except Exception:
                line.send(TaskFailed(traceback.format_exc(), False))


def _receive_task(line: Connection) -> WaveTask | None:
    try:
        errand: Any = line.recv()
    except (EOFError, OSError):
        return None
    return errand if isinstance(errand, WaveTask) else None


def _exit_with_driver(driver: int) -> None:
    """End when the driver does, even in the middle of a stretch: nobody would write it down."""
    while os.getppid() == driver:
        sleep(POLL_SECONDS)
    os._exit(1)


def main(words: list[str]) -> None:
    """The process' beginning: the driver's process id, and what it handed down open."""
    driver, line, freight = map(int, words)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver, too, which then ends its workers
    Thread(target=_exit_with_driver, args=(driver,), daemon=True).start()
    run_worker(Connection(line), freight)


if __name__ == "__main__":
    main(sys.argv[1:])
