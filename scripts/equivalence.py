"""Check that a rebuild changes no number: run small studies on another commit and on this tree, and compare what they write.

    python scripts/equivalence.py BASE [--only TEXT,...] [--jobs N] [--keep DIR]

BASE is a commit, checked out in a temporary worktree, or a folder with a source tree. Both trees run the same studies on this machine, each
with its own source. Tables, models and JSON output are compared bitwise, except for the payload of a NaN. Names may differ: the constants
below have the new and the old words, and what is left over is matched by content. Times are not compared.
The exit code is 1 when a number differs, a table or column exists on one side only, or a command fails.
"""

import argparse
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table
from safetensors import safe_open

ROOT = Path(__file__).resolve().parents[1]
Array = NDArray[Any]
T = TypeVar("T")
HAS_LANGUAGE_MODELS = all(find_spec(package) is not None for package in ("transformers", "peft"))

# Command line: new word, old word, and what the help of `run` or the list of methods contains where the new word is known.
WORDS = (
    ("--buffer-size", "--asynchronous", "--buffer-size"),
    ("--patience", "--stop-early", "--patience"),
    ("--trust-code", "--trust", "--trust-code"),
    ("--loss=auto", "--loss=usual", "minimise: auto"),
)
# Python: new and old names.
CLASSES = {"MOON": "Moon", "SCAFFOLD": "Scaffold", "FedGroupRCC": "RandomCentres", "FedGroupRAC": "RandomNewcomers", "AskErrors": "Error"}
# Evidence: old and new names of tables, columns, JSON keys and methods, where matching by content is not enough.
RENAMED: dict[str, str] = {}
# Names (of tables, columns, JSON keys) that hold times or describe the machine.
EXCLUDED = {"timings", "seconds", "setup_seconds", "server_seconds", "server_seconds_to_target"}
LANE = ("draw", "method", "seed", "round")  # rows are sorted by these, so that the cut into segments does not matter
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")

