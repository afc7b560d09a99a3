"""Trained models that stay on the device while the server works with them."""
