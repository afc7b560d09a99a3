"""Texts as the tokens of a pretrained model, made where the texts are: on the client."""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie._util.errors import UserError
from coterie._util.files import hash_file
from coterie._util.pretrained import find_gguf_file, import_transformers, load_pretrained, suppress_stderr

FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "vocab.json", "merges.txt")


def tokenised(texts: Sequence[str], where: str, length: int) -> npt.NDArray[np.int32]:
    """(n, length) token numbers, cut at the end and padded there, as encoders are trained."""
    tokenizer = tokenizer_at(where)
    if tokenizer.pad_token_id is None:
        raise UserError(f"The tokenizer of {where!r} has no padding token: give that of an encoder.")
    rows = tokenizer(list(texts), truncation=True, max_length=length, padding="max_length", return_attention_mask=False)["input_ids"]
    return np.array(rows, dtype=np.int32).reshape(len(texts), length)


@lru_cache(maxsize=2)
def tokenizer_at(where: str) -> Any:
    """The tokenizer of a folder or of a name on the hub."""
    kind = import_transformers("A tokenizer").AutoTokenizer
    if (folder := Path(where).expanduser()).is_dir() and not tokenizer_files(where):
        raise UserError(f"Folder {str(folder)!r} holds no tokenizer ({', '.join(FILES[:2])} or vocab.txt): fetch it beside the weights.")
    home, file = find_gguf_file("A tokenizer", where)
    options = {} if file is None else {"gguf_file": file}
    with suppress_stderr():
        return load_pretrained(
            "A tokenizer", home, "tokenizer", lambda place, here: kind.from_pretrained(place, local_files_only=here, **options)
        )


def tokenizer_files(where: str) -> list[Path]:
    """The files of a folder that make its tokenizer; none for a name on the hub."""
    folder = Path(where).expanduser()
    if folder.suffix == ".gguf" and folder.is_file():
        return [folder]
    if not (folder / "config.json").is_file() and (quantised := sorted(folder.glob("*.gguf"))):
        return quantised
    held = [folder / name for name in FILES if (folder / name).is_file()]
    return held if any(not file.name.endswith(("_config.json", "_map.json")) for file in held) else []


def tokenizer_hash(where: str) -> str:
    """What decoded tokens depend on: what stands in the files, or the name on the hub."""
    files = tokenizer_files(where)
    return hashlib.sha256("".join(map(hash_file, files)).encode()).hexdigest() if files else where
