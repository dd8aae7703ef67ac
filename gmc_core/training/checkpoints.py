"""Checkpoints: one safetensors file with plain data in its header, written whole or not at all, restored exactly.

The content is a tree of dicts and lists: tensors go to the file's tensors, everything else to JSON. So whatever a loop
has to remember (model, optimiser, schedule, queue, counters) is one `state_dict()` more in the tree. Random numbers are
functions of (seed, stream, update): there is no generator state to save. Nothing is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gmc_core.files import replacing
from gmc_core.training.run_directory import DamagedRecordError

TENSOR = "$tensor"  # in the JSON, {TENSOR: name} stands where the tensor of that name belongs


def save_checkpoint(path: Path, content: Mapping[str, Any], *, fingerprint: str, digest: str) -> None:
    """Write `content` to one file, together with the initial model and the config that it belongs to.

    `content`: nested dicts with string keys (no "/" in them) and lists, whose leaves are tensors of any dtype and
    device, or plain data (str, int, float, bool, None). A full disk or a kill leaves the checkpoint before.

    Raises: TypeError for a leaf or key of another type, ValueError for a key with "/", each naming the place.
    """
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    tree = _plain(content, "", tensors)
    header = {"fingerprint": fingerprint, "digest": digest, "content": json.dumps(tree)}
    with replacing(path) as partial:
        save_file(_standalone(tensors), partial, metadata=header)


def load_checkpoint(path: Path, *, fingerprint: str, digest: str, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The content that `save_checkpoint` was given (tuples come back as lists), its tensors on `device`.

    Raises DamagedRecordError when the file is unreadable, ValueError when it belongs to another model or config.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            header = file.metadata()
            _check_origin(path, header, fingerprint=fingerprint, digest=digest)
            tree = json.loads(header["content"])
            return _with_tensors(tree, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise DamagedRecordError(f"checkpoint {path} cannot be read ({error})") from error


def _check_origin(path: Path, header: Mapping[str, str], **expected: str) -> None:
    for what, meaning in (("fingerprint", "another initial model"), ("digest", "another config")):
        if header[what] != expected[what]:
            raise ValueError(
                f"checkpoint {path} was written by {meaning} ({what} {header[what]}, expected {expected[what]}); "
                "give the run another folder or delete the checkpoint"
            )


def _plain(node: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """The tree without its tensors, which are collected by the place they had."""
    if isinstance(node, Tensor):
        tensors[place] = node.detach()
        return {TENSOR: place}
    if isinstance(node, Mapping):
        for key in node:
            if not isinstance(key, str):
                raise TypeError(f"the checkpoint has the key {key!r} at {place or 'its root'}; expected a string")
            if "/" in key or key == TENSOR:
                raise ValueError(f"the checkpoint has the key {key!r} at {place or 'its root'}; choose one without '/'")
        return {key: _plain(value, f"{place}/{key}" if place else key, tensors) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [_plain(value, f"{place}/{index}", tensors) for index, value in enumerate(node)]
    if node is None or isinstance(node, (str, int, float, bool)):
        return node
    raise TypeError(
        f"the checkpoint has a {type(node).__name__} at {place}; expected a tensor, a str, number, bool or None, or "
        "a dict or list of these"
    )


def _with_tensors(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(node, dict):
        if TENSOR in node:
            return tensors[node[TENSOR]]
        return {key: _with_tensors(value, tensors) for key, value in node.items()}
    return [_with_tensors(value, tensors) for value in node] if isinstance(node, list) else node


def _standalone(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous, no two in one storage: what the file format asks for, copying only where it must."""
    seen: set[tuple[torch.device, int]] = set()
    out = {}
    for name, tensor in tensors.items():
        storage = (tensor.device, tensor.untyped_storage().data_ptr())
        out[name] = tensor.clone() if storage in seen and tensor.is_contiguous() else tensor.contiguous()
        seen.add((out[name].device, out[name].untyped_storage().data_ptr()))
    return out