METHODS = """
cfl(eps1=10,eps2=0.001,gamma=0,look=1) ditto fedatt fedavg feddane feddist feddws fedex(groups=2,combiner=mean) fedgroup(groups=2,alpha=2)
fedgrouprox(groups=2,alpha=2) fedprox(mu=0.1) fedsgd fedsim(clusters=2) fesem(groups=2) fesem_ma(groups=2) flhc(groups=2,warmup=1)
hypocluster(groups=2) ifca(groups=2) local moon neighbourprox rac(groups=2,alpha=2) rcc(groups=2,alpha=2) robust scaffold simagg simprox
"""
STACKED = METHODS.replace("scaffold", "")  # which needs plain SGD
GUARDED = "fedavg+guard(least=3) fesem(groups=2)+guard(rule=trim,least=3) fedavg+guard(rule=krum,least=3) fedavg+guard(rule=median,least=3)"
ATTACKED = "fedavg fedavg+guard(least=3) fesem(groups=2) robust --data digits/rotated(clients=10,groups=2)/sites(count=3) --attack"
DIGITS, HEART, INPUTS = "--data digits/rotated(clients=8,groups=2", "--data heart(validation=0.2)", "../../inputs"
TEXTS = f"--data csv({INPUTS}/texts.csv,label=label,client=client,text=text,features=tokens,length=8"
ENCODED = f"{TEXTS},tokenizer={INPUTS}/encoder) --model text({INPUTS}/encoder"
SPOKEN = f"--data texts({INPUTS}/texts.csv,tokenizer={INPUTS}/lm,length=6) --model lm({INPUTS}/lm"
# A study a line: its name and its commands, in the new words. They run in a folder of the study; @ marks a function of this script.
STUDIES_TEXT = f"""
methods-fused | run METHODS --cohort 5 --rounds 3 | verify run | show run --json | @methods
methods-loop | run METHODS --cohort 5 --engine loop
methods-mlp | run METHODS {HEART} --model mlp(6) --seeds 0-1
methods-stacked | run STACKED --model mlp(5) --optimizer adam --lr 0.01
methods-regression | run METHODS --data linear(clients=6,groups=2,validation=0.2) --cohort 4 --loss=auto
fused-two-layers | run fedavg local fedprox(mu=1) ifca(groups=2) --model mlp(6,5) --batch 0
fused-threads | run fedavg scaffold --threads 2 --seeds 0-2 --seeds-per-wave 2
loop-cnn | run fedavg fedsim(clusters=2) moon --model cnn --max-steps 1
loop-adamw | run fedavg local --optimizer adamw --lr 0.01
loop-augment | run fedavg --augment crop(1)+jitter(0.2) --microbatch 4 --max-steps 3
stacked-exact | run fedavg local fedavg+fedbn ditto+fedbn(keep=statistics) --model own_models:normed --trust-code
stacked-rnn | run fedavg ifca(groups=2) {TEXTS},vocabulary=40) --model rnn(hidden=4,vocabulary=40,width=4)
stacked-lstm | run fedavg local {TEXTS},vocabulary=40) --model lstm(hidden=4,dense=3,vocabulary=40,width=4)
multilabel | run fedavg fesem(groups=2) local --data linear(multilabel,clients=6)
absolute-loss | run fedavg local --data linear(clients=6) --loss=absolute
wrappers | run fedavg+finetune(epochs=2) simprox+server fedavg+server(optimizer=adam) ifca(groups=2)+restarts(starts=2,trial=1) --cohort 6
guards | run {GUARDED} fedavg+guard(rule=clip,least=3)+finetune --cohort 6
local-settings | run fedavg+rate(lr=0.2) fedavg+rate(optimizer=adam) fedavg fedprox(mu=1) --stragglers 0.5 --epochs 2 --mu 0.1
momentum | run fedavg local fesem(groups=2) --momentum 0.5 --weight-decay 0.01
asynchronous | run fedavg simprox fedavg+server --speeds lognormal(1.0) --buffer-size 2 --concurrency 4 --rounds 6
drift | run fedavg ifca(groups=2) fedgroup(groups=2,alpha=2) {DIGITS})/drift(at=2,share=0.5) --rounds 3
newcomers | run fedavg fedgroup(groups=2,alpha=2) rac(groups=2,alpha=2) fesem(groups=2) {DIGITS})/arrivals(last=3)/unseen(share=0.25)
attack-signflip | run {ATTACKED} signflip(share=0.2) --norm-bound 2
attack-labelflip | run {ATTACKED} labelflip(share=0.2) --most-share 0.5
attack-backdoor | run {ATTACKED} backdoor(share=0.2)
attack-count | run {ATTACKED} count(share=0.2) --counts believed
attack-noise | run {ATTACKED} noise(share=0.2)
attack-mimic | run {ATTACKED} mimic(share=0.2,collude=true)
conditions | run fedavg fedsim(clusters=2) --selection windows --window 0.5 --schedule cosine --dropout 0.2 --epochs 2
evaluation | run fedavg local fedex(groups=2) --model mlp(5) --evaluate-every 2 --evaluate-clients 6 --keep-clients 3 --rounds 3
patience | run fedavg local {HEART} --patience 1 --lr 1 --rounds 6
privacy | run fesem(groups=2,assign_on=sketch,sketch=8,sketch_clip=1.0,sketch_noise=0.1) fedsim(clusters=2,sketch=8,sketch_clip=1.0)
groups-auto | run fedgroup(groups=auto,alpha=4) fesem(groups=auto,choice=gap) flhc(warmup=1,choice=silhouette) fedsim(clusters=auto)
resume | run fedavg fesem(groups=2) scaffold --rounds 3 --checkpoint-every 1 | @cut | resume run --rounds 4 --seeds 0-1
resume-asynchronous | run fedavg --speeds lognormal(1.0) --buffer-size 2 --rounds 4 --checkpoint-every 1 | @cut | resume run
workers | run fedavg ifca(groups=2) --workers 2 --seeds-per-wave 1 --seeds 0-1
compare | compare fesem(groups=2) fedsim(clusters=2) --draws 2 --seeds 0-1 --cohort 5 --json | report run --json | show run --json
tuning | compare fesem(groups=2) {HEART} --seeds 0-1 --tune --grid 0.01,0.1 --extensions 0 --tuning-seeds 1 --json
inspect | inspect {DIGITS},validation=0.2) --references 19 --rounds 2 --randoms 3 --threads 1 --json
reproduce | reproduce SMALL --seeds 0-1 --rounds 2 --part fixed --part redrawn --part pni --part ternary --out run --page page --json
export | run fedavg fesem(groups=2) fedex(groups=2) --data csv({INPUTS}/table.csv,label=label,client=client,scale=standard) | EXPORTS
python | @python
text-encoder-head | run fedavg local {ENCODED})
text-encoder-lora | run fedavg ditto {ENCODED},train=lora,rank=2)
text-encoder-all | run fedavg {ENCODED},train=all)
text-lm-lora | run fedavg local {SPOKEN},rank=2,spread=0.05)
text-lm-head | run fedavg fesem(groups=2) {SPOKEN},train=head)
"""
EXPORTS = f"""export run --method fedavg --client c0 --out one | export run --method fesem(groups=2) --all --out all
 | export run --method fedex(groups=2) --client c1 --out mixture | predict one --data {INPUTS}/rows.csv --label label --out rows.csv --json
 | predict mixture --data {INPUTS}/rows.csv --client c1 --out mixed.csv --json
 | place run --method fesem(groups=2) --data {INPUTS}/rows.csv --out placed --json"""
