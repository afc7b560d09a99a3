"""Which messages a FLARE process accepts: deny by default. In one process; `test_intruders` tries the same over real connections."""

from itertools import product
from typing import Any

import pytest

pytest.importorskip("nvflare")

from nvflare.private.admin_defs import Message

from coterie.deploy.flare.protection import REQUESTS, SITE_ORDERS, Guard, MessageInfo, Party, RefusalLog

JOB, OTHER = "11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555"
BOSS, ADMIN = f"_admin_{JOB}", "admin@coterie.local"
CELLS = ("server", f"server.{JOB}", f"server.{OTHER}", "a", f"a.{JOB}", "b", f"b.{JOB}", BOSS)


def guard(name: str, *removed: str) -> Guard:
    return Guard(name, ADMIN, lambda: frozenset(removed))


def letter(peer: str, origin: str, destination: str, about: str = "task/heart_beat", link: str = "network", **more: Any) -> MessageInfo:
    """A request as it arrives; what is streamed is in a stream."""
    channel, _, topic = about.partition("/")
    headers: dict[str, Any] = {
        "cn__origin": origin,
        "cn__destination": destination,
        "cn__msg_type": "req",
        "cn__channel": channel,
        "cn__topic": topic,
    }
    if channel in ("server_command", "aux_communication", "return_only", "hci_channel"):
        headers |= {"cn__channel": "sm__STREAM", "cn__topic": "sm__DATA", "sm__ch": channel, "sm__tp": topic, "sm__dt": 1}
    name = ADMIN if peer.startswith("_admin") else peer.partition(".")[0]
    return MessageInfo(link, peer, more.pop("common_name", name), headers | more)


def accepted(at: Guard, what: MessageInfo, waits: bool = False) -> bool:
    return at.refusal(what, lambda number: waits) is None


def test_a_run_s_messages_are_accepted() -> None:
    server, job, site, site_job = guard("server"), guard(f"server.{JOB}"), guard("a"), guard(f"a.{JOB}")
    assert accepted(server, letter("a", "a", "server"))
    assert accepted(server, letter(f"a.{JOB}", f"a.{JOB}", f"server.{JOB}", "server_command/get_task"))
    assert accepted(server, letter("a", f"a.{JOB}", f"server.{JOB}", "server_command/submit_update"))  # by way of the site
    assert accepted(server, letter(f"server.{JOB}", f"server.{JOB}", f"a.{JOB}", "return_only/server_command:get_task", "private"))
    assert accepted(server, letter(f"server.{JOB}", f"server.{JOB}", "server", "server_parent_listener/get_clients", "private"))
    assert accepted(server, letter(BOSS, BOSS, "server", "hci_channel/command"))
    assert accepted(job, letter("server", f"a.{JOB}", f"server.{JOB}", "server_command/get_task", "private"))
    assert accepted(job, letter("server", "server", f"server.{JOB}", "server_command/abort", "private"))
    assert accepted(site, letter("server", "server", "a", "admin/admin"))
    assert accepted(site, letter(f"a.{JOB}", f"a.{JOB}", "a", "admin/train.notify_job_status", "private"))
    assert accepted(site_job, letter("server", f"server.{JOB}", f"a.{JOB}", "aux_communication/__end_run__"))
    assert accepted(site_job, letter("a", "a", f"a.{JOB}", "client_command/abort", "private"))


def test_the_server_passes_nothing_on_between_sites() -> None:
    every = sorted(frozenset().union(*REQUESTS.values()))
    for about, (origin, destination) in product(every, product(("a", f"a.{JOB}"), ("b", f"b.{JOB}", f"b.{OTHER}"))):
        assert not accepted(guard("server"), letter("a", origin, destination, about))
        assert not accepted(guard("server"), letter(f"a.{JOB}", origin, destination, about))
        assert not accepted(guard("b"), letter("server", origin, "b", about))
        assert not accepted(guard(f"b.{JOB}"), letter("server", origin, f"b.{JOB}", about))


@pytest.mark.parametrize("about", sorted(frozenset().union(*REQUESTS.values())))
def test_no_site_speaks_under_another_name(about: str) -> None:
    server = guard("server")
    for origin, destination in product([cell for cell in CELLS if cell.partition(".")[0] != "a"], CELLS):
        assert not accepted(server, letter("a", origin, destination, about))
        assert not accepted(server, letter(f"a.{JOB}", origin, destination, about))
        assert not accepted(server, letter(origin, origin, destination, about, common_name="a"))  # a certificate of another
    assert not accepted(server, letter("a", "a", "server", about, client_name="b"))  # the token of another


def test_what_is_not_listed_is_refused() -> None:
    job, site = guard(f"server.{JOB}"), guard("a")
    for about in ("server_command/abort", "server_command/app_command", "aux_communication/fed.event", "server_command/configure_job_log"):
        assert not accepted(job, letter("server", f"a.{JOB}", f"server.{JOB}", about, "private"))
        assert not accepted(guard("server"), letter(f"a.{JOB}", f"a.{JOB}", f"server.{JOB}", about))
    for about in ("_net_manager/stop", "cellnet.channel/bulk", "credential_manager/key_exchange", "client_command/abort", "x/y"):
        assert not accepted(site, letter("server", "server", "a", about))
        assert not accepted(guard("server"), letter("a", "a", "server", about))
    assert not accepted(guard("server"), letter("a", "a", "server", "server_parent_listener/get_clients"))
    assert not accepted(job, letter("server", f"a.{OTHER}", f"server.{JOB}", "server_command/get_task", "private"))  # another job's


