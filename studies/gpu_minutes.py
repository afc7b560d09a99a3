"""What the rows that need a GPU would take: client steps times microseconds, from the study files and the benchmarks.

python studies/gpu_minutes.py --data-dir ~/data    # a line for each part, least first

Steps are those of local training: rounds x clients a round x epochs x batches of a client, for every seed and method. What a method asks
for beside that (FedSim's gradients, a cold start, restarts) is left out. Microseconds are those of `benchmarks/README.md`, a whole round
in float32 with 80 clients stacked. They are of batches of ten; other batches are taken to cost in proportion, which is too much. Large
networks were measured by the sample, in bfloat16. Adapters are estimated by their operations, in bfloat16, and an encoder that is trained
as a whole by the number of its kernels; neither was timed. The last column has the seeds that fit into ten minutes.
"""

import argparse
from math import inf
from pathlib import Path

import numpy as np

from coterie._util.errors import UserError
from coterie.data.catalogue import load
from coterie.evidence.settings import Settings
from coterie.reproduce import read_reproduction
from coterie.reproduce.study_files import Reproduction, StudyPart

HERE = Path(__file__).parent
# by model; others have not been measured
MICROSECONDS = {"cnn": 23.7, "cnn(variant=fedsim)": 51.9, "lstm": 361.0, "rnn": 208.0, "mlp(128)": 0.51}
A_SAMPLE = {"resnet18": 31.0, "densenet121": 233.0}  # microseconds
# Million operations for a token of a training step, the frozen body's once forward and once back, in texts of 32 tokens: an estimate
A_TOKEN = {"text(models/minilm,train=lora)": 43.0, "lm(models/smollm2,rank=8,spread=0.02)": 538.0}
TOKENS, TFLOPS = 32, 120.0  # of a sample; that an H200 is taken to do in bfloat16, an eighth of what its makers promise
A_STEP = {"text(models/minilm,train=all)": 2000.0}  # microseconds: some 500 short kernels, an estimate
BATCH, MINUTES = 10, 10  # of the benchmarks; what is to be filled


def steps_of(settings: Settings, data_dir: Path | None) -> tuple[float, float]:
    """Client steps of a part, in expectation over cohorts, and the samples of a step: of a full batch where there is one size."""
    sizes = load(settings.data, settings.draws[0], data_dir).train.sizes
    plan, local = settings.plan, settings.plan.local
    batches = np.ceil(sizes / local.batch_size) if local.batch_size else np.ones(len(sizes))
    cohort = plan.cohort or (max(1, round(plan.window * len(sizes))) if plan.selection == "windows" else len(sizes))
    steps = len(settings.seeds) * len(settings.methods) * plan.rounds * cohort * local.epochs * batches.mean()
    a_step = sizes.sum() / batches.sum() if settings.model in (*A_SAMPLE, *A_TOKEN) else local.batch_size or sizes.mean()
    return float(steps), float(a_step)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    rows = [
        _row(study, part, options.data_dir)
        for study in map(read_reproduction, sorted(HERE.glob("*.toml")))
        for part in study.parts
        if not part.why_not and part.measure == "training"
        if part.gpu or study.needs.gpu or study.get_settings(part).settings.model.startswith("mlp")
    ]
    print("| study, part | model | seeds x methods x rounds | million client steps | us a step | minutes | seeds in 10 minutes |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in sorted(rows):
        print(row[1])


def _row(study: Reproduction, part: StudyPart, data_dir: Path | None) -> tuple[float, str]:
    """The minutes to sort by, and the line."""
    settings = study.get_settings(part).settings
    try:
        steps, batch = steps_of(settings, data_dir)
    except UserError as error:  # data or a tokenizer that are not here
        return inf, f"| {study.name}, {part.name} | {error} | | | | | |"
    size = f"{len(settings.seeds)} x {len(settings.methods)} x {settings.plan.rounds}"
    line = f"| {study.name}, {part.name} | `{settings.model.partition('(vocab')[0].partition('(hidden')[0]}` | {size} | {steps / 1e6:.2f} |"
    if settings.model in A_SAMPLE:
        return _timed(settings, line, steps, A_SAMPLE[settings.model] * batch)
    if settings.model in A_TOKEN:
        return _timed(settings, line, steps, A_TOKEN[settings.model] * TOKENS * batch / TFLOPS)
    if settings.model in A_STEP:
        return _timed(settings, line, steps, A_STEP[settings.model])
    known = MICROSECONDS.get(settings.model) or MICROSECONDS.get(settings.model.partition("(")[0])
    if known is None or settings.model == "cnn(variant=fedsim_table)":
        return inf, f"{line} not measured | | |"
    return _timed(settings, line, steps, known * max(batch / BATCH, 1))


def _timed(settings: Settings, line: str, steps: float, each: float) -> tuple[float, str]:
    minutes = steps * each / 6e7
    fit = min(int(MINUTES * len(settings.seeds) / minutes), len(settings.seeds))
    return minutes, f"{line} {each:.3g} | {minutes:.1f} | {fit} of {len(settings.seeds)} |"


if __name__ == "__main__":
    main()
