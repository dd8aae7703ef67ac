"""An engine as plain data: it travels to another process or machine and is built there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gmc_core.rollouts.continuous import ContinuousEngine

ENGINES = ("transformers", "vllm")


@dataclass(frozen=True)
class EngineSpec:
    """`kind` of `ENGINES`; `model` and `revision` as in `load_policy`; `dtype` a torch dtype's name; `device` "cpu" or
    "cuda".

    `threads`: CPU threads of the engine's process. `max_model_len`: prompt and response tokens together, at most (None:
    the model's own limit). `options` go to the engine's constructor (for vLLM: `LLM(...)` arguments such as
    `gpu_memory_utilization`). `chat`, `enable_thinking`: see `PromptEncoder`. `environment`: variables of the engine's
    process, set before anything is imported there (for vLLM: `VLLM_*`); an engine in the caller's process ignores them.
    """

    kind: str
    model: str
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 1
    chat: bool = False
    enable_thinking: bool | None = None
    max_model_len: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    revision: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in ENGINES:
            raise ValueError(f"EngineSpec.kind is {self.kind!r}; choose one of {', '.join(ENGINES)}")
        if not isinstance(self.threads, int) or self.threads < 1:
            raise ValueError(f"EngineSpec.threads is {self.threads!r}; expected an integer of at least 1")

    def process_environment(self) -> dict[str, str]:
        """Variables for a process of the engine's own: `threads` and quiet tokenizers, then `environment`."""
        threads = {name: str(self.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        return threads | {"TOKENIZERS_PARALLELISM": "false"} | dict(self.environment)

    def build(self) -> ContinuousEngine:
        """The engine, in this process. ImportError says what to install when its package is missing."""
        if self.kind == "vllm":
            from gmc_core.rollouts.vllm_engine import VllmEngine

            return VllmEngine(self)
        import torch

        from gmc_core.rollouts.continuous_transformers import ContinuousTransformersEngine

        torch.set_num_threads(self.threads)
        return ContinuousTransformersEngine(self)
