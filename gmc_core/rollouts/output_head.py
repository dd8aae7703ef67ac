"""A causal language model in two parts: the body that gives hidden states, and the head that makes logits of them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gmc_core.rollouts.vocabulary_log_probs import LOGITS_BYTES, LogitRule, block_size, vocabulary_log_probs

_verified: weakref.WeakSet = weakref.WeakSet()  # models whose two parts were seen to give the model's own logits


@dataclass(frozen=True)
class OutputHead:
    """`body(input_ids=...)` gives `last_hidden_state`; `weight_VD`, `bias_V` and `rule` make logits of it.

    The weight may be tied to the embedding. Build it with `output_head(model)`.
    """

    body: Any
    weight_VD: Tensor
    bias_V: Tensor | None
    rule: LogitRule

    def log_probs(
        self,
        hidden_NTD: Tensor,
        tokens_NT: Tensor,
        mask_NT: Tensor,
        *,
        temperature: float = 1.0,
        logits_bytes: int = LOGITS_BYTES,
    ) -> Tensor:
        """(N, T) fp32 log softmax(logits / temperature) at `tokens_NT`, 0 where `mask_NT` is False (not computed)."""
        hidden_MD, tokens_M = hidden_NTD[mask_NT], tokens_NT[mask_NT]
        logp_M = vocabulary_log_probs(
            hidden_MD,
            self.weight_VD,
            tokens_M,
            bias_V=self.bias_V,
            rule=replace(self.rule, temperature=temperature),
            block=block_size(len(tokens_M), logits_bytes=logits_bytes),
        )
        return torch.zeros(mask_NT.shape, dtype=logp_M.dtype, device=logp_M.device).masked_scatter(mask_NT, logp_M)


def output_head(model: Any) -> OutputHead:
    """The two parts of a transformers causal LM.

    Logit scales (`logit_scale`, `logits_scaling`, `lm_head_multiplier`) and `final_logit_softcapping` of its config are
    understood. The first call for a model compares the logits of its parts with its own, so that a model that makes
    them in another way is refused, not trained on something else. ValueError says what is odd.
    """
    linear = model.get_output_embeddings()
    if not isinstance(linear, torch.nn.Linear):
        raise ValueError(
            f"{type(model).__name__} has the output layer {type(linear).__name__}; log-probs in blocks of the "
            f"vocabulary need a torch.nn.Linear. {_REMEDY}"
        )
    config = model.config.get_text_config()
    scale = (_number(config, "logit_scale") or 1.0) * (_number(config, "lm_head_multiplier") or 1.0)
    scale /= _number(config, "logits_scaling") or 1.0
    rule = LogitRule(scale=scale, softcap=_number(config, "final_logit_softcapping"))
    head = OutputHead(model.get_decoder(), linear.weight, linear.bias, rule)
    if model not in _verified:
        _verify(model, head)
        _verified.add(model)
    return head


_REMEDY = "Raise RunConfig.logits_mib above the size of its full logits to train it with its own forward pass"


def _number(config: Any, name: str) -> float | None:
    value = getattr(config, name, None)
    return None if value is None else float(value)


@torch.no_grad()
def _verify(model: Any, head: OutputHead) -> None:
    V = head.weight_VD.shape[0]
    ids = torch.arange(8, device=head.weight_VD.device).unsqueeze(0) % V
    own = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1].float()
    hidden = head.body(input_ids=ids, use_cache=False).last_hidden_state[0, -1]
    raw = torch.nn.functional.linear(hidden, head.weight_VD, head.bias_V).float()
    logits, _ = head.rule.apply(raw)
    gap, size = (logits - own).abs().max().item(), own.abs().max().item()
    tolerance = 1e-4 if head.weight_VD.dtype in (torch.float32, torch.float64) else 2e-2  # bf16 has 8 bits
    if not gap <= tolerance * size:
        raise ValueError(
            f"the logits of {type(model).__name__} are not those of its output layer on its body's hidden states "
            f"(largest difference {gap:.3g}, largest logit {size:.3g}): it makes logits in a way that log-probs in "
            f"blocks of the vocabulary do not know. {_REMEDY}"
        )
