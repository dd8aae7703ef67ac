"""Part `learner`: tokens per second of an update of Qwen3-0.6B, and its share of the ceiling.

Random weights, sequences of 1,024 tokens (64 of them the prompt), AdamW on an fp32 copy of bf16 weights. One update in
two passes (the step is four micro-batches) and one in a single pass, each plain, compiled, with layers recomputed, and
both; flops.py says what is counted. The first update of each kind (compilation, moments of AdamW) is not in the median.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch

from benchmarks.gpu_check.check import Check, NotApplicable
from benchmarks.gpu_check.flops import forward_flops, update_flops
from benchmarks.gpu_check.machine import compiler, missing_packages
from benchmarks.gpu_check.sizes import Rollouts
from benchmarks.random_rollouts import random_batch, random_qwen3
from gmc_core import RunConfig
from gmc_core.rollouts.policy import Policy
from gmc_core.training.learner import Learner

PLAIN: dict[str, bool] = {}
COMPILED, RECOMPUTED = {"compile": True}, {"gradient_checkpointing": True}
ROWS = (  # with the seconds that a row takes on a GPU, about: the time may end, most of all while something compiles
    ("two_passes", "plain", PLAIN, 12),
    ("one_pass", "plain", PLAIN, 6),
    ("two_passes", "compiled", COMPILED, 45),
    ("one_pass", "compiled", COMPILED, 10),
    ("two_passes", "recomputed", RECOMPUTED, 12),
    ("two_passes", "compiled_recomputed", COMPILED | RECOMPUTED, 25),
)


def measure(check: Check) -> None:
    size, on_gpu = check.size, check.device.type == "cuda"
    policy = random_qwen3(size.model, dtype=check.dtype, device=check.device)
    check.report(
        parameters=policy.model.num_parameters(),
        dtype=size.dtype,
        attention=policy.model.config._attn_implementation,
        micro_batch_tokens=size.micro_batch_tokens,
    )
    rollouts = {"two_passes": size.learner, "one_pass": size.learner_one_pass}
    for passes, way, options, least in ROWS:
        row = partial(_updates, check, policy, rollouts[passes], passes, options)
        check.row(f"{passes}_{way}", row, least=least if on_gpu else 0)
        if (passes, way) == ("one_pass", "plain"):
            check.row("kernels", partial(_kernels, check, policy, size.learner_one_pass), least=8 if on_gpu else 0)


def learner_config(check: Check, rollouts: Rollouts, **options: Any) -> RunConfig:
    """The update that is measured: AdamW with a step that moves next to nothing."""
    size = check.size
    return RunConfig(
        dtype=size.dtype,
        device=check.device.type,
        optimizer="adamw",
        learning_rate=1e-8,
        prompts_per_update=rollouts.prompts,
        group_size=rollouts.group,
        max_new_tokens=rollouts.response,
        **({"micro_batch_tokens": size.micro_batch_tokens, "logits_mib": size.logits_mib} | options),
    )


def _updates(check: Check, policy: Policy, rollouts: Rollouts, passes: str, options: dict[str, bool]) -> dict[str, Any]:
    compiles = options.get("compile", False) and check.size.compiles
    if compiles and ("triton" in missing_packages()["optional"] or compiler() is None):
        raise NotApplicable("torch.compile needs triton and a C compiler (cc or gcc, or CC)")
    stance = "default" if check.size.compiles else "force_eager"
    batch = _batch(check, policy, rollouts)
    learner = Learner(policy, learner_config(check, rollouts, **options))
    _reset_peak(check)
    with torch.compiler.set_stance(stance):
        started = time.perf_counter()
        metrics = learner.update(batch)
        check.synchronize()
        first = time.perf_counter() - started
        seconds = check.median_seconds(lambda: learner.update(batch), check.size.turns)
    model_flops, hardware_flops = update_flops(
        forward_flops(policy.model, rollouts),
        passes=2 if passes == "two_passes" else 1,
        in_blocks=_in_blocks(check, policy, rollouts),
        recomputed=options.get("gradient_checkpointing", False),
    )
    ceiling = check.found.get("ceiling", {}).get("flops_per_second")
    return {
        "rollouts": rollouts.count,
        "sequence_tokens": rollouts.prompt + rollouts.response,
        "first_update_s": first,
        "update_s": seconds,
        "tokens_per_second": rollouts.tokens / seconds,
        "model_flops_per_second": model_flops / seconds,
        "utilisation": None if ceiling is None else model_flops / seconds / ceiling,
        "hardware_utilisation": None if ceiling is None else hardware_flops / seconds / ceiling,
        "peak_memory_gb": _peak(check),
        "grad_norm": metrics["grad_norm"],
    }


def _batch(check: Check, policy: Policy, rollouts: Rollouts) -> Any:
    shape = (rollouts.prompts, rollouts.group, rollouts.prompt, rollouts.response)
    return random_batch(policy.model.config.vocab_size, *shape, device=check.device)


def _in_blocks(check: Check, policy: Policy, rollouts: Rollouts) -> bool:
    """Whether the vocabulary is taken in blocks: the full fp32 logits of a micro-batch exceed `logits_mib`."""
    length = rollouts.prompt + rollouts.response
    rows = min(rollouts.count, check.size.micro_batch_tokens // length)
    return rows * rollouts.response * policy.model.config.vocab_size * 4 > check.size.logits_mib * 2**20


def _reset_peak(check: Check) -> None:
    if check.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(check.device)


def _peak(check: Check) -> float | None:
    """Largest memory of tensors, in 1e9 bytes; None on a CPU, which part `memory` looks at."""
    return torch.cuda.max_memory_allocated(check.device) / 1e9 if check.device.type == "cuda" else None


def _kernels(check: Check, policy: Policy, rollouts: Rollouts) -> dict[str, Any]:
    """Where the time of a plain update goes, kernel by kernel (on a CPU: operator by operator)."""
    from torch.profiler import ProfilerActivity, profile

    batch, learner = _batch(check, policy, rollouts), Learner(policy, learner_config(check, rollouts))
    learner.update(batch)
    on_gpu = check.device.type == "cuda"
    activities = [ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]
    with profile(activities=activities) as profiler:
        learner.update(batch)
        check.synchronize()
    attribute = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    times = {event.key: getattr(event, attribute) for event in profiler.key_averages()}
    total = sum(times.values())
    if not total:
        raise NotApplicable("the profiler saw no kernels (it needs CUPTI)")
    ranked = sorted(times.items(), key=lambda item: -item[1])
    attention = {
        name: microseconds / total
        for name, microseconds in ranked
        if any(word in name.lower() for word in ("flash", "fmha", "attention"))
    }
    return {
        "longest": [{"name": name[:100], "share": microseconds / total} for name, microseconds in ranked[:12]],
        "attention": {name[:100]: share for name, share in list(attention.items())[:4]},
        "share_of_attention": sum(attention.values()),
    }
