"""Large tables as pictures: an image of some thousand bytes instead of a million rectangles."""

import base64
from io import BytesIO

import numpy as np

from coterie.core.arrays import Array, Doubles
from coterie.data.images import pillow
from coterie.report.palette import rgb

SIDE = 360  # pixels a side at most: a panel is not wider on the page


def shrunk(table: Doubles, most: int = SIDE) -> Doubles:
    """The table with neighbouring cells averaged until neither side is longer than `most`."""
    for axis in (0, 1):
        length = table.shape[axis]
        if length > most:
            edges = np.linspace(0, length, most + 1).round().astype(np.int64)
            counts = np.diff(edges)
            table = np.add.reduceat(table, edges[:-1], axis=axis) / (counts[:, None] if axis == 0 else counts)
    return table


def shades(table: Doubles, ramp: tuple[str, ...]) -> Array:
    """(h, w, 3) colours of values between 0 and 1, along a ramp of colours."""
    anchors = np.array([rgb(colour) for colour in ramp], dtype=np.float64)
    places = np.linspace(0, 1, len(ramp))
    values = np.clip(table, 0, 1)
    return np.stack([np.interp(values, places, anchors[:, channel]) for channel in range(3)], axis=-1).round().astype(np.uint8)


def colours(table: Array, palette: tuple[str, ...], nobody: str) -> Array:
    """(h, w, 3) colours of group numbers; -1 is nobody's."""
    anchors = np.array([rgb(colour) for colour in (*palette, nobody)], dtype=np.uint8)
    return np.asarray(anchors[np.where(table >= 0, table % len(palette), len(palette))])


def data_url(image: Array) -> str:
    """An (h, w, 3) image as an address that holds the image itself."""
    out = BytesIO()
    pillow().fromarray(image, "RGB").quantize(64).save(out, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
