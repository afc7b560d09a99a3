"""The client app of the Flower side: a module of its own, so that Ray's processes import it and keep what it has opened."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict  # type: ignore[import-not-found,unused-ignore]
from flwr.clientapp import ClientApp  # type: ignore[import-not-found,unused-ignore]
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.peers.recorded import Recorded, loader, train_with_loader

client_app = ClientApp()


@cache
def opened(path: str) -> tuple[Recorded, torch.nn.Module, dict[tuple[int, int], Any]]:
    """What a client process keeps from one message to the next."""
    torch.set_num_threads(1)
    recorded = Recorded.load(Path(path))
    return recorded, recorded.module(), {}


@client_app.train()  # type: ignore[untyped-decorator,unused-ignore]
def train(message: Message, context: Context) -> Message:
    order = message.content["order"]
    recorded, module, loaders = opened(str(order["path"]))
    at = int(order["round"]), int(order["client"])
    orders = recorded.rounds[at[0]][at[1]]
    if at not in loaders:
        loaders[at] = loader(recorded, orders)
    loaders[at].sampler.epoch = -1
    [vector] = message.content["model"].to_numpy_ndarrays()
    vector_to_parameters(torch.from_numpy(vector.copy()), module.parameters())
    train_with_loader(module, loaders[at], len(orders), recorded.lr)
    trained = parameters_to_vector(module.parameters()).detach().numpy()
    answer = RecordDict({"model": ArrayRecord([trained]), "samples": ConfigRecord({"n": orders.shape[1]})})
    return Message(content=answer, reply_to=message)
