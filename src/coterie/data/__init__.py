"""Federations: sources of samples, partitions that divide them among clients, scenarios with known groups."""
