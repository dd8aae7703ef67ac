"""The policy: a causal language model with its tokenizer, the log-probs of its responses, and snapshots of its weights.

The model always runs in evaluation mode: dropout in one of the two passes of an update would look like staleness.
Both the sampler and the learner use the log-probs of `softmax(logits / temperature)`, in fp32 whatever the model's
dtype.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Policy:
    """A model and its tokenizer. `eos_ids`: every token that ends a response; `fingerprint`: SHA-256 of the weights."""

    model: Any
    tokenizer: Any
    eos_ids: tuple[int, ...]
    fingerprint: str

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device


def load_policy(path: str | Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Policy:
    """A causal LM and its tokenizer from a folder or a hub name.

    Raises FileNotFoundError for a local path without a model, ValueError for a model without an end-of-sequence id.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # a bar per loaded model drowns a grid's own progress
    looks_local = Path(path).is_absolute() or str(path).startswith(".")
    if looks_local and not (Path(path) / "config.json").exists():
        raise FileNotFoundError(
            f"no model at {path}: it has no config.json. Give a folder written by save_pretrained or a hub name; "
            "`python -m gmc_core.rollouts.warm_start` makes the tiny Qwen3"
        )
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(device).eval()
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    eos = model.generation_config.eos_token_id
    eos = tokenizer.eos_token_id if eos is None else eos
    if eos is None:
        raise ValueError(
            f"model {path} names no end-of-sequence id in its generation config or tokenizer; set one there"
        )
    eos_ids = tuple(eos) if isinstance(eos, (list, tuple)) else (int(eos),)
    return Policy(model=model, tokenizer=tokenizer, eos_ids=eos_ids, fingerprint=weights_fingerprint(model))


def weights_fingerprint(model: Any) -> str:
    """SHA-256 over names, dtypes and bytes of the weights, 16 hex digits: which model a record was made with."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.named_parameters()):
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def snapshot(model: Any) -> dict[str, Tensor]:
    """A detached copy of the weights (tied weights once)."""
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


@torch.no_grad()
def load_snapshot(model: Any, weights: Mapping[str, Tensor]) -> None:
    """Copy a snapshot into a model of the same architecture. ValueError names what does not fit."""
    own = dict(model.named_parameters())
    if own.keys() != weights.keys():
        odd = sorted(own.keys() ^ weights.keys())
        raise ValueError(f"these weights belong to another model: {len(odd)} names differ, the first is {odd[0]!r}")
    for name, tensor in own.items():
        if tensor.shape != weights[name].shape:
            raise ValueError(
                f"these weights belong to another model: {name} has shape {tuple(weights[name].shape)}, "
                f"expected {tuple(tensor.shape)}"
            )
        tensor.copy_(weights[name])


def token_log_probs(logits: Tensor, tokens: Tensor, temperature: float = 1.0) -> Tensor:
    """log softmax(logits / temperature) at `tokens`, fp32; logits (..., T, V), tokens (..., T) -> (..., T)."""
    logits = logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    return torch.log_softmax(logits, dim=-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def response_log_probs(
    model: Any,
    prompt_PL: Tensor,
    prompt_mask_PL: Tensor,
    response_NT: Tensor,
    prompt_index_N: Tensor,
    *,
    temperature: float = 1.0,
    share_prefix: bool = True,
) -> Tensor:
    """Log-prob of every response token, (N, T) fp32, in nats; entries past a response's end are meaningless.

    `prompt_index_N` names the prompt (row of `prompt_PL`, padded on the left) of every response. With `share_prefix`
    each prompt is run once and its key/value cache is gathered for all of its responses, which is exact and
    differentiable and saves (G - 1) / G of the prompt's work; without it every row runs prompt and response together.
    """
    padded = not bool(prompt_mask_PL.all())
    N, T = response_NT.shape
    if share_prefix:
        prompt = model(
            input_ids=prompt_PL,
            attention_mask=prompt_mask_PL.long() if padded else None,
            position_ids=_positions(prompt_mask_PL) if padded else None,
            use_cache=True,
            logits_to_keep=1,
        )
        logits_N1V = prompt.logits[prompt_index_N]
        if T == 1:
            return token_log_probs(logits_N1V, response_NT, temperature)
        cache = prompt.past_key_values
        cache.batch_select_indices(prompt_index_N)
        extra: dict[str, Tensor] = {}
        if padded:
            seen_N1 = prompt_mask_PL.sum(-1)[prompt_index_N].unsqueeze(-1)
            ones = torch.ones((N, T - 1), dtype=torch.long, device=response_NT.device)
            extra["attention_mask"] = torch.cat([prompt_mask_PL[prompt_index_N].long(), ones], dim=-1)
            extra["position_ids"] = seen_N1 + torch.arange(T - 1, device=response_NT.device)
        rest = model(input_ids=response_NT[:, :-1], past_key_values=cache, use_cache=True, **extra)
        return token_log_probs(torch.cat([logits_N1V, rest.logits], dim=1), response_NT, temperature)
    prompt_NL, prompt_mask_NL = prompt_PL[prompt_index_N], prompt_mask_PL[prompt_index_N]
    mask = torch.cat([prompt_mask_NL, torch.ones_like(response_NT, dtype=torch.bool)], dim=-1)
    out = model(
        input_ids=torch.cat([prompt_NL, response_NT], dim=-1),
        attention_mask=mask.long() if padded else None,
        position_ids=_positions(mask) if padded else None,
        use_cache=False,
        logits_to_keep=T + 1,
    )
    return token_log_probs(out.logits[:, :-1], response_NT, temperature)


def _positions(mask: Tensor) -> Tensor:
    """Position of every token when padding on the left counts for nothing."""
    return (mask.long().cumsum(-1) - 1).clamp_min(0)
