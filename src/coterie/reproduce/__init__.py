"""Reproductions: a paper's table or figure run again under its own protocol, with controls, ours beside theirs, and a verdict."""

from coterie.reproduce.study_files import Claim, Reproduction, find_study, list_studies, read_reproduction

__all__ = ["Claim", "Reproduction", "find_study", "list_studies", "read_reproduction"]
