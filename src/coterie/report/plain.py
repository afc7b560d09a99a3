"""Numbers in a reader's words: points without decimals that mean nothing, signs that can be seen, repetitions counted."""

from coterie.analysis.gaps import Gap
from coterie.core.counted import counted
from coterie.data.redrawing import Redrawn
from coterie.report.style import ALONE
from coterie.report.subject import Subject
from coterie.statistics import Interval

OTHER_DRAWS: dict[Redrawn, str] = {
    "everything": "other data of this kind",
    "partition": "the data shared out anew",
    "split": "the data split anew for training and test",
}


def count(value: float) -> str:
    """Points without a sign."""
    return f"{abs(100 * value):.1f}"


def with_sign(value: float) -> str:
    """Points with a sign that is as wide as a plus."""
    text = f"{100 * value:+.1f}"
    return "0" if float(text) == 0 else text.replace("-", "−")


def between_ends(low: float, high: float) -> str:
    """An interval."""
    return f"{with_sign(low)} to {with_sign(high)}"


def gain_or_lose(value: float) -> str:
    """What groups do, in a verb."""
    if abs(value) < 0.0005:
        return "change nothing"
    return f"gain {count(value)} points" if value > 0 else f"lose {count(value)} points"


def and_listed(names: list[str]) -> str:
    """Methods in a sentence."""
    return " and ".join("training alone" if name == ALONE else name for name in names)


def repeated(subject: Subject) -> str:
    """How often everything was run."""
    again = subject.findings.repetitions
    if not again.several_draws:
        return counted(again.runs, "run")
    most = int(again.compared.sum(axis=1).max())
    return f"{len(again.draws)} splits" + (f", {most} runs each" if most > 1 else "")


def sources_in_words(subject: Subject, gap: Gap) -> str:
    """What each source of error would show, for who has never heard of one."""
    again, said = subject.findings.repetitions, []
    if again.several_draws and isinstance(gap.sources.draws, Interval):
        said.append(f"{OTHER_DRAWS[again.redrawn]} ({between_ends(gap.sources.draws.low, gap.sources.draws.high)})")
    elif not again.several_draws:
        said.append(f"further runs on this one split of the data ({between_ends(gap.units.low, gap.units.high)})")
    own = gap.sources.clients
    if isinstance(own, Interval):
        who = "other samples of these clients" if "samples of" in own.over else "other clients like these"
        said.append(f"{who} ({between_ends(own.low, own.high)}{', at the widest' if own.bound else ''})")
    return " and ".join(said)
