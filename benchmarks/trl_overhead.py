"""What GMC adds to a step of TRL's GRPOTrainer that corrects importance ratios by itself.

Both sides take the same rollouts, always from the first policy (`DelayedRollouts`), which makes ratios and leaves the
cost of sampling equal; both compute TRL's own correction. The sides take turns (turns.py). TRL's correction exists for
vLLM only and TRL 1.16 knows no vLLM of this project's version, so the switch is set by hand: `use_vllm` after the
trainer is built, with nothing to send weights to.

Two figures each: the seconds inside the functions that GMC adds, as a share of the step (precise), and the ratio of the
two sides' CPU time (everything, with the machine's noise).
"""

from __future__ import annotations

import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.skipped import BenchmarkSkipped
from benchmarks.turns import BLOCK, UPDATES, Block, Pace, paired_blocks
from gmc_core import RunConfig
from gmc_core.integrations.trl_runs import INSTALL, trl_trainer, trl_version

STEPS_PER_BATCH = {"one step per batch": 1, "two steps per batch": 2}


def measure() -> list[dict]:
    """For one and for two optimiser steps per batch: what the two kinds of weights add."""
    if trl_version() is None:
        raise BenchmarkSkipped(f"TRL is not installed; to run it: {INSTALL}")
    rows = []
    for what, steps in STEPS_PER_BATCH.items():
        sides = {"trl": run_trl, "generation": run_generation, "optimizer_step": run_optimizer_step}
        rounds = paired_blocks(sides, steps)
        for side in ("generation", "optimizer_step"):
            rows.append(_row(f"weights_at={side}, {what}", [(blocks["trl"], blocks[side]) for blocks in rounds]))
    return rows


def reference_config(updates: int) -> RunConfig:
    """The reference setting, at a step length that no run is lost at."""
    return RunConfig(updates=updates, evaluation_every=updates, evaluation_prompts=1, learning_rate=0.05)


def _row(what: str, pairs: list[tuple[Block, Block]]) -> dict:
    shares = [ours.part / (ours.wall - ours.part) for _, ours in pairs]
    ratios = [ours.cpu / trl.cpu for trl, ours in pairs]
    seconds = statistics.median(ours.part for _, ours in pairs)
    return {
        "what": f"GMC in TRL, {what}",
        "value": 100 * statistics.median(shares),
        "unit": "% of a step",
        "note": f"{1000 * seconds:.2g} ms a step; CPU time {statistics.median(ratios):.3f} times TRL's "
        f"({min(ratios):.3f} to {max(ratios):.3f} over {len(pairs)} pairs of {BLOCK})",
    }


# --- in the child -----------------------------------------------------------------------------------------------------


def run_trl(steps_per_batch: int, folder: Path, pace: Pace) -> None:
    _corrected_trainer(steps_per_batch, folder, pace).train()


def run_generation(steps_per_batch: int, folder: Path, pace: Pace) -> None:
    _run_gmc("generation", steps_per_batch, folder, pace)


def run_optimizer_step(steps_per_batch: int, folder: Path, pace: Pace) -> None:
    _run_gmc("optimizer_step", steps_per_batch, folder, pace)


def _run_gmc(weights_at: str, steps_per_batch: int, folder: Path, pace: Pace) -> None:
    from gmc_core.integrations import trl as integration

    options = {"trainer_class": integration.GMCTrainer, "estimator": "gmc", "weights_at": weights_at}
    trainer = _corrected_trainer(steps_per_batch, folder, pace, **options)
    # What TRL without GMC does not call: its own passes go by other names, so nothing of them is counted.
    trainer._put_weights = pace.watch(trainer._put_weights)
    trainer._log_probs = pace.watch(trainer._log_probs)
    integration.weighted_inputs = pace.watch(integration.weighted_inputs)
    trainer.train()


def _corrected_trainer(steps_per_batch: int, folder: Path, pace: Pace, **options: Any) -> Any:
    """A trainer with stale rollouts and TRL's correction on."""
    from gmc_core.integrations.trl_rollouts import DelayedRollouts

    trainer = trl_trainer(
        reference_config(UPDATES),
        folder,
        after_update=pace.after_update,
        rollout_func=DelayedRollouts(delay=UPDATES),
        arguments={"num_iterations": steps_per_batch},
        **options,
    )
    trainer.use_vllm, trainer._last_loaded_step = True, -1
    trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
    return trainer
