"""One frozen, validated dataclass says everything about a run; its hash names the run's record."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from gmc_core.estimators import ESTIMATORS, make_estimator
from gmc_core.rollouts.models import pinned_revision
from gmc_core.rollouts.tasks import make_task
from gmc_core.training.live_config import LIVE_FIELDS, PROBE_TOLERANCE, check_live_fields

OPTIMIZERS = ("sgd", "adamw")
ADVANTAGES = ("center", "leave_one_out", "std", "length_corrected")
NORMALIZERS = ("sequence_mean_token_sum", "sequence_mean_token_mean", "token_mean")
# Fields that are integers of at least 1.
COUNTS = (
    "updates",
    "prompts_per_update",
    "group_size",
    "micro_batch_tokens",
    "evaluation_every",
    "evaluation_prompts",
    "logits_mib",
    "worker_count",
    "engine_threads",
    "updates_per_batch",
)
# Fields that the first records did not have: at their default they stay out of the hash, so old run ids stay.
LATER_FIELDS = (
    "max_update_length",
    "rescale_to",
    "detached",
    "warmup_updates",
    "master_weights",
    "fused_optimizer",
    "gradient_checkpointing",
    "logits_mib",
    "compile",
    "schedule",
    *LIVE_FIELDS,
    "chat",
    "enable_thinking",
    "revision",
    "updates_per_batch",
)


@dataclass(frozen=True)
class RunConfig:
    """A training run. Construction raises ValueError or TypeError for anything that cannot be run.

    Staleness: with `schedule="fixed_delay"`, `delay` is the age, in updates, of the policy that sampled each batch (0
    is on-policy). `schedule="bounded_staleness"` is the live loop (below). `updates_per_batch`: so many updates, each
    on prompts of its own, learn from what one policy sampled; it ages by one with each of them.
    Step: `prompts_per_update` x `group_size` rollouts, `learning_rate`, `gradient_clip` (largest gradient norm, None
    for no clipping). `divide_by_max_length` divides the loss of `sequence_mean_token_sum` by the constant
    `max_new_tokens` (Dr. GRPO); the other normalisers have a length of their own.
    `max_update_length` bounds the Euclidean length of an update in parameter space (a longer one is scaled down), None
    for no bound. `rescale_to` names an estimator of the menu: the run's weights are rescaled group by group to the mean
    of that rule on the same rollouts (ours: it separates a weight's mean from its shape). `detached=False`, for gmc
    alone, lets the gradient through the group cap (docs/theory.md section 7).
    `micro_batch_tokens`: tokens (prompt, response and padding) of one forward pass; a step that fits is a single pass.
    `warmup_updates`: the learning rate of update u is learning_rate x min(1, u / warmup_updates); 0 for none.

    For models of real size (they change what a step costs, and its result by rounding at most): `master_weights` takes
    the steps of bf16 weights on an fp32 copy, so that no small step is lost; an fp32 model needs none.
    `fused_optimizer`: torch's fused kernel of the optimiser; None takes it on CUDA. `gradient_checkpointing` computes
    the layers a second time in the backward pass instead of keeping their activations. Logits of more than `logits_mib`
    MiB are never held: log-probs come from blocks of the vocabulary of that size. `compile` runs the layers
    in the learner's passes through torch.compile.

    The live loop: rollout workers run ahead and the learner takes whole groups, none older than `max_staleness` updates
    (training/bounded_staleness.py). `when_exceeded`: "wait" for a group that would become too old, or "drop" it.
    `in_flight_updates` lets unfinished rollouts go on under new weights, token by token with their version; without it,
    and with one worker and no clock (`group_timeout`, `over_provision`), the record is a function of the config.
    `group_timeout`: seconds, counted from when a group is sent to a worker, after which it is given up;
    `over_provision`: more groups in flight, as a fraction of `prompts_per_update`, so that stragglers hold no step.
    `workers`: "inline" (in this process, taking turns with the learner), "process" or "ray" (`ray_address`: None starts
    Ray here, "auto" joins a cluster), `worker_count` of them, replaced when they die, at most `max_restarts` times
    between two updates. `engine`: "transformers" or "vllm", with `engine_options` for its constructor,
    `engine_threads` and `max_model_len`. After each weight update an engine's log-probs must agree with the learner's
    to `probe_tolerance` nats (None: 0.01 in float32, 0.3 in bfloat16). Rewards come from `verifier_processes`
    processes, those of a group within `verifier_limit` seconds; with 0 of them from this one, without a limit.

    `model`: a folder (of this checkout, or an absolute path), a hub name, or a packaged model (rollouts/models.py).
    `revision`: commit, tag or branch of a hub model; None takes the one pinned there. `chat` puts prompts into the
    model's chat template, `enable_thinking` is passed on to it and must be said where the template has that switch.

    The defaults are the reference setting of the staleness runs; it was found by search (see the run's protocol).
    """

    estimator: str = "gmc"
    estimator_options: Mapping[str, Any] = field(default_factory=dict)
    delay: int = 0
    seed: int = 0
    updates: int = 100
    learning_rate: float = 0.2
    optimizer: str = "sgd"
    gradient_clip: float | None = 0.3
    prompts_per_update: int = 8
    group_size: int = 16
    advantage: str = "std"
    normalizer: str = "sequence_mean_token_sum"
    divide_by_max_length: bool = True
    mask_truncated: bool = False
    temperature: float = 1.0
    max_new_tokens: int | None = None
    micro_batch_tokens: int = 8192
    task: str = "running_sums"
    task_options: Mapping[str, Any] = field(default_factory=dict)
    model: str = "data/tiny_qwen3"
    dtype: str = "float32"
    device: str = "cpu"
    evaluation_every: int = 10
    evaluation_prompts: int = 256
    max_update_length: float | None = None
    rescale_to: str | None = None
    detached: bool = True
    warmup_updates: int = 0
    master_weights: bool = True
    fused_optimizer: bool | None = None
    gradient_checkpointing: bool = False
    logits_mib: int = 64
    compile: bool = False
    schedule: str = "fixed_delay"
    max_staleness: int = 1
    when_exceeded: str = "wait"
    in_flight_updates: bool = False
    group_timeout: float | None = None
    over_provision: float = 0.0
    workers: str = "inline"
    worker_count: int = 1
    max_restarts: int = 5
    engine: str = "transformers"
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    engine_threads: int = 1
    max_model_len: int | None = None
    probe_tolerance: float | None = None
    verifier_processes: int = 1
    verifier_limit: float = 10.0
    ray_address: str | None = None
    chat: bool = False
    enable_thinking: bool | None = None
    revision: str | None = None
    updates_per_batch: int = 1

    def __post_init__(self) -> None:
        for name in COUNTS:
            self._integer(name, 1)
        for name in ("delay", "seed", "warmup_updates", "max_staleness", "max_restarts", "verifier_processes"):
            self._integer(name, 0)
        for name in ("detached", "master_weights", "gradient_checkpointing", "compile", "in_flight_updates", "chat"):
            self._switch(name)
        if self.fused_optimizer is not None:
            self._switch("fused_optimizer")
        for name in ("learning_rate", "temperature", "verifier_limit"):
            self._positive(name)
        for name in ("gradient_clip", "max_update_length", "group_timeout", "probe_tolerance"):
            if getattr(self, name) is not None:
                self._positive(name)
        for name in ("max_new_tokens", "max_model_len"):
            if getattr(self, name) is not None:
                self._integer(name, 1)
        for name, known in (("optimizer", OPTIMIZERS), ("advantage", ADVANTAGES), ("normalizer", NORMALIZERS)):
            if getattr(self, name) not in known:
                raise ValueError(f"RunConfig.{name} is {getattr(self, name)!r}; choose one of {', '.join(known)}")
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"RunConfig.dtype is {self.dtype!r}; choose float32 or bfloat16")
        if self.revision is not None and not isinstance(self.revision, str):
            raise TypeError(f"RunConfig.revision is {self.revision!r}; expected a commit, tag or branch, or None")
        pinned_revision(self.model, self.revision)  # raises for a revision of what has none
        object.__setattr__(self, "estimator_options", dict(self.estimator_options))
        object.__setattr__(self, "task_options", dict(self.task_options))
        check_live_fields(self)
        object.__setattr__(self, "engine_options", dict(self.engine_options))
        make_estimator(self.estimator, **self.estimator_options)  # raises for unknown names and bad options
        self._check_variants()
        make_task(self.task, **self.task_options)

    def _check_variants(self) -> None:
        if self.rescale_to is not None and self.rescale_to not in ESTIMATORS:
            raise ValueError(
                f"RunConfig.rescale_to is {self.rescale_to!r}; choose one of {', '.join(ESTIMATORS)}, or None"
            )
        if not self.detached and (self.estimator != "gmc" or self.rescale_to is not None):
            raise ValueError(
                "RunConfig.detached=False is the objective whose group cap is not detached: it exists for "
                f"estimator='gmc' without rescale_to, not for {self.estimator!r} with rescale_to={self.rescale_to!r}"
            )

    def _switch(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, bool):
            raise TypeError(f"RunConfig.{name} is {value!r} ({type(value).__name__}); expected True or False")

    def _integer(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"RunConfig.{name} is {value!r} ({type(value).__name__}); expected an integer")
        if value < least:
            raise ValueError(f"RunConfig.{name} is {value}; expected at least {least}")

    def _positive(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise TypeError(f"RunConfig.{name} is {value!r} ({type(value).__name__}); expected a number")
        if not math.isfinite(value) or value <= 0:
            raise ValueError(f"RunConfig.{name} is {value}; expected a finite number above 0")

    @property
    def response_limit(self) -> int:
        """Longest response in tokens: `max_new_tokens`, or what the task needs."""
        return self.max_new_tokens or make_task(self.task, **self.task_options).max_response_tokens

    @property
    def divides_by_length(self) -> bool:
        return self.divide_by_max_length and self.normalizer == "sequence_mean_token_sum"

    @property
    def is_live(self) -> bool:
        return self.schedule == "bounded_staleness"

    @property
    def is_deterministic(self) -> bool:
        """Whether the record is a function of this config: the same bytes each time, resumed or not."""
        clocks = self.group_timeout is not None or self.over_provision > 0
        return not self.is_live or (self.worker_count == 1 and not self.in_flight_updates and not clocks)

    @property
    def probe_limit(self) -> float:
        """Nats per token by which an engine's log-probs may differ from the learner's."""
        return PROBE_TOLERANCE[self.dtype] if self.probe_tolerance is None else self.probe_tolerance

    @property
    def run_id(self) -> str:
        """Readable prefix and a hash of the config: `gmc-delay64-seed0-1f0c9a2b`, live `gmc-stale4-seed0-...`."""
        age = f"stale{self.max_staleness}" if self.is_live else f"delay{self.delay}"
        return f"{self.estimator}-{age}-seed{self.seed}-{self.digest}"

    @property
    def digest(self) -> str:
        """8 hex digits of the SHA-256 of the canonical JSON (`LATER_FIELDS` only when not at their default)."""
        content = self.to_dict()
        for item in fields(self):
            default = {} if item.name == "engine_options" else item.default
            if item.name in LATER_FIELDS and content[item.name] == default:
                del content[item.name]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> RunConfig:
        """The config that `to_dict` wrote. ValueError names fields that this version does not have."""
        unknown = sorted(set(content) - {item.name for item in fields(cls)})
        if unknown:
            known = ", ".join(item.name for item in fields(cls))
            raise ValueError(f"RunConfig has no field {', '.join(map(repr, unknown))}; its fields are {known}")
        return cls(**content)

    def replace(self, **changes: Any) -> RunConfig:
        return replace(self, **changes)
