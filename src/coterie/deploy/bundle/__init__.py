"""Bundles: trained models as files, their export, prediction and placing."""
