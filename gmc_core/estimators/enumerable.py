"""Exact small policies: every response is enumerated, so gradients, biases and second moments carry no sampling error.

A `ResponseSpace` lists all K responses of up to T tokens over V tokens. An `EnumerablePolicy` is a tabular
autoregressive softmax policy on it: one row of V logits for each of the C prefixes, hence token-level and
trajectory-level estimators differ as they do for a language model. `exact_moments.exact_moments` gives the expectation
of any estimator's gradient over groups of G rollouts by enumerating the groups.

    space  = response_space(vocabulary=3, max_length=3)                # K = 15 responses, C = 7 prefixes
    policy = EnumerablePolicy(space, logits)                           # logits (..., C, V), any leading batch dims
    index  = policy.sample(16, generator)                              # (..., 16) numbers of responses
    logp   = policy.token_log_probs(index)                             # (..., 16, T), 0 where space.mask is False
    mask   = space.mask[index]                                         # (..., 16, T)
    step   = policy.surrogate_gradient(index, coefficient)             # sum_it coefficient_it d log pi_it / d logits

Shape suffixes: K responses, T tokens, C contexts (prefixes), V tokens of the vocabulary, G rollouts of a group.
Our reconstruction, docs/theory.md sections 1, 3 and 7.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gmc_core.typing import Bool, Float, Int

__all__ = [
    "EnumerablePolicy",
    "ResponseSpace",
    "bandit_policy",
    "chi_square_divergence",
    "kl_divergence",
    "response_space",
]


@dataclass(frozen=True)
class ResponseSpace:
    """All responses, in a fixed order.

    tokens: (K, T) token numbers, 0 after the end; mask: (K, T) True on real tokens (the end token is one of them);
    context: (K, T) number of the prefix in which the token is drawn, 0 where masked; vocabulary: V;
    contexts: C. With an end token it is the last of the vocabulary, V - 1.
    """

    tokens: Int[Tensor, "K T"]
    mask: Bool[Tensor, "K T"]
    context: Int[Tensor, "K T"]
    vocabulary: int
    contexts: int

    @property
    def responses(self) -> int:
        return self.tokens.shape[0]

    @property
    def max_length(self) -> int:
        return self.tokens.shape[1]

    @property
    def lengths(self) -> Int[Tensor, " K"]:
        return self.mask.sum(-1)


def response_space(vocabulary: int, max_length: int, *, end_token: bool = True) -> ResponseSpace:
    """Enumerate all responses of up to `max_length` tokens.

    With `end_token` the last token of the vocabulary ends a response, and a response is cut at `max_length`:
    K = sum_{k<T-1} (V-1)^k + (V-1)^(T-1) V. Without it all V^T responses have length T.
    """
    if vocabulary < 2 or max_length < 1:
        raise ValueError(
            f"response_space needs vocabulary >= 2 and max_length >= 1, got {vocabulary} and {max_length}: "
            "one token or no token leaves nothing to choose."
        )
    going_on = vocabulary - 1 if end_token else vocabulary
    rows: list[tuple[int, ...]] = []
    if end_token:
        for length in range(1, max_length):
            rows += [(*prefix, vocabulary - 1) for prefix in itertools.product(range(going_on), repeat=length - 1)]
    rows += [
        (*prefix, last)
        for prefix in itertools.product(range(going_on), repeat=max_length - 1)
        for last in range(vocabulary)
    ]
    prefixes = [p for k in range(max_length) for p in itertools.product(range(going_on), repeat=k)]
    number = {prefix: i for i, prefix in enumerate(prefixes)}
    tokens = torch.zeros(len(rows), max_length, dtype=torch.long)
    context = torch.zeros_like(tokens)
    mask = torch.zeros(len(rows), max_length, dtype=torch.bool)
    for k, row in enumerate(rows):
        tokens[k, : len(row)] = torch.tensor(row)
        context[k, : len(row)] = torch.tensor([number[row[:t]] for t in range(len(row))])
        mask[k, : len(row)] = True
    return ResponseSpace(tokens, mask, context, vocabulary, len(prefixes))


@dataclass(frozen=True)
class EnumerablePolicy:
    """Tabular softmax policy: pi(token v given prefix c) = softmax(logits[..., c, :])_v; leading dims are a batch.

    `index` arguments are numbers of responses, (..., G) with the same leading dims as the logits; None means all K.
    """

    space: ResponseSpace
    logits: Float[Tensor, "... C V"]

    def __post_init__(self) -> None:
        wanted = (self.space.contexts, self.space.vocabulary)
        if not self.logits.is_floating_point() or tuple(self.logits.shape[-2:]) != wanted:
            raise ValueError(
                f"logits must be floating point and end in (contexts, vocabulary) = {wanted}, "
                f"got {self.logits.dtype} of shape {tuple(self.logits.shape)}."
            )

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return tuple(self.logits.shape[:-2])

    def token_log_probs(self, index: Int[Tensor, "... G"] | None = None) -> Float[Tensor, "... G T"]:
        """log pi of every token, 0 where the mask is False; shape (..., K, T), or (..., G, T) for `index`."""
        flat_logp = _over_tokens(torch.log_softmax, self.logits).flatten(-2)
        cell = self._cells(index)
        logp = flat_logp.gather(-1, cell.flatten(-2)).unflatten(-1, cell.shape[-2:])
        return logp.masked_fill(~self._mask(index), 0.0)

    def response_log_probs(self, index: Int[Tensor, "... G"] | None = None) -> Float[Tensor, "... G"]:
        """log pi(y) = sum_t log pi(y_t | y_<t); shape (..., K), or (..., G) for `index`."""
        return self.token_log_probs(index).sum(-1)

    def probabilities(self) -> Float[Tensor, "... K"]:
        """pi(y) of all K responses; sums to 1."""
        return self.response_log_probs().exp()

    def sample(self, count: int, generator: torch.Generator) -> Int[Tensor, "... G"]:
        """Draw `count` independent responses for each policy of the batch; shape (..., count)."""
        prob = self.probabilities().detach()
        drawn = torch.multinomial(prob.reshape(-1, self.space.responses), count, replacement=True, generator=generator)
        return drawn.reshape(*self.batch_shape, count)

    def expected_reward(self, reward: Float[Tensor, "... K"]) -> Float[Tensor, ...]:
        """J = sum_y pi(y) R(y)."""
        return (self.probabilities() * reward).sum(-1)

    def gradient(self, reward: Float[Tensor, "... K"]) -> Float[Tensor, "... C V"]:
        """grad J = sum_y pi(y) (R(y) - J) grad log pi(y), with respect to the logits; shape (..., C, V)."""
        prob = self.probabilities()
        centred = prob * (reward - (prob * reward).sum(-1, keepdim=True))
        return self.surrogate_gradient(None, centred.unsqueeze(-1).expand(*centred.shape, self.space.max_length))

    def surrogate_gradient(
        self, index: Int[Tensor, "... G"] | None, coefficient: Float[Tensor, "... G T"]
    ) -> Float[Tensor, "... C V"]:
        """sum_it coefficient_it * d log pi(y_it | y_i,<t) / d logits; shape (..., C, V).

        With coefficient = A_i w_it / G this is the estimator's gradient. Masked tokens contribute nothing whatever
        their coefficient. Same value as backward through `(coefficient * token_log_probs(index)).sum()`. One policy
        (logits (C, V)) may be given any number of groups, index (N, G): the result is then (N, C, V).
        """
        coefficient = coefficient.masked_fill(~self._mask(index), 0.0).to(self.logits.dtype)
        cell = self._cells(index).expand(*coefficient.shape)
        mass = self.logits.new_zeros(*coefficient.shape[:-2], self.space.contexts * self.space.vocabulary)
        mass = mass.scatter_add(-1, cell.flatten(-2), coefficient.flatten(-2))
        mass = mass.unflatten(-1, (self.space.contexts, self.space.vocabulary))
        return mass - mass.sum(-1, keepdim=True) * _over_tokens(torch.softmax, self.logits)

    def token_scores(self) -> Float[Tensor, "... K T C V"]:
        """grad log pi(y_t | y_<t) of every token of every response, 0 where masked; shape (..., K, T, C, V)."""
        C, V, mask = self.space.contexts, self.space.vocabulary, self.space.mask
        at_context = torch.nn.functional.one_hot(self.space.context, C).to(self.logits.dtype)
        chosen = torch.nn.functional.one_hot(self.space.tokens, V).to(self.logits.dtype)
        centred = chosen - torch.softmax(self.logits, -1)[..., self.space.context, :]
        return at_context[..., :, None] * centred[..., None, :] * mask[..., None, None]

    def scores(self) -> Float[Tensor, "... K C V"]:
        """s(y) = grad log pi(y) with respect to the logits; shape (..., K, C, V)."""
        return self.token_scores().sum(-3)

    def _cells(self, index: Tensor | None) -> Tensor:
        cell = self.space.context * self.space.vocabulary + self.space.tokens
        return cell.expand(*self.batch_shape, *cell.shape) if index is None else cell[index]

    def _mask(self, index: Tensor | None) -> Tensor:
        return self.space.mask if index is None else self.space.mask[index]


def _over_tokens(function: Callable[[Tensor, int], Tensor], logits: Tensor) -> Tensor:
    """softmax or log_softmax over the last dimension; with few tokens and many rows it is faster along strides."""
    if logits.shape[-1] > 8:
        return function(logits, -1)
    return function(logits.transpose(-1, -2).contiguous(), -2).transpose(-1, -2)


def bandit_policy(probabilities: Float[Tensor, "... K"]) -> EnumerablePolicy:
    """A policy whose K responses are single tokens, with the given probabilities (logits = their logarithms)."""
    space = response_space(probabilities.shape[-1], 1, end_token=False)
    return EnumerablePolicy(space, probabilities.log().unsqueeze(-2))


def kl_divergence(current: EnumerablePolicy, behavior: EnumerablePolicy) -> Float[Tensor, ...]:
    """KL(pi || b) of whole responses, in nats."""
    log_ratio = current.response_log_probs() - behavior.response_log_probs()
    return (current.probabilities() * log_ratio).sum(-1)


def chi_square_divergence(current: EnumerablePolicy, behavior: EnumerablePolicy) -> Float[Tensor, ...]:
    """v = chi^2(pi || b) = E_b[(r - 1)^2], the variance of the trajectory ratio."""
    ratio_minus_1 = torch.expm1(current.response_log_probs() - behavior.response_log_probs())
    return (behavior.probabilities() * ratio_minus_1.square()).sum(-1)