LINES = STUDIES_TEXT.replace("METHODS", METHODS.replace("\n", " ")).replace("STACKED", STACKED.replace("\n", " "))
LINES = LINES.replace("EXPORTS", EXPORTS.replace("\n", ""))
STUDIES = {name: commands for name, *commands in (line.split(" | ") for line in LINES.strip().splitlines())}
DEFAULTS = {"--data": "digits/rotated(clients=8,groups=2)", "--rounds": "2", "--threads": "1", "--out": "run"}  # of `run` and `compare`


def work(tree: Path, names: list[str]) -> None:
    """Run studies with this tree's source; print a line of JSON for each: its name, its seconds, and what went wrong.

    They share a process, so that torch is imported and kernels are compiled once.
    """
    lines, place = os.fdopen(os.dup(1), "w"), Path.cwd()
    os.dup2(2, 1)  # what else is printed, by processes of a study too, goes to the log
    import coterie

    if not Path(coterie.__file__).is_relative_to(tree):
        raise SystemExit(f"{coterie.__file__} is not part of {tree}")
    called("run --help", place / "help.txt")
    called("methods", place / "methods.txt")
    known = (place / "help.txt").read_text() + (place / "methods.txt").read_text()
    for name in names:
        began, failure = time.perf_counter(), ""
        (place / name).mkdir()
        os.chdir(place / name)
        for number, command in enumerate(STUDIES[name]):
            for new, old, sign in WORDS:
                command = command if sign in known else re.sub(rf"{re.escape(new)}(?=\s|$)", old, command)
            command = command.replace("SMALL", str(next((tree / "tests").rglob("small.toml"))))
            try:
                failure = special(command) if command.startswith("@") else called(command, Path(f"{number}.txt"))
            except Exception:
                failure = traceback.format_exc().splitlines()[-1]
            if failure:
                failure = f"{command[:60]}: {failure}"
                break
        print(json.dumps([name, time.perf_counter() - began, failure]), file=lines, flush=True)
        os.chdir(place)


