"""The optimiser step at the end of an update: clip the gradient, apply it, bound how far the parameters move."""

from __future__ import annotations

import math

import torch

from gmc_core.training.run_config import RunConfig


class OptimizerStep:
    """The optimiser of a run and its two bounds, `gradient_clip` and `max_update_length`."""

    def __init__(self, parameters: list[torch.nn.Parameter], config: RunConfig) -> None:
        self.parameters, self.config = parameters, config
        make = torch.optim.SGD if config.optimizer == "sgd" else torch.optim.AdamW
        self.optimizer = make(parameters, lr=config.learning_rate)

    def clear(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def take(self) -> dict[str, float]:
        """Apply the gradients that were accumulated; metrics as plain floats.

        A gradient that is not finite (an uncapped ratio can overflow fp32) takes no step and is counted in
        `skipped_update`; without any gradient (every group had zero advantage) nothing moves, weight decay included.
        """
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        grad_norm = torch.nn.utils.get_total_norm(gradients).item() if gradients else 0.0
        skipped = not math.isfinite(grad_norm)
        clip = self.config.gradient_clip
        clipped = 0.0 if skipped else grad_norm if clip is None else min(grad_norm, clip)
        length = 0.0
        if clipped > 0:
            if clipped < grad_norm:
                torch._foreach_mul_(gradients, clipped / grad_norm)
            length = self._apply()
        return {
            "grad_norm": grad_norm,
            "grad_norm_clipped": clipped,
            "update_length": length,
            "learning_rate": self.config.learning_rate,
            "skipped_update": float(skipped),
        }

    def _apply(self) -> float:
        """Take the step, shortened to `max_update_length`; its Euclidean length in parameter space.

        The change of the parameters is what is bounded, whatever the optimiser: for SGD it is the learning rate times
        the applied gradient norm, for AdamW it is not a function of the gradient norm at all. AdamW's moments are those
        of the whole gradient.
        """
        parameters = [parameter.detach() for parameter in self.parameters]
        before = [parameter.clone() for parameter in parameters]
        self.optimizer.step()
        change = torch._foreach_sub(parameters, before)
        length = torch.nn.utils.get_total_norm(change).item()
        limit = self.config.max_update_length
        if limit is None or length <= limit:
            return length
        torch._foreach_mul_(change, limit / length)
        torch._foreach_copy_(parameters, torch._foreach_add(before, change))
        return limit
