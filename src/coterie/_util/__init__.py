"""Helpers without knowledge of federated learning: files, locks, JSON, text, threads, compiled code, errors."""