def called(command: str, output: Path) -> str:
    """Call the command line in this process, its output in a file; return the last line of its errors where it failed."""
    words = shlex.split(command)
    if words[0] in ("run", "compare") and "--help" not in words:
        words += [word for option, value in DEFAULTS.items() if option not in words for word in (option, value)]
    sys.argv, code = ["coterie", *words], None
    errors = output.with_suffix(".err")
    with output.open("w") as out, errors.open("w") as err, redirect_stdout(out), redirect_stderr(err):
        try:
            runpy.run_module("coterie", run_name="__main__")
        except SystemExit as ended:
            code = ended.code
    return "" if not code else (errors.read_text().strip().splitlines() or [f"exit code {code}"])[-1]


def special(verb: str) -> str:
    """Do what is no command; return what is wrong."""
    if verb == "@methods":  # is every method of the catalogue in METHODS?
        listed = re.findall(r"^(\w+) ", Path("../methods.txt").read_text().partition("\n\n")[0], flags=re.MULTILINE)[1:]
        missing = set(listed) - {name.partition("(")[0] for name in METHODS.split()}
        return f"not in METHODS: {', '.join(sorted(missing))}" if missing else ""
    if verb == "@cut":  # as a kill does before the last checkpoint is complete
        shutil.rmtree(sorted(Path("run").rglob("states.safetensors"))[-1].parent)
        return ""
    import coterie as ct

    def named(name: str) -> Any:
        return getattr(ct, name, None) or getattr(ct, CLASSES[name])

    named("AskErrors")
    grouped = [named(name)(groups=2, alpha=2) for name in ("FedGroupRCC", "FedGroupRAC")]
    methods = [named("MOON")(), named("SCAFFOLD")(), *grouped, ct.FedEx(groups=2), ct.FineTuned(method=ct.FedAvg(), epochs=2)]
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(120, 6)).astype(np.float32), rng.integers(3, size=120)
    data = ct.Federation.from_arrays(x, y, [f"c{i % 6}" for i in range(120)], test=0.3)
    data = replace(data, central=(x[:20], y[:20]))
    result = ct.study(methods, data=data, rounds=2, seeds=range(2), out="run", execution=ct.Execution(threads=1))
    result.clients.to_csv("frame.csv")
    result.table().to_csv("table.csv")
    return ""


def make_inputs(folder: Path) -> None:
    """Write a table, texts, a model of one's own, and, where transformers is there, an encoder and a language model with random weights."""
    folder.mkdir()
    rng, words = np.random.default_rng(0), [f"w{i}" for i in range(16)]
    table = pd.DataFrame(rng.normal(size=(90, 4)).round(3), columns=list("abcd"))
    table["label"] = np.where(table["a"] + rng.normal(size=90) > 0, "yes", "no")
    table.head(20).to_csv(folder / "rows.csv", index=False)
    table.assign(client=[f"c{i % 5}" for i in range(90)]).to_csv(folder / "table.csv", index=False)
    texts = [" ".join(rng.choice(words, size=rng.integers(4, 12))) for _ in range(80)]
    texts_frame = pd.DataFrame({"client": [f"c{i % 5}" for i in range(80)], "label": rng.choice(["x", "y", "z"], size=80), "text": texts})
    texts_frame.to_csv(folder / "texts.csv", index=False)
    (folder / "own_models.py").write_text(
        "from math import prod\nfrom torch import nn\n\n\ndef normed(input_shape, outputs) -> nn.Module:\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, outputs))\n"
    )
    if not HAS_LANGUAGE_MODELS:
        return
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    transformers.utils.logging.disable_progress_bar()
    special_tokens = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "eos_token": "[SEP]"}
    numbers = {word: i for i, word in enumerate([*dict.fromkeys(special_tokens.values()), *words])}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    sizes = {"vocab_size": len(numbers), "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    encoder = transformers.BertModel(transformers.BertConfig(**sizes, max_position_embeddings=12))
    ends = {"max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 3}
    lm = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **ends, num_key_value_heads=1, tie_word_embeddings=True))
    for name, model in (("encoder", encoder), ("lm", lm)):
        model.save_pretrained(folder / name)
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special_tokens).save_pretrained(folder / name)


