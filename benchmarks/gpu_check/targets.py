"""What has to be reached on a GPU, and whether it was: PASS, FAIL, or NOT MEASURED with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LEAST_UTILISATION = 0.35  # of the measured ceiling, at sequences of 1,024 tokens
MOST_GB = 24.0  # 1e9 bytes, of a 0.6B update of 32 x 8 rollouts of 512 tokens
WAYS = ("plain", "compiled", "recomputed", "compiled_recomputed")


def conclusions(parts: Mapping[str, Mapping[str, Any]], size: str) -> list[dict[str, Any]]:
    """One line per target."""
    learner, memory = parts.get("learner", {}), parts.get("memory", {})
    lines = []
    for passes, words in (("two_passes", "an update in two passes"), ("one_pass", "an update in one pass")):
        rows = {way: _value(learner, f"{passes}_{way}", "utilisation") for way in WAYS}
        way = max((way for way in WAYS if rows[way] is not None), key=lambda way: rows[way], default=None)
        lines.append(
            {
                "target": f"learner at {LEAST_UTILISATION:.0%} of the matrix ceiling or more, {words}",
                "value": None if way is None else rows[way],
                "limit": LEAST_UTILISATION,
                "how": way,
                "verdict": None if way is None else rows[way] >= LEAST_UTILISATION,
            }
        )
    peak = _value(memory, "blocks_recomputed", "peak_gb")
    lines.append(
        {
            "target": f"peak memory of a 0.6B update under {MOST_GB:.0f} GB",
            "value": peak,
            "limit": MOST_GB,
            "how": "vocabulary in blocks, layers recomputed",
            "verdict": None if peak is None else peak < MOST_GB,
        }
    )
    engine = parts.get("engine", {})
    gap, tolerance = _value(engine, "gap_to_learner", "largest_nats"), engine.get("probe_tolerance")
    lines.append(
        {
            "target": "log-probs of engine and learner agree within probe_tolerance",
            "value": gap,
            "limit": tolerance,
            "how": "largest of all tokens of the engine's part, nats",
            "verdict": None if gap is None or tolerance is None else gap <= tolerance,
        }
    )
    why = _why_not(parts, size)
    for line in lines:
        reached = line["verdict"]
        line["verdict"] = "NOT MEASURED" if why or reached is None else "PASS" if reached else "FAIL"
        if line["verdict"] == "NOT MEASURED":
            line["why"] = why or "its part did not come to an end"
    return lines


def _why_not(parts: Mapping[str, Mapping[str, Any]], size: str) -> str | None:
    """Why nothing is decided here at all."""
    if parts.get("device", {}).get("kind") != "cuda":
        return "no CUDA device"
    return None if size == "full" else f"size {size!r} is not the one that the targets are for"


def _value(part: Mapping[str, Any], row: str, name: str) -> Any:
    return (part.get(row) or {}).get(name)
