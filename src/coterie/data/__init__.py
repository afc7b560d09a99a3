"""Federations: data sources, partitions among clients, scenarios with known groups, and the preparation of tables."""
