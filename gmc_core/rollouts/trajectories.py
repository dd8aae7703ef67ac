"""What travels through the house: groups of rollouts with the log-probs and the version of their sampling policy.

A `Group` is every rollout of one prompt; it is never split before the weights are known, because a group weight needs
all of it. A `Batch` is what one update learns from. Shapes: P prompts, G rollouts per prompt, T response tokens (padded
on the right), L prompt tokens (padded on the left in a batch).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gmc_core.rollouts.tasks import Prompt


@dataclass(frozen=True)
class Group:
    """All G rollouts of one prompt, as an engine returns them.

    `response_GT` token ids (anything where `mask_GT` is False), `mask_GT` True on sampled tokens, end of sequence
    included, `behavior_logp_GT` fp32 log-probs of the sampling distribution (nats, temperature included),
    `version_GT` the policy version that sampled each token, `finished_G` False where the length limit cut a rollout,
    `reward_G` once the verifier has spoken.
    """

    prompt: Prompt
    prompt_tokens_L: Tensor
    response_GT: Tensor
    mask_GT: Tensor
    behavior_logp_GT: Tensor
    version_GT: Tensor
    finished_G: Tensor
    reward_G: Tensor | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.response_GT.shape)
        if len(shape) != 2:
            raise ValueError(f"a group's response_GT has shape {shape}; expected (rollouts, tokens)")
        for name in ("mask_GT", "behavior_logp_GT", "version_GT"):
            if tuple(getattr(self, name).shape) != shape:
                raise ValueError(f"a group's {name} has shape {tuple(getattr(self, name).shape)}; expected {shape}")
        for name in ("finished_G", "reward_G"):
            value = getattr(self, name)
            if value is not None and tuple(value.shape) != shape[:1]:
                raise ValueError(f"a group's {name} has shape {tuple(value.shape)}; expected {shape[:1]}")

    @property
    def size(self) -> int:
        return self.response_GT.shape[0]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by the names of their fields; rewards only once they are there."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def to(self, device: torch.device | str) -> Group:
        """The group with its tensors on `device`."""
        return replace(self, **{name: value.to(device) for name, value in self.tensors.items()})


@dataclass(frozen=True)
class Batch:
    """Whole groups, padded to one rectangle. Build it with `Batch.from_groups`.

    `valid_PG` is False for a rollout that must count nowhere: padding of a smaller group, or a rollout masked from the
    loss because it was cut by the length limit.
    """

    prompt_PL: Tensor
    prompt_mask_PL: Tensor
    response_PGT: Tensor
    mask_PGT: Tensor
    behavior_logp_PGT: Tensor
    version_PGT: Tensor
    finished_PG: Tensor
    reward_PG: Tensor
    valid_PG: Tensor

    @classmethod
    def from_groups(
        cls, groups: Sequence[Group], *, group_size: int | None = None, mask_truncated: bool = False
    ) -> Batch:
        """Pad whole groups to one rectangle, trimmed to the longest response.

        `group_size`: the number of rollouts that every group was asked for. A group with fewer or more is torn, and
        training on it would change its mean reward and its mass without a word, so it raises ValueError; None accepts
        groups of unequal size. `mask_truncated` leaves rollouts cut by the length limit out of everything.
        """
        if not groups:
            raise ValueError("a batch needs at least one group; got none")
        for index, group in enumerate(groups):
            if group_size is not None and group.size != group_size:
                raise ValueError(
                    f"group {index} (prompt {group.prompt.text!r}) is torn: {group.size} rollouts, expected "
                    f"{group_size}. Give the learner whole groups, or pass group_size=None if unequal groups are meant"
                )
            if group.reward_G is None:
                raise ValueError(
                    f"group {index} (prompt {group.prompt.text!r}) has no rewards; verify it before batching"
                )
        P, G = len(groups), max(group.size for group in groups)
        T = max(1, max(int(group.mask_GT.sum(-1).max()) for group in groups))
        L = max(group.prompt_tokens_L.numel() for group in groups)
        device = groups[0].response_GT.device

        def rectangle(name: str, dtype: torch.dtype, *shape: int) -> Tensor:
            out = torch.zeros(shape, dtype=dtype, device=device)
            for p, group in enumerate(groups):
                value = getattr(group, name)
                if len(shape) == 3:
                    width = min(T, value.shape[1])
                    out[p, : group.size, :width] = value[:, :width]
                else:
                    out[p, : group.size] = value
            return out

        prompt_PL = torch.zeros((P, L), dtype=torch.long, device=device)
        prompt_mask_PL = torch.zeros((P, L), dtype=torch.bool, device=device)
        for p, group in enumerate(groups):
            length = group.prompt_tokens_L.numel()
            prompt_PL[p, L - length :] = group.prompt_tokens_L
            prompt_mask_PL[p, L - length :] = True
        finished_PG = rectangle("finished_G", torch.bool, P, G)
        valid_PG = torch.zeros((P, G), dtype=torch.bool, device=device)
        for p, group in enumerate(groups):
            valid_PG[p, : group.size] = True
        if mask_truncated:
            valid_PG &= finished_PG
        return cls(
            prompt_PL=prompt_PL,
            prompt_mask_PL=prompt_mask_PL,
            response_PGT=rectangle("response_GT", torch.long, P, G, T),
            mask_PGT=rectangle("mask_GT", torch.bool, P, G, T),
            behavior_logp_PGT=rectangle("behavior_logp_GT", torch.float32, P, G, T),
            version_PGT=rectangle("version_GT", torch.long, P, G, T),
            finished_PG=finished_PG,
            reward_PG=rectangle("reward_G", torch.float32, P, G),
            valid_PG=valid_PG,
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(P, G, T)."""
        return tuple(self.response_PGT.shape)
