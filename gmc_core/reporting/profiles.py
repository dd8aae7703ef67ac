"""The three profiles of every notebook: how large its run is, where its figures go and which records they read.

A notebook has `profile = "cpu"` in its parameters cell and `PROFILE = get_profile(profile)` in the next one. Sizes that
only one notebook needs stay in that notebook (`PROFILE.choose(smoke=4, cpu=32)`); what all of them share is here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gmc_core import paths

FIGURES_VARIABLE = "GMC_FIGURES"  # sends figures elsewhere: nbval must not touch the committed ones


@dataclass(frozen=True)
class Profile:
    """One size of run.

    `stamp` is written across every plot of the profile, so a picture from a smoke run cannot pass for a result.
    """

    name: str
    purpose: str
    stamp: str | None = None

    @property
    def figures(self) -> Path:
        """Folder that receives the figures: `$GMC_FIGURES` if set, scratch for smoke, else the committed folder."""
        elsewhere = os.environ.get(FIGURES_VARIABLE)
        if elsewhere:
            return paths.ROOT / elsewhere  # an absolute value replaces ROOT, as pathlib joins
        return paths.SMOKE / "figures" if self.name == "smoke" else paths.FIGURES

    @property
    def runs(self) -> Path:
        """Folder of the experiments' tables that figures read: scratch for smoke, else the committed ones."""
        return paths.SMOKE / "runs" if self.name == "smoke" else paths.COMMITTED_RUNS

    def choose(self, **sizes):
        """The value named after this profile; `gpu` falls back to `cpu` when it has no value of its own.

        >>> get_profile("smoke").choose(smoke=2, cpu=32)
        2

        Raises ValueError if a key is no profile, or this profile has no value.
        """
        unknown = sorted(set(sizes) - set(PROFILES))
        if unknown:
            raise ValueError(f"choose() got values for {unknown}, which are no profiles; known: {', '.join(PROFILES)}")
        for name in (self.name, "cpu") if self.name == "gpu" else (self.name,):
            if name in sizes:
                return sizes[name]
        raise ValueError(f"choose() has no value for profile {self.name!r}; given: {', '.join(sizes) or 'nothing'}")


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile("smoke", "seconds: does every cell run? Scratch folder, plots stamped SMOKE", stamp="SMOKE"),
        Profile("cpu", "the default: real results on two CPU cores, minutes"),
        Profile("gpu", "Qwen3 checkpoints with vLLM on a GPU, hours"),
    )
}


def get_profile(name: str) -> Profile:
    """The profile called `name`. Raises ValueError naming the known ones."""
    if name not in PROFILES:
        raise ValueError(f"unknown profile {name!r}; choose one of {', '.join(PROFILES)}")
    return PROFILES[name]
