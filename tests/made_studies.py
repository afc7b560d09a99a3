"""Studies made by hand, for tests of their rules: the words that every file must have, and nothing of a paper."""

from pathlib import Path
from typing import Any

from coterie.reproduce.study_files import Claim, Reproduction, StudyPart

WORDS = {"section": "Table 1", **dict.fromkeys(("split", "sizes", "rounds", "test_set", "optimiser", "metric"), "not stated")}


def made_study(study: dict[str, Any], parts: list[StudyPart], claims: list[Claim], **words: str) -> Reproduction:
    """A study with these parts, claims and words."""
    said: dict[str, Any] = {**dict.fromkeys(("title", "paper", "where", "asks"), ""), **words, "protocol": WORDS, "deviations": ["all"]}
    return Reproduction.model_validate({**said, "study": study, "parts": parts, "claims": claims, "name": "t", "path": Path("t.toml")})
