"""Building vLLM's engine from an `EngineSpec`: which of its arguments are ours, and what a model folder needs."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.models import end_of_sequence_ids
from gmc_core.rollouts.vllm_environment import building, stepping
from gmc_core.rollouts.vllm_weights import EXTENSION

DEFAULTS = {"max_num_seqs": 256, "enable_prefix_caching": True, "disable_log_stats": True, "use_tqdm_on_load": False}
CPU_DEFAULTS = {"enforce_eager": True, "kv_cache_memory_bytes": 1 << 30}
SPARE = 1  # of vLLM's `max_num_seqs`, beyond what is asked for: what is scored finds a place beside the rollouts
CPU_BATCHED_TOKENS = 4096  # tokens of one step, prefills included
FIXED = {  # what this class relies on, and what EngineSpec has a field for
    "model": "EngineSpec.model",
    "revision": "EngineSpec.revision",
    "tokenizer_revision": "EngineSpec.revision",
    "dtype": "EngineSpec.dtype",
    "max_model_len": "EngineSpec.max_model_len",
    "logprobs_mode": "the log-probs of the sampling distribution",
    "skip_tokenizer_init": "token ids only",
    "worker_extension_cls": "the weight updates",
    "weight_transfer_config": "the option weight_transfer",
}

_RUNNING: set[int] = set()  # ids of the engines of this process


def check_options(options: Mapping[str, Any]) -> None:
    """ValueError for an option that this project sets itself."""
    for name, reason in FIXED.items():
        if name in options:
            raise ValueError(f"engine option {name!r} cannot be set: it is taken by {reason}")


def engine_arguments(spec: EngineSpec, max_model_len: int | None) -> dict[str, Any]:
    """vLLM's `EngineArgs` for this spec, as a dictionary. ValueError for an option that vLLM does not know."""
    from vllm import EngineArgs

    options = dict(spec.options)
    if (backend := options.pop("weight_transfer", None)) is not None:
        from vllm.config import WeightTransferConfig

        options["weight_transfer_config"] = WeightTransferConfig(backend=backend)
    if unknown := options.keys() - EngineArgs.__dataclass_fields__.keys():
        raise ValueError(f"engine option {sorted(unknown)[0]!r} is none of vLLM's EngineArgs")
    ours = {
        "model": spec.model,
        "revision": spec.revision,
        "tokenizer_revision": spec.revision,
        "dtype": spec.dtype,
        # One more than will be used: to score a response of full length vLLM asks for room for a token after it
        # (which is sampled and thrown away, its position never computed).
        "max_model_len": None if max_model_len is None else max_model_len + 1,
        "logprobs_mode": "processed_logprobs",
        "skip_tokenizer_init": True,
        "worker_extension_cls": EXTENSION,
    }
    places = {"max_num_seqs": (options.get("max_num_seqs") or DEFAULTS["max_num_seqs"]) + SPARE}
    on_cpu = CPU_DEFAULTS | _whole_prefills(options, max_model_len) if spec.device == "cpu" else {}
    return DEFAULTS | on_cpu | options | places | ours


def build_engine(spec: EngineSpec, max_model_len: int | None) -> Any:
    """vLLM's `LLMEngine` with its core in this process."""
    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    arguments = engine_arguments(spec, max_model_len)
    try:
        with building(spec.threads), stepping(spec.device):
            engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
    except Exception as error:
        raise RuntimeError(f"vLLM could not build an engine from {spec}: {error}") from error
    engine.engine_core._finalizer.detach()  # `shut_down` takes its place
    _RUNNING.add(id(engine))
    return engine


def _whole_prefills(options: Mapping[str, Any], max_model_len: int | None) -> dict[str, Any]:
    """Arguments under which no prefill is cut in two.

    vLLM 0.32 takes back the draw after the first piece by an offset that generators on CPU do not have: a seeded
    request whose prefill does not fit into a step would end the engine.
    """
    if options.get("enable_chunked_prefill"):
        raise ValueError(
            "engine option 'enable_chunked_prefill' cannot be True on CPU: vLLM fails there on seeded requests whose "
            "prefill it cuts. Leave it out; max_num_batched_tokens bounds the prefills of a step"
        )
    least = CPU_BATCHED_TOKENS if max_model_len is None else max(CPU_BATCHED_TOKENS, max_model_len + 1)
    return {"enable_chunked_prefill": False, "max_num_batched_tokens": least}


def cpu_head_sizes() -> str:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    sizes = ", ".join(map(str, CPUAttentionBackend.get_supported_head_sizes()))
    return f"vLLM's attention on CPU names these head sizes (head_dim): {sizes}"


def shut_down(engine: Any) -> None:
    """Release what this engine holds. vLLM's own shutdown would also end the process groups of the others here."""
    core = engine.engine_core.engine_core
    _RUNNING.discard(id(engine))
    if not _RUNNING:
        core.shutdown()
        return
    core.structured_output_manager.clear_backend()
    core.model_executor.shutdown()
    core.scheduler.shutdown()
    gc.unfreeze()


def check_folder(model: str) -> None:
    looks_local = Path(model).is_absolute() or model.startswith(".")
    if looks_local and not (Path(model) / "config.json").exists():
        raise FileNotFoundError(
            f"no model at {model}: it has no config.json. Give a folder written by save_pretrained or a hub name; "
            "`python -m gmc_core.rollouts.warm_start` makes the tiny Qwen3"
        )


def eos_ids(model: str, tokenizer: Any, revision: str | None = None) -> tuple[int, ...]:
    """Every id that ends a response, as `policy.load_policy` finds them."""
    from transformers import AutoConfig, GenerationConfig

    try:
        generation = GenerationConfig.from_pretrained(model, revision=revision)
    except OSError:  # no generation_config.json
        generation = GenerationConfig.from_model_config(AutoConfig.from_pretrained(model, revision=revision))
    return end_of_sequence_ids(model, generation.eos_token_id, tokenizer)