@dataclass
class Columns:
    """What everything is compared as: arrays of numbers by name, and what to call a row of them."""

    arrays: dict[str, Array] = field(default_factory=dict)
    rows: list[str] = field(default_factory=list)


def compare(base: Columns, new: Columns) -> tuple[list[str], list[str]]:
    """The differences between columns of one name, and names that changed while the content did not."""
    left, right = dict(base.arrays), dict(new.arrays)
    both = [(name, left.pop(name), right.pop(name)) for name in base.arrays if name in new.arrays]
    differences = [f"{name}: {found}" for name, one, two in both if (found := difference(one, two, new.rows)) is not None]
    renamed = pair(left, right, lambda one, two: difference(one, two, []) is None)
    return differences + only(left, right), renamed


def pair(left: dict[str, T], right: dict[str, T], equal: Callable[[T, T], bool]) -> list[str]:
    """Take what has another name and the same content out of both sides, and list it."""
    renamed = []
    for name in list(left):
        twin = next((other for other in right if equal(left[name], right[other])), None)
        if twin is not None:
            del left[name], right[twin]
            renamed.append(f"{name} is now {twin}")
    return renamed


def only(left: Iterable[str], right: Iterable[str]) -> list[str]:
    """What is left over on each side."""
    return [f"{name}: only in {side}" for side, names in (("base", left), ("this tree", right)) for name in names]


def difference(base: Array, new: Array, rows: list[str]) -> str | None:
    """The largest difference and where it is; None where all values are bitwise equal."""
    if base.shape != new.shape:
        return f"shape {base.shape} became {new.shape}"
    common = np.result_type(base, new)
    one, two = base.astype(common).reshape(-1), new.astype(common).reshape(-1)
    same = one == two
    if common.kind == "f":
        same = (same & (np.signbit(one) == np.signbit(two))) | (np.isnan(one) & np.isnan(two))
    if same.all():
        return None
    gaps = np.where(same, 0.0, np.abs(one.astype(np.float64) - two.astype(np.float64)))
    worst = int(np.argmax(np.where(np.isnan(gaps), np.inf, gaps)))
    place = rows[worst] if len(rows) == one.size else f"value {worst}"
    return f"{np.count_nonzero(~same)} of {one.size} differ, most by {gaps[worst]:.3g} ({one[worst]!s} became {two[worst]!s}) at {place}"


def read_results(place: Path, side: str, study: str, routes: set[str]) -> dict[str, Columns]:
    """Everything that a study wrote, by name; its routes are added to those of the tree."""
    found: dict[str, Columns] = {}
    tables: dict[str, list[pd.DataFrame]] = {}
    folder = next(place.glob(f"{side}*/{study}"), place / "none")
    routes.update(str(route) for path in folder.rglob("routes.json") for route in json.loads(path.read_text()).values())
    for path in sorted(folder.rglob("*")):
        name, inside = str(path.relative_to(folder)), "segments" in path.parts
        if path.suffix == ".parquet":
            key = f"{path.parents[2].relative_to(folder)}/{path.stem}" if inside else name
            tables.setdefault(key, []).append(pd.read_parquet(path))
        elif path.suffix == ".csv":
            tables[name] = [pd.read_csv(path)]
        elif path.suffix == ".safetensors" and not inside:
            found[name] = Columns(read_tensors(path)[0])
        elif path.suffix == ".txt" and path.parent == folder and (text := path.read_text().strip()).endswith("}"):
            found[name] = read_json(json.loads(text.splitlines()[-1]))
        elif name.endswith("segments"):
            found |= {f"{path.parent.relative_to(folder)}/models: {lane}": state for lane, state in read_states(path).items()}
    found |= {key: read_frame(frames) for key, frames in tables.items()}
    return {RENAMED.get(key, key): columns for key, columns in found.items() if EXCLUDED.isdisjoint(re.split(r"\W+", key))}


