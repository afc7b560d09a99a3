"""A site's FLARE client: started, waited for until the server has taken it in, and what its log says in sentences."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.core.errors import UserError
from coterie.deploy.flare.processes import LOG, end_of_log, said_since, start_site, stop_all, wait_for
from coterie.deploy.process_lock import ProcessLock

if TYPE_CHECKING:
    from coterie.deploy.site_process import SiteSettings

TAKEN_IN = "Successfully registered client"
# What FLARE's log says, and what it means; {site} and {server} are filled in.
SENTENCES = (
    ("is disabled", "The operator has removed {site} from the federation: ask for another kit."),
    ("Maximum number of clients reached", "The server takes no more sites: ask its operator."),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "The server at {server} has a certificate of another authority than this kit: is it the right server? Ask its operator for a kit.",
    ),
    ("TLSV1_ALERT_UNKNOWN_CA", "The server at {server} does not know this kit's authority: ask its operator for a new kit."),
    ("requires identity", "The server at {server} takes this kit for another site's: ask its operator for a new kit."),
    ("CNMismatch", "The certificate is not that of {site}: ask the operator for a new kit."),
)


@contextmanager
def running_sites(
    kits: Mapping[str, Path], server: str, patience: float, settings: "Mapping[str, SiteSettings] | None" = None
) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """The clients of these sites, started at once, all taken in by the server.

    Args:
        kits: By site, its kit. One that is in use is refused, with the process that uses it.
        server: Where the server is, for sentences.
        patience: Seconds until it must have taken all of them in.
        settings: By site, what is written into its kit once that is held; default: what is there.
    """
    settings = settings or {}
    with ExitStack() as held:
        locks = {site: held.enter_context(ProcessLock(kit, f"The site {site} of {kit}")) for site, kit in kits.items()}
        begins = {site: (kit / LOG).stat().st_size if (kit / LOG).exists() else 0 for site, kit in kits.items()}
        processes: list[subprocess.Popen[bytes]] = []
        held.callback(lambda: stop_all(processes, 5))
        for site, kit in kits.items():
            if site in settings:
                settings[site].write(kit)
            processes.append(start_site(kit, site, [locks[site].handle]))
        for (site, kit), process in zip(kits.items(), processes, strict=True):
            said = _await_word(kit / LOG, begins[site], process, patience)
            if TAKEN_IN not in said:
                raise UserError(refusal(said, site, server, patience))
        yield processes


def _await_word(log: Path, begin: int, process: "subprocess.Popen[bytes]", patience: float) -> str:
    """What a client has written once its fate is known, or its time is over."""

    def decided() -> bool:
        said = said_since(log, begin)
        return process.poll() is not None or TAKEN_IN in said or any(words in said for words, _ in SENTENCES)

    wait_for(decided, patience)
    return said_since(log, begin)


def refusal(said: str, site: str, server: str, patience: float) -> str:
    """Why a site was not taken in, from what its client wrote."""
    for words, sentence in SENTENCES:
        if words in said:
            return sentence.format(site=site, server=server)
    return (
        f"The server at {server} did not take {site} in within {patience:.0f} s: is 'coterie serve' running there, "
        f"and may this machine reach that port?"
    )


def check_running(kit: Path, site: str, server: str, process: "subprocess.Popen[bytes]") -> None:
    """Refuse a client that has ended by itself."""
    if process.poll() is not None:
        log = kit / LOG
        tail = said_since(log, max(log.stat().st_size - 20_000, 0))
        known = [sentence.format(site=site, server=server) for words, sentence in SENTENCES if words in tail]
        raise UserError(known[0] if known else f"The client of {site} ended with code {process.returncode}: {end_of_log(kit)}")
