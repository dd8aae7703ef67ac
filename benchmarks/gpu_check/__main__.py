"""`python -m benchmarks.gpu_check`: what this project does on this GPU, in minutes; one JSON file.

It needs torch and transformers, no network, no vLLM, no hub. Without CUDA it runs in a shrunken size.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from benchmarks.gpu_check.machine import PACKAGES, missing_packages
from gmc_core import paths
from gmc_core.files import write_atomically
from gmc_core.provenance import git_state, lock_hash, machine, package_versions

FORMAT = 1
SPARE = 10.0  # seconds of the limit that are kept for starting and ending


def main(argv: list[str] | None = None) -> int:
    """0; 1 when a part raised or died. A missed target is a FAIL line, not an exit code."""
    missing = missing_packages()
    if missing["needed"]:
        print(f"gpu-check needs {', '.join(missing['needed'])}: pip install 'torch>=2.11' 'transformers>=5.16'")
        return 1
    from benchmarks.gpu_check.runner import PARTS, run_parts
    from benchmarks.gpu_check.sizes import SIZES
    from benchmarks.gpu_check.targets import conclusions

    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__)
    parser.add_argument("--size", choices=SIZES, help="default: full with CUDA, smoke without")
    parser.add_argument("--output", type=Path, default=paths.BUILD / "gpu_check.json", metavar="FILE")
    parser.add_argument("--minutes", type=float, default=8.0, help="of all parts together (default: 8)")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {' '.join(PARTS)}")
    arguments = parser.parse_args(argv)
    size = arguments.size or default_size()
    names = [name for name in PARTS if arguments.only is None or name in arguments.only]
    started = time.monotonic()
    content: dict[str, Any] = {
        "format": FORMAT,
        "size": size,
        "minutes": arguments.minutes,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        **git_state(),
        "lock": lock_hash(),
        "versions": package_versions(PACKAGES),
        "machine": machine(),
        "missing": missing["optional"],
        "parts": {},
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)

    def keep(name: str, record: dict[str, Any]) -> None:
        content["parts"][name] = record
        content["seconds"] = round(time.monotonic() - started, 1)
        content["targets"] = conclusions(content["parts"], size)
        write_atomically(arguments.output, (json.dumps(content, indent=2) + "\n").encode())
        if record["status"] != "running" and "seconds" in record:
            print(f"{name}: {record['status']} after {record['seconds']:.0f} s", flush=True)

    print(f"gpu-check, size {size}, at most {arguments.minutes:g} minutes, to {arguments.output}", flush=True)
    for name, use in missing["optional"].items():
        print(f"  {name} is not installed: without it goes {use}")
    parts = run_parts(names, size, arguments.minutes * 60 - SPARE, keep)
    return summary(parts, content["targets"])


def default_size() -> str:
    import torch

    return "full" if torch.cuda.is_available() else "smoke"


def summary(parts: dict[str, dict[str, Any]], targets: list[dict[str, Any]]) -> int:
    """Print the verdicts, and why parts are not whole; the exit code."""
    for name, record in parts.items():
        if "why" in record:
            print(f"\n{name}: {record['status']}: {record['why']}")
    print()
    for line in targets:
        value = "" if line["value"] is None else f" {line['value']:.3g} (limit {line['limit']:g})"
        print(f"{line['verdict']}  {line['target']}:{value} {line.get('why', line['how'] or '')}".rstrip())
    return int(any(record["status"] == "error" for record in parts.values()))


if __name__ == "__main__":
    raise SystemExit(main())
