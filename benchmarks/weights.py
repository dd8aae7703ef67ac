"""Cost of the group weights, beside the time of an update of the tiny model (a GPU update is longer)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from gmc_core import gmc_weights, water_filling_weights

GROUPS, SIZE, CALLS = 512, 16, 200


def measure() -> list[dict]:
    """Median and 90th percentile of one call on 512 groups of 16."""
    generator = torch.Generator().manual_seed(0)
    grouped = torch.randn(GROUPS, SIZE, generator=generator)
    order = torch.randperm(GROUPS * SIZE, generator=generator)
    flat, labels = grouped.flatten()[order], torch.arange(GROUPS).repeat_interleave(SIZE)[order]
    cases = {
        "gmc_weights, 512 x 16": lambda: gmc_weights(grouped),
        "gmc_weights, flat 8192 with shuffled labels": lambda: gmc_weights(flat, group_index=labels),
        "water_filling_weights, 512 x 16": lambda: water_filling_weights(grouped),
    }
    return [_timed(name, call) for name, call in cases.items()]


def _timed(name: str, call: Callable[[], object]) -> dict:
    for _ in range(10):
        call()
    milliseconds = []
    for _ in range(CALLS):
        start = time.perf_counter()
        call()
        milliseconds.append((time.perf_counter() - start) * 1e3)
    ninetieth = statistics.quantiles(milliseconds, n=10)[-1]
    return {
        "what": name,
        "value": statistics.median(milliseconds),
        "unit": "ms (median)",
        "note": f"90 % within {ninetieth:.3g} ms, {CALLS} calls",
    }
