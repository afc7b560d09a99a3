"""scikit-learn's handwritten digits: real images that come with scikit-learn."""

import numpy as np

from coterie.data.federation import Samples

INK = 16  # each pixel counts the dark ones among 4 x 4


def digits() -> Samples:
    """1,797 real handwritten digits of 8 x 8 pixels in [0, 1]; comes with scikit-learn, no download."""
    from sklearn.datasets import load_digits  # here: it takes a second to import, and few studies need it

    bunch = load_digits()
    return Samples(
        name="digits",
        x=(bunch.images / INK).astype(np.float32),  # (1797, 8, 8)
        y=bunch.target.astype(np.int64),
        classes=tuple(str(c) for c in range(10)),
        provenance={
            "source": "scikit-learn's load_digits: the test part of UCI 80, Optical Recognition of Handwritten Digits",
            "licence": "CC BY 4.0",
            "citation": "Alpaydin, E., Kaynak, C. (1998). Optical Recognition of Handwritten Digits. UCI. doi:10.24432/C50P49",
            "divided_by": INK,
        },
    )
