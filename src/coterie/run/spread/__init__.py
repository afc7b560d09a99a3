"""Waves of a study on several workers: processes of this machine, or the machines of a Ray cluster."""
