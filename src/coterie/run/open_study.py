"""Open a study's folder: create it, or resume the one that is there with the same settings and data."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from coterie._util.errors import UserError
from coterie._util.files import FolderLock
from coterie._util.json_io import format_json, read_json, read_json_object
from coterie.data.content import find_differences, hash_contents
from coterie.engines.loss import cross_entropy
from coterie.engines.world import World
from coterie.evidence.folder import get_roster_path, is_free, read_roster
from coterie.evidence.manifest import is_study, repair_routes, repair_study
from coterie.evidence.records import LaneKey
from coterie.evidence.restore import RestoredLane, restore
from coterie.evidence.settings import Settings, find_obstacles
from coterie.evidence.writer import Writer, finish_growing, grow
from coterie.run.environment import describe_environment, find_changes
from coterie.run.execution import Execution

LOSS = "loss"  # in environment.json


@dataclass(frozen=True)
class OpenedStudy:
    """A study's folder, locked for this process."""

    writer: Writer
    execution: Execution  # as the study was started
    lanes: Mapping[LaneKey, RestoredLane]  # those that have started
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class StudyOpener:
    """A study and the folder it is written to."""

    out: Path
    settings: Settings
    rosters: Mapping[int, pa.Table]
    worlds: Mapping[int, World]  # none in a real federation: the server has no data

    def open(self, execution: Execution, resume: bool) -> OpenedStudy:
        """Create the folder, or resume the study in it with its stored execution settings."""
        resolved = execution.resolve()
        data = {str(draw): hash_contents(world.federation) for draw, world in self.worlds.items()}
        extras = {"execution": asdict(resolved), "environment": describe_environment() | {LOSS: self._loss()}, "data": data}
        if resume and is_study(self.out):
            hold = FolderLock(self.out)
            try:
                return self._resume(hold, execution, extras)
            except BaseException:
                hold.close()
                raise
        if resume and not is_free(self.out, "settings.json"):
            raise UserError(f"{self.out} holds no study to resume: name the folder that --out made, or omit --resume.")
        return OpenedStudy(Writer.create(self.out, self.settings, extras, self.rosters), resolved, {})

    def _resume(self, hold: FolderLock, execution: Execution, extras: Mapping[str, Any]) -> OpenedStudy:
        out = self.out
        finish_growing(out)
        texts = {"settings": self.settings.as_json(), **extras}
        notices = repair_study(out, {f"{name}.json": format_json(tree) for name, tree in texts.items()})
        stored = Settings.from_json(read_json(out / "settings.json"))
        if other := find_obstacles(stored, self.settings):
            raise UserError(
                f"{out} holds another study (it differs in {'; '.join(other)}): choose another --out. A study can get more methods, seeds, "
                "draws or rounds: name those that it has and those that come."
            )
        self._check_data(extras["data"])
        self._check_loss(read_json_object(out / "environment.json").get(LOSS))
        lanes, lost = restore(out)
        notices += lost + repair_routes(out)
        if now := find_changes(read_json_object(out / "environment.json"), extras["environment"]):
            notices.append(f"The study continues under {', '.join(now)}: losses may differ in their last bits from those of one run.")
        if grows := stored.differences(self.settings):
            grow(out, self.settings, extras["data"], self.rosters)
        writer = Writer(out, hold)
        notices += writer.rosters(self.rosters)  # clients may have joined
        for sentence in [*([f"the study grows in {', '.join(grows)}"] if grows else []), *notices]:
            writer.log(sentence)
        kept = Execution.read(out / "execution.json").override(execution).resolve()
        return OpenedStudy(writer, kept, lanes, tuple(notices))

    def _loss(self) -> str:
        """The name of the loss: a user's own loss is given in Python and is in no settings."""
        losses = {world.loss for world in self.worlds.values()} or {cross_entropy}
        return ", ".join(sorted(getattr(loss, "__name__", type(loss).__name__) for loss in losses))

    def _check_loss(self, before: object) -> None:
        """Refuse another loss than the study began with."""
        if before != self._loss():
            raise UserError(
                f"{self.out} was started with the loss {before!r}, not {self._loss()!r}: resume in Python with the same, as in "
                "study(..., loss=..., resume=True)."
            )

    def _check_data(self, data: Mapping[str, Mapping[str, str]]) -> None:
        """Refuse other data than those the study began with."""
        path = self.out / "data.json"
        before = read_json_object(path) if path.exists() else {}
        other = [name for draw in before for name in find_differences(before[draw], data[draw])]
        if not before:  # the clients are all that is known of a real federation
            other = ["clients" for draw, roster in self.rosters.items() if not self._has_known_clients(draw, roster)]
        if other:
            what = f"{', '.join(dict.fromkeys(other))} of {self.settings.data!r} differ"
            raise UserError(
                f"The data of {self.out} are not those it was started with ({what}): resume with those, or start over in another --out."
            )

    def _has_known_clients(self, draw: int, roster: pa.Table) -> bool:
        """Whether a roster starts with the clients of the stored one. In a real federation clients may join."""
        try:
            before = read_roster(get_roster_path(self.out, draw))
        except UserError:  # it is written again
            return True
        return bool(roster["id"].to_pylist()[: len(before)] == before["id"].to_pylist())
