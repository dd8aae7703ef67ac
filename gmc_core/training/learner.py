"""One update of the policy from one batch of whole groups.

    current log-probs -> log-ratios -> weights with whole groups in view -> micro-batched backward -> step

The weights need every rollout of a group, memory does not: when a step exceeds `micro_batch_tokens`, a first pass
without gradient gives all log-probs, the weights follow, and a second pass runs micro-batch by micro-batch with
gradient. A step that fits in one micro-batch needs a single pass. Groups whose advantages are all zero contribute
exactly no gradient, so they are scored without one (their ratios are still measured).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gmc_core.estimators import (
    counted_rollouts,
    group_advantages,
    group_diagnostics,
    loss_normalizer,
    make_estimator,
    policy_gradient_loss,
    trajectory_log_ratio,
)
from gmc_core.rollouts.policy import Policy, response_log_probs
from gmc_core.rollouts.trajectories import Batch
from gmc_core.training.run_config import RunConfig


class Learner:
    """Owns the trained policy and its optimiser; `update(batch)` takes one step and returns its metrics."""

    def __init__(self, policy: Policy, config: RunConfig) -> None:
        self.policy = policy
        self.config = config
        self.estimator = make_estimator(config.estimator, **config.estimator_options)
        self.epsilon = getattr(self.estimator, "epsilon", 0.2)
        self.parameters = [parameter for parameter in policy.model.parameters() if parameter.requires_grad]
        make = torch.optim.SGD if config.optimizer == "sgd" else torch.optim.AdamW
        self.optimizer = make(self.parameters, lr=config.learning_rate)

    def update(self, batch: Batch) -> dict[str, float]:
        """One optimiser step. Metrics are plain floats, named in `METRICS`.

        A non-finite gradient (an uncapped ratio can overflow fp32) takes no step and is counted in `skipped_update`.
        """
        config = self.config
        P, G, T = batch.shape
        valid_PG = self._scored(batch)
        advantage_PG = group_advantages(
            batch.reward_PG,
            normalization=config.advantage,
            lengths=batch.mask_PGT.sum(-1) if config.advantage == "length_corrected" else None,
            valid=valid_PG,
        )
        scale_PG = loss_normalizer(
            config.normalizer,
            batch.mask_PGT,
            valid=valid_PG,
            max_length=config.response_limit if config.divides_by_length else None,
        )
        active_N = (advantage_PG != 0).any(-1, keepdim=True).expand(P, G).flatten().nonzero().squeeze(-1)
        passes = list(self._micro_batches(batch, active_N))
        single_pass = len(passes) <= 1

        logp_NT = torch.zeros((P * G, T), dtype=torch.float32, device=batch.response_PGT.device)
        graph: Tensor | None = None
        if single_pass and len(active_N):
            graph = self._log_probs(batch, active_N)
            logp_NT[active_N] = graph.detach()
        with torch.no_grad():
            rest_N = self._complement(active_N, P * G) if single_pass else torch.arange(P * G, device=logp_NT.device)
            for rows_N in self._micro_batches(batch, rest_N):
                logp_NT[rows_N] = self._log_probs(batch, rows_N)
        logp_PGT = logp_NT.view(P, G, T)
        if torch.isnan(logp_PGT[batch.mask_PGT]).any():
            raise FloatingPointError(
                "the trained model gives NaN log-probs: its weights are broken. Resume from the last checkpoint with a "
                "smaller learning_rate or a gradient_clip"
            )

        weight_PGT = self.estimator(logp_PGT, batch.behavior_logp_PGT, batch.mask_PGT, advantage_PG, valid_PG)
        self.optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        for rows_N in passes:
            logp = graph if graph is not None else self._log_probs(batch, rows_N)
            part, _ = policy_gradient_loss(
                logp,
                weight_PGT.flatten(0, 1)[rows_N],
                advantage_PG.flatten()[rows_N],
                batch.mask_PGT.flatten(0, 1)[rows_N],
                normalizer=scale_PG.flatten()[rows_N],
            )
            part.backward()
            loss += part.item()
        metrics = self._step()
        log_ratio_PG = trajectory_log_ratio(logp_PGT, batch.behavior_logp_PGT, batch.mask_PGT)
        diagnostics = group_diagnostics(
            log_ratio_PG,
            weight_PGT,
            epsilon=self.epsilon,
            valid=batch.valid_PG,
            mask=batch.mask_PGT,
            advantage=advantage_PG,
        )
        return {"loss": loss} | metrics | {name: value.item() for name, value in diagnostics.items()}

    @staticmethod
    def _scored(batch: Batch) -> Tensor:
        """Rollouts with a usable behaviour log-prob on every token: others must not sway a group's mean or count."""
        self_ratio_PG = trajectory_log_ratio(batch.behavior_logp_PGT, batch.behavior_logp_PGT, batch.mask_PGT)
        return counted_rollouts(self_ratio_PG, batch.valid_PG)

    def _step(self) -> dict[str, float]:
        config = self.config
        if all(parameter.grad is None for parameter in self.parameters):  # every group had zero advantage
            grad_norm = 0.0
        else:
            grad_norm = torch.nn.utils.get_total_norm(
                [parameter.grad for parameter in self.parameters if parameter.grad is not None]
            ).item()
        skipped = not torch.isfinite(torch.tensor(grad_norm)).item()
        clipped = grad_norm if config.gradient_clip is None else min(grad_norm, config.gradient_clip)
        length = 0.0
        if skipped:
            clipped = 0.0
        elif grad_norm > 0:
            if clipped < grad_norm:
                torch._foreach_mul_([p.grad for p in self.parameters if p.grad is not None], clipped / grad_norm)
            length = self._apply()
        return {
            "grad_norm": grad_norm,
            "grad_norm_clipped": clipped,
            "update_length": length,
            "learning_rate": config.learning_rate,
            "skipped_update": float(skipped),
        }

    def _apply(self) -> float:
        """Take the step; its Euclidean length in parameter space."""
        before = [parameter.detach().clone() for parameter in self.parameters]
        self.optimizer.step()
        change = torch._foreach_sub([parameter.detach() for parameter in self.parameters], before)
        return torch.nn.utils.get_total_norm(change).item()

    def _log_probs(self, batch: Batch, rows_N: Tensor) -> Tensor:
        """(N, T) log-probs of the given rollouts. Rollouts of a prompt that say the same are run once."""
        _, G, T = batch.shape
        prompt_N1 = torch.div(rows_N, G, rounding_mode="floor").unsqueeze(-1)
        mask_NT = batch.mask_PGT.flatten(0, 1)[rows_N]
        response_NT = torch.where(mask_NT, batch.response_PGT.flatten(0, 1)[rows_N], 0)
        identity = torch.cat([prompt_N1, mask_NT.sum(-1, keepdim=True), response_NT], dim=-1)
        distinct, copy_N = torch.unique(identity, dim=0, return_inverse=True)
        used, index = torch.unique(distinct[:, 0], return_inverse=True)
        return response_log_probs(
            self.policy.model,
            batch.prompt_PL[used],
            batch.prompt_mask_PL[used],
            distinct[:, -T:],
            index,
            temperature=self.config.temperature,
        )[copy_N]

    def _micro_batches(self, batch: Batch, rows_N: Tensor) -> Iterator[Tensor]:
        """The given rows in slices of at most `micro_batch_tokens` padded tokens, at least one row each."""
        _, _, T = batch.shape
        count = max(1, self.config.micro_batch_tokens // (batch.prompt_PL.shape[-1] + T))
        return (rows_N[start : start + count] for start in range(0, len(rows_N), count))

    @staticmethod
    def _complement(rows_N: Tensor, total: int) -> Tensor:
        keep = torch.ones(total, dtype=torch.bool, device=rows_N.device)
        keep[rows_N] = False
        return keep.nonzero().squeeze(-1)
