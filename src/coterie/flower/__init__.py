"""Coterie's methods in a Flower app: `server_app` trains by them, `client_app` answers their asks (needs the extra `flower`)."""

from coterie.flower.client import client_app as client_app
from coterie.flower.server import server_app as server_app
