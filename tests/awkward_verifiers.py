"""A task whose verifier does what the response tells it to: everything that a driver must survive."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gmc_core.rollouts.tasks import Prompt


def _hold_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


@dataclass(frozen=True)
class AwkwardTask:
    name: str = "awkward"
    max_response_tokens: int = 8

    def sample_prompts(self, count: int, generator: torch.Generator) -> Sequence[Prompt]:
        return [Prompt("do", "") for _ in range(count)]

    def reward(self, prompt: Prompt, response: str, finished: bool) -> float:
        if response == "raise":
            raise RuntimeError("the parser choked")
        if response == "exit":
            raise SystemExit(3)
        if response == "nan":
            return float("nan")
        if response == "none":
            return None
        if response == "loop":
            _hold_signals()
            while True:
                pass
        if response == "block in C":
            time.sleep(3600)
        if response == "end process":
            os._exit(7)
        if response == "close pipe":
            os.closerange(3, 64)
            time.sleep(3600)
        return float(len(response)) if finished else 0.0


@dataclass(frozen=True)
class Unloadable(AwkwardTask):
    """Cannot be built again on the other side."""

    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise ImportError("No module named 'a_parser'")
