"""Whole local trainings of linear models and small MLPs in one compiled kernel: numba on a CPU, Triton on a GPU."""
