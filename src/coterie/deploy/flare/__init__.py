"""NVIDIA FLARE as the carrier: mutual TLS, identities by certificate, jobs. Only these modules import it."""
