"""Part `ceiling`: what the device does in plain matrix products of the learner's dtype, and in copies of memory.

The ceiling is the best of a few large shapes, the median over repetitions of each. It is what utilisation is measured
against: a peak from a data sheet is reached by no product.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu_check.check import Check

WARM_UP_SECONDS, REPETITIONS = 0.5, 50  # an idle GPU takes a while to come to its clock


def measure(check: Check) -> None:
    products = [_product(check, *shape) for shape in check.size.products]
    best = max(products, key=lambda row: row["flops_per_second"])
    check.report(
        flops_per_second=best["flops_per_second"],
        shape=best["shape"],
        dtype=check.size.dtype,
        products=products,
        copied_bytes_per_second=_copy(check, 2**28 if check.device.type == "cuda" else 2**20),
    )


def _product(check: Check, m: int, k: int, n: int) -> dict[str, Any]:
    left, right = (torch.randn(shape, device=check.device, dtype=check.dtype) for shape in ((m, k), (k, n)))
    out = torch.empty((m, n), device=check.device, dtype=check.dtype)
    seconds = _median(check, lambda: torch.mm(left, right, out=out))
    return {"shape": [m, k, n], "seconds": seconds, "flops_per_second": 2 * m * k * n / seconds}


def _copy(check: Check, numbers: int) -> float:
    """Bytes read and written per second by a copy."""
    source = torch.zeros(numbers, device=check.device)
    target = torch.empty_like(source)
    return 2 * source.numel() * source.element_size() / _median(check, lambda: target.copy_(source))


def _median(check: Check, call: Callable[[], Any]) -> float:
    """Seconds of one call: by events on CUDA, where the clock of the host would add the launch."""
    if check.device.type != "cuda":
        call()
        return check.median_seconds(call, REPETITIONS)
    started = time.perf_counter()
    while time.perf_counter() - started < WARM_UP_SECONDS:
        call()
        check.synchronize()
    pairs = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(REPETITIONS)]
    for start, end in pairs:
        start.record()
        call()
        end.record()
    check.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairs) / 1e3
