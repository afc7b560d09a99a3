"""Code that is not Coterie's, named by a file that somebody else may have written.

What a user types, on the command line or in Python, is trusted. A study file, evidence or a bundle may come from anywhere: importing
what it names would run it, so it is refused until the user has said that it may run.
"""

from collections.abc import Iterable

from coterie.core.errors import UserError
from coterie.core.specs import parse, split_at


class UntrustedCodeError(UserError):
    """A file names code, and nobody has said that it may run."""


def names_code(spec: str) -> bool:
    """Whether a spec names code outside Coterie's catalogues: ``package.module:factory``; of a method, what its wrappers go around."""
    return ":" in parse(split_at(spec, "+")[0]).name


def check_trust(specs: Iterable[str], where: str, trust: bool, kind: str = "model") -> None:
    """Refuse, before anything is imported, the first model (or method) that is code which `where` names, unless it is trusted."""
    for spec in specs:
        if not trust and names_code(spec):
            raise UntrustedCodeError(
                f"{where} needs code that is not Coterie's, the {kind} {spec!r}: if you trust it, say so with --trust."
            )


def check_cluster(addresses: Iterable[str | None], where: str, trust: bool) -> None:
    """Refuse, before anything is connected to, the first address of a Ray cluster that `where` names, unless it is trusted.

    A cluster is sent code and data, and what it answers is unpickled: it runs code here. "auto" names no address: it is the cluster that
    the user has started.
    """
    for address in addresses:
        if not trust and address not in (None, "auto"):
            raise UntrustedCodeError(
                f"{where} sends the study to the Ray cluster {address!r}, which may run code here: if you trust it, say so with --trust, "
                "or name a cluster with --ray."
            )
