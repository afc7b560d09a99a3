"""Whole local trainings in compiled kernels: the fused route."""
