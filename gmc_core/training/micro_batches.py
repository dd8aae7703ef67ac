"""Which rollouts go through the model together, so that a forward pass holds a bounded number of tokens.

The lengths of a step may differ by orders of magnitude; padded to one rectangle, most of it would be padding. So:

- A step whose rectangle fits in the budget is one pass, as it is. So is, slice by slice in its own order, a rectangle
  of which at most a quarter is padding.
- Any other is packed: rollouts of similar response length come together, among them those of similar prompt length, and
  each micro-batch is trimmed to its own longest prompt and response. At most a quarter of every micro-batch is padding,
  but for those smaller than 1/16 of the budget, whose padding costs less than another pass. Rollouts of a prompt stay
  together where lengths allow it, because a prompt is run once per micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gmc_core.rollouts.trajectories import Batch

MOST_PADDING = 0.25
SMALL = 16  # a micro-batch below 1 / SMALL of the budget may hold any padding


@dataclass(frozen=True)
class MicroBatch:
    """Rows (M,) of the flattened batch, and the prompt and response tokens to which they are trimmed."""

    rows_M: Tensor
    prompt_width: int
    response_width: int

    @property
    def tokens(self) -> int:
        """Tokens of its rectangle, padding included."""
        return len(self.rows_M) * (self.prompt_width + self.response_width)


def plan_micro_batches(batch: Batch, rows_N: Tensor, budget: int) -> list[MicroBatch]:
    """The rows (N,) of the flattened batch in micro-batches of at most `budget` tokens, or of a single longer rollout.

    Tokens are those of prompt, response and padding. Packed rows come longest first: what does not fit in memory
    fails at once. A packed plan leaves out rows without a single response token (they have nothing to score).
    """
    _, G, T = batch.shape
    L = batch.prompt_PL.shape[-1]
    prompt_N = batch.prompt_mask_PL.sum(-1)[torch.div(rows_N, G, rounding_mode="floor")]
    response_N = batch.mask_PGT.flatten(0, 1)[rows_N].sum(-1)
    rectangle = len(rows_N) * (L + T)
    if rectangle <= budget or rectangle - int((prompt_N + response_N).sum()) <= MOST_PADDING * rectangle:
        fit = max(1, budget // (L + T))
        return [MicroBatch(rows_N[start : start + fit], L, T) for start in range(0, len(rows_N), fit)]
    packed = _pack(prompt_N.tolist(), response_N.tolist(), budget)
    return [
        MicroBatch(rows_N[torch.tensor(members, device=rows_N.device)], prompt, response)
        for members, prompt, response in packed
    ]


def _pack(prompts: Sequence[int], responses: Sequence[int], budget: int) -> list[tuple[list[int], int, int]]:
    """(positions, longest prompt, longest response) of every micro-batch."""
    prompt_class, response_class = _classes(prompts), _classes(responses)
    order = sorted(
        (position for position, response in enumerate(responses) if response > 0),
        key=lambda position: (response_class[responses[position]], prompt_class[prompts[position]], position),
    )
    packed: list[tuple[list[int], int, int]] = []
    members: list[int] = []
    prompt = response = used = 0
    for position in order:
        wider, longer = max(prompt, prompts[position]), max(response, responses[position])
        area = (len(members) + 1) * (wider + longer)
        padding = area - used - prompts[position] - responses[position]
        if members and (area > budget or (padding > MOST_PADDING * area and area * SMALL > budget)):
            packed.append((sorted(members), prompt, response))
            members, used, wider, longer = [], 0, prompts[position], responses[position]
        members.append(position)
        prompt, response, used = wider, longer, used + prompts[position] + responses[position]
    return [*packed, (sorted(members), prompt, response)] if members else packed


def _classes(lengths: Sequence[int]) -> dict[int, int]:
    """The class of every length, longest first: a class reaches down to three quarters of its longest member."""
    classes: dict[int, int] = {}
    head, number = 0, -1
    for length in sorted(set(lengths), reverse=True):
        if number < 0 or length < (1 - MOST_PADDING) * head:
            head, number = length, number + 1
        classes[length] = number
    return classes
