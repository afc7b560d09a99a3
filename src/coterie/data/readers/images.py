"""Images as arrays of bytes: decoded with Pillow (the extra `images`), resized, in grey or with channels first."""

import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coterie._util.errors import UserError
from coterie.data.readers.files import make_missing_package_error

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = npt.NDArray[np.uint8]
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")


def import_pillow() -> Any:
    """Pillow's Image module, or an error that names the package."""
    try:
        from PIL import Image
    except ImportError:
        make_missing_package_error("pillow", "Decoding images")
    return Image


def decode_image(raw: bytes, where: str, side: int | None = None, grey: bool = False) -> Pixels:
    """An image file's pixels: (H, W) in grey, or (3, H, W)."""
    try:
        with import_pillow().open(io.BytesIO(raw)) as image:
            return extract_pixels(image, side, grey)
    except (OSError, SyntaxError):
        raise UserError(f"{where} is not an image that can be decoded: it is cut short, damaged or something else.") from None


def extract_pixels(image: "Image", side: int | None = None, grey: bool = False) -> Pixels:
    """An image's pixels, resized to a square if a side is given."""
    image = image.convert("L" if grey else "RGB")
    if side is not None and image.size != (side, side):
        image = image.resize((side, side), import_pillow().Resampling.BILINEAR)
    array = np.asarray(image, dtype=np.uint8)
    return array if grey else np.ascontiguousarray(array.transpose(2, 0, 1))


def resize_images(images: Pixels, side: int | None, grey: bool) -> Pixels:
    """Images (N, H, W) or (N, 3, H, W) at another size, or in grey; as they are if nothing is to change."""
    same_size = side is None or images.shape[-2:] == (side, side)
    if same_size and (not grey or images.ndim == 3):
        return images
    image = import_pillow()
    files = (image.fromarray(one if one.ndim == 2 else np.ascontiguousarray(one.transpose(1, 2, 0))) for one in images)
    return stack_images((extract_pixels(file, side, grey or images.ndim == 3) for file in files), len(images), "the images")


def stack_images(images: Iterable[Pixels], count: int, where: str) -> Pixels:
    """So many images of one size as one array, filled as they come."""
    made: Pixels | None = None
    for i, one in enumerate(images):
        made = np.empty((count, *one.shape), np.uint8) if made is None else made
        if one.shape != made.shape[1:]:
            raise UserError(
                f"{where}: image {i} is {one.shape[-1]} x {one.shape[-2]} pixels unlike those before it; give a side to resize to."
            )
        made[i] = one
    return made if made is not None else np.empty((0, 0, 0), np.uint8)


def read_tar_images(path: Path) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of the images in a tar archive, in its order."""
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile() and member.name.lower().endswith(SUFFIXES):
                    file = archive.extractfile(member)
                    assert file is not None
                    yield member.name, file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be unpacked ({error}): it is cut short or damaged; fetch it again.") from error


def read_zip_members(path: Path, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of these files of a zip archive, wherever in it they lie."""
    try:
        with zipfile.ZipFile(path) as archive:
            places = {Path(name).name: name for name in archive.namelist()}
            for name in names:
                if name not in places:
                    raise UserError(f"{path} has no image {name}; fetch it again.")
                yield name, archive.read(places[name])
    except (zipfile.BadZipFile, OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be unpacked ({error}): it is cut short or damaged; fetch it again.") from error
