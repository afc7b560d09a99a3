"""What makes SimProx's weights uneven: how far clients moved, or how similar they are? From the evidence of a study that was run.

    python studies/simprox_norms.py reproduced/simprox_banking77/head

Prints, over all rounds and seeds: the correlation of a client's samples with how far it moved (g of Eq. 11), within a round of three
clients or more; the largest over the smallest weight; and what that would be from the norms alone, all clients being equally similar
(Eqs. 12 to 14).
"""

import sys
from pathlib import Path

import numpy as np
from scipy.special import softmax

from coterie.analysis.groups import read_client_weights
from coterie.evidence.reader import Evidence, read_notes

METHOD = "simprox"


def main() -> None:
    """A line for each folder that is given."""
    for folder in map(Path, sys.argv[1:]):
        together, real, alone = [], [], []
        for place in sorted({settings.parent for settings in folder.rglob("settings.json")}):
            evidence = Evidence.open(place)
            moved = {(key.seed, round_): np.array(norms) for key, round_, norms in read_notes(evidence, "norms") if key.method == METHOD}
            for seed, rounds in read_client_weights(evidence, [METHOD])[METHOD].items():
                for one in rounds:
                    norms = moved[seed, one.round_]
                    if len(norms) > 2:
                        together.append(np.corrcoef(one.samples, norms)[0, 1])
                    real.append(one.weights.max() / one.weights.min())
                    only = softmax(softmax(-norms))
                    alone.append(only.max() / only.min())
        told = f"correlation {np.mean(together):.2f}, largest over smallest weight {np.mean(real):.3f}, by norms alone {np.mean(alone):.3f}"
        print(f"{folder}: {told}, {len(real)} rounds")


if __name__ == "__main__":
    main()
