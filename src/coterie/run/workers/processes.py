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

ALIGNMENT = 64  # bytes, for vector units
LENGTH_BYTES = 8  # bytes at the end of the file with the length of the part before them
POLL_SECONDS = 0.5  # seconds between checks that the driver is alive


def write_shared_file(made: Any) -> IO[bytes]:
    """A file that holds an object. It is deleted when the last process that has it open ends."""
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
    """The object in a file that the driver wrote and left open; its arrays are read-only."""
    view = memoryview(mmap(descriptor, 0, access=ACCESS_READ))
    length = int.from_bytes(view[-LENGTH_BYTES:], "big")
    body, spans = pickle.loads(view[-LENGTH_BYTES - length : -LENGTH_BYTES])
    return pickle.loads(body, buffers=[view[begin:end] for begin, end in spans])


class ProcessExecutor(Executor):
    """So many processes, each started when it is needed and again when it was lost."""

    def __init__(self, study: Any, size: int) -> None:
        if os.name == "nt":
            raise UserError("Worker processes run on Linux and macOS: on Windows, omit --workers, or use WSL.")
        self._size = size
        self._shared_file = write_shared_file(study)
        self._idle: list[_WorkerProcess] = []
        self._busy: dict[int, _WorkerProcess] = {}

    @property
    def size(self) -> int:
        return self._size

    def begin(self, number: int, task: WaveTask) -> None:
        process = self._idle.pop() if self._idle else _WorkerProcess(self._shared_file)
        self._busy[number] = process
        with suppress(OSError):  # the process is gone, which `receive` reports
            process.connection.send(task)

    def wait(self) -> tuple[int, WorkerMessage]:
        ready = wait([process.connection for process in self._busy.values()])
        number = next(number for number, process in self._busy.items() if process.connection in ready)
        message = self._busy[number].receive()
        if isinstance(message, TaskFailed):
            raise UserError(message.sentence) if message.is_user_error else RuntimeError(f"A worker failed.\n{message.sentence}")
        if isinstance(message, WorkerLost):
            self.stop(number)
        if isinstance(message, TaskCompleted):
            self._idle.append(self._busy.pop(number))
        return number, message

    def stop(self, number: int) -> None:
        self._busy.pop(number).close()

    def close(self) -> None:
        for process in (*self._idle, *self._busy.values()):
            process.close()
        self._idle, self._busy = [], {}
        self._shared_file.close()


class _WorkerProcess:
    """A worker and the connection to it. It does not import the caller's program, so that needs no main guard."""

    def __init__(self, shared_file: IO[bytes]) -> None:
        self.connection, theirs = Pipe()
        inherited = (theirs.fileno(), shared_file.fileno())
        command = [sys.executable, "-P", "-m", "coterie.run.workers.processes", *map(str, (os.getpid(), *inherited))]
        path = os.pathsep.join(place or os.getcwd() for place in sys.path)
        # what a worker prints is no result: it goes to stderr
        self.process = subprocess.Popen(
            command, pass_fds=inherited, stdin=subprocess.DEVNULL, stdout=2, env={**os.environ, "PYTHONPATH": path}
        )
        theirs.close()

    def receive(self) -> Any:
        try:
            return self.connection.recv()
        except (EOFError, OSError):  # an OSError where it was killed in the middle of a message
            return WorkerLost(f"the process {self.process.pid} ended ({self.process.wait()})")

    def close(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.wait()


def run_worker(connection: Connection, shared_file: int) -> None:
    """Run tasks as they arrive, until the connection is closed."""
    try:
        study = read_shared_file(shared_file)
    except (AttributeError, ImportError) as error:
        sentence = f"A worker cannot find what the study is made of ({error}): let it stand in a module that can be imported."
        connection.send(TaskFailed(sentence, True))
        return
    engine: Engine | None = None
    with ExitStack() as held:
        while (task := _receive_task(connection)) is not None:
            try:
                connection.send(WorkerHost.current())
                if engine is None:
                    engine = held.enter_context(study.engine(task.execution, task.routes))
                for report in run_task(study.lanes(), task, engine):
                    connection.send(report)
                connection.send(TaskCompleted())
            except UserError as error:
                connection.send(TaskFailed(str(error), True))
            except ConnectionError:  # the driver is gone
                return
            except Exception:
                connection.send(TaskFailed(traceback.format_exc(), False))


def _receive_task(connection: Connection) -> WaveTask | None:
    try:
        task: Any = connection.recv()
    except (EOFError, OSError):
        return None
    return task if isinstance(task, WaveTask) else None


def _exit_with_driver(driver: int) -> None:
    """End when the driver does, even within a segment, which would not be written."""
    while os.getppid() == driver:
        sleep(POLL_SECONDS)
    os._exit(1)


def main(words: list[str]) -> None:
    """Start a worker, given the driver's process id and the descriptors of the connection and of the shared file."""
    driver, connection, shared_file = map(int, words)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches the driver, which then ends its workers
    Thread(target=_exit_with_driver, args=(driver,), daemon=True).start()
    run_worker(Connection(connection), shared_file)


if __name__ == "__main__":
    main(sys.argv[1:])
