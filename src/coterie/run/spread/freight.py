"""An object for other processes of this machine: its arrays lie in one file without a name, which all map; memory holds them once."""

import pickle
from mmap import ACCESS_READ, mmap
from tempfile import TemporaryFile
from typing import IO, Any

from coterie.core.errors import UserError

ALIGNED = 64  # bytes: as far apart as vector units like it
LENGTH = 8  # bytes, at the file's end, that say how long the part before them is


def load_freight(made: Any) -> IO[bytes]:
    """A file that holds an object. It is gone when the last process that has it open ends, however that ends."""
    buffers: list[pickle.PickleBuffer] = []
    try:
        body = pickle.dumps(made, protocol=5, buffer_callback=buffers.append)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(
            f"The study cannot be sent to workers ({error}): models, methods and losses that are code must stand in a module."
        ) from error
    file = TemporaryFile()  # noqa: SIM115 (it is the caller's to close)
    spans = []
    for buffer in buffers:
        file.write(bytes(-file.tell() % ALIGNED))
        begin = file.tell()
        file.write(buffer.raw())
        spans.append((begin, file.tell()))
    tail = pickle.dumps((body, spans))
    file.write(tail)
    file.write(len(tail).to_bytes(LENGTH, "big"))
    file.flush()
    return file


def unload_freight(descriptor: int) -> Any:
    """The object in a file that the driver made and handed down open; its arrays cannot be written to."""
    view = memoryview(mmap(descriptor, 0, access=ACCESS_READ))
    length = int.from_bytes(view[-LENGTH:], "big")
    body, spans = pickle.loads(view[-LENGTH - length : -LENGTH])
    return pickle.loads(body, buffers=[view[begin:end] for begin, end in spans])
