"""Which tables of experiments a figure is computed from, and whether they are there.

Only complete tables count. A figure whose tables are missing or still growing is not drawn at all: it waits for
`make experiments ONLY=...`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from gmc_core.reporting.profiles import Profile
from gmc_core.reporting.run_records import Runs, load_runs


@dataclass(frozen=True)
class Needs:
    """The experiments a figure shows: `final`; as long as one of those is not complete, `until_then` (if any).

    In the smoke profile it reads `smoke`; a figure without waits there.
    """

    final: tuple[str, ...]
    until_then: tuple[str, ...] = ()
    smoke: tuple[str, ...] = ()

    def found(self, profile: Profile) -> tuple[str, ...]:
        """The experiments whose tables are shown now, all complete; () if the figure has to wait."""
        for names in self._choices(profile):
            if names and all(complete(name, profile.runs) for name in names):
                return names
        return ()

    def waits_for(self, profile: Profile) -> tuple[str, ...]:
        """The experiments that are still to be completed before the figure shows what it is for."""
        return tuple(name for name in self._choices(profile)[0] if not complete(name, profile.runs))

    def load(self, profile: Profile) -> dict[str, Runs]:
        """The tables to show, by name. FileNotFoundError says which experiments to run if it has to wait."""
        found = self.found(profile)
        if not found:
            waiting = self.waits_for(profile) or self.final
            raise FileNotFoundError(f"no complete tables to draw from; `{command(waiting)}` computes them")
        return {name: load_runs(name, root=profile.runs) for name in found}

    def _choices(self, profile: Profile) -> tuple[tuple[str, ...], ...]:
        return (self.smoke,) if profile.name == "smoke" else (self.final, self.until_then)


def command(experiments: tuple[str, ...]) -> str:
    """What to type to compute these experiments."""
    only = " ".join(experiments)
    return f"make experiments ONLY={only}" if len(experiments) == 1 else f'make experiments ONLY="{only}"'


def complete(experiment: str, root: Path) -> bool:
    """Whether the tables of `experiment` under `root` hold all its runs, by their provenance.

    Raises DamagedRecordError for a provenance that cannot be read.
    """
    path = root / experiment / "provenance.json"
    if not path.exists():
        return False
    try:
        return bool(json.loads(path.read_text(encoding="utf-8")).get("complete", True))
    except ValueError:
        return load_runs(experiment, root=root).complete  # raises, and says what to do
