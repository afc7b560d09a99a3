"""Coterie's methods in a Flower app: `server_app` trains by them, `client_app` answers their asks (needs the extra `flower`)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from coterie._util.errors import UserError

if TYPE_CHECKING:
    from coterie.flower.client import client_app as client_app
    from coterie.flower.server import server_app as server_app

_HOMES = {"client_app": "coterie.flower.client", "server_app": "coterie.flower.server"}


def __getattr__(name: str) -> Any:
    """Load an app's module when it is first used: all else here works without Flower."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "flwr":
            raise
        raise UserError("Flower is not installed here: pip install 'coterie[flower]' in an environment of its own.") from error
