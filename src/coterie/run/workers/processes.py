"""Workers that are processes of this machine: the executor that starts them, and the process itself (`python -m` this module).

A study is pickled once into an unnamed file that all workers map, so its arrays are in memory once. A worker loads it and runs tasks
until the connection closes or the driver ends.
"""

import os
import pickle
import signal
import subprocess
import sys
import traceback
from contextlib import ExitStack, suppress
from mmap import ACCESS_READ, mmap
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from tempfile import TemporaryFile
from threading import Thread
from time import sleep
from typing import IO, Any

from coterie._util.errors import UserError
from coterie.engines.engine import Engine
from coterie.run.environment import WorkerHost
from coterie.run.workers.executor import Executor, TaskCompleted, TaskFailed, WaveTask, WorkerLost, WorkerMessage, run_task

ALIGNMENT = 64  # bytes: as far apart as vector units like it


LENGTH_BYTES = 8  # bytes, at the file's end, that say how long the part before them is


def write_shared_file(made: Any) -> IO[bytes]:
    """A file that holds an object. It is gone when the last process that has it open ends, however that ends."""
    buffers: list[pickle.PickleBuffer] = []
    try:
        body = pickle.dumps(made, protocol=5, buffer_callback=buffers.append)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(
            f"The study cannot be sent to workers ({error}): models, methods and losses that are code must stand in a module."
        ) from error
    file = TemporaryFile()  # noqa: SIM115 (it is the caller's to close)
    spans = []
    for buffer in buffers:
        file.write(bytes(-file.tell() % ALIGNMENT))
        begin = file.tell()
        file.write(buffer.raw())
        spans.append((begin, file.tell()))
    tail = pickle.dumps((body, spans))
    file.write(tail)
    file.write(len(tail).to_bytes(LENGTH_BYTES, "big"))
    file.flush()
    return file


def read_shared_file(descriptor: int) -> Any:
    """The object in a file that the driver made and handed down open; its arrays cannot be written to."""
    view = memoryview(mmap(descriptor, 0, access=ACCESS_READ))
    length = int.from_bytes(view[-LENGTH_BYTES:], "big")
    body, spans = pickle.loads(view[-LENGTH_BYTES - length : -LENGTH_BYTES])
    return pickle.loads(body, buffers=[view[begin:end] for begin, end in spans])


class ProcessExecutor(Executor):
    """So many processes, each begun when it is needed and again when it was lost; the study's arrays are in memory once."""

    def __init__(self, study: Any, size: int) -> None:
        if os.name == "nt":
            raise UserError("Worker processes run on Linux and macOS: on Windows, omit --workers, or use WSL.")
        self._size = size
        self._freight = write_shared_file(study)
        self._idle: list[_WorkerProcess] = []
        self._busy: dict[int, _WorkerProcess] = {}

    @property
    def size(self) -> int:
        return self._size

    def begin(self, number: int, errand: WaveTask) -> None:
        process = self._idle.pop() if self._idle else _WorkerProcess(self._freight)
        self._busy[number] = process
        process.send(errand)

    def wait(self) -> tuple[int, WorkerMessage]:
        ready = wait([process.line for process in self._busy.values()])
        number = next(number for number, process in self._busy.items() if process.line in ready)
        news = self._busy[number].receive()
        if isinstance(news, TaskFailed):
            raise UserError(news.sentence) if news.is_user_error else RuntimeError(f"A worker failed.\n{news.sentence}")
        if isinstance(news, WorkerLost):
            self.stop(number)
        if isinstance(news, TaskCompleted):
            self._idle.append(self._busy.pop(number))
        return number, news

    def stop(self, number: int) -> None:
        self._busy.pop(number).close()

    def close(self) -> None:
        for process in (*self._idle, *self._busy.values()):
            process.close()
        self._idle, self._busy = [], {}
        self._freight.close()


class _WorkerProcess:
    """One of them, at the other end of a line. It never imports the program that called Coterie, so that this needs no guard."""

    def __init__(self, freight: IO[bytes]) -> None:
        self.line, theirs = Pipe()
        handed = (theirs.fileno(), freight.fileno())
        command = [sys.executable, "-P", "-m", "coterie.run.workers.processes", *map(str, (os.getpid(), *handed))]
        path = os.pathsep.join(place or os.getcwd() for place in sys.path)
        # what a worker has to say is no result: it goes where errors go
        self.process = subprocess.Popen(
            command, pass_fds=handed, stdin=subprocess.DEVNULL, stdout=2, env={**os.environ, "PYTHONPATH": path}
        )
        theirs.close()

    def send(self, errand: WaveTask) -> None:
        with suppress(OSError):  # it is gone, as `receive` will find
            self.line.send(errand)

    def receive(self) -> Any:
        try:
            return self.line.recv()
        except (EOFError, OSError):  # an OSError where it was killed in the middle of a message
            return WorkerLost(f"the process {self.process.pid} ended ({self.process.wait()})")

    def close(self) -> None:
        self.line.close()
        self.process.kill()
        self.process.wait()


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
