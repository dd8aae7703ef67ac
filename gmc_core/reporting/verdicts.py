"""The five verdicts of the claims ledger, and what a rule returns: a verdict with the numbers that it rests on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import SupportsFloat

CONFIRMED = "confirmed"
CONDITIONS = "confirmed with conditions"
NOT_VISIBLE = "not visible"
CONTRADICTED = "contradicted"
NEEDS_GPU = "needs GPU"

MEANINGS: dict[str, str] = {
    CONFIRMED: "the measurement shows what is claimed",
    CONDITIONS: "it shows it, but not throughout, or only under conditions that the evidence names",
    NOT_VISIBLE: "the measurement decides neither way",
    CONTRADICTED: "the measurement shows the opposite",
    NEEDS_GPU: "it takes runs that this checkout does not have and a CPU cannot make",
}


@dataclass(frozen=True)
class Finding:
    """What a rule finds: one of the five verdicts, and one line of evidence with the numbers."""

    verdict: str
    evidence: str

    def __post_init__(self) -> None:
        if self.verdict not in MEANINGS:
            raise ValueError(f"unknown verdict {self.verdict!r}; choose one of {', '.join(MEANINGS)}")
        if not self.evidence.strip() or "\n" in self.evidence:
            raise ValueError(f"evidence must be one line that is not empty, got {self.evidence!r}")


def number(value: SupportsFloat) -> str:
    """Two significant digits: `0.016`, `1.2e-05`, `16`."""
    value = float(value)
    return f"{value:.0f}" if 100 <= abs(value) < 1e5 else f"{value:.2g}"


def numbers(values: Iterable[SupportsFloat]) -> str:
    """`number` of each, with commas: `0.017, 0.0087, 0.0039`."""
    return ", ".join(number(value) for value in values)
