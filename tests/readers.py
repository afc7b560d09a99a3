"""Every reader of files and words that may come from anywhere, by name: given bytes or text, it answers or refuses with a sentence."""

import json
from collections.abc import Callable
from pathlib import Path

from coterie._util.errors import UserError
from coterie._util.files import hash_text
from coterie._util.json_io import format_json
from coterie.core.specs import parse_path, split_at
from coterie.data.catalogue import load
from coterie.deploy.bundle.files import HEAD_FILE, read_bundle
from coterie.deploy.server.federation import FEDERATION_FILE, FederationFolder, parse_address
from coterie.deploy.site.policy import parse_policy
from coterie.evidence.manifest import find_broken_seals
from coterie.evidence.reader import Evidence
from coterie.evidence.settings import Settings, parse_seeds
from coterie.methods.catalogue import build
from coterie.reproduce import read_reproduction
from coterie.run.execution import Execution
from coterie.run.study_file import read_study_file

Reader = Callable[[bytes, Path], object]


def _file(name: str, read: Callable[[Path], object]) -> Reader:
    def reader(content: bytes, folder: Path) -> object:
        (folder / name).write_bytes(content)
        return read(folder / name)

    return reader


def _text(read: Callable[[str], object]) -> Reader:
    return lambda content, folder: read(content.decode("utf-8", "replace"))


def _own(kind: str, name: str, settings: str = "") -> Reader:
    return _file(name, lambda path: load(f"{kind}({str(path)!r}{settings})/natural"))


STUDY = (
    b'methods = ["fedavg"]\ndata = "digits/iid(clients=4)"\nseeds = "0-2"\nrounds = 2\n[local]\nlr = 0.1\n[grid]\n"local.lr" = [0.1, 0.2]\n'
)
REPRODUCTION = (
    b'title = "t"\npaper = "p"\nwhere = "w"\nasks = "a"\ndeviations = ["d"]\n[protocol]\nsection = "Table 1"\nsplit = "s"\nsizes = "s"\n'
    b'rounds = "r"\ntest_set = "t"\noptimiser = "o"\nmetric = "m"\n[study]\nmethods = ["fedavg", "local"]\ndata = "digits"\n'
    b'[[parts]]\nname = "all"\n[[claims]]\nsays = "s"\none = "fedavg"\ntwo = "local"\n'
)
SETTINGS = json.dumps(Settings(methods=("fedavg",), data="digits/iid", seeds=(0, 1)).as_json()).encode()
LEAF = json.dumps({"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[1.0, 2], [3, 4]], "y": [0, 1]}}}).encode()
BUNDLE = (
    b'{"format": 1, "coterie": null, "method": "fedavg", "model": "mclr", "input_shape": [2], "classes": ["a", "b"], "names": ["global"]}'
)
SEALED = format_json({"files": {"compare.json": "0"}, "sha256": hash_text(format_json({"compare.json": "0"}))}).encode()
FEDERATION = b'{"host": "127.0.0.1", "port": 8102, "sites": ["a", "b"], "removed": []}'

# by name: the reader, and something that it reads
READERS: dict[str, tuple[Reader, bytes]] = {
    "study file": (_file("study.toml", read_study_file), STUDY),
    "reproduction": (_file("table.toml", read_reproduction), REPRODUCTION),
    "settings": (_file("settings.json", lambda path: Evidence.open(path.parent)), SETTINGS),
    "execution": (_file("execution.json", Execution.read), b'{"engine": "loop", "threads": 2, "memory": 2.0}'),
    "csv": (_own("csv", "own.csv", ",label=y,client=c"), b"c,y,a,b\nu,0,1,2\nu,1,2.5,3\nv,0,1,1\nv,1,-1,1e3\n"),
    "leaf": (_own("leaf", "own.json"), LEAF),
    "npz": (_own("npz", "own.npz"), b"PK\x03\x04"),
    "npy": (_file("x.npy", lambda path: load(f"npz({str(path.parent)!r})/natural")), b"\x93NUMPY\x01\x00v\x00"),
    "seeds": (_text(parse_seeds), b"0-4,7"),
    "spec": (_text(parse_path), b"digits/rotated(clients=40,groups=4)"),
    "method": (_text(build), b"fedavg(weighting=uniform)+finetune(epochs=2)"),
    "data spec": (_text(lambda text: split_at(text, "/") and parse_path(text)), b"csv('a.csv',label=y)/natural"),
    "bundle": (_file(HEAD_FILE, lambda path: read_bundle(path.parent)), BUNDLE),
    "policy": (_text(parse_policy), b'asks = ["Train"]\nmodels = ["mclr"]\n[privacy]\nmechanism = "none"\n'),
    "federation": (_file(FEDERATION_FILE, lambda path: FederationFolder.open(path.parent)), FEDERATION),
    "seals": (_file("seals.json", lambda path: find_broken_seals(path.parent)), SEALED),
    "server": (_text(parse_address), b"127.0.0.1:8102"),
}


def attempt(name: str, content: bytes, folder: Path) -> None:
    """Read; a refusal must say something. Anything else that is raised is a finding."""
    try:
        READERS[name][0](content, folder)
    except UserError as error:
        if not str(error).strip():
            raise AssertionError(name) from error
    except OSError as error:
        if error.filename is None:  # the command line tells the others with the file's name
            raise
