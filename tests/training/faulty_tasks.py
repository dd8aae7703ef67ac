"""Tasks whose verifier does what a verifier should not; importable, since verifier processes must find them."""

from __future__ import annotations

import time
from dataclasses import dataclass

from gmc_core.rollouts.tasks import RunningSums


@dataclass(frozen=True)
class FaultyVerifier(RunningSums):
    """`fault` for prompts that begin with one of the digits `on`: "raise", or "hang" in a sleep nobody interrupts."""

    name: str = "faulty"
    fault: str = "raise"
    on: str = "012"

    def reward(self, prompt, response, finished):
        if prompt.text[0] in self.on:
            if self.fault == "raise":
                raise RuntimeError("this verifier is broken")
            time.sleep(1e6)
        return super().reward(prompt, response, finished)
