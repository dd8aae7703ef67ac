"""Weights on their way to worker processes: a safetensors file in shared memory, written once, mapped by every reader.

Each publisher has a folder of its own whose lock file it holds for life. The lock tells the living from the dead, also
across containers that share /dev/shm, so what a killed process left behind is removed by whoever comes next.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

PREFIX = "gmc-weights-"
LOCK = "owner.lock"


@dataclass(frozen=True)
class SharedFile:
    """`WeightSource`: the weights of `version` in a file that `SharedMemoryWeights` wrote."""

    path: str
    version: int

    def load(self) -> dict[str, Tensor]:
        """The tensors, mapped and not copied: the file may be released once they are loaded. FileNotFoundError."""
        from safetensors.torch import load_file

        if not Path(self.path).exists():
            raise FileNotFoundError(
                f"the weights of policy version {self.version} are gone from {self.path}: they were released before "
                "this worker loaded them, or the process that published them has ended"
            )
        return load_file(self.path)


class SharedMemoryWeights:
    """`publish(version, weights)` writes a version once; `release(version)` when no worker needs it any more.

    `folder`: where files lie; default /dev/shm where there is one (memory), else the temporary folder. Everything is
    removed by `close()`, at the end of the interpreter, and after a kill by the next publisher or worker.
    """

    def __init__(self, folder: Path | None = None) -> None:
        root = folder or shared_folder()
        remove_leftovers(root)
        name = f"{PREFIX}{os.getpid()}-{uuid.uuid4().hex[:8]}"
        partial = root / f".{name}"  # not yet to be seen by remove_leftovers: it is not locked
        partial.mkdir(mode=0o700)
        self._lock = open(partial / LOCK, "wb")  # noqa: SIM115 (held for life)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.folder = partial.rename(root / name)
        self._sources: dict[int, SharedFile] = {}
        self._finalizer = weakref.finalize(self, _remove, self.folder, os.getpid())

    @property
    def versions(self) -> tuple[int, ...]:
        """What is published and not released."""
        return tuple(self._sources)

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> SharedFile:
        """Write the weights of `version`, or return its source if it is published already.

        OSError names the path and the bytes needed when they do not fit; nothing of the version is left then.
        """
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        if version in self._sources:
            return self._sources[version]
        if not self._finalizer.alive:
            raise RuntimeError("these shared weights are closed; make a new SharedMemoryWeights")
        path = self.folder / f"version-{version}.safetensors"
        needed = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
        try:
            free = shutil.disk_usage(self.folder).free
            if needed > free:
                raise OSError(errno.ENOSPC, f"{free} bytes are free")
            save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, path)
        except (OSError, SafetensorError) as error:
            path.unlink(missing_ok=True)
            raise OSError(
                errno.ENOSPC,
                f"cannot write the weights of policy version {version}, {needed} bytes, to {path}: {error}. Make room "
                "there (a container's shared memory: --shm-size) or give SharedMemoryWeights another folder",
            ) from error
        self._sources[version] = SharedFile(str(path), version)
        return self._sources[version]

    def release(self, version: int) -> None:
        """Remove a version; who has it mapped keeps it. A version that is not there is ignored."""
        if (source := self._sources.pop(version, None)) is not None:
            Path(source.path).unlink(missing_ok=True)

    def close(self) -> None:
        self._sources.clear()
        self._finalizer()
        self._lock.close()


def shared_folder() -> Path:
    """/dev/shm where it is a folder to write to, else the temporary folder."""
    shm = Path("/dev/shm")
    return shm if shm.is_dir() and os.access(shm, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def remove_leftovers(root: Path | None = None) -> None:
    """Remove the folders of publishers that are dead."""
    for folder in (root or shared_folder()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), open(folder / LOCK, "rb") as lock:  # another user's, or just removed
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError, an OSError: the owner lives
            shutil.rmtree(folder, ignore_errors=True)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child inherits the finalizer, not the folder
        shutil.rmtree(folder, ignore_errors=True)
