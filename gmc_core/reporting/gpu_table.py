"""What the GPU tiers cost, as a table: `python -m gmc_core.reporting.gpu_table [--hardware H100] [--separate]`."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence

from gmc_core.reporting.markdown import markdown_table
from gmc_core.training.gpu_cost import GB, HARDWARE, Efficiency
from gmc_core.training.gpu_tiers import TIERS, Tier, estimate

COLUMNS = (
    "experiment", "where", "model and task", "runs", "of an update", "tokens, generated and trained", "hours",
    "GB per GPU: learner (update) + vLLM",
)  # fmt: skip


def gpu_tiers_table(hardware: str | None = None, assumed: Efficiency | None = None, *, shared: bool = True) -> str:
    """Every tier with its expected tokens, hours and memory on `hardware` (default: the tier's own). Estimates."""
    return markdown_table(COLUMNS, [_row(tier, hardware, assumed, shared) for tier in TIERS.values()])


def _row(tier: Tier, hardware: str | None, assumed: Efficiency | None, shared: bool) -> tuple[str, ...]:
    cost, base = estimate(tier, hardware, assumed, shared=shared), tier.base
    grid = f"{', '.join(tier.estimators)}; delays {', '.join(map(str, tier.delays))}; {len(tier.seeds)} "
    grid += "seed" if len(tier.seeds) == 1 else "seeds"
    grid += f"; step size {tier.learning_rate:g}"
    if tier.sweep:
        rates = ", ".join(f"{rate:g}" for rate in tier.sweep)
        grid += f", and {rates} at delays {min(tier.delays)} and {max(tier.delays)}"
    memory = f"{cost.learner / GB:.0f} ({cost.update / GB:.0f}) + {cost.engine / GB:.0f}"
    limit = HARDWARE[hardware or tier.hardware].memory
    if (cost.shared if shared else max(cost.learner, cost.engine)) > limit:
        memory += f", more than the {limit / GB:.0f} there are"
    benchmarks = ", ".join(f"{task} avg@{samples}" for task, samples in tier.benchmarks.items())
    return (
        f"`{tier.name}`",
        f"{tier.where} ({hardware or tier.hardware})",
        f"{base.model}, {base.task}" + (f"; {benchmarks}" if benchmarks else ""),
        f"{cost.runs}: {grid}",
        f"{base.prompts_per_update} x {base.group_size} rollouts of at most {base.max_new_tokens} tokens; "
        f"{base.updates} updates",
        f"{_count(cost.generated_tokens)}, {_count(cost.trained_tokens)}",
        f"{cost.hours:.2g}" if cost.hours < 10 else f"{cost.hours:.0f}",
        memory,
    )


def _count(tokens: float) -> str:
    return f"{tokens / 1e9:.1f} billion" if tokens >= 1e9 else f"{tokens / 1e6:.0f} million"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gmc_core.reporting.gpu_table", description=__doc__.split(":")[0])
    parser.add_argument("--hardware", choices=HARDWARE, help="instead of the hardware that each tier was made for")
    parser.add_argument(
        "--separate", action="store_true", help="learner and vLLM on two GPUs of their own for each run"
    )
    for field in dataclasses.fields(Efficiency):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}", type=float, default=field.default, help=f"assumed: {field.default:g}"
        )
    options = vars(parser.parse_args(arguments))
    hardware, separate = options.pop("hardware"), options.pop("separate")
    print(gpu_tiers_table(hardware, Efficiency(**options), shared=not separate), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
