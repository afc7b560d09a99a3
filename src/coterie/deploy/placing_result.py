"""Placing a newcomer in a study that was run in this process, or read from its folder."""

from typing import TYPE_CHECKING

from coterie.core.errors import UserError
from coterie.data.catalogue import load
from coterie.data.federation import Federation
from coterie.deploy.export import served_result
from coterie.deploy.newcomer_file import newcomer_from
from coterie.deploy.placing import Placing, place
from coterie.run.result import Result

if TYPE_CHECKING:
    import pandas as pd


def place_in_result(
    result: Result,
    rows: "pd.DataFrame",
    client: str,
    label: str | None,
    method: str | None,
    test: float,
    seed: int | None,
    draw: int | None,
) -> Placing:
    """Place a client by a table of its own rows with their labels."""
    new = newcomer_from(rows, _known(result, draw), client, label, test)
    return place(new, lambda several: served_result(result, method, seed, draw, several))


def _known(result: Result, draw: int | None) -> Federation:
    """What the study's clients hold at its end."""
    settings = result.evidence.settings
    chosen = settings.draws[0] if draw is None else draw
    if chosen not in settings.draws:
        raise UserError(f"The study has no draw of the data {draw}: choose from {', '.join(map(str, settings.draws))}.")
    federation = load(settings.data, chosen) if result.run is None else result.run.study.worlds[chosen].federation
    return federation.at(settings.plan.rounds)
