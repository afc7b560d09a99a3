"""How each method is named and drawn, the same in every figure, and palettes of distinct colours."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.analysis.roles import SIMPLER_NAMES, MethodRole, Roles, name_methods
from coterie.core.arrays import Array, Doubles
from coterie.methods.controls import Assign

if TYPE_CHECKING:
    import altair as alt


STEPS = np.linspace(0, 255, 18).round()  # of each of red, green and blue: 5,832 colours to choose from
LIGHTNESS = (0.40, 0.86)  # visible on white and on near-black
MAX_CHROMA = 0.2  # no glaring colours
GROUNDS = ("#FFFFFF", "#111111")  # what colours are drawn on


@cache
def pick_distinct_colours(count: int, first: tuple[str, ...], taken: tuple[str, ...] = ()) -> tuple[str, ...]:
    """So many colours: those given, then others that are as far as possible from them, from `taken` and from each other."""
    chosen = list(first[:count])
    grid = np.stack(np.meshgrid(STEPS, STEPS, STEPS, indexing="ij"), axis=-1).reshape(-1, 3)
    lab = to_oklab(grid)
    usable = (lab[:, 0] >= LIGHTNESS[0]) & (lab[:, 0] <= LIGHTNESS[1]) & (np.hypot(lab[:, 1], lab[:, 2]) <= MAX_CHROMA)
    grid, lab = grid[usable], lab[usable]
    nearest = np.full(len(lab), np.inf)
    for colour in (*GROUNDS, *taken, *chosen):
        nearest = np.minimum(nearest, _distance(lab, colour))
    while len(chosen) < count:
        best = int(nearest.argmax())
        chosen.append("#{:02X}{:02X}{:02X}".format(*grid[best].astype(int)))
        nearest = np.minimum(nearest, _distance(lab, chosen[-1]))
    return tuple(chosen)


def _distance(lab: Doubles, colour: str) -> Doubles:
    return np.asarray(np.linalg.norm(lab - to_oklab(np.array([parse_rgb(colour)])), axis=1))


def parse_rgb(colour: str) -> list[int]:
    """Red, green and blue from 0 to 255, of a colour as pages write it."""
    return [int(colour[place : place + 2], 16) for place in (1, 3, 5)]


def to_oklab(rgb: Array) -> Doubles:
    """(n, 3) lightness and two axes of colour, of sRGB from 0 to 255."""
    share = rgb / 255.0
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    cones = linear @ np.array(
        [[0.4122214708, 0.2119034982, 0.0883024619], [0.5363325363, 0.6806995451, 0.2817188376], [0.0514459929, 0.1073969566, 0.6299787005]]
    )
    to_lab = np.array(
        [
            [0.2104542553, 1.9779984951, 0.0259040371],
            [0.7936177850, -2.4285922050, 0.7827717662],
            [-0.0040720468, 0.4505937099, -0.8086757660],
        ]
    )
    return np.asarray(np.cbrt(cones) @ to_lab)


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
LIGHT_GREY = "#B0B0B0"  # seen on both, too, and on bars of any colour
UNASSIGNED = "#D0D0D0"  # a client that is in no group
RAMP = ("#F4F8FB", "#56B4E9", "#0072B2", "#00253A")  # from nothing to all, lightness falling throughout
LOCAL_NAME = SIMPLER_NAMES["local"]
SOLID, DASHED, DOTTED, LONG, DOT_DASHED = [1, 0], [6, 4], [2, 3], [12, 4], [6, 3, 2, 3]
SIMPLER_LINES: dict[MethodRole, tuple[str, list[int]]] = {"uniform": (BROWN, DASHED), "local": (OLIVE, DOTTED), "finetuned": (SLATE, LONG)}
MUTED = (GREY, *(colour for colour, _ in SIMPLER_LINES.values()))
CONTROL_DASHES: dict[Assign, list[int]] = {"random": DASHED, "matched": DOT_DASHED, "oracle": DOTTED, "one": LONG, "round_robin": LONG}


METHOD_ORDER = ("FedSim", "FedEx", "SimProx", "FedGroup", "FeSEM", "IFCA", "CFL", "FLHC", "FedProx", "FedGrouProx", "SCAFFOLD", "MOON")
SIMPLER_COLOURS = {"FedAvg": GREY} | {SIMPLER_NAMES[role]: colour for role, (colour, _) in SIMPLER_LINES.items()}


def pick_method_colours(names: Sequence[str]) -> dict[str, str]:
    """By name: one colour a method on every page. The best known have fixed ones, others the next that are most distinct.

    Args:
        names: As pages show them, each once: "FeSEM", "FedSim(clusters=4)", "Training alone". Of several variants of a method, the
            first has its colour.
    """
    known = [name.partition("(")[0].partition(",")[0] for name in names]
    places = {name: METHOD_ORDER.index(plain) for name, plain in zip(names, known, strict=True) if plain in METHOD_ORDER}
    places = {name: place for name, place in places.items() if list(places.values()).index(place) == list(places).index(name)}
    others = [name for name in names if name not in places and name not in SIMPLER_COLOURS]
    palette = pick_distinct_colours(len(METHOD_ORDER) + len(others), METHODS, MUTED)
    places |= {name: len(METHOD_ORDER) + i for i, name in enumerate(others)}
    return {name: SIMPLER_COLOURS[name] if name in SIMPLER_COLOURS else palette[places[name]] for name in names}


@dataclass(frozen=True)
class LineStyle:
    """A method's name and line in figures."""

    name: str
    colour: str
    dash: list[int]


