"""How FeSEM's distance term and the learning rate work together, on texts in five planted groups: the table of fesem.md.

    python studies/fesem_rate.py

Forty clients in five groups write about six topics; each group has a vocabulary of its own, and two groups call the topics by other labels.
The true groups are given, so that only local training differs. One seed; accuracy is the mean of the last ten of 20 rounds.
"""

import numpy as np
import pandas as pd

import coterie as ct

WORDS, TOPICS, GROUPS, CLIENTS, TEXTS, LENGTH = 3000, 6, 5, 40, 40, 15
RATES = (0.1, 1.0, 3.0, 5.0, 8.0)


def texts() -> pd.DataFrame:
    """Texts of every client: its topic's words, its group's words, and others."""
    rng = np.random.default_rng(1)
    words = np.array([f"w{i}" for i in range(WORDS)])
    topics, styles = rng.dirichlet(np.full(WORDS, 0.02), size=TOPICS), rng.dirichlet(np.full(WORDS, 0.02), size=GROUPS)
    rows = []
    for client in range(CLIENTS):
        group = client % GROUPS
        for _ in range(TEXTS):
            topic = rng.integers(TOPICS)
            shares = 0.25 * topics[topic] + 0.35 * styles[group] + 0.4 / WORDS
            text = " ".join(rng.choice(words, size=LENGTH, p=shares / shares.sum()))
            rows.append((f"c{client}", group, text, f"k{(topic + (group if group > 2 else 0)) % TOPICS}"))
    return pd.DataFrame(rows, columns=["client", "group", "text", "label"])


def main() -> None:
    """Print the table."""
    federation = ct.Federation.from_frame(texts(), client="client", label="label", text="text", groups="group", test=0.3)
    methods = ["fesem(groups=5,assign=oracle)", "fesem(groups=5,lam=0,assign=oracle)"]
    print("| lr | `2 * lam * lr` at `lam=0.1` | `lam=0.1` | `lam=0` |\n| ---: | ---: | ---: | ---: |")
    for rate in RATES:
        scores = 100 * ct.study(methods, data=federation, rounds=20, epochs=5, lr=rate).table()["last10"]
        print(f"| {rate:g} | {0.2 * rate:.2g} | {scores[methods[0]]:.1f} | {scores[methods[1]]:.1f} |")


if __name__ == "__main__":
    main()
