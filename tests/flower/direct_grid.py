"""A Grid in this process: messages go straight to a ClientApp, through the bytes that Flower would send."""

from collections.abc import Callable, Iterable
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

Tamper = Callable[[int, Message], Message | None]


class DirectGrid:
    """Nodes 1 to n, of which node i has the partition i - 1. `tamper` may change a reply, or drop it."""

    def __init__(self, app: ClientApp, nodes: int, tamper: Tamper = lambda node, message: message) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 7, 1
        self.app, self.tamper, self.sent, self.run_id = app, tamper, 0, uuid4().int >> 65
        self.contexts = {node: self._make_context(node) for node in range(1, nodes + 1)}
        self.replies: dict[str, Message] = {}

    def _make_context(self, node: int) -> Context:
        config: Any = UserConfig({"partition-id": node - 1, "num-partitions": 0})
        return Context(self.run_id, node, config, RecordDict(), UserConfig())

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        number, node = str(uuid4()), message.metadata.dst_node_id
        message.metadata.__dict__["_message_id"] = number
        self.sent += 1
        try:
            reply = self.app(message, self.contexts[node])
        except Exception as error:  # as a SuperNode does
            reply = Message(Error(2, str(error)), reply_to=message)
        reply = self.tamper(node, reply)
        if reply is not None:
            self.replies[number] = reply
        return number

    def pull_messages(self, numbers: Iterable[str]) -> list[Message]:
        return [self.replies.pop(number) for number in numbers if number in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """For Flower's own strategies."""
        return self.pull_messages(self.push_messages(messages))
