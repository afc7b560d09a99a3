"""Sites that were removed: FLARE has no list of revoked certificates, but one of names that may not come in; and a running job is told."""

import json
from pathlib import Path

from coterie.core.disk import write_whole
from coterie.core.errors import UserError, suggestion
from coterie.core.plain import json_text
from coterie.deploy.federation import FILE, FederationFolder

DISABLED = "disabled_clients.json"  # FLARE reads it when the server starts


def remove_site(federation: FederationFolder, site: str) -> FederationFolder:
    """Take a site out for good; jobs that run now see it at their next question."""
    if site not in federation.sites:
        raise UserError(f"The federation {federation.folder} has no site {site!r}: {suggestion(site, federation.sites)}")
    left = federation.but(sites=tuple(name for name in federation.sites if name != site), removed=(*federation.removed, site))
    left.write()
    write_disabled(left)
    return left


def take_back(federation: FederationFolder, site: str) -> FederationFolder:
    """A removed site may come in again, with the certificate that it had."""
    back = federation.but(sites=(*federation.sites, site), removed=tuple(name for name in federation.removed if name != site))
    back.write()
    write_disabled(back)
    return back


def write_disabled(federation: FederationFolder) -> None:
    """For the next start of the server."""
    write_whole(federation.server / DISABLED, json_text({"disabled_clients": sorted(federation.removed)}), 0o600)


class RemovedSites:
    """The removed sites as the federation's file says now; looked at often, so it is read only when it has changed."""

    def __init__(self, folder: Path) -> None:
        self.path, self._seen, self._names = folder / FILE, -1, frozenset[str]()

    def __call__(self) -> frozenset[str]:
        try:
            changed = self.path.stat().st_mtime_ns
            if changed != self._seen:
                self._names = frozenset(json.loads(self.path.read_text(encoding="utf-8"))["removed"])
                self._seen = changed
        except (OSError, ValueError, KeyError):
            pass  # being written, or gone: what was known counts
        return self._names
