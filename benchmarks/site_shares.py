"""One malicious site with three quarters of the clients, with and without a bound on a site's share: a table of attacks-measured.md.

    python benchmarks/site_shares.py [--seeds 0-9] [--page docs/reference/attacks-measured.md]

Prints the table; with a page, puts it between its marks.
"""

import argparse
from pathlib import Path
from typing import Any

import coterie as ct
from coterie.evidence.settings import parse_seeds

METHODS = ["fedavg", "fedavg+guard", "fedavg+guard(rule=median)", "fedavg+guard(rule=krum)", "robust(groups=1,trim=0.3)", "fesem(groups=2)"]
STUDY: dict[str, Any] = {"data": "digits/iid(clients=40)/sites(11,first=30)", "epochs": 2, "lr": 0.1, "rounds": 15, "evaluate_every": 15}
ATTACKS = {
    "signflip": "signflip(site='site-0')",
    "scale": "scale(site='site-0',factor=-3)",
    "labelflip": "labelflip(site='site-0',collude=true)",
}
MARK, END = "<!-- site shares -->", "<!-- end -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0-9")
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    seeds = parse_seeds(given.seeds)
    columns = {"no attack": accuracies(None, None, seeds), "no attack, bounded": accuracies(None, 1 / 3, seeds)}
    for kind, attack in ATTACKS.items():
        columns |= {kind: accuracies(attack, None, seeds), f"{kind}, bounded": accuracies(attack, 1 / 3, seeds)}
    lines = [f"| method | {' | '.join(columns)} |", f"| --- |{' ---: |' * len(columns)}"]
    lines += [f"| `{method}` | {' | '.join(f'{100 * found[method]:.1f}' for found in columns.values())} |" for method in METHODS]
    print("\n".join(lines))
    if given.page is not None:
        before, rest = given.page.read_text().split(MARK)
        given.page.write_text(before + MARK + "\n" + "\n".join(lines) + "\n" + END + rest.split(END, 1)[1])


def accuracies(attack: str | None, most_share: float | None, seeds: tuple[int, ...]) -> dict[str, float]:
    """By method, the mean accuracy of honest clients after the last round."""
    result = ct.study(METHODS, seeds=seeds, attack=attack, most_share=most_share, **STUDY)
    return {str(method): float(value) for method, value in result.table().iloc[:, 0].items()}


if __name__ == "__main__":
    main()
