"""The staleness experiments on Qwen3 checkpoints, in three sizes: a quarter of an hour, a night, days on eight GPUs.

Not run here: there was no GPU. Each tier is data; its runs are `RunConfig`s, its cost comes from `gpu_cost`:

    python -m gmc_core.reporting.gpu_table [--hardware H100]

What the literature makes defensible, and what a tier takes of it: delays of 0, 16, 64 and 256 model updates, up to the
256 of M2PO (arXiv 2510.01161), whose scripts (github.com/Infini-AI-Lab/M2PO, train-scripts) train on 64 prompts x 8
rollouts an update with AdamW at 1e-6, temperature 1, no KL term, on DeepScaleR; and avg@32 on AIME, as DAPO evaluates
(arXiv 2503.14476). As in M2PO, a batch is sampled for four updates at once (`updates_per_batch`), so the age of its
rollouts runs from the delay to the delay + 3.

The delay is that of a first-in, first-out queue: the live loop in its deterministic mode, one worker that takes weights
and tickets strictly in order, so that once the queue has turned over the first update of every batch is exactly `delay`
updates from the policy that sampled it. Until then the initial policy samples; a run must be longer than its delay by
far.

Every method is run at every delay at one step size, and at further ones at the smallest and the largest delay: a method
that only lacks its own step size must not look worse. Best, last and collapse step of a run come from its evaluations
(reporting/run_comparisons.py); avg@32 is measured on the policy after the last update, with vLLM (`evaluate_last`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gmc_core.estimators import ESTIMATORS
from gmc_core.rollouts.datasets.registry import DATASETS
from gmc_core.rollouts.engine import RolloutEngine, TransformersEngine
from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.evaluation import BenchmarkPlan, evaluate_benchmark
from gmc_core.rollouts.models import MODELS
from gmc_core.rollouts.policy import load_policy
from gmc_core.rollouts.prompt_encoding import PromptEncoder
from gmc_core.training.gpu_cost import (
    HARDWARE,
    LEARNER_RESERVE,
    Efficiency,
    Hardware,
    Lengths,
    benchmark_seconds,
    engine_memory,
    evaluation_seconds,
    learner_memory,
    update_seconds,
)
from gmc_core.training.run_config import RunConfig
from gmc_core.training.run_directory import RunRecord
from gmc_core.training.session import model_path

BENCHMARK_PROMPT = 1024  # tokens at most of a problem
# problems of a benchmark, beside which the estimate needs nothing of it
BENCHMARK_PROBLEMS = {name: sum(DATASETS[name].splits.values()) for name in ("aime_2024", "aime_2025", "math_500")}


@dataclass(frozen=True)
class Tier:
    """A grid and where it runs. `base`: what all runs share.

    `learning_rate` at every delay, `sweep` beside it at the smallest and the largest delay. `lengths`: mean tokens of
    prompts and responses, assumed, for the estimate. `places`: rollouts that vLLM decodes at once. `gpus`: how many
    work side by side, each with a run of its own. `benchmarks`: task -> samples of each problem, of
    `benchmark_tokens` tokens at most (which is what the estimate takes them for), with `benchmark_options` of the task.
    """

    name: str
    where: str
    hardware: str
    gpus: int
    base: RunConfig
    estimators: tuple[str, ...]
    delays: tuple[int, ...]
    learning_rate: float
    sweep: tuple[float, ...]
    seeds: tuple[int, ...]
    lengths: Lengths
    places: int
    benchmarks: Mapping[str, int] = field(default_factory=dict)
    benchmark_tokens: int = 0
    benchmark_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def runs(self) -> tuple[RunConfig, ...]:
        """Every method x delay x seed, seeds outermost; then the further step sizes, at the first seed."""
        extremes = (min(self.delays), max(self.delays))
        cells = [
            (seed, delay, name, self.learning_rate)
            for seed in self.seeds
            for delay in self.delays
            for name in self.estimators
        ]
        cells += [
            (self.seeds[0], delay, name, rate)
            for rate in self.sweep
            for delay in dict.fromkeys(extremes)
            for name in self.estimators
        ]
        return tuple(self.config(*cell) for cell in cells)

    def config(self, seed: int, delay: int, estimator: str, learning_rate: float) -> RunConfig:
        """One run: the method with the normaliser of its derivation, if it has one."""
        return self.base.replace(
            seed=seed,
            max_staleness=delay + self.base.updates_per_batch - 1,
            estimator=estimator,
            learning_rate=learning_rate,
            normalizer=ESTIMATORS[estimator].normalizer or self.base.normalizer,
        )


def fifo(model: str, **changes: Any) -> RunConfig:
    """A run of a Qwen3 checkpoint whose rollouts come through a first-in, first-out queue from vLLM on the same GPU.

    `engine_options["gpu_memory_utilization"]` is vLLM's share of the GPU. For GPUs of their own: `workers="ray"` and
    `ray_address="auto"`, with a Ray that was started on the other GPUs (`CUDA_VISIBLE_DEVICES=1 ray start --head`); an
    actor takes the one that its engine needs.
    """
    return RunConfig(
        model=model,
        dtype="bfloat16",
        device="cuda",
        schedule="bounded_staleness",
        workers="process",
        engine="vllm",
        optimizer="adamw",
        gradient_clip=1.0,
        advantage="std",
        temperature=1.0,
        gradient_checkpointing=True,
        logits_mib=256,
        micro_batch_tokens=16_384,
        verifier_processes=4,
        updates_per_batch=4,
        max_staleness=3,
    ).replace(**changes)


THREE = ("gmc", "tic_truncate", "ppo_clip")
FIVE = ("gmc", "tic_truncate", "snis", "ppo_clip", "m2po")
TIERS: dict[str, Tier] = {
    tier.name: tier
    for tier in (
        Tier(
            name="gpu_quarter_hour",
            where="one GPU, a quarter of an hour",
            hardware="H200",
            gpus=1,
            base=fifo(
                "Qwen/Qwen3-0.6B-Base",
                task="gsm8k",
                task_options={"template": "hash"},
                prompts_per_update=16,
                group_size=8,
                max_new_tokens=256,
                max_model_len=768,
                updates=40,
                evaluation_every=20,
                evaluation_prompts=64,
                engine_options={"gpu_memory_utilization": 0.3, "max_num_seqs": 128},
            ),
            estimators=("gmc", "ppo_clip"),
            delays=(0, 16),
            learning_rate=1e-6,
            sweep=(),
            seeds=(0,),
            lengths=Lengths(prompt=110, response=160),
            places=128,
        ),
        Tier(
            name="gpu_night",
            where="one GPU, a night",
            hardware="H200",
            gpus=1,
            base=fifo(
                "Qwen/Qwen3-0.6B-Base",
                task="math",
                task_options={"template": "solution"},
                prompts_per_update=32,
                group_size=8,
                max_new_tokens=512,
                max_model_len=1536,
                updates=400,
                evaluation_every=40,
                evaluation_prompts=128,
                engine_options={"gpu_memory_utilization": 0.35, "max_num_seqs": 256},
            ),
            estimators=THREE,
            delays=(0, 16, 64),
            learning_rate=1e-6,
            sweep=(3e-6,),
            seeds=(0,),
            lengths=Lengths(prompt=120, response=350),
            places=256,
            benchmarks={"math_500": 1, "aime_2024": 32},
            benchmark_tokens=1024,
            benchmark_options={"template": "solution"},
        ),
        Tier(
            name="gpu_node",
            where="one node of eight GPUs, days",
            hardware="H200",
            gpus=8,
            base=fifo(
                "Qwen/Qwen3-1.7B-Base",
                task="deepscaler",
                task_options={"template": "boxed", "exclude": {"aime_2024": None, "aime_2025": None, "math_500": None}},
                prompts_per_update=64,
                group_size=8,
                max_new_tokens=2560,
                max_model_len=4096,
                updates=800,
                evaluation_every=50,
                evaluation_prompts=64,
                engine_options={"gpu_memory_utilization": 0.4, "max_num_seqs": 128},
            ),
            estimators=FIVE,
            delays=(0, 16, 64, 256),
            learning_rate=1e-6,
            sweep=(3e-7, 3e-6),
            seeds=(0, 1),
            lengths=Lengths(prompt=150, response=1000),
            places=128,
            benchmarks={"aime_2024": 32, "aime_2025": 32, "math_500": 4},
            benchmark_tokens=4096,
            benchmark_options={"template": "boxed"},
        ),
    )
}


@dataclass(frozen=True)
class TierCost:
    """Of a whole tier: counts of runs and tokens, hours on its GPUs, bytes on each of them.

    `learner` and `engine` are the bytes that each needs; `shared` what both need together.
    """

    runs: int
    generated_tokens: float
    trained_tokens: float
    hours: float
    learner: float
    update: float
    engine: float

    @property
    def shared(self) -> float:
        return self.learner + self.engine


def estimate(
    tier: Tier, hardware: Hardware | str | None = None, assumed: Efficiency | None = None, *, shared: bool = True
) -> TierCost:
    """What the tier costs on `hardware` (default: its own).

    `shared`: learner and vLLM take turns on each of the tier's GPUs; else every run has two of them. ValueError for an
    unknown name of hardware.
    """
    gpu = _hardware(tier.hardware if hardware is None else hardware)
    assumed = assumed or Efficiency()
    shape, runs = MODELS[tier.base.model].shape, tier.runs
    seconds = generated = trained = 0.0
    for config in runs:
        rollouts = config.prompts_per_update * config.group_size
        pace = update_seconds(shape, config, tier.lengths, gpu, assumed, places=tier.places, shared=shared)
        seconds += assumed.startup_seconds + config.updates * pace + evaluation_seconds(config, assumed)
        generated += config.updates * rollouts * tier.lengths.response
        trained += config.updates * rollouts * (tier.lengths.prompt + tier.lengths.response)
        for task, samples in tier.benchmarks.items():
            problems = BENCHMARK_PROBLEMS[task]
            seconds += benchmark_seconds(
                shape, problems * samples, tier.lengths, tier.benchmark_tokens, tier.places, gpu, assumed
            )
            generated += problems * samples * tier.benchmark_tokens
    learner = learner_memory(shape, tier.base, tier.lengths)
    at_once = tier.gpus if shared else max(1, tier.gpus // 2)
    return TierCost(
        runs=len(runs),
        generated_tokens=generated,
        trained_tokens=trained,
        hours=seconds / 3600 / at_once,
        learner=learner.peak + LEARNER_RESERVE,
        update=learner.update + LEARNER_RESERVE,
        engine=engine_memory(shape, tier.base, tier.lengths, tier.places),
    )


def _hardware(hardware: Hardware | str) -> Hardware:
    if isinstance(hardware, Hardware):
        return hardware
    if hardware not in HARDWARE:
        raise ValueError(f"unknown hardware {hardware!r}; known are {', '.join(HARDWARE)}; or give a Hardware")
    return HARDWARE[hardware]


def evaluate_last(record: RunRecord, tier: Tier, folder: Path) -> list[Path]:
    """Evaluate the last policy of a finished run on the tier's benchmarks; a file for each, resumed where it stopped.

    Read them with `gmc_core.reporting.evaluation`. The engine is of the run's kind, in this process.
    """
    config, written = record.config, []
    with _last_policy(record, tier) as (engine, tokenizer):
        for task, samples in tier.benchmarks.items():
            plan = BenchmarkPlan(
                method=config.run_id,
                model=f"{config.model} after {config.updates} updates of {config.run_id}",
                task=task,
                task_options=tier.benchmark_options,
                samples=samples,
                temperature=1.0,
                max_new_tokens=tier.benchmark_tokens,
                seed=config.seed,
            )
            written.append(evaluate_benchmark(plan, engine, tokenizer, folder / f"{config.run_id}-{task}.jsonl"))
    return written


@contextmanager
def _last_policy(record: RunRecord, tier: Tier) -> Iterator[tuple[RolloutEngine, Any]]:
    """An engine that samples from the last policy of the run, and the tokenizer."""
    from safetensors.torch import load_file

    config = record.config
    weights = load_file(record.path / "policy.safetensors")
    if config.engine == "transformers":
        dtype = getattr(torch, config.dtype)
        model = model_path(config.model)
        policy = load_policy(model, revision=config.revision, dtype=dtype, device=config.device)
        encode = PromptEncoder(policy.tokenizer, config.chat, config.enable_thinking)
        engine = TransformersEngine(policy, encode=encode)
        engine.update_weights(weights, config.updates)
        yield engine, policy.tokenizer
        return
    spec = EngineSpec(
        kind=config.engine,
        model=str(model_path(config.model)),
        revision=config.revision,
        dtype=config.dtype,
        device=config.device,
        chat=config.chat,
        enable_thinking=config.enable_thinking,
        max_model_len=tier.benchmark_tokens + BENCHMARK_PROMPT,
        options=config.engine_options,
    )
    engine = spec.build()
    try:
        engine.update_weights(weights, config.updates)
        yield engine, engine.tokenizer
    finally:
        engine.close()
