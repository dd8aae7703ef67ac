"""How large the check is: `full` for a GPU of 80 GB or more, `smoke` for a CPU in seconds, so that it cannot rot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gmc_core.rollouts.warm_start import WarmStart

QWEN3_0_6B = {  # Qwen/Qwen3-0.6B
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
}
SMALL_QWEN3 = QWEN3_0_6B | {
    "vocab_size": 4096,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}


@dataclass(frozen=True)
class Rollouts:
    """`prompts` x `group` rollouts; prompt and response in tokens."""

    prompts: int
    group: int
    prompt: int
    response: int

    @property
    def count(self) -> int:
        return self.prompts * self.group

    @property
    def tokens(self) -> int:
        """Prompt and response tokens of all of them."""
        return self.count * (self.prompt + self.response)


@dataclass(frozen=True)
class Size:
    """Everything that differs between the sizes. `dtype` is that of ceiling, learner and engine.

    `learner` is an update that needs two passes at `micro_batch_tokens`, `learner_one_pass` one that fits in one.
    `compiles`: whether torch.compile really compiles; if not, what it would compile runs as it is. `turns`: how often
    an update is timed, `calls` how often an estimator. `grid_model`: arguments of `tiny_qwen3`. `grid_updates`: most
    and fewest updates of a run of the grid; the time left decides.
    """

    name: str
    dtype: str
    products: tuple[tuple[int, int, int], ...]  # (m, k, n) of the matrix products whose best is the ceiling
    model: Mapping[str, Any]
    compiles: bool
    learner: Rollouts
    learner_one_pass: Rollouts
    micro_batch_tokens: int
    logits_mib: int
    turns: int
    memory: Rollouts
    memory_micro_batch_tokens: int
    memory_logits_mib: int
    engine: Rollouts
    estimators: Rollouts
    calls: int
    grid_model: Mapping[str, int]
    warm_start: WarmStart
    grid_delays: tuple[int, ...]
    grid_seeds: tuple[int, ...]
    grid_updates: tuple[int, int]  # at least 2: the first is not timed
    grid_pilot: int  # updates of the run that tells how many updates the time left allows
    grid_evaluation_prompts: int


SIZES = {
    "full": Size(
        name="full",
        dtype="bfloat16",
        products=((8192, 8192, 8192), (16384, 8192, 4096), (16384, 4096, 4096), (4096, 16384, 4096)),
        model=QWEN3_0_6B,
        compiles=True,
        learner=Rollouts(prompts=8, group=8, prompt=64, response=960),
        learner_one_pass=Rollouts(prompts=2, group=8, prompt=64, response=960),
        micro_batch_tokens=16_384,
        logits_mib=1024,
        turns=3,
        memory=Rollouts(prompts=32, group=8, prompt=64, response=512),
        memory_micro_batch_tokens=8192,
        memory_logits_mib=256,
        engine=Rollouts(prompts=32, group=8, prompt=64, response=128),
        estimators=Rollouts(prompts=32, group=8, prompt=64, response=1024),
        calls=50,
        grid_model={"hidden_size": 512, "layers": 4, "heads": 16, "kv_heads": 8},
        warm_start=WarmStart(
            clean_steps=1200,
            noisy_steps=300,
            clean_learning_rate=5e-4,
            noisy_learning_rate=3e-4,
            evaluation_prompts=2048,
        ),
        grid_delays=(0, 16, 64),
        grid_seeds=(0, 1, 2),
        grid_updates=(100, 20),
        grid_pilot=8,
        grid_evaluation_prompts=256,
    ),
    "smoke": Size(
        name="smoke",
        dtype="float32",  # bf16 products of a CPU say nothing about its learner, whose log-probs take fp32
        products=((384, 384, 384), (512, 512, 512)),
        model=SMALL_QWEN3,
        compiles=False,
        learner=Rollouts(prompts=2, group=4, prompt=4, response=28),
        learner_one_pass=Rollouts(prompts=1, group=4, prompt=4, response=28),
        micro_batch_tokens=128,
        logits_mib=1,
        turns=1,
        memory=Rollouts(prompts=2, group=4, prompt=4, response=28),
        memory_micro_batch_tokens=128,
        memory_logits_mib=1,
        engine=Rollouts(prompts=2, group=2, prompt=8, response=8),
        estimators=Rollouts(prompts=2, group=4, prompt=4, response=16),
        calls=2,
        grid_model={"hidden_size": 32, "layers": 1, "heads": 2, "kv_heads": 1},
        warm_start=WarmStart(digits=2, clean_steps=2, noisy_steps=1, batch_size=8, evaluation_prompts=16),
        grid_delays=(1,),
        grid_seeds=(0,),
        grid_updates=(2, 2),
        grid_pilot=2,
        grid_evaluation_prompts=4,
    ),
}
