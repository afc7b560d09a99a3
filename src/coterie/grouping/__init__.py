"""Similarity, clusterers, controls and the choice of the number of groups."""
