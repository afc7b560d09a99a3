"""Engines: where asks are carried out. The whole interface is one verb, `Engine.run`."""
