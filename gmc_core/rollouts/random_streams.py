"""Randomness as a function of (seed, stream, index): no state to save, so a resumed run draws the same numbers."""

from __future__ import annotations

import hashlib

import torch


def stream_generator(seed: int, stream: str, index: int = 0, device: str | torch.device = "cpu") -> torch.Generator:
    """A fresh generator for one use, e.g. (3, "rollouts", 17). Distinct arguments give unrelated streams."""
    digest = hashlib.sha256(f"{seed}/{stream}/{index}".encode()).digest()
    return torch.Generator(device=device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)
