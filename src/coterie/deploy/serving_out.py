"""What every site receives at the end of a run: the models that its clients are served, and nobody else's."""

import secrets
from pathlib import Path

import numpy as np

from coterie.core.arrays import Ids
from coterie.deploy.engine import FederatedEngine
from coterie.deploy.members import Members
from coterie.deploy.messages import PROTOCOL, Delivery
from coterie.deploy.parcels import slim_serving
from coterie.evidence.record import RUNNING
from coterie.evidence.restore import standing
from coterie.run.drive import answer
from coterie.run.study import Study


def deliveries(study: Study, folder: Path, members: Members, engine: FederatedEngine, run: str) -> dict[str, list[Delivery]]:
    """By site, a delivery for each method of the study, with its first seed. Who is not there now gets none."""
    found: dict[str, list[Delivery]] = {site: [] for site in sorted(members.here)}
    states = standing(folder).lanes
    for lane in study.lanes():
        if lane.seed != study.settings.seeds[0] or lane.key not in states or states[lane.key].end.status != RUNNING:
            continue
        lane.go_on(states[lane.key].end, states[lane.key].state)
        reachable = members.roster().available
        script = lane.method.serve(lane.state, reachable, lane.context(lane.round_))
        serving = answer(script, engine, seed=lane.seed, round_=lane.round_, draw=lane.key.draw)
        for site, own in _by_site(members, serving.clients).items():
            cut = slim_serving(serving.take(own))
            ids = tuple(members.members[int(c)].id for c in cut.clients)
            names = _names(serving.rows, own, len(cut.models))
            placed = cut.take(np.arange(len(ids)))
            found[site].append(Delivery(PROTOCOL, run, secrets.token_hex(16), lane.label, lane.seed, lane.round_, ids, placed, names))
    return found


def _by_site(members: Members, clients: Ids) -> dict[str, Ids]:
    sites = np.array([members.members[int(c)].site for c in clients], dtype=object)
    return {site: np.flatnonzero(sites == site) for site in dict.fromkeys(sites.tolist())}


def _names(rows: Ids, own: Ids, models: int) -> tuple[str, ...]:
    """A name for each model that a site gets: the number it has among all."""
    used = np.unique(rows[own])
    numbers = used.tolist() if (used >= 0).all() else list(range(models))
    return tuple(f"group {number}" for number in numbers)
