"""The server's part of a FLARE job: it runs an order, tells how far it is, and ends the job when something new has to be taken in."""

import os
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.signal import Signal

from coterie.core.errors import UserError
from coterie.core.locks import locked
from coterie.deploy.federation import SCHEMA, read_roster
from coterie.deploy.flare.carrier import AbortedError, FlareCarrier
from coterie.deploy.flare.jobs import is_run_name
from coterie.deploy.flare.newcomers import Newcomers
from coterie.deploy.flare.protection import SERVER_FOLDER
from coterie.deploy.flare.watch import mark_of
from coterie.deploy.journal import Journal
from coterie.deploy.presence import connected_sites, registrations
from coterie.deploy.removal import RemovedSites
from coterie.deploy.runs import RunFolder
from coterie.deploy.server_run import TooFewSitesError, carry_out_order

CHECK = 0.02  # seconds between FLARE's looks at its tasks; there is no setting for it


class CoterieController(Controller):
    """Runs in a process of its own on the server, one for each job."""

    def __init__(self, run: str) -> None:
        """A job says no more than a run's name: where runs lie and what was ordered, the server knows itself."""
        super().__init__()
        if not is_run_name(run):
            raise UserError("A job names a run by letters, digits, - . = and _.")
        self.server = Path(os.environ[SERVER_FOLDER])
        self.folder = self.server.parent / "runs" / run
        order, self.timeout = RunFolder(self.folder).order()
        # A run that has begun goes on with whoever is there.
        self.order = replace(order, minimum=1) if (self.folder / "study").exists() else order
        self.left: set[str] = set()
        self.began_with: dict[str, str] = {}  # by site, the mark of its registration
        self.removed = RemovedSites(self.server.parent)
        self.journal = Journal(self.folder)

    def start_controller(self, fl_ctx: FLContext) -> None:
        self.communicator._task_check_period = CHECK

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is left open."""

    def process_result_of_unknown_task(self, client: Client, task_name: str, client_task_id: str, result: Any, fl_ctx: FLContext) -> None:
        """An answer that came too late does not count, and is written down."""
        self.journal.say("late", site=client.name)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.CLIENT_DISCONNECTED:
            self._note_site("left", fl_ctx.get_prop(FLContextKey.DISCONNECTED_CLIENT_NAME))
        elif event_type == EventType.CLIENT_RECONNECTED:
            self._note_site("returned", fl_ctx.get_prop(FLContextKey.RECONNECTED_CLIENT_NAME))

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        with locked(self.folder / "run"):  # the job of a server that was killed outlives it by seconds
            self._carry_out(abort_signal, fl_ctx)

    def _carry_out(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        self.began_with = {client.name: mark_of(client) for client in fl_ctx.get_engine().get_clients()}
        sites = sorted(self.began_with)
        carrier = FlareCarrier(self, fl_ctx, abort_signal, self.timeout, self.gone, self.began_with)
        self.journal.begin(sites)
        newcomers = Newcomers(lambda: self.waiting(carrier.lost), self.journal.lines)
        try:
            complete = carry_out_order(
                self.order,
                carrier,
                sites,
                self.folder,
                clock=newcomers,
                tell=self.journal.fault,
                watchers=[self.journal],
                roster=read_roster(self.server.parent),
                schema_file=self.server.parent / SCHEMA,
            )
            if complete:
                self.journal.end("complete")
            else:
                self.journal.end("again", let_in=sorted(newcomers.let_in))
        except TooFewSitesError as error:  # one that was there a moment ago: the next job begins when enough are
            self.journal.end("again", reason=str(error))
        except AbortedError:
            self.journal.end("aborted")
        except UserError as error:
            self.journal.end("refused", reason=str(error))
        except Exception as error:
            self.journal.end("failed", reason=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
            raise

    def gone(self) -> set[str]:
        """Sites whose part of this job is over: FLARE saw them leave, they were started anew, or the operator removed them, of which FLARE
        says nothing to the job."""
        now = registrations(self.server)
        return self.left | self.removed() | {site for site, mark in self.began_with.items() if now.get(site, mark) != mark}

    def waiting(self, lost: set[str]) -> set[str]:
        """Sites that are there and take no part in this job."""
        return connected_sites(self.server) - (set(self.began_with) - lost) - self.removed()

    def _note_site(self, what: str, site: str | None) -> None:
        if site is None:
            return
        (self.left.add if what == "left" else self.left.discard)(site)
        self.journal.say(what, site=site)
