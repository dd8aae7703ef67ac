"""Updates per second of our loop beside TRL's GRPOTrainer: same model, task, groups, batch, loss, step and threads.

Both start from the warm start on the same prompts and take turns (turns.py); neither side evaluates. The updates that
follow the warm start are our dearest: responses differ most there, so they share the least work.

TRL runs in the fastest way it documents for a CPU: fp32, the whole batch in one pass and one call of `generate` with
its key/value cache, no gradient checkpointing, no reference model, no logging, saving or evaluation, no loader
processes. TRL takes the samples as on-policy and scores them only once. Tried on two CPU cores and left out, with CPU
time per update relative to that: a static cache (1.00 to 1.09), torch.compile of the training pass (1.05, after minutes
of compilation), eager attention (1.0), continuous batching (more than 4 with its cache sized by hand; at its defaults
it did not start within 75 s). vLLM, TRL's other sampler, is left out: TRL 1.16 supports it up to 0.31, this project
pins 0.32.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path

from benchmarks.skipped import BenchmarkSkipped
from benchmarks.turns import BLOCK, UPDATES, Block, Pace, paired_blocks
from gmc_core import RunConfig, train
from gmc_core.integrations.trl_runs import INSTALL, trl_trainer, trl_version
from gmc_core.rollouts.engine import TransformersEngine

SEEDS = (0, 1)  # a fresh pair of processes for each


def measure() -> list[dict]:
    """Our updates per second, TRL's, and the ratio of the two."""
    version = trl_version()
    if version is None:
        raise BenchmarkSkipped(f"TRL is not installed; to run it: {INSTALL}")
    sides = {"ours": run_ours, "trl": run_trl}
    rounds = [blocks for seed in SEEDS for blocks in paired_blocks(sides, reference_config(seed))]
    ours, theirs = ([blocks[side] for blocks in rounds] for side in sides)
    return [
        rate("gmc_core.train, delay 0", ours),
        rate(f"GRPOTrainer of TRL {version}", theirs),
        _ratio("times TRL's updates per second, from the warm start", ours, theirs, "wall"),
        _ratio("the same in CPU time", ours, theirs, "cpu"),
    ]


def reference_config(seed: int) -> RunConfig:
    """The reference setting at delay 0, from the warm start; the evaluations that `train` insists on are not timed."""
    return RunConfig(seed=seed, updates=UPDATES, evaluation_every=UPDATES, evaluation_prompts=1)


def rate(what: str, blocks: list[Block]) -> dict:
    """The row of one side."""
    rates = [1 / block.wall for block in blocks]
    cpu = statistics.median(block.cpu for block in blocks)
    share = statistics.median(block.part / block.wall for block in blocks)
    return {
        "what": f"{what}, 8 prompts x 16 rollouts",
        "value": statistics.median(rates),
        "unit": "updates / s",
        "note": f"{min(rates):.3g} to {max(rates):.3g} over {len(blocks)} blocks of {BLOCK}; "
        f"{cpu:.3f} s CPU an update, {share:.0%} of the time sampling",
        "blocks": [vars(block) for block in blocks],
    }


def _ratio(what: str, ours: list[Block], theirs: list[Block], clock: str) -> dict:
    ratios = [getattr(trl, clock) / getattr(own, clock) for own, trl in zip(ours, theirs, strict=True)]
    return {
        "what": what,
        "value": statistics.median(ratios),
        "unit": "x",
        "note": f"{min(ratios):.3g} to {max(ratios):.3g} over {len(ratios)} pairs of blocks",
    }


# --- in the child -----------------------------------------------------------------------------------------------------


def run_ours(config: RunConfig, folder: Path, pace: Pace) -> None:
    TransformersEngine.generate = pace.watch(TransformersEngine.generate)
    train(config, root=folder, checkpoint_seconds=math.inf, on_update=lambda _: pace.after_update())


def run_trl(config: RunConfig, folder: Path, pace: Pace) -> None:
    trainer = trl_trainer(config, folder, after_update=pace.after_update)
    trainer._generate_single_turn = pace.watch(trainer._generate_single_turn)
    trainer.train()
