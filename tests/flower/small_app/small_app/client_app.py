"""Partition i is client i of the tiny federation; all asks are answered."""

from typing import Any

from coterie.data.federation import Federation
from coterie.deploy.site.data import select_clients
from coterie.flower import client_app
from coterie.testing.worlds import make_federation


def make_data() -> Federation:
    made = make_federation()
    return made.replace(ids=tuple(map(str, range(len(made)))), central=None, validation=None)


def load_data(context: Any) -> Federation:
    return select_clients(make_data(), [str(context.node_config["partition-id"])])


app = client_app(model="mclr", data=load_data)
