"""Peak memory of one update at a vocabulary of 151,936 (that of Qwen3): full logits against blocks of the vocabulary.

Each update runs in a process of its own, which resets the kernel's high-water mark when the model and the batch are
there: what is reported is the growth of resident memory during the update. The model is small (hidden size 64), so that
logits, not layers, are what fills the memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.skipped import BenchmarkSkipped
from gmc_core import paths

VOCABULARY, PROMPTS, GROUP, LENGTH, PROMPT_LENGTH = 151_936, 2, 8, 64, 16
STATUS = Path("/proc/self/status")


def measure(dtypes: Sequence[str] = ("float32", "bfloat16")) -> list[dict]:
    """Growth during the update, in MiB, of both ways and their quotient."""
    if not STATUS.exists():
        raise BenchmarkSkipped("the peak of resident memory is read from /proc, which only Linux has")
    tokens, rows = PROMPTS * GROUP * LENGTH, []
    logits = tokens * VOCABULARY * 4 / 2**20
    for dtype in dtypes:
        found = {}
        for way, logits_mib in (("full logits", 2**20), ("in blocks", 64)):
            command = [sys.executable, "-m", "benchmarks.learner_memory", dtype, str(logits_mib)]
            done = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"the update with {way} in {dtype} failed:\n{done.stderr[-2000:]}")
            found[way] = json.loads(done.stdout.splitlines()[-1])
            rows.append(
                {
                    "what": f"{dtype}, {tokens} response tokens, {way}",
                    "value": found[way]["mib"],
                    "unit": "MiB",
                    "note": f"{found[way]['seconds']:.1f} s; full logits in fp32 are {logits:.0f} MiB",
                }
            )
        rows.append(
            {
                "what": f"{dtype}, in blocks / full logits",
                "value": found["in blocks"]["mib"] / found["full logits"]["mib"],
                "unit": "of the memory",
                "note": f"gradient norms {found['in blocks']['grad_norm']:.4g} and "
                f"{found['full logits']['grad_norm']:.4g}",
            }
        )
    return rows


def resident(field: str) -> float:
    """VmRSS (now) or VmHWM (the highest so far) in MiB."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) / 1024


def forget_peak() -> None:
    """VmHWM starts anew from what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def one_update(dtype: str, logits_mib: int) -> dict[str, float]:
    """One SGD update of a random Qwen3 from random rollouts, in this process."""
    import torch

    from benchmarks.random_rollouts import random_batch, random_qwen3
    from gmc_core import RunConfig
    from gmc_core.training.learner import Learner

    torch.set_num_threads(1)
    shape = {
        "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "tie_word_embeddings": True,
    }  # fmt: skip
    policy = random_qwen3(shape, dtype=getattr(torch, dtype))
    batch = random_batch(VOCABULARY, PROMPTS, GROUP, PROMPT_LENGTH, LENGTH)
    config = RunConfig(dtype=dtype, logits_mib=logits_mib, prompts_per_update=PROMPTS, group_size=GROUP)
    learner = Learner(policy, config)
    forget_peak()
    before, started = resident("VmRSS"), time.perf_counter()
    metrics = learner.update(batch)
    seconds = time.perf_counter() - started
    return {"mib": resident("VmHWM") - before, "seconds": seconds, "grad_norm": metrics["grad_norm"]}


if __name__ == "__main__":
    print(json.dumps(one_update(sys.argv[1], int(sys.argv[2]))))
