"""The fused routes: whole local trainings of dense networks in compiled kernels."""
