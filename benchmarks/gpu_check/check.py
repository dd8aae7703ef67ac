"""What a part of the check is given: its size, its device, its time, and where to put what it finds."""

from __future__ import annotations

import gc
import statistics
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.gpu_check.sizes import Size

NO_TIME = "no time left"


class NotApplicable(RuntimeError):
    """Something cannot be measured on this machine; the message says what is missing."""


class Check:
    """One part while it runs. `report(name=value)` keeps a finding at once: what comes after may be cut.

    `found`: what the parts before have found. `failed`: names of rows that raised; the others count all the same.
    """

    def __init__(
        self, size: Size, seconds: float, found: Mapping[str, Any], keep: Callable[[dict[str, Any]], None]
    ) -> None:
        self.size, self.found = size, found
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.failed: list[str] = []
        self._keep = keep
        self._end = time.monotonic() + seconds

    @property
    def dtype(self) -> torch.dtype:
        return getattr(torch, self.size.dtype)

    @property
    def left(self) -> float:
        """Seconds left to this part."""
        return self._end - time.monotonic()

    def report(self, **findings: Any) -> None:
        self._keep(findings)

    def row(self, name: str, measure: Callable[[], dict[str, Any]], *, least: float = 0.0) -> dict[str, Any] | None:
        """Report what `measure` returns under `name`; None if it raised, or less than `least` seconds were left."""
        found: dict[str, Any] | None = None
        if self.left < least:
            self.report(**{name: {"left_out": f"{NO_TIME}: {self.left:.0f} s, it takes about {least:.0f} s"}})
            return None
        try:
            found = measure()
            self.report(**{name: found})
        except NotApplicable as missing:
            self.report(**{name: {"left_out": str(missing)}})
        except Exception:
            self.failed.append(name)
            self.report(**{name: {"error": traceback.format_exc()}})
        self.clean()
        return found

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, call: Callable[[], Any]) -> float:
        """Wall-clock seconds of a call, its work on the device included."""
        self.synchronize()
        start = time.perf_counter()
        call()
        self.synchronize()
        return time.perf_counter() - start

    def median_seconds(self, call: Callable[[], Any], turns: int) -> float:
        return statistics.median(self.seconds(call) for _ in range(turns))

    def clean(self) -> None:
        """Give back what nobody holds any more, so that the next row's peak is its own."""
        if self.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
