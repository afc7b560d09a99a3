"""Engines: they execute asks. The whole interface is one verb, `Engine.run`."""
