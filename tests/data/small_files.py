"""Small files in the forms of the real data sets."""

import gzip
import io
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

MNIST_COUNTS = {"train": 40, "test": 10}


def write_idx(path: Path, values: npt.NDArray[np.uint8], magic: int | None = None) -> None:
    head = struct.pack(f">{1 + values.ndim}I", 0x0800 + values.ndim if magic is None else magic, *values.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(head + values.tobytes()))


def write_mnist(folder: Path) -> None:
    for part, n in zip(("train", "t10k"), MNIST_COUNTS.values(), strict=True):
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", np.arange(n * 784, dtype=np.uint8).reshape(n, 28, 28))
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", (np.arange(n) % 10).astype(np.uint8))


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = json.dumps(content).encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def leaf_content(users: dict[str, tuple[list[Any], list[Any]]]) -> dict[str, Any]:
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    return {"users": list(users), "num_samples": [len(y) for _, y in users.values()], "user_data": data}


def image_bytes(value: int, side: int = 32, kind: str = "JPEG") -> bytes:
    """A plain image of one colour: (value, 0, 255 - value)."""
    file = io.BytesIO()
    Image.new("RGB", (side, side), (value, 0, 255 - value)).save(file, kind)
    return file.getvalue()


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        for name, raw in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