def read_frame(frames: list[pd.DataFrame]) -> Columns:
    """A table's numbers; of words, which rows have the same one, and the numbers in them."""
    frame = pd.concat([part for part in frames if len(part)] or frames[:1], ignore_index=True)
    frame = frame.rename(columns=RENAMED).drop(columns=[name for name in frame if name in EXCLUDED])
    if "method" in frame:
        frame["method"] = [RENAMED.get(text, text) for text in frame["method"].astype(str)]
    keys = [name for name in LANE if name in frame]
    frame = frame.sort_values(keys, kind="stable") if keys else frame
    rows = frame[[name for name in (*LANE, "client", "model", "source") if name in frame]]
    made = Columns(rows=[", ".join(f"{name} {value}" for name, value in row.items()) for row in rows.to_dict("records")])
    for name, column in frame.items():
        if pd.api.types.is_numeric_dtype(column):
            made.arrays[str(name)] = column.to_numpy()
        elif isinstance(next(iter(column.dropna()), None), bytes):
            made.arrays[str(name)] = np.frombuffer(b"".join(column.dropna()), np.uint8)
        else:
            texts = ["" if pd.isna(value) else str(value) for value in column]
            made.arrays[str(name)] = pd.factorize(np.array(texts, dtype=object))[0]
            made.arrays[f"numbers in {name}"] = np.array([float(n) for text in texts for n in NUMBER.findall(text)])
    return made


def read_json(tree: Any) -> Columns:
    """The numbers of a JSON object by their key, in order of appearance."""
    found: dict[str, list[float]] = {}

    def walk(node: Any, key: str) -> None:
        for name, value in node.items() if isinstance(node, dict) else ((key, value) for value in node):
            if isinstance(value, dict | list):
                walk(value, name)
            elif isinstance(value, int | float) and name not in EXCLUDED:
                found.setdefault(RENAMED.get(name, name), []).append(value)

    walk(tree, "")
    return Columns({name: np.array(numbers, dtype=np.float64) for name, numbers in found.items()})