def assign_styles(roles: Roles) -> dict[str, LineStyle]:
    """By label; a control has its method's colour and another dash."""
    names = name_methods(roles)
    colours = pick_method_colours([names[label] for label, role in roles.of.items() if role != "control" and label != roles.baseline])
    lines: dict[str, tuple[str, list[int]]] = {roles.baseline: (GREY, SOLID)}
    for label, role in roles.of.items():
        if role in SIMPLER_LINES:
            lines[label] = colours[names[label]], SIMPLER_LINES[role][1]
        elif role == "method":
            lines[label] = colours[names[label]], SOLID
            lines |= {control: (colours[names[label]], CONTROL_DASHES[how]) for how, control in roles.controls.get(label, {}).items()}
    return {label: LineStyle(names[label], *lines[label]) for label in roles.of}


def pick_group_colours(numbers: int) -> tuple[str, ...]:
    """A colour for each group."""
    return pick_distinct_colours(numbers, GROUPS, (UNASSIGNED,))


def make_scales(styles: Sequence[LineStyle]) -> "tuple[alt.Color, alt.StrokeDash]":
    """Colour and dashes of some methods, as one legend."""
    import altair as alt

    names = [style.name for style in styles]
    line = alt.Legend(symbolType="stroke", symbolOpacity=1, symbolStrokeWidth=2.5, symbolSize=300)
    colour = alt.Color("method:N", scale=alt.Scale(domain=names, range=[style.colour for style in styles]), legend=line)
    return colour, alt.StrokeDash("method:N", scale=alt.Scale(domain=names, range=[style.dash for style in styles]), legend=line)


def make_legend_switch(names: Sequence[str]) -> "alt.Parameter":
    """The names of the legend that are switched on: all at first; a click switches one off or on."""
    import altair as alt

    return alt.selection_point(
        "shown", fields=["method"], bind="legend", toggle="true", value=[{"method": name} for name in names], empty=False
    )


def make_opacity(shown: "alt.Parameter", on: float = 1.0, off: float = 0.04) -> Any:
    """The opacity of what is switched on, and off."""
    import altair as alt

    return alt.when(shown).then(alt.value(on)).otherwise(alt.value(off))
