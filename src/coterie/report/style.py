"""How each method is called and drawn, the same in every figure.

Colours are Okabe and Ito's, which people with any common colour blindness can tell apart, and, where those are used up, others that are far
from them: no two methods share one. A method's controls have its colour, dashed. Baselines have dull colours and differ by their dashes,
so that a figure in black and white can be read too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coterie.analysis.findings import Findings
from coterie.analysis.roles import MethodRole, known, label_of, without_rate
from coterie.core.method import Method
from coterie.methods.fine_tuned import FineTuned
from coterie.methods.server_optimised import ServerOptimised
from coterie.report.palette import distinct_colours

if TYPE_CHECKING:
    import altair as alt

OKABE_ITO = {
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "green": "#009E73",
    "purple": "#CC79A7",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "yellow": "#F0E442",
    "black": "#000000",
}
METHODS = tuple(OKABE_ITO[name] for name in ("blue", "vermillion", "green", "purple", "orange", "sky"))
GROUPS = tuple(OKABE_ITO[name] for name in ("blue", "orange", "green", "purple", "vermillion", "sky", "yellow", "black"))
GREY, BROWN, OLIVE, SLATE = "#7F7F7F", "#8B5A2B", "#8A8D00", "#4A5A8C"  # seen on white and on near-black alike
NOBODY = "#D0D0D0"  # a client that is in no group
RAMP = ("#F4F8FB", "#56B4E9", "#0072B2", "#00253A")  # from nothing to all, lightness falling throughout

ALONE = "Training alone"
SOLID, DASHED, DOTTED, LONG, DOT_DASHED = [1, 0], [6, 4], [2, 3], [12, 4], [6, 3, 2, 3]
BASELINES: dict[MethodRole, tuple[str, str, list[int]]] = {
    "uniform": ("FedAvg, equal weights", BROWN, DASHED),
    "local": (ALONE, OLIVE, DOTTED),
    "finetuned": ("FedAvg, fine-tuned", SLATE, LONG),
}
DULL = (GREY, *(colour for _, colour, _ in BASELINES.values()))
CONTROLS = {
    "random": ("random groups", DASHED),
    "matched": ("random groups of like sizes", DOT_DASHED),
    "oracle": ("true groups", DOTTED),
    "one": ("one group", LONG),
    "round_robin": ("dealt groups", LONG),
}


@dataclass(frozen=True)
class LineStyle:
    """A method's name and line in figures."""

    name: str
    colour: str
    dash: list[int]


def styles_of(findings: Findings) -> dict[str, LineStyle]:
    """By label. Methods under test are coloured in their order; names are short where that is not ambiguous."""
    roles = findings.roles
    styles: dict[str, LineStyle] = {}
    tested = [label for label, role in roles.of.items() if role in ("method", "baseline")]
    names = dict(zip(tested, _unique(tested), strict=True))
    styles[roles.baseline] = LineStyle(names[roles.baseline], GREY, SOLID)
    more = [label for role in BASELINES for label in roles.of if roles.of[label] == role and roles.first(role) != label]
    colours = dict(zip([*roles.methods, *more], distinct_colours(len(roles.methods) + len(more), METHODS, DULL), strict=True))
    for label in roles.methods:
        colour = colours[label]
        styles[label] = LineStyle(names[label], colour, SOLID)
        for how, control in roles.controls.get(label, {}).items():
            kind, dash = CONTROLS[how]
            styles[control] = LineStyle(f"{names[label]}, {kind}", colour, dash)
    for label, role in roles.of.items():
        if role in BASELINES:
            name, colour, dash = BASELINES[role]
            styles[label] = LineStyle(label_of(label), colours[label], dash) if label in colours else LineStyle(name, colour, dash)
    return {label: styles[label] for label in roles.of}


def group_colours(numbers: int) -> tuple[str, ...]:
    """A colour for each group."""
    return distinct_colours(numbers, GROUPS, (NOBODY,))


def scales(styles: Sequence[LineStyle]) -> "tuple[alt.Color, alt.StrokeDash]":
    """Colour and dashes of some methods, as one legend."""
    import altair as alt

    names = [style.name for style in styles]
    line = alt.Legend(symbolType="stroke", symbolOpacity=1, symbolStrokeWidth=2.5, symbolSize=300)
    colour = alt.Color("method:N", scale=alt.Scale(domain=names, range=[style.colour for style in styles]), legend=line)
    return colour, alt.StrokeDash("method:N", scale=alt.Scale(domain=names, range=[style.dash for style in styles]), legend=line)


def switch(names: Sequence[str]) -> "alt.Parameter":
    """The names of the legend that are switched on: all at first; a click switches one off or on."""
    import altair as alt

    return alt.selection_point(
        "shown", fields=["method"], bind="legend", toggle="true", value=[{"method": name} for name in names], empty=False
    )


def faded(shown: "alt.Parameter", on: float = 1.0, off: float = 0.04) -> Any:
    """The opacity of what is switched on, and off."""
    import altair as alt

    return alt.when(shown).then(alt.value(on)).otherwise(alt.value(off))


def _unique(labels: Sequence[str]) -> list[str]:
    """The methods' plain names; those that share one are called by their full specs."""
    names = [_plain(known(label), label) for label in labels]
    return [name if names.count(name) == 1 else label_of(label) for name, label in zip(names, labels, strict=True)]


def _plain(method: Method[Any] | None, label: str) -> str:
    if method is None:
        return label
    method = without_rate(method)
    if isinstance(method, FineTuned):
        return f"{_plain(method.method, label)}, fine-tuned"
    if isinstance(method, ServerOptimised):
        return f"{_plain(method.method, label)}, server-side optimiser"
    return type(method).__name__
