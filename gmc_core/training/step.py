"""The optimiser step at the end of an update: clip the gradient, apply it, bound how far the parameters move.

A model in bf16 cannot take small steps: next to a weight of 1, the smallest change that bf16 can hold is 0.004, and a
step of 1e-6 rounds to none, every time. So its steps are taken on an fp32 copy (`master_weights`), which the model's
weights follow by rounding: small steps add up in the copy until they show. Gradients of the micro-batches are added up
in fp32 too, for the same reason.

The fused kernels are tested on a CPU; on CUDA, where they are the default, they were not run here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gmc_core.training.run_config import RunConfig

OPTIMIZERS = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}


class OptimizerStep:
    """The optimiser of a run, its learning rate over time and its two bounds, `gradient_clip` and `max_update_length`.

    Call `clear`, then `collect` after every backward pass, then `take`.
    """

    def __init__(self, parameters: list[torch.nn.Parameter], config: RunConfig) -> None:
        self.config, self.weights = config, parameters
        short = config.master_weights and any(weight.dtype in (torch.bfloat16, torch.float16) for weight in parameters)
        self.masters = [_fp32_copy(weight) for weight in parameters] if short else None
        # what the optimiser moves: the copy if there is one, the weights themselves if not
        self.parameters: list[Tensor] = self.masters or list(parameters)
        fused = config.fused_optimizer
        if fused is None:
            fused = all(weight.is_cuda for weight in parameters)
        options = {"fused": True} if fused else {}
        self.optimizer = OPTIMIZERS[config.optimizer](self.parameters, lr=config.learning_rate, **options)
        self.updates = 0  # calls of `take`, skipped ones included: where the warm-up stands

    def clear(self) -> None:
        """Forget all gradients."""
        for tensor in {*self.weights, *self.parameters}:
            tensor.grad = None

    def collect(self) -> None:
        """Take over the gradients of one backward pass, in fp32 when there is an fp32 copy of the weights."""
        if self.masters is None:
            return
        for weight, master in zip(self.weights, self.masters, strict=True):
            if weight.grad is None:
                continue
            if master.grad is None:
                master.grad = weight.grad.float()
            else:
                master.grad.add_(weight.grad)
            weight.grad = None

    @property
    def learning_rate(self) -> float:
        """Of the next update: the configured one, or its share during the linear warm-up."""
        warmup = self.config.warmup_updates
        return self.config.learning_rate * min(1.0, (self.updates + 1) / warmup if warmup else 1.0)

    def take(self) -> dict[str, float]:
        """Apply the gradients that were collected; metrics as plain floats.

        A gradient that is not finite (an uncapped ratio can overflow fp32) takes no step and is counted in
        `skipped_update`; without any gradient (every group had zero advantage) nothing moves, weight decay included.
        """
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        grad_norm = torch.nn.utils.get_total_norm(gradients).item() if gradients else 0.0
        skipped = not math.isfinite(grad_norm)
        clip = self.config.gradient_clip
        clipped = 0.0 if skipped else grad_norm if clip is None else min(grad_norm, clip)
        learning_rate = self.learning_rate
        length = 0.0
        if clipped > 0:
            if clipped < grad_norm:
                torch._foreach_mul_(gradients, clipped / grad_norm)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
            length = self._apply()
        self.updates += 1
        return {
            "grad_norm": grad_norm,
            "grad_norm_clipped": clipped,
            "update_length": length,
            "learning_rate": learning_rate,
            "skipped_update": float(skipped),
        }

    def _apply(self) -> float:
        """Take the step, shortened to `max_update_length`; its Euclidean length in parameter space.

        The change of the parameters is what is bounded, whatever the optimiser: for SGD it is the learning rate times
        the applied gradient norm, for AdamW it is not a function of the gradient norm at all. AdamW's moments are those
        of the whole gradient. With an fp32 copy, the length is the copy's.
        """
        parameters = [parameter.detach() for parameter in self.parameters]
        before = [parameter.clone() for parameter in parameters]
        self.optimizer.step()
        limit = self.config.max_update_length
        if limit is None:  # in place: three copies of the parameters would be one too many
            torch._foreach_sub_(before, parameters)
            length = torch.nn.utils.get_total_norm(before).item()
        else:
            change = torch._foreach_sub(parameters, before)
            length = torch.nn.utils.get_total_norm(change).item()
            if length > limit:
                torch._foreach_mul_(change, limit / length)
                torch._foreach_copy_(parameters, torch._foreach_add(before, change))
                length = limit
        if self.masters is not None:
            torch._foreach_copy_([weight.detach() for weight in self.weights], parameters)
        return length

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next updates depend on, for a checkpoint."""
        state = self.optimizer.state_dict()["state"]
        return {
            "updates": self.updates,
            "optimizer": {str(index): dict(entry) for index, entry in state.items()},
            "masters": None if self.masters is None else [master.detach() for master in self.masters],
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken. ValueError when the state has master weights and this run has none."""
        if (state["masters"] is None) != (self.masters is None):
            raise ValueError(
                "the state of the optimiser and this run disagree on master_weights; give both the same RunConfig"
            )
        if self.masters is not None:
            for master, saved in zip(self.masters, state["masters"], strict=True):
                master.copy_(saved)
        whole = self.optimizer.state_dict()
        whole["state"] = {int(index): dict(entry) for index, entry in state["optimizer"].items()}
        self.optimizer.load_state_dict(whole)
        self.updates = state["updates"]


def _fp32_copy(weight: Tensor) -> Tensor:
    return weight.detach().to(torch.float32, copy=True).requires_grad_()
