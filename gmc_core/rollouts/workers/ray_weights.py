"""Weights on their way to Ray actors: one object per version in the store, which every node fetches once."""

from __future__ import annotations

import errno
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
import torch
from torch import Tensor

# numpy has no bfloat16 and Ray maps numpy arrays without a copy, so a tensor travels as the integers of its width.
_CARRIER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class StoredObject:
    """`WeightSource`: the weights of `version` in Ray's object store. While it exists, so does the object."""

    reference: Any  # ray.ObjectRef to {name: (array, name of the dtype)}
    version: int

    def load(self) -> dict[str, Tensor]:
        """The tensors as they lie in the node's store: mapped and read-only, to be copied before they are changed."""
        stored = ray.get(self.reference)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return {
                name: torch.from_numpy(array).view(getattr(torch, dtype)) for name, (array, dtype) in stored.items()
            }


class RayWeights:
    """`publish(version, weights)` puts a version into the store, once; `release(version)` when no worker needs it.

    Ray must have been started (ray_runtime.py). A released version lives on until the actors that were sent it are
    through with it.
    """

    def __init__(self) -> None:
        self._sources: dict[int, StoredObject] = {}
        self._closed = False

    @property
    def versions(self) -> tuple[int, ...]:
        """What is published and not released."""
        return tuple(self._sources)

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> StoredObject:
        """Store the weights of `version`, or return its source if it is published already.

        OSError names the bytes needed when neither the store nor the disk it spills to has room.
        """
        if version in self._sources:
            return self._sources[version]
        if self._closed:
            raise RuntimeError("these stored weights are closed; make a new RayWeights")
        arrays = {name: _array(tensor) for name, tensor in weights.items()}
        try:
            reference = ray.put(arrays)
        except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError) as error:
            needed = sum(array.nbytes for array, _ in arrays.values())
            raise OSError(
                errno.ENOSPC,
                f"cannot store the weights of policy version {version}, {needed} bytes, in Ray's object store: "
                f"{error}. Give it room: `ray start --object-store-memory`, a container's --shm-size",
            ) from error
        self._sources[version] = StoredObject(reference, version)
        return self._sources[version]

    def release(self, version: int) -> None:
        """Let go of a version. One that is not there is ignored."""
        self._sources.pop(version, None)

    def close(self) -> None:
        self._sources.clear()
        self._closed = True


def _array(tensor: Tensor) -> tuple[Any, str]:
    data = tensor.detach().cpu().contiguous()
    return data.view(_CARRIER[data.element_size()]).numpy(), str(data.dtype).removeprefix("torch.")
