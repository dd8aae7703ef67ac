"""One view of groups for both layouts, so that each rule is written once.

Grouped: the last dimension of a tensor is the group, (..., G), with an optional `valid` mask for short groups.
Flat: a tensor (N,) with `group_index` (N,) of integer labels in any order; the view pads it to (K, largest group),
with groups in ascending order of their labels, and puts results back in the caller's order. Padding keeps sums
deterministic on every device (no atomics); its memory is K times the largest group.
"""

import torch
from torch import Tensor

from gmc_core.estimators.checks import check_shape, check_tensor, computing_dtype
from gmc_core.estimators.importance_ratios import counted_rollouts


class GroupLayout:
    """How rollouts are cut into groups: `pack` to (..., group), `unpack` back to the caller's shape."""

    def __init__(self, shape: torch.Size, group_index: Tensor | None, *, what: str) -> None:
        self.flat = group_index is not None
        if group_index is None:
            if len(shape) == 0:
                raise ValueError(f"{what} is a scalar; expected (..., G) with the group last, or (N,) and group_index.")
            return
        check_tensor("group_index", group_index)
        if group_index.is_floating_point() or group_index.is_complex() or group_index.dtype == torch.bool:
            raise TypeError(f"group_index must hold integer labels, got {group_index.dtype}; convert it with .long().")
        if len(shape) != 1:
            raise ValueError(
                f"group_index goes with flat rollouts: {what} must have shape (N,), got {tuple(shape)}. "
                "Flatten it, or leave group_index out and let the last dimension be the group."
            )
        check_shape("group_index", group_index, shape, f"one label per rollout of {what}")
        self._sort(group_index)

    def _sort(self, group_index: Tensor) -> None:
        labels, self.order = torch.sort(group_index, stable=True)
        first = torch.ones_like(labels, dtype=torch.bool)
        first[1:] = labels[1:] != labels[:-1]
        group = first.cumsum(0) - 1
        start = torch.nonzero(first).squeeze(-1)
        position = torch.arange(len(labels), device=labels.device) - start[group]
        self.groups = len(start)
        self.width = int(position.max()) + 1 if self.groups else 0
        self.slot = group * self.width + position  # of the rollouts in sorted order

    def pack(self, values: Tensor, fill: float | bool) -> Tensor:
        """(N,) -> (K, width) with `fill` in the empty places; grouped values pass unchanged."""
        if not self.flat:
            return values
        packed = values.new_full((self.groups * self.width,), fill)
        packed[self.slot] = values[self.order]
        return packed.view(self.groups, self.width)

    def unpack(self, packed: Tensor) -> Tensor:
        """(K, width) -> (N,) in the caller's order; grouped values pass unchanged."""
        if not self.flat:
            return packed
        values = packed.new_empty(self.slot.shape)
        values[self.order] = packed.reshape(-1)[self.slot]
        return values


class RatioGroups:
    """The log-ratios of a batch in groups, detached, with everything a rule needs to stay in log space.

    Attributes (all with the group last):
        log_ratio: -inf where a rollout does not count. counted: bool. count: number of counted rollouts (..., 1).
        peak: the largest log-ratio of the group, 0 for an empty or massless group (..., 1).
        scaled: exp(log_ratio - peak), in [0, 1]. mean_scaled: its mean over counted rollouts (..., 1), so that
        M = exp(peak) * mean_scaled and r / M = scaled / mean_scaled, both exact when every ratio is 1.
    """

    def __init__(self, log_ratio: Tensor, group_index: Tensor | None, valid: Tensor | None) -> None:
        check_tensor("log_ratio", log_ratio, floating=True)
        self.layout = GroupLayout(log_ratio.shape, group_index, what="log_ratio")
        counted = counted_rollouts(log_ratio, valid)
        values = torch.where(counted, log_ratio.detach().to(computing_dtype(log_ratio)), -torch.inf)
        self.counted = self.layout.pack(counted, False)
        self.log_ratio = self.layout.pack(values, -torch.inf)
        self.count = self.counted.sum(-1, keepdim=True)
        if self.log_ratio.shape[-1]:
            peak = self.log_ratio.amax(-1, keepdim=True)
        else:
            peak = self.log_ratio.new_full((*self.log_ratio.shape[:-1], 1), -torch.inf)
        self.peak = torch.where(torch.isinf(peak), 0.0, peak)
        self.scaled = torch.exp(self.log_ratio - self.peak)
        self.mean_scaled = self.scaled.sum(-1, keepdim=True) / self.count.clamp_min(1)

    @property
    def log_mass(self) -> Tensor:
        """log M per group (..., 1); -inf for a group without counted rollouts or with all ratios 0."""
        return self.peak + torch.log(self.mean_scaled)

    @property
    def normalized(self) -> Tensor:
        """r_i / M, 0 for a massless group."""
        return self.scaled / self.mean_scaled.clamp_min(torch.finfo(self.scaled.dtype).tiny)


def saturating_exp(log_value: Tensor) -> Tensor:
    """exp, held at the largest finite number: an infinite weight times a zero advantage would be NaN."""
    return torch.exp(log_value).clamp_max(torch.finfo(log_value.dtype).max)
