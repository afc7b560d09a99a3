"""Evaluation of many models on many clients."""
