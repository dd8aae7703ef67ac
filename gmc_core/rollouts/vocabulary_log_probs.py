"""Log-probs of tokens from hidden states, block by block over the vocabulary: the full logits are never held.

    logits = softcap(scale * (h W^T + bias)) / temperature        log pi(y) = logits_y - log sum_v exp(logits_v)

The sum over the vocabulary runs along with its maximum, so one block of logits (all tokens x `block` words) exists at a
time. The backward pass computes each block again and turns it into its share of the gradients: a block of W's gradient
is complete at once, that of h is added up over the blocks. Sums are fp32 (fp64 for fp64 input) whatever the dtype of h
and W; logits of a bf16 model are not rounded to bf16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gmc_core.estimators.checks import computing_dtype

LOGITS_BYTES = 64 * 2**20  # more full logits than this (in the computing dtype) are computed in blocks
SMALLEST_BLOCK = 1024  # below, a block's matrix product is too thin to be worth its launch


@dataclass(frozen=True)
class LogitRule:
    """How a model makes logits of h W^T + bias: times `scale`, softcap * tanh(. / softcap), and / temperature."""

    scale: float = 1.0
    softcap: float | None = None
    temperature: float = 1.0

    def apply(self, raw: Tensor) -> tuple[Tensor, Tensor | None]:
        """The logits, in the place of `raw`, and d softcap(x) / dx (None without a softcap)."""
        if self.scale != 1.0:
            raw.mul_(self.scale)
        slope = None
        if self.softcap is not None:
            raw.div_(self.softcap).tanh_()
            slope = 1.0 - raw.square()
            raw.mul_(self.softcap)
        if self.temperature != 1.0:
            raw.div_(self.temperature)
        return raw, slope


def block_size(tokens: int, itemsize: int = 4, logits_bytes: int = LOGITS_BYTES) -> int:
    """Words per block such that the logits of `tokens` tokens take about `logits_bytes`, and at least 1024."""
    return max(SMALLEST_BLOCK, logits_bytes // (max(tokens, 1) * itemsize))


def vocabulary_log_probs(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    tokens_N: Tensor,
    *,
    bias_V: Tensor | None = None,
    rule: LogitRule | None = None,
    block: int | None = None,
) -> Tensor:
    """log pi(tokens_N), (N,) fp32 in nats (fp64 for fp64 input), differentiable in hidden states, weight and bias.

    `block`: words of the vocabulary at a time (default: `block_size`). Memory beyond the inputs and their gradients:
    two blocks of N x `block` numbers at most (three with a softcap), whatever the vocabulary.

    Raises: ValueError for shapes that do not fit or a token outside the vocabulary.
    """
    N, D = hidden_ND.shape
    V = weight_VD.shape[0]
    if weight_VD.shape[1] != D or tuple(tokens_N.shape) != (N,):
        raise ValueError(
            f"hidden_ND {tuple(hidden_ND.shape)}, weight_VD {tuple(weight_VD.shape)} and tokens_N "
            f"{tuple(tokens_N.shape)} do not fit; expected (N, D), (V, D) and (N,)"
        )
    if N and not 0 <= int(tokens_N.min()) <= int(tokens_N.max()) < V:
        raise ValueError(f"tokens_N holds ids from {tokens_N.min()} to {tokens_N.max()}; the vocabulary has {V} words")
    block = min(V, block or block_size(N, computing_dtype(hidden_ND).itemsize))
    return _VocabularyLogProbs.apply(hidden_ND, weight_VD, bias_V, tokens_N, rule or LogitRule(), block)


class _VocabularyLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_ND, weight_VD, bias_V, tokens_N, rule: LogitRule, block: int) -> Tensor:
        h_ND = _operand(hidden_ND)
        top_N = torch.full(tokens_N.shape, -torch.inf, dtype=computing_dtype(hidden_ND), device=hidden_ND.device)
        total_N, picked_N = torch.zeros_like(top_N), torch.zeros_like(top_N)
        for words in _blocks(len(weight_VD), block):
            logits_NB, _ = _logits(h_ND, weight_VD, bias_V, words, rule)
            inside_N, place_N1 = _place(tokens_N, words)
            picked_N = torch.where(inside_N, logits_NB.gather(1, place_N1).squeeze(1), picked_N)
            higher_N = torch.maximum(top_N, logits_NB.amax(1))
            block_N = logits_NB.sub_(higher_N.unsqueeze(1)).exp_().sum(1)
            total_N = total_N * (top_N - higher_N).exp() + block_N
            top_N = higher_N
        log_total_N = total_N.log()
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, tokens_N, top_N, log_total_N)
        ctx.rule, ctx.block = rule, block
        return (picked_N - top_N) - log_total_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V, tokens_N, top_N, log_total_N = ctx.saved_tensors
        rule: LogitRule = ctx.rule
        to_hidden, to_weight, to_bias = ctx.needs_input_grad[:3]
        h_ND = _operand(hidden_ND)
        grad_hidden = torch.zeros(hidden_ND.shape, dtype=grad_N.dtype, device=grad_N.device) if to_hidden else None
        grad_weight = torch.empty_like(weight_VD) if to_weight else None
        grad_bias = torch.empty_like(bias_V) if to_bias else None
        grad_N1 = grad_N.unsqueeze(1)
        for words in _blocks(len(weight_VD), ctx.block):
            logits_NB, slope_NB = _logits(h_ND, weight_VD, bias_V, words, rule)
            prob_NB = logits_NB.sub_(top_N.unsqueeze(1)).sub_(log_total_N.unsqueeze(1)).exp_()
            grad_NB = prob_NB.mul_(-grad_N1)
            inside_N, place_N1 = _place(tokens_N, words)
            grad_NB.scatter_add_(1, place_N1, torch.where(inside_N.unsqueeze(1), grad_N1, 0.0))
            if (slope := rule.scale / rule.temperature) != 1.0:
                grad_NB.mul_(slope)
            if slope_NB is not None:
                grad_NB.mul_(slope_NB)
            if to_bias:
                grad_bias[words] = grad_NB.sum(0).to(grad_bias.dtype)
            grad_NB = grad_NB.to(h_ND.dtype)
            if to_hidden:
                grad_hidden += _product(grad_NB, _operand(weight_VD[words]))
            if to_weight:
                grad_weight[words] = _product(grad_NB.T, h_ND).to(grad_weight.dtype)
        return (
            None if grad_hidden is None else grad_hidden.to(hidden_ND.dtype),
            grad_weight,
            grad_bias,
            None,
            None,
            None,
        )


def _blocks(words: int, block: int) -> list[slice]:
    return [slice(start, min(start + block, words)) for start in range(0, words, block)]


def _place(tokens_N: Tensor, words: slice) -> tuple[Tensor, Tensor]:
    """Whether each token lies in this block (N,), and where (N, 1)."""
    place_N = tokens_N - words.start
    inside_N = (place_N >= 0) & (place_N < words.stop - words.start)
    return inside_N, place_N.clamp(0, words.stop - words.start - 1).unsqueeze(1)


def _logits(
    h_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, words: slice, rule: LogitRule
) -> tuple[Tensor, Tensor | None]:
    raw_NB = _product(h_ND, _operand(weight_VD[words]).T)
    if bias_V is not None:
        raw_NB.add_(bias_V[words])
    return rule.apply(raw_NB)


def _operand(value: Tensor) -> Tensor:
    """What a product takes: CUDA multiplies bf16 with fp32 sums and results; a CPU gets fp32 operands instead."""
    return value if value.is_cuda else value.to(computing_dtype(value))


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right in fp32 (or fp64). The last line is for CUDA alone: tests/gpu tries it, CI has no GPU."""
    if left.dtype in (torch.float32, torch.float64):
        return left @ right
    return torch.mm(left, right, out_dtype=torch.float32)
