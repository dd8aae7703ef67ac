"""Files that are either whole or not there, and what is said when the disk is full."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFullError(OSError):
    """There is no room for a file; the message names it and says what to do."""


@contextmanager
def room_for(path: Path) -> Iterator[None]:
    """Turn "no space left on device" inside the block into a DiskFullError about `path`."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError):
            full = error.errno in _FULL
        else:  # safetensors wraps the system's error in one of its own, with the number in its text
            full = any(f"os error {number})" in str(error) for number in _FULL)
        if not full or isinstance(error, DiskFullError):
            raise
        raise DiskFullError(
            errno.ENOSPC,
            f"no space left for {path}. Nothing that was written before is damaged: make room on that disk (or give "
            "another folder) and start again, which goes on from the last checkpoint",
        ) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to; the block's end puts that file in place of `path`, and an exception leaves `path` as it was.

    A reader never sees half, whenever the writer dies. DiskFullError when there is no room.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with room_for(path):
            yield partial
            with open(partial, "rb+") as file:
                os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """All of `content` or the old file. DiskFullError when there is no room."""
    with replacing(path) as partial:
        partial.write_bytes(content)


def append_line(path: Path, line: str) -> None:
    """Add a line and its end. After DiskFullError or a kill the file may end in half of it, without a line end."""
    with room_for(path), open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")
