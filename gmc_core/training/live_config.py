"""The fields of RunConfig that belong to the live loop: what they may be, and which of them go together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from gmc_core.rollouts.engine_spec import ENGINES
from gmc_core.training.bounded_staleness import WHEN_EXCEEDED

if TYPE_CHECKING:
    from gmc_core.training.run_config import RunConfig

SCHEDULES = ("fixed_delay", "bounded_staleness")
WORKERS = ("inline", "process", "ray")
# Fields that a run of schedule "fixed_delay" does not read.
LIVE_FIELDS = (
    "max_staleness",
    "when_exceeded",
    "in_flight_updates",
    "group_timeout",
    "over_provision",
    "workers",
    "worker_count",
    "max_restarts",
    "engine",
    "engine_options",
    "engine_threads",
    "max_model_len",
    "probe_tolerance",
    "verifier_processes",
    "verifier_limit",
    "ray_address",
)
# Largest difference per token between the log-probs of learner and engine that is rounding, in nats: fp32 kernels of
# two libraries differ by about 1e-4; bf16 keeps 8 bits of a logit.
PROBE_TOLERANCE = {"float32": 0.01, "bfloat16": 0.3}


def check_live_fields(config: RunConfig) -> None:
    """Raise ValueError or TypeError, saying what to change, for values and combinations that make no run."""
    choices = (
        ("schedule", SCHEDULES), ("when_exceeded", WHEN_EXCEEDED), ("workers", WORKERS), ("engine", ENGINES)
    )  # fmt: skip
    for name, known in choices:
        if getattr(config, name) not in known:
            raise ValueError(f"RunConfig.{name} is {getattr(config, name)!r}; choose one of {', '.join(known)}")
    if not isinstance(config.engine_options, Mapping):
        raise TypeError(f"RunConfig.engine_options is {config.engine_options!r}; expected a dict")
    if config.enable_thinking is not None and not isinstance(config.enable_thinking, bool):
        raise TypeError(f"RunConfig.enable_thinking is {config.enable_thinking!r}; expected True, False or None")
    if config.enable_thinking is not None and not config.chat:
        raise ValueError("RunConfig.enable_thinking is an option of the chat template; set chat=True, or leave it None")
    over = config.over_provision
    if not isinstance(over, (int, float)) or isinstance(over, bool):
        raise TypeError(f"RunConfig.over_provision is {over!r}; expected a number")
    if not 0 <= over < math.inf:
        raise ValueError(f"RunConfig.over_provision is {over!r}; expected a fraction of the prompts, at least 0")
    if config.ray_address is not None and not isinstance(config.ray_address, str):
        raise TypeError(f"RunConfig.ray_address is {config.ray_address!r}; expected an address, 'auto', or None")
    if config.schedule == "fixed_delay":
        _check_untouched(config)
    else:
        _check_combinations(config)


def _check_untouched(config: RunConfig) -> None:
    default: dict[str, Any] = {item.name: item.default for item in fields(config)} | {"engine_options": {}}
    changed = [name for name in LIVE_FIELDS if getattr(config, name) != default[name]]
    if changed:
        raise ValueError(
            f"RunConfig.{changed[0]} is {getattr(config, changed[0])!r}, but schedule='fixed_delay' samples in the "
            f"learner's own loop and does not read it; set schedule='bounded_staleness', or leave {', '.join(changed)} "
            "at the default"
        )


def _check_combinations(config: RunConfig) -> None:
    if config.delay:
        raise ValueError(
            f"RunConfig.delay is {config.delay}, but schedule='bounded_staleness' measures the age of its rollouts "
            "instead of fixing it; leave delay=0 and set max_staleness"
        )
    if config.updates_per_batch > config.max_staleness + 1:
        raise ValueError(
            f"RunConfig.updates_per_batch is {config.updates_per_batch} with max_staleness={config.max_staleness}: the "
            f"last update of a batch is {config.updates_per_batch - 1} updates from its policy; set max_staleness to "
            "at least that"
        )
    if config.workers == "inline" and config.worker_count > 1:
        raise ValueError(
            f"RunConfig.worker_count is {config.worker_count} with workers='inline': they would take turns in the "
            "learner's process. Use workers='process', or one worker"
        )
    if config.workers == "inline" and config.engine_threads != 1:
        raise ValueError(
            "RunConfig.engine_threads is for workers with a process of their own; an inline worker has the learner's"
        )
    if config.engine_options.get("weight_transfer") is not None and (
        config.engine != "vllm" or not config.in_flight_updates
    ):
        raise ValueError(
            "RunConfig.engine_options['weight_transfer'] hands weights over once, between two steps of a vLLM engine: "
            f"it needs engine='vllm' and in_flight_updates=True, not engine={config.engine!r} and "
            f"in_flight_updates={config.in_flight_updates}"
        )
    if config.workers != "ray" and config.ray_address is not None:
        raise ValueError(
            f"RunConfig.ray_address is {config.ray_address!r} with workers={config.workers!r}; set workers='ray', or "
            "leave it None"
        )
