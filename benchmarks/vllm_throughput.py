"""Rollout tokens per second of our vLLM engine beside vLLM's own `LLM.generate`, and a weight update beside a copy.

Both engines live in this process, are built with the same arguments and sample the same prompts with the same sampling
parameters, seeds included, hence the same tokens (checked). They take turns, and a ratio is the median over the pairs
of turns, so that whatever else the machine does falls on both alike. Both compute in one thread: on a busy machine the
ratio in CPU time says more than the one on the clock.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.skipped import BenchmarkSkipped
from gmc_core.rollouts.continuous import GroupRequest, generate_groups
from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.policy import load_policy, snapshot
from gmc_core.rollouts.random_streams import stream_generator
from gmc_core.rollouts.tasks import RunningSums
from gmc_core.rollouts.tiny_qwen3 import character_tokenizer, tiny_qwen3
from gmc_core.rollouts.trajectories import Group

PROMPTS, GROUP, TOKENS = 16, 16, 64
TURNS, UPDATES = 9, 25
KV_BYTES = 1 << 28
SHAPES = ({}, {"hidden_size": 256, "layers": 4, "heads": 8, "kv_heads": 4})  # of tiny_qwen3


def measure() -> list[dict]:
    """Per model: tokens per second of both and their ratio; then milliseconds of an update and of a copy."""
    try:
        from gmc_core.rollouts.vllm_environment import import_vllm

        import_vllm()
    except ImportError as error:
        raise BenchmarkSkipped(str(error)) from error
    rows = []
    for shape in SHAPES:
        model = tiny_qwen3(0, **shape)
        size = f"{model.num_parameters() / 1e6:.2g} M parameters"
        with tempfile.TemporaryDirectory() as scratch:
            model.save_pretrained(scratch)
            character_tokenizer().save_pretrained(scratch)
            with _both(scratch) as (ours, raw):
                rows += _throughput(size, ours, raw)
            rows += _updates(size, scratch)
    return rows


@contextmanager
def _both(model: str) -> Iterator[tuple[Any, Any]]:
    """Our engine and vLLM's `LLM` on this model."""
    from vllm import LLM

    from gmc_core.rollouts.vllm_build import engine_arguments
    from gmc_core.rollouts.vllm_environment import building, stepping

    ours = EngineSpec("vllm", model, options={"kv_cache_memory_bytes": KV_BYTES}).build()
    with building(1), stepping("cpu"):
        raw = LLM(**engine_arguments(ours.spec, ours.max_model_len))
    try:
        yield ours, raw
    finally:
        ours.close()  # first: vLLM's shutdown ends what both share


def _throughput(size: str, ours: Any, raw: Any) -> list[dict]:
    from vllm import TokensPrompt

    from gmc_core.rollouts.vllm_environment import stepping

    prompts = RunningSums().sample_prompts(PROMPTS, stream_generator(0, "prompts"))
    requests = [GroupRequest(ticket, prompt, GROUP, TOKENS, 1.0, ticket) for ticket, prompt in enumerate(prompts)]
    tokens = [TokensPrompt(prompt_token_ids=ours.encode(prompt)) for prompt in prompts]
    parameters = [ours.sampling_params(request) for request in requests]

    def generate_raw() -> Any:
        with stepping("cpu"):
            return raw.generate(tokens, parameters, use_tqdm=False)

    groups, outputs = generate_groups(ours, requests), generate_raw()
    _check_same(groups, outputs)
    sampled = sum(int(group.mask_GT.sum()) for group in groups)
    turns = [(_timed(lambda: generate_groups(ours, requests)), _timed(generate_raw)) for _ in range(TURNS)]
    own, theirs = (statistics.median(wall for wall, _ in side) for side in zip(*turns, strict=True))
    what = f"{size}, {PROMPTS} prompts x {GROUP} rollouts"
    note = f"median of {TURNS}, {sampled} tokens, at most {TOKENS} each"
    return [
        {"what": f"VllmEngine, {what}", "value": sampled / own, "unit": "tokens / s", "note": note},
        {"what": f"LLM.generate, {what}", "value": sampled / theirs, "unit": "tokens / s", "note": "the same tokens"},
        _ratio(f"ratio, {size}", [raw_wall / own_wall for (own_wall, _), (raw_wall, _) in turns]),
        _ratio(f"ratio in CPU time, {size}", [raw_cpu / own_cpu for (_, own_cpu), (_, raw_cpu) in turns]),
    ]


def _ratio(what: str, ratios: list[float]) -> dict:
    note = f"of {len(ratios)} pairs: {min(ratios):.2f} to {max(ratios):.2f}"
    return {"what": what, "value": statistics.median(ratios), "unit": "", "note": note}


def _updates(size: str, model: str) -> list[dict]:
    """An idle engine takes new weights; beside it a copy of the same tensors."""
    engine = EngineSpec("vllm", model, options={"kv_cache_memory_bytes": KV_BYTES}).build()
    weights = snapshot(load_policy(model).model)
    targets = {name: torch.empty_like(tensor) for name, tensor in weights.items()}

    def copy() -> None:
        for name, tensor in weights.items():
            targets[name].copy_(tensor)

    copy()
    engine.update_weights(weights, 0)
    turns = [(_timed(lambda: engine.update_weights(weights, 0)), _timed(copy)) for _ in range(UPDATES)]
    engine.close()
    (update, update_cpu), (copied, copied_cpu) = (
        (statistics.median(wall for wall, _ in side) * 1e3, statistics.median(cpu for _, cpu in side) * 1e3)
        for side in zip(*turns, strict=True)
    )
    megabytes = sum(tensor.numel() * tensor.element_size() for tensor in weights.values()) / 1e6
    what, unit = f"{megabytes:.1f} MB in {len(weights)} tensors", "ms (median)"
    note = f"{update_cpu:.3g} ms in CPU time, {UPDATES} times, {size}"
    return [
        {"what": f"weight update, {what}", "value": update, "unit": unit, "note": note},
        {"what": f"memory copy, {what}", "value": copied, "unit": unit, "note": f"{copied_cpu:.3g} ms in CPU time"},
    ]


def _check_same(groups: list[Group], outputs: list[Any]) -> None:
    for group, output in zip(groups, outputs, strict=True):
        for row, mask, rollout in zip(group.response_GT, group.mask_GT, output.outputs, strict=True):
            if row[mask].tolist() != list(rollout.token_ids):
                raise RuntimeError("the two engines sampled other tokens: the comparison would be of different work")


def _timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the clock, and of CPU time."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu
