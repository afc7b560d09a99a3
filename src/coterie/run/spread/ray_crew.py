"""Workers that are tasks of a Ray cluster: a task a wave, which tells of each stretch as it ends. Ray sends the study to each machine once.

Ray itself repeats nothing: the driver knows what is written, and hands out again what was lost from there.
"""

from collections.abc import Iterator
from typing import Any

from coterie.core.errors import UserError
from coterie.run.execution import Execution
from coterie.run.spread.crew import Completed, Crew, Lost, News
from coterie.run.spread.errand import Errand, WaveReport, carry_out
from coterie.run.spread.place import Place
from coterie.run.spread.ray_connection import connected, import_ray

LOOKS = 1.0  # seconds that Ray waits at most before Ctrl-C is heard


class RayCrew(Crew):
    """As many waves at once as the cluster has cores, or GPUs, for; machines may come and go."""

    def __init__(self, study: Any, execution: Execution) -> None:
        assert execution.ray is not None  # or there would be other workers
        self._own = connected(execution.ray)
        self._ray = import_ray()
        self._most = execution.workers
        self._needs = {"CPU": execution.threads or 1, "GPU": execution.gpus_per_wave}
        self._busy: dict[int, Any] = {}
        try:
            self._check(execution.ray)
            self._study = self._ray.put(study)  # its arrays lie in each machine's object store once, and tasks map them
        except BaseException:
            self.close()
            raise
        needs = {"num_cpus": self._needs["CPU"], "num_gpus": self._needs["GPU"]}
        self._task = self._ray.remote(max_retries=0, num_returns="streaming", **needs)(_wave)

    @property
    def size(self) -> int:
        there = self._ray.cluster_resources()
        fits = min(int(there.get(name, 0) // need) for name, need in self._needs.items() if need)
        return max(1, fits if self._most is None else min(fits, self._most))

    def begin(self, number: int, errand: Errand) -> None:
        self._busy[number] = self._task.remote(self._study, errand)

    def wait(self) -> tuple[int, News]:
        ready: list[Any] = []
        while not ready:
            ready, _ = self._ray.wait(list(self._busy.values()), num_returns=1, timeout=LOOKS)
        number = next(number for number, told in self._busy.items() if told is ready[0])
        news = self._next(self._busy[number])
        if isinstance(news, (Completed, Lost)):
            del self._busy[number]
        return number, news

    def stop(self, number: int) -> None:
        self._ray.cancel(self._busy.pop(number), force=True)

    def close(self) -> None:
        for number in list(self._busy):
            self.stop(number)
        if self._own:
            self._ray.shutdown()

    def _next(self, told: Any) -> News:
        errors = self._ray.exceptions
        try:
            news: News = self._ray.get(next(told))
        except StopIteration:
            return Completed()
        except errors.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, UserError):
                raise UserError(str(cause)) from None
            raise RuntimeError(f"A worker failed.\n{error}") from error
        except errors.RayError as error:  # a process or a machine is gone, or what it had told and nobody had fetched yet
            return Lost(f"{type(error).__name__}: {str(error).splitlines()[0]}")
        return news

    def _check(self, address: str) -> None:
        """Refuse a cluster none of whose machines could ever carry out a wave: Ray would wait for one without a word."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0) >= need for name, need in self._needs.items()) for node in nodes):
            needs = ", ".join(f"{need} {name}" for name, need in self._needs.items() if need)
            raise UserError(f"No machine of the Ray at {address} has {needs} for a wave: ask for less with --threads or --gpus-per-wave.")


def _wave(study: Any, errand: Errand) -> Iterator[Place | WaveReport]:
    """The task."""
    yield Place.here()
    with study.engine(errand.execution, errand.routes) as engine:
        yield from carry_out(study.lanes(), errand, engine)
