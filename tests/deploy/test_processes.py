"""FLARE's processes: the port of a server."""

import socket

import pytest

pytest.importorskip("nvflare")

from coterie._util.errors import UserError
from coterie.deploy.flare.processes import check_port


def test_a_port_that_somebody_listens_on_is_refused() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as gRPC does
        server.bind(("127.0.0.1", 0))
        server.listen()
        with pytest.raises(UserError, match="cannot listen on"):
            check_port("127.0.0.1", server.getsockname()[1])


def test_a_server_that_was_killed_may_be_started_again_at_once() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        site = socket.create_connection(("127.0.0.1", port))
        line, _ = server.accept()
    line.close()  # this end first: its line lingers
    site.close()
    check_port("127.0.0.1", port)
