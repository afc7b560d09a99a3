"""Every method's scores: as tables of a page, ours with the paper's in brackets, and as the frame that is kept."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from coterie.core.table_text import code_span, escape_markdown, markdown_lines
from coterie.reproduce.reproduced import Reproduced
from coterie.reproduce.values import NOTED, PartValues
from coterie.reproduce.wording import wording_of

OVER_CLIENTS = ("macro", "f1", "f1_macro", "worst", "ari", "gathered", "overlap")
COLUMNS = ("final", "last10", "mean", "max", "median", *OVER_CLIENTS, "rounds_to", "discrepancy", "discrepancy_variance")
NAMES = {
    "last10": "last 10",
    "f1": "F1",
    "f1_macro": "F1 macro",
    "ari": "ARI",
    "rounds_to": "rounds to target",
    "by_samples": "by samples",
    "discrepancy_variance": "its variance",
}
ON_DEMAND = ("discrepancy", "discrepancy_variance", "median", "rounds_to", *NOTED, "by_samples", "server_ms")  # where the paper has them
MEASURED = ("literal", "normalised", "r2", "similarity", "silhouette", "round_ms", "round_ratio", *NOTED, "by_samples", "server_ms")
TWO_DIGITS = ("ari", "r2", "literal", "normalised", "similarity", "silhouette", "round_ratio", "flatness", "by_samples")


def frame_of(outcome: Reproduced) -> pd.DataFrame:
    """The scores of every seed, one in a row; server times, which are no findings, only where a claim is about them."""
    timed = any(claim.score == "server_ms" for claim in outcome.study.claims)
    rows = [
        (part, row, score, seed, round(value, 4))
        for part, values in outcome.values.items()
        for (row, score), found in values.numbers.items()
        if score != "server_ms" or timed
        for seed, value in sorted(found.items())
    ]
    if not rows:
        return pd.DataFrame()
    long = pd.DataFrame(rows, columns=["part", "method", "score", "seed", "value"])
    table = long.pivot_table(index=["part", "method", "seed"], columns="score", values="value", sort=False).reset_index()
    # pandas orders methods as the first part has them; a part's own order is that of its table
    order = {pair: place for place, pair in enumerate(dict.fromkeys(zip(long["part"], long["method"], strict=True)))}
    places = [order[pair] for pair in zip(table["part"], table["method"], strict=True)]
    return table.iloc[np.argsort(places, kind="stable")].reset_index(drop=True)


def score_lines(outcome: Reproduced) -> Iterator[str]:
    """A table for each part."""
    published = {(p.part, row, p.score): v for p in outcome.study.published for row, v in p.values.items()}
    for part, values in outcome.values.items():
        used = {score for _, score in values.numbers}
        scores = [score for score in (*COLUMNS, *MEASURED) if score in used]
        if not scores:
            continue
        wanted = {claim.score for claim in outcome.study.claims} | {p.score for p in outcome.study.published}
        scores = [score for score in scores if score in wanted or score not in ON_DEMAND]
        yield f"\n## {escape_markdown(part)}{wording_of(outcome.study).scores}\n"
        rows = ([code_span(row), *(_cell(values, part, row, score, published) for score in scores)] for row in values.rows)
        yield from markdown_lines(["", *(NAMES.get(score, score) for score in scores)], rows)


def _cell(values: PartValues, part: str, row: str, score: str, published: Mapping[tuple[str, str, str], float]) -> str:
    found = list(values.of(row, score).values())
    theirs = published.get((part, row, score))
    digits = 2 if score in TWO_DIGITS else 1
    ours = f"{np.mean(found):.{digits}f}" if found else ""
    return f"{ours} ({theirs:g})" if theirs is not None else ours
