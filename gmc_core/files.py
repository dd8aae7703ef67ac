"""Files that are either whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to; the block's end puts that file in place of `path`, and an exception leaves `path` as it was.

    A reader never sees half, whenever the writer dies.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """All of `content` or the old file."""
    with replacing(path) as partial:
        partial.write_bytes(content)
