"""A real federation: the method that was simulated runs between sites that keep their data, carried by NVIDIA FLARE."""