def test_a_stream_is_judged_by_what_is_in_it() -> None:
    server, ends = guard("server"), (f"a.{JOB}", f"a.{JOB}", f"server.{JOB}")
    ack = letter(*ends, "sm__STREAM/sm__ACK", sm__dt=3)
    assert accepted(server, ack)
    assert not accepted(server, letter(*ends, "sm__STREAM/sm__ACK", sm__dt=6))  # an error: FLARE ends the server's job upon some
    assert not accepted(server, letter(*ends, "sm__STREAM/sm__ERROR"))
    assert not accepted(server, letter(*ends, "sm__STREAM/sm__DATA", sm__ch="server_command", sm__tp="abort"))
    assert not accepted(server, letter("a", "a", "server", "sm__STREAM/sm__DATA", sm__ch="task", sm__tp="heart_beat"))


def test_connections_beside_the_server_and_odd_headers_are_refused() -> None:
    server, ends = guard("server"), (f"a.{JOB}", f"a.{JOB}", f"server.{JOB}", "server_command/get_task")
    assert not accepted(server, letter(*ends, cn__conn_url="tcp://127.0.0.1:1"))
    assert not accepted(server, letter(*ends, cn__encrypted=True))
    for name in (None, 7, ["a"], "", "a.b", f"a.{JOB}.x", f"a.{JOB}\n", "../a", "_admin_x", "a b"):
        assert not accepted(server, letter("a", "a", "server", cn__origin=name))
        assert not accepted(server, letter("a", "a", "server", cn__destination=name))
        assert Party.of(name) is None


def test_replies_count_where_one_waits() -> None:
    server, reply = guard("server"), letter("a", "a", "server", "admin/admin", cn__msg_type="reply")
    assert accepted(server, reply, waits=True)
    assert not accepted(server, reply)
    assert not accepted(server, letter("a", "a", "b", "admin/admin", cn__msg_type="reply"), waits=True)


def test_a_private_socket_is_for_a_process_and_its_jobs() -> None:
    about = "server_parent_listener/get_clients"
    assert not accepted(guard("server"), letter(f"server.{JOB}", f"server.{JOB}", "server", about))  # over the network
    assert not accepted(guard("server"), letter("a", "a", "server", link="private"))
    assert not accepted(guard("a"), letter("server", "server", "a", "admin/admin", "private"))
    assert not accepted(guard("a"), letter(f"b.{JOB}", f"b.{JOB}", "a", "admin/train.notify_job_status", "private"))


def test_a_removed_site_hears_that_it_is_and_nothing_else() -> None:
    server = guard("server", "a")
    assert accepted(server, letter("a", "a", "server", "task/register"))
    for about in sorted(REQUESTS["server", "site"] - {"task/register", "task/challenge"}):
        assert server.refusal(letter("a", "a", "server", about), lambda number: True) == "a removed site"
    assert not accepted(server, letter(f"a.{JOB}", f"a.{JOB}", f"server.{JOB}", "server_command/submit_update"))
    assert accepted(server, letter("b", "b", "server"))


def order(topic: str, **headers: Any) -> Message:
    made = Message(topic, "")
    made.set_headers(headers)
    return made


def test_a_site_does_what_a_run_needs_and_nothing_else() -> None:
    site = guard("a")
    for topic in SITE_ORDERS["server"]:
        assert site.order_refusal(order(topic, job_id=JOB, job_meta={"job_id": JOB}), "server") is None
        assert site.order_refusal(order(topic, job_id=JOB), f"a.{JOB}") is not None
    for topic in ("sys.shell", "train.delete_run", "train.shutdown", "train.restart", "sys.report_env", "train.configure_job_log"):
        assert site.order_refusal(order(topic, job_id=JOB), "server") is not None
    for job in ("../x", "", None, 5, JOB + "/x"):
        assert site.order_refusal(order("train.deploy", job_id=job), "server") == "a job without a number"
    assert (
        site.order_refusal(order("train.start_job", job_id=JOB, job_meta={"job_id": "../x"}), "server") == "the description of another job"
    )
    assert site.order_refusal({"topic": "train.deploy"}, "server") is not None


def test_refusals_cannot_fill_a_disk(caplog: pytest.LogCaptureFixture) -> None:
    refusals = RefusalLog()
    for _ in range(1000):
        refusals.note("no", peer="a", about="x" * 100_000)
    assert len(caplog.records) == 10  # the 1st, 2nd, 4th, ... 512th
    assert sum(len(record.getMessage()) for record in caplog.records) < 5_000
    for number in range(2 * RefusalLog.MOST):
        refusals.note("no", peer=f"peer {number}")
    assert len(refusals.counts) == RefusalLog.MOST
