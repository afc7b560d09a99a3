"""Workers that are processes of this machine."""

import os
import subprocess
import sys
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import IO, Any

from coterie.core.errors import UserError
from coterie.run.spread.crew import Completed, Crew, Lost, News
from coterie.run.spread.errand import Errand
from coterie.run.spread.freight import load_freight
from coterie.run.spread.worker import Failed


class LocalCrew(Crew):
    """So many processes, each begun when it is needed and again when it was lost; the study's arrays are in memory once."""

    def __init__(self, study: Any, size: int) -> None:
        self._size = size
        self._freight = load_freight(study)
        self._idle: list[_Process] = []
        self._busy: dict[int, _Process] = {}

    @property
    def size(self) -> int:
        return self._size

    def begin(self, number: int, errand: Errand) -> None:
        process = self._idle.pop() if self._idle else _Process(self._freight)
        self._busy[number] = process
        process.send(errand)

    def wait(self) -> tuple[int, News]:
        ready = wait([process.line for process in self._busy.values()])
        number = next(number for number, process in self._busy.items() if process.line in ready)
        news = self._busy[number].receive()
        if isinstance(news, Failed):
            raise UserError(news.sentence) if news.by_the_user else RuntimeError(f"A worker failed.\n{news.sentence}")
        if isinstance(news, Lost):
            self.stop(number)
        if isinstance(news, Completed):
            self._idle.append(self._busy.pop(number))
        return number, news

    def stop(self, number: int) -> None:
        self._busy.pop(number).close()

    def close(self) -> None:
        for process in (*self._idle, *self._busy.values()):
            process.close()
        self._idle, self._busy = [], {}
        self._freight.close()


class _Process:
    """One of them, at the other end of a line. It never imports the program that called Coterie, so that this needs no guard."""

    def __init__(self, freight: IO[bytes]) -> None:
        self.line, theirs = Pipe()
        handed = (theirs.fileno(), freight.fileno())
        command = [sys.executable, "-P", "-m", "coterie.run.spread.worker", *map(str, (os.getpid(), *handed))]
        path = os.pathsep.join(place or os.getcwd() for place in sys.path)
        # what a worker has to say is no result: it goes where errors go
        self.process = subprocess.Popen(
            command, pass_fds=handed, stdin=subprocess.DEVNULL, stdout=2, env={**os.environ, "PYTHONPATH": path}
        )
        theirs.close()

    def send(self, errand: Errand) -> None:
        with suppress(OSError):  # it is gone, as `receive` will find
            self.line.send(errand)

    def receive(self) -> Any:
        try:
            return self.line.recv()
        except (EOFError, OSError):  # an OSError where it was killed in the middle of a message
            return Lost(f"the process {self.process.pid} ended ({self.process.wait()})")

    def close(self) -> None:
        self.line.close()
        self.process.kill()
        self.process.wait()
