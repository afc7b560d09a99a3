"""The driver of a study whose waves others carry out: it hands them out, writes down what comes, and hands out again what was lost."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from coterie.core.errors import UserError
from coterie.run.budget import Clock
from coterie.run.callbacks import Callback
from coterie.run.checkpoints import Checkpoints
from coterie.run.execution import Execution
from coterie.run.keeping import Keeper
from coterie.run.lanes import Lane
from coterie.run.spread.crew import Completed, Crew, Lost
from coterie.run.spread.errand import Errand, LaneStanding, WaveReport
from coterie.run.spread.place import Place

MOST_LOSSES = 3  # of workers, one after another, over the same stretch: it is the stretch, then


@dataclass
class Spreading:
    """One study on a crew. Nobody else writes: workers need no disk in common."""

    crew: Crew
    execution: Execution
    checkpoints: Checkpoints
    keeper: Keeper
    watchers: Sequence[Callback]
    budget: Clock | None = None
    routes: dict[str, str] = field(default_factory=dict)

    def run(self, waves: Sequence[list[Lane]]) -> None:
        """Carry out all waves, as many at once as the crew can."""
        here = Place.here()
        waiting, out = deque(enumerate(waves)), dict[int, list[Lane]]()
        losses: Counter[int] = Counter()
        while out or waiting:
            while waiting and len(out) < self.crew.size:
                if self.budget is not None and not self.budget.begin_wave():
                    waiting.clear()
                    break
                number, wave = waiting.popleft()
                out[number] = wave
                self.crew.begin(number, self._errand(wave))
            if not out:
                break
            number, news = self.crew.wait()
            match news:
                case Place():
                    news.check_like(here)
                case WaveReport():
                    losses[number] = 0
                    self._take(out[number], news)
                    if self.budget is not None and self.budget.over:
                        self.crew.stop(number)
                        del out[number]
                case Completed():
                    del out[number]
                case Lost():
                    losses[number] += 1
                    self._tell_loss(out[number], news, losses[number])
                    waiting.appendleft((number, out.pop(number)))

    def _errand(self, wave: Sequence[Lane]) -> Errand:
        return Errand(tuple(map(LaneStanding.of, wave)), self.checkpoints, self.execution, dict(self.routes))

    def _take(self, wave: Sequence[Lane], report: WaveReport) -> None:
        """Write a stretch down; from here on nothing of it can be lost."""
        lanes = {lane.key: lane for lane in wave}
        for standing in report.moved:
            standing.put(lanes[standing.key])
        self.routes |= report.stretch.routes
        self.keeper.announce(self.checkpoints, wave, self.watchers)
        self.keeper.keep(wave, report.stretch.before, report.stretch.records, report.stretch.routes)
        for record in report.stretch.records:
            for watcher in self.watchers:
                watcher.on_round(lanes[record.key], record)

    def _tell_loss(self, wave: Sequence[Lane], lost: Lost, times: int) -> None:
        which = f"seeds {wave[0].seed} to {wave[-1].seed}"
        if times >= MOST_LOSSES:
            raise UserError(
                f"{times} workers in a row were lost over the same rounds of {which} ({lost.why}): they may need more memory than "
                "there is. What was written is safe; go on with --resume and fewer --workers, or less --memory."
            )
        sentence = f"A worker is gone ({lost.why}): {which} go on elsewhere from round {max(0, min(lane.round_ for lane in wave))}."
        if self.keeper.writer is not None:
            self.keeper.writer.log(sentence)
        for watcher in self.watchers:
            watcher.on_notice(sentence)
