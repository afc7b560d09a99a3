"""What a comparison is asked, from arguments or from a study file; what is said beside a file wins over it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.core.errors import UserError
from coterie.core.method import Method
from coterie.data.federation import Federation
from coterie.methods.catalogue import build, spec_of
from coterie.models.given import GivenModel
from coterie.run.tuning import Labelled

if TYPE_CHECKING:
    from coterie.run.study_file import FileStudy


@dataclass(frozen=True)
class Chosen:
    """What both can say, settled."""

    data: tuple[str | Federation, ...]
    model: GivenModel
    seeds: tuple[int, ...] | None  # none: as many as the data are worth
    data_seed: int
    out: Path

    @classmethod
    def of(
        cls,
        file: "FileStudy | None",
        *,
        data: Sequence[str | Federation] | str | Federation | None,
        model: GivenModel | None,
        seeds: Iterable[int] | None,
        data_seed: int | None,
        out: Path | str | None,
    ) -> "Chosen":
        """From what was given; a file's seeds count only where it names them, since its default is that of a single study."""
        place = out if out is not None else file.out if file is not None else None
        if place is None:
            raise UserError("A comparison needs a folder for its evidence: give --out.")
        named = file.settings if file is not None else None
        said = data if data is not None else named.data if named is not None else "digits/rotated"
        federations = (said,) if isinstance(said, (str, Federation)) else tuple(said)
        if not federations:
            raise UserError("A comparison needs data: give --data, once for each federation.")
        of_file = named.seeds if named is not None and file is not None and "seeds" in file.said else None
        return cls(
            federations,
            model if model is not None else named.model if named is not None else "mclr",
            of_file if seeds is None else tuple(seeds),
            data_seed if data_seed is not None else named.draws[0] if named is not None else 0,
            Path(place),
        )


def compared_file(methods: Any, trust: bool, other_ray: bool = False) -> "FileStudy | None":
    """The study file that stands in place of methods, if one does. One with a grid is several studies."""
    from coterie.run.study_file import FileStudy, read_study_file

    if isinstance(methods, FileStudy):
        return methods
    words = [methods] if isinstance(methods, (str, Path)) else methods if isinstance(methods, Sequence) else []
    if not any(str(each).endswith(".toml") for each in words if isinstance(each, (str, Path))):
        return None
    if len(words) > 1:
        raise UserError("Give either methods or one study file, not both.")
    return only_study(read_study_file(Path(words[0]), trust=trust, other_ray=other_ray), str(words[0]))


def only_study(studies: "Sequence[FileStudy]", where: str) -> "FileStudy":
    """The one study of a file that can be compared."""
    if len(studies) > 1:
        raise UserError(f"The study file {where} has a grid of {len(studies)} studies, and a comparison is one: take the grid out.")
    return studies[0]


def entries_of(methods: "Sequence[Method[Any] | str] | Method[Any] | str | FileStudy") -> list[Labelled]:
    """The methods by label."""
    chosen = [methods] if isinstance(methods, (str, Method)) else list(methods)  # type: ignore[arg-type]
    return [(m, build(m, trust=True)) if isinstance(m, str) else (spec_of(m), m) for m in chosen]
