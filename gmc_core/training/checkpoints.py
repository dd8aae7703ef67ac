"""Checkpoints: one safetensors file with plain data in its header, written atomically, restored exactly.

It holds the weights, the optimiser's state and the schedule's snapshots. Random numbers are functions of
(seed, stream, update), so there is no generator state to save. Nothing is unpickled.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gmc_core.files import write_atomically
from gmc_core.rollouts.policy import load_snapshot
from gmc_core.training.learner import Learner
from gmc_core.training.run_directory import DamagedRecordError
from gmc_core.training.staleness import FixedDelay


def save_checkpoint(path: Path, learner: Learner, schedule: FixedDelay, state: dict[str, Any]) -> None:
    """Write learner, schedule and `state` (plain data: update, fingerprint, digest, seconds) to one file."""
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    for name, tensor in learner.policy.model.named_parameters():
        tensors[f"model/{name}"] = tensor.detach()
    optimizer = learner.optimizer.state_dict()
    for index, entry in optimizer["state"].items():
        for key, value in entry.items():
            tensors[f"optimizer/{index}/{key}"] = torch.as_tensor(value)
    versions = []
    for snapshot in schedule.snapshots:
        versions.append(snapshot.version)
        for name, tensor in snapshot.weights.items():
            tensors[f"snapshot/{snapshot.version}/{name}"] = tensor
    header = {"state": json.dumps({**state, "versions": versions})}
    write_atomically(
        path, save({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, metadata=header)
    )


def load_checkpoint(
    path: Path, learner: Learner, schedule: FixedDelay, *, fingerprint: str, digest: str
) -> dict[str, Any]:
    """Restore learner and schedule in place; returns the saved plain data.

    Raises DamagedRecordError when the file is unreadable, ValueError when it belongs to another model or config.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            state = json.loads(file.metadata()["state"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise DamagedRecordError(f"checkpoint {path} cannot be read ({error})") from error
    for what, expected in (("fingerprint", fingerprint), ("digest", digest)):
        if state.get(what) != expected:
            meaning = {"fingerprint": "another initial model", "digest": "another config"}[what]
            raise ValueError(
                f"checkpoint {path} was written by {meaning} ({what} {state.get(what)}, expected {expected}); "
                "give the run another folder or delete the checkpoint"
            )
    device = learner.policy.device
    sections: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        section, _, rest = name.partition("/")
        sections.setdefault(section, {})[rest] = tensor.to(device)
    load_snapshot(learner.policy.model, sections["model"])
    optimizer = learner.optimizer.state_dict()
    optimizer["state"] = {}
    for name, tensor in sections.get("optimizer", {}).items():
        index, _, key = name.partition("/")
        optimizer["state"].setdefault(int(index), {})[key] = tensor
    learner.optimizer.load_state_dict(optimizer)
    for version in state["versions"]:
        prefix = f"{version}/"
        weights = {
            name.removeprefix(prefix): tensor
            for name, tensor in sections["snapshot"].items()
            if name.startswith(prefix)
        }
        schedule.push(version, weights)
    return state