def read_tensors(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays of a safetensors file and its metadata."""
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def read_states(segments: Path) -> dict[str, Columns]:
    """The last state of each lane, with the arrays that are kept in pieces (docs/reference/evidence.md)."""
    found: dict[str, Columns] = {}
    for path in sorted(segments.glob("*/states.safetensors")):
        arrays, metadata = read_tensors(path)
        places = iter(arrays.pop("places", np.empty((0, 2))).tolist())
        arrays.pop("digests", None)
        for name, (dtype, shape, rows) in json.loads(metadata.get("cuts", "{}")).items():
            total = int(np.prod(shape)) * np.dtype(dtype).itemsize
            step, content = rows * (total // shape[0]), b""
            for first in range(0, total, step):
                segment, begin = next(places)
                with (segments / f"{segment:06d}" / "pieces.bin").open("rb") as file:
                    file.seek(begin)
                    content += file.read(min(step, total - first))
            arrays[name] = np.frombuffer(content, dtype).reshape(shape)
        for place, lane in enumerate(json.loads((path.parent / "lanes.json").read_text())):
            label = f"draw {lane['draw']}, {RENAMED.get(lane['method'], lane['method'])}, seed {lane['seed']}"
            own = {name: array for name, array in arrays.items() if re.match(rf"{place}\b", name)}
            found[label] = Columns({name[len(str(place)) :]: array for name, array in own.items()})
            found[label].arrays["last round"] = np.array(lane["last"])
    return found


@contextmanager
def checked_out(base: str, folder: Path) -> Iterator[Path]:
    """The tree to compare with: a folder, or a commit in a worktree that is removed afterwards."""
    if Path(base).is_dir():
        yield Path(base).resolve()
        return
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--detach", "--quiet", str(folder), base], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def run_all(trees: dict[str, Path], names: list[str], folder: Path, jobs: int) -> dict[tuple[str, str], str]:
    """Run the studies on both trees, a few processes at a time; what went wrong, by side and study."""
    shares = [share for i in range(max(1, jobs // 2)) if (share := names[i :: max(1, jobs // 2)])]
    failures: dict[tuple[str, str], str] = {}

    def run_share(side: str, number: int, share: list[str]) -> None:
        place = folder / f"{side}-{number}" if len(shares) > 1 else folder / side
        (place / "cache").mkdir(parents=True)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("COTERIE")}
        environment |= {"PYTHONPATH": f"{trees[side] / 'src'}:{folder / 'inputs'}", "XDG_CACHE_HOME": str(place / "cache")}
        environment |= {"COLUMNS": "400", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
        command = [sys.executable, str(Path(__file__).resolve()), str(trees[side]), "--worker", *share]
        left = set(share)
        with (folder / f"{side}-{number}.log").open("w") as log:
            process = subprocess.Popen(command, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
            assert process.stdout is not None
            for line in process.stdout:
                name, seconds, failure = json.loads(line)
                left.discard(name)
                if failure:
                    failures[side, name] = failure
                progress.update(task, advance=1, description=f"{side}: {name} ({seconds:.0f} s)")
            process.wait()
        failures.update({(side, name): f"the process ended with exit code {process.returncode}, see --keep" for name in left})

    with Progress(console=Console(stderr=True)) as progress, ThreadPoolExecutor(max(jobs, 1)) as pool:
        task = progress.add_task("start", total=2 * len(names))
        runs = [pool.submit(run_share, side, number, share) for number, share in enumerate(shares) for side in trees]
        for run in runs:
            run.result()
    return failures


def main() -> int:
    """Run, compare, print the table; 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="a commit, or a folder with a source tree")
    parser.add_argument("--only", default="", help="studies whose name contains one of these texts, separated by commas")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--keep", type=Path, help="keep what the studies wrote in this new folder")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        work(Path(chosen.base), chosen.worker)
        return 0
    wanted = [name for name in STUDIES if any(text in name for text in chosen.only.split(","))]
    names = [name for name in wanted if not name.startswith("text-") or HAS_LANGUAGE_MODELS]
    if not names:
        parser.error(f"no study has a name with {chosen.only}: choose from {', '.join(STUDIES)}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.keep.resolve() if chosen.keep else Path(temporary) / "studies"
        folder.mkdir(parents=True)
        make_inputs(folder / "inputs")
        with checked_out(chosen.base, Path(temporary) / "base") as base:
            failures = run_all({"base": base, "new": ROOT}, names, folder, chosen.jobs)
        return print_table(names, folder, failures)


def print_table(names: list[str], folder: Path, failures: dict[tuple[str, str], str]) -> int:
    """A row for each study; 1 where something differs."""
    table, different, total = Table("study", "compared", "values", "result"), 0, 0
    routes: dict[str, set[str]] = {"base": set(), "new": set()}
    for name in names:
        left, right = (read_results(folder, side, name, routes[side]) for side in routes)
        wrong = [f"{side}: {failure}" for (side, study), failure in failures.items() if study == name]
        renamed, shared = set[str](), [key for key in left if key in right]
        values, states = sum(array.size for key in shared for array in right[key].arrays.values()), sum("models: " in key for key in shared)
        for key in shared if not wrong else []:
            differences, names_changed = compare(left.pop(key), right.pop(key))
            wrong += [f"{key}: {text}" for text in differences]
            renamed.update(names_changed)
        if not any((side, name) in failures for side in routes):
            renamed.update(pair(left, right, lambda one, two: not compare(one, two)[0]))
            wrong += only(left, right)
        shown = [*(wrong[:8] or ["identical"]), *([f"and {len(wrong) - 8} more"] if len(wrong) > 8 else []), *sorted(renamed)]
        table.add_row(name, f"{len(shared) - states} tables and outputs, {states} states", f"{values:,}", escape("\n".join(shown)))
        different, total = different + bool(wrong), total + values
    console = Console()
    console.print(table)
    console.print(f"{len(names)} studies, {total:,} values; routes: base {sorted(routes['base'])}, this tree {sorted(routes['new'])}")
    console.print(f"{different} studies differ" if different else "No number differs.")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
