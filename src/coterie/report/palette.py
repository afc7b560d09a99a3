"""As many colours as are wanted, none of them twice.

The first are Okabe and Ito's; every further one is, of a grid of colours, the farthest from white, from black and from all that are taken,
in OKLab, where distances are about as large as they look (Ottosson, 2020).
"""

from collections.abc import Sequence
from functools import cache

import numpy as np

from coterie.core.arrays import Array, Doubles

STEPS = np.linspace(0, 255, 18).round()  # of each of red, green and blue: 5,832 colours to choose from
LIGHTNESS = (0.40, 0.86)  # seen on white and on near-black alike
GROUNDS = ("#FFFFFF", "#111111")  # what colours are drawn on


@cache
def distinct_colours(count: int, first: tuple[str, ...], taken: tuple[str, ...] = ()) -> tuple[str, ...]:
    """So many colours: those given, then others that are as far as can be from them, from `taken` and from each other."""
    chosen = list(first[:count])
    grid = np.stack(np.meshgrid(STEPS, STEPS, STEPS, indexing="ij"), axis=-1).reshape(-1, 3)
    lab = _oklab(grid)
    usable = (lab[:, 0] >= LIGHTNESS[0]) & (lab[:, 0] <= LIGHTNESS[1])
    grid, lab = grid[usable], lab[usable]
    nearest = np.full(len(lab), np.inf)
    for colour in (*GROUNDS, *taken, *chosen):
        nearest = np.minimum(nearest, _distance(lab, colour))
    while len(chosen) < count:
        best = int(nearest.argmax())
        chosen.append("#{:02X}{:02X}{:02X}".format(*grid[best].astype(int)))
        nearest = np.minimum(nearest, _distance(lab, chosen[-1]))
    return tuple(chosen)


def separation(colours: Sequence[str]) -> float:
    """The distance in OKLab of the two that are most alike."""
    lab = _oklab(np.array([rgb(colour) for colour in colours]))
    apart = np.linalg.norm(lab[:, None] - lab[None], axis=-1)
    return float(apart[~np.eye(len(lab), dtype=bool)].min(initial=np.inf))


def _distance(lab: Doubles, colour: str) -> Doubles:
    return np.asarray(np.linalg.norm(lab - _oklab(np.array([rgb(colour)])), axis=1))


def rgb(colour: str) -> list[int]:
    """Red, green and blue from 0 to 255, of a colour as pages write it."""
    return [int(colour[place : place + 2], 16) for place in (1, 3, 5)]


def _oklab(rgb: Array) -> Doubles:
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
