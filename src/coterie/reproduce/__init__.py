"""Reproductions: a paper's table or figure run again under its own protocol, with controls, ours beside theirs, and a verdict."""

from coterie.reproduce.catalogue import catalogue, find
from coterie.reproduce.file import Claim, Reproduction
from coterie.reproduce.reading import read_reproduction

__all__ = ["Claim", "Reproduction", "catalogue", "find", "read_reproduction"]
