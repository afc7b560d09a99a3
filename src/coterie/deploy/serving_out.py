"""What every site receives at the end of a run: the models that its clients are served, and nobody else's."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from coterie.core.arrays import Ids
from coterie.deploy.engine import FederatedEngine
from coterie.deploy.members import Members
from coterie.deploy.messages import PROTOCOL, Delivery
from coterie.deploy.parcels import slim_serving
from coterie.deploy.served import model_names
from coterie.evidence.restore import standing
from coterie.run.drive import answer
from coterie.run.study import Study


def deliveries(
    study: Study, folder: Path, members: Members, engine: FederatedEngine, run: str, order: str
) -> Iterator[dict[str, Delivery]]:
    """For each method of the study, with its first seed: by site, what its clients are served. Who is not there now gets none."""
    states, roster = standing(folder).lanes, members.roster()
    for lane in study.lanes():
        if lane.seed != study.settings.seeds[0] or lane.key not in states or states[lane.key].end.failed:
            continue
        lane.go_on(states[lane.key].end, states[lane.key].state)
        script = lane.method.serve(lane.state, roster.available, lane.context(lane.round_))
        serving = answer(script, engine, seed=lane.keyed, round_=lane.round_, draw=lane.key.draw)
        names = model_names(lane, serving, roster.ids)
        found = {}
        for site, own in _by_site(members, serving.clients).items():
            part = serving.take(own)
            ids, cut = tuple(roster.ids[int(c)] for c in part.clients), slim_serving(part)
            used = np.unique(part.rows) if len(cut.models) < len(part.models) else np.arange(len(part.models))
            named = tuple(names[int(row)] for row in used)
            number = secrets.token_hex(16)
            found[site] = Delivery(PROTOCOL, run, number, lane.label, lane.seed, lane.round_, ids, cut, named, order)
        yield found


def _by_site(members: Members, clients: Ids) -> dict[str, Ids]:
    sites = np.array([members.members[int(c)].site for c in clients], dtype=object)
    return {site: np.flatnonzero(sites == site) for site in dict.fromkeys(sites.tolist())}
