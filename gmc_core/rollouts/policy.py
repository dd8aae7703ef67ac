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

from gmc_core.estimators.checks import computing_dtype
from gmc_core.rollouts.models import DEFAULT_MODEL, end_of_sequence_ids, is_folder, pinned_revision
from gmc_core.rollouts.output_head import output_head
from gmc_core.rollouts.packaged_models import PACKAGED, locate, version
from gmc_core.rollouts.vocabulary_log_probs import LOGITS_BYTES


@dataclass(frozen=True)
class Policy:
    """A model and its tokenizer.

    `eos_ids`: every token that ends a response; `fingerprint`: SHA-256 of the weights; `revision`: the commit of the
    hub repository, or the package and its version, that they were read from; None for a local folder.
    """

    model: Any
    tokenizer: Any
    eos_ids: tuple[int, ...]
    fingerprint: str
    revision: str | None = None

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device


def load_policy(
    model: str | Path = DEFAULT_MODEL,
    *,
    revision: str | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Policy:
    """A causal LM and its tokenizer: a folder, a hub name, or a packaged model such as "smollm2-135m".

    `revision`: commit, tag or branch of the hub repository (None: the one pinned in models.py, else its head).
    Raises FileNotFoundError for a local path without a model, ImportError for a packaged model that is not installed,
    ValueError for a model without an end-of-sequence id, or a revision of what has none.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # a bar per loaded model drowns a grid's own progress
    wanted = pinned_revision(str(model), revision)
    path = locate(model)
    looks_local = Path(path).is_absolute() or str(path).startswith(".")
    if looks_local and not (Path(path) / "config.json").exists():
        raise FileNotFoundError(
            f"no model at {path}: it has no config.json. Give a folder written by save_pretrained or a hub name; "
            "`python -m gmc_core.rollouts.warm_start` makes the tiny Qwen3"
        )
    commit = None if is_folder(str(path)) else hub_commit(str(path), wanted)
    network = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, revision=commit).to(device).eval()
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left", revision=commit)
    eos_ids = end_of_sequence_ids(str(model), network.generation_config.eos_token_id, tokenizer)
    train_padding_that_ends_responses(network, eos_ids)
    return Policy(
        model=network,
        tokenizer=tokenizer,
        eos_ids=eos_ids,
        fingerprint=weights_fingerprint(network),
        revision=version(str(model)) if str(model) in PACKAGED else commit,
    )


def hub_commit(name: str, revision: str | None) -> str | None:
    """The commit of a hub repository that `revision` (None: its head) stands for; model and tokenizer are then both
    read from it. The revision itself where the hub's client does not say.
    """
    from transformers.utils.hub import cached_file, extract_commit_hash

    file = cached_file(name, "config.json", revision=revision)
    return extract_commit_hash(file, None) or revision


def train_padding_that_ends_responses(model: Any, eos_ids: tuple[int, ...]) -> None:
    """Let the input embedding of the padding token have its gradient when that token also ends responses.

    Many checkpoints pad with an end-of-sequence token. Torch's embedding layer drops the gradient of its `padding_idx`,
    which is then the gradient of a real token: of <|im_end|> in every chat prompt, for one. Padding itself needs no
    such guard here: it is masked by length, never recognised by its id (trajectories.py), and its gradient is exactly
    0. A token that is only padding keeps the guard.
    """
    embedding = model.get_input_embeddings()
    if getattr(embedding, "padding_idx", None) in eos_ids:
        embedding.padding_idx = None


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
    """log softmax(logits / temperature) at `tokens`, fp32 (fp64 for fp64); logits (..., T, V), tokens (..., T)."""
    logits = logits.to(computing_dtype(logits))
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
    mask_NT: Tensor | None = None,
    logits_bytes: int = LOGITS_BYTES,
) -> Tensor:
    """Log-prob of every response token, (N, T) fp32, in nats; entries past a response's end are meaningless.

    `prompt_index_N` names the prompt (row of `prompt_PL`, padded on the left) of every response. With `share_prefix`
    each prompt is run once and its key/value cache is gathered for all of its responses, which is exact and
    differentiable and saves (G - 1) / G of the prompt's work; without it every row runs prompt and response together,
    its padding behind it, so that a causal model needs no attention mask (and flash attention can be used).

    Logits of more than `logits_bytes` are never held: hidden states are turned into log-probs block by block of the
    vocabulary, only where `mask_NT` is True if it is given (0 elsewhere). ValueError for a model whose logits cannot be
    made outside it (see `output_head`).
    """
    padded = not bool(prompt_mask_PL.all())
    N, T = response_NT.shape
    words = model.get_output_embeddings().weight
    in_blocks = N * T * words.shape[0] * computing_dtype(words).itemsize > logits_bytes
    head = output_head(model) if in_blocks else None

    def run(keep: int, **inputs: Any) -> tuple[Tensor, Any]:
        """Logits, or the hidden states that they are made of, of the last `keep` tokens (0: all); and the cache."""
        if head is None:
            out = model(**inputs, logits_to_keep=keep)
            return out.logits, out.past_key_values
        out = head.body(**inputs)
        return out.last_hidden_state[:, -keep:], out.past_key_values

    def finish(states_NTX: Tensor) -> Tensor:
        if head is None:
            return token_log_probs(states_NTX, response_NT, temperature)
        mask = torch.ones_like(response_NT, dtype=torch.bool) if mask_NT is None else mask_NT
        return head.log_probs(states_NTX, response_NT, mask, temperature=temperature, logits_bytes=logits_bytes)

    if share_prefix:
        states_P1X, cache = run(
            1,
            input_ids=prompt_PL,
            attention_mask=prompt_mask_PL.long() if padded else None,
            position_ids=_positions(prompt_mask_PL) if padded else None,
            use_cache=True,
        )
        states_N1X = states_P1X[prompt_index_N]
        if T == 1:
            return finish(states_N1X)
        cache.batch_select_indices(prompt_index_N)
        extra: dict[str, Tensor] = {}
        if padded:
            seen_N1 = prompt_mask_PL.sum(-1)[prompt_index_N].unsqueeze(-1)
            ones = torch.ones((N, T - 1), dtype=torch.long, device=response_NT.device)
            extra["attention_mask"] = torch.cat([prompt_mask_PL[prompt_index_N].long(), ones], dim=-1)
            extra["position_ids"] = seen_N1 + torch.arange(T - 1, device=response_NT.device)
        rest, _ = run(0, input_ids=response_NT[:, :-1], past_key_values=cache, use_cache=True, **extra)
        return finish(torch.cat([states_N1X, rest], dim=1))
    tokens_NS = torch.cat([prompt_PL[prompt_index_N], response_NT], dim=-1)
    if not padded:
        states, _ = run(T + 1, input_ids=tokens_NS, use_cache=False)
        return finish(states[:, :-1])
    padding_N1 = (~prompt_mask_PL).sum(-1)[prompt_index_N].unsqueeze(-1)
    columns_S = torch.arange(tokens_NS.shape[1], device=tokens_NS.device)
    tokens_NS = tokens_NS.gather(1, (columns_S + padding_N1) % len(columns_S))  # the padding wraps around to the end
    most = int(padding_N1.max())
    states, _ = run(T + 1 + most, input_ids=tokens_NS, use_cache=False)
    place_NT1 = (most - padding_N1 + columns_S[:T]).unsqueeze(-1)  # of the token before each response token
    return finish(states.gather(1, place_NT1.expand(-1, -1, states.shape[-1])))


def _positions(mask: Tensor) -> Tensor:
    """Position of every token when padding on the left counts for nothing."""
    return (mask.long().cumsum(-1) - 1).clamp_min(0)
