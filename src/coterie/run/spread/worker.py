"""A worker on this machine: a process that is handed a study once, and errands until it is told to end or the driver is gone."""

import os
import signal
import sys
import traceback
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from threading import Thread
from time import sleep
from typing import Any

from coterie.core.errors import UserError
from coterie.engines.engine import Engine
from coterie.run.spread.crew import Completed
from coterie.run.spread.errand import Errand, carry_out
from coterie.run.spread.freight import unload_freight
from coterie.run.spread.place import Place

LOOKS = 0.5  # seconds between looks at whether the driver is there


@dataclass(frozen=True)
class Failed:
    """An errand could not be carried out, and would not be elsewhere."""

    sentence: str
    by_the_user: bool  # something to correct, and no fault of Coterie's


def work_for(line: Connection, freight: int) -> None:
    """Carry out errands as they come, until the line is closed."""
    try:
        study = unload_freight(freight)
    except (AttributeError, ImportError) as error:
        line.send(Failed(f"A worker cannot find what the study is made of ({error}): let it stand in a module that can be imported.", True))
        return
    engine: Engine | None = None
    with ExitStack() as held:
        while (errand := _next(line)) is not None:
            try:
                line.send(Place.here())
                if engine is None:
                    engine = held.enter_context(study.engine(errand.execution, errand.routes))
                for report in carry_out(study.lanes(), errand, engine):
                    line.send(report)
                line.send(Completed())
            except UserError as error:
                line.send(Failed(str(error), True))
            except ConnectionError:  # the driver is gone
                return
            except Exception:
                line.send(Failed(traceback.format_exc(), False))


def _next(line: Connection) -> Errand | None:
    try:
        errand: Any = line.recv()
    except (EOFError, OSError):
        return None
    return errand if isinstance(errand, Errand) else None


def _end_with(driver: int) -> None:
    """End when the driver does, even in the middle of a stretch: nobody would write it down."""
    while os.getppid() == driver:
        sleep(LOOKS)
    os._exit(1)


def main(words: list[str]) -> None:
    """The process' beginning: the driver's process id, and what it handed down open."""
    driver, line, freight = map(int, words)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver, too, which then ends its workers
    Thread(target=_end_with, args=(driver,), daemon=True).start()
    work_for(Connection(line), freight)


if __name__ == "__main__":
    main(sys.argv[1:])
