"""One update of the policy from one batch of whole groups.

    current log-probs -> log-ratios -> weights with whole groups in view -> micro-batched backward -> step

The weights need every rollout of a group, memory does not: when a step exceeds `micro_batch_tokens`, a first pass
without gradient gives all log-probs, the weights follow, and a second pass runs micro-batch by micro-batch with
gradient. A step that fits in one micro-batch needs a single pass. Groups whose advantages are all zero contribute
exactly no gradient, so they are scored without one (their ratios are still measured).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from gmc_core.estimators import group_diagnostics, policy_gradient_loss, trajectory_log_ratio
from gmc_core.estimators.checks import computing_dtype
from gmc_core.rollouts.policy import Policy, load_snapshot
from gmc_core.rollouts.trajectories import Batch
from gmc_core.training.compiled_layers import CompiledLayers
from gmc_core.training.micro_batches import MicroBatch, plan_micro_batches
from gmc_core.training.recomputed_layers import recomputed_layers
from gmc_core.training.rollout_log_probs import rollout_log_probs
from gmc_core.training.run_config import RunConfig
from gmc_core.training.step import OptimizerStep
from gmc_core.training.weighting import Weighting, usable_rollouts

MIB = 2**20


class Learner:
    """Owns the trained policy and its optimiser; `update(batch)` takes one step and returns its metrics."""

    def __init__(self, policy: Policy, config: RunConfig) -> None:
        self.policy = policy
        self.config = config
        self.weighting = Weighting(config)
        parameters = [parameter for parameter in policy.model.parameters() if parameter.requires_grad]
        self.step = OptimizerStep(parameters, config)
        self._compiled = CompiledLayers(policy.model) if config.compile else nullcontext

    def state_dict(self) -> dict[str, Any]:
        """Weights and everything of the optimiser, for a checkpoint; not copied."""
        weights = {name: tensor.detach() for name, tensor in self.policy.model.named_parameters()}
        return {"model": weights, "step": self.step.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken. ValueError when it is of another model or another kind of step."""
        load_snapshot(self.policy.model, state["model"])
        self.step.load_state_dict(state["step"])

    def update(self, batch: Batch) -> dict[str, float]:
        """One optimiser step. Metrics are plain floats, named in `METRICS`."""
        P, G, T = batch.shape
        valid_PG = usable_rollouts(batch)
        advantage_PG = self.weighting.advantages(batch, valid_PG)
        scale_PG = self.weighting.scales(batch, valid_PG)
        active_N = (advantage_PG != 0).any(-1, keepdim=True).expand(P, G).flatten().nonzero().squeeze(-1)
        passes = self._micro_batches(batch, active_N)
        single_pass = len(passes) <= 1

        dtype = computing_dtype(next(self.policy.model.parameters()))
        logp_NT = torch.zeros((P * G, T), dtype=dtype, device=batch.response_PGT.device)
        graph: Tensor | None = None
        if single_pass and passes:
            graph = self._log_probs(batch, passes[0])
            logp_NT[passes[0].rows_M, : passes[0].response_width] = graph.detach()
        with torch.no_grad():
            rest_N = self._complement(active_N, P * G) if single_pass else torch.arange(P * G, device=logp_NT.device)
            for part in self._micro_batches(batch, rest_N):
                logp_NT[part.rows_M, : part.response_width] = self._log_probs(batch, part)
        logp_PGT = logp_NT.view(P, G, T)
        if torch.isnan(logp_PGT[batch.mask_PGT]).any():
            raise FloatingPointError(
                "the trained model gives NaN log-probs: its weights are broken. Resume from the last checkpoint with a "
                "smaller learning_rate or a gradient_clip"
            )

        weight_PGT, credit_PG = self.weighting.weights(batch, logp_PGT, advantage_PG, scale_PG, valid_PG)
        weight_NT, mask_NT = weight_PGT.flatten(0, 1), batch.mask_PGT.flatten(0, 1)
        self.step.clear()
        losses = []
        for part in passes:
            rows_M, width = part.rows_M, part.response_width
            part_loss, _ = policy_gradient_loss(
                graph if graph is not None else self._log_probs(batch, part),
                weight_NT[rows_M, :width],
                credit_PG.flatten()[rows_M],
                mask_NT[rows_M, :width],
                normalizer=scale_PG.flatten()[rows_M],
            )
            part_loss.backward()
            self.step.collect()
            losses.append(part_loss.detach())  # read at the end: to wait for it here would idle a GPU
        metrics = self.step.take()
        log_ratio_PG = trajectory_log_ratio(logp_PGT, batch.behavior_logp_PGT, batch.mask_PGT)
        diagnostics = group_diagnostics(
            log_ratio_PG,
            weight_PGT,
            epsilon=self.weighting.epsilon,
            valid=batch.valid_PG,
            mask=batch.mask_PGT,
            advantage=advantage_PG,
        )
        loss = {"loss": sum((part.item() for part in losses), 0.0)}
        return loss | metrics | {name: value.item() for name, value in diagnostics.items()}

    def _log_probs(self, batch: Batch, part: MicroBatch) -> Tensor:
        """(M, T) log-probs of a micro-batch, T its response width; with a graph unless under no_grad."""
        model, config = self.policy.model, self.config
        recompute = config.gradient_checkpointing and torch.is_grad_enabled()
        with self._compiled(), recomputed_layers(model) if recompute else nullcontext():
            return rollout_log_probs(
                model,
                batch,
                part.rows_M,
                config.temperature,
                prompt_width=part.prompt_width,
                response_width=part.response_width,
                share_prefix=not recompute and self._shares_prefix(part),
                logits_bytes=config.logits_mib * MIB,
            )

    def _shares_prefix(self, part: MicroBatch) -> bool:
        """Whether prompts are run once for all of their rollouts, through a key/value cache.

        Neither compiled nor recomputed layers bear a cache that grows. On CUDA, responses behind a cache need an
        attention mask, and flash attention, which takes none, is so much faster that prompts have to be longer than
        the responses before it pays to share them.
        """
        if self.config.compile:
            return False
        return self.policy.device.type != "cuda" or part.prompt_width > part.response_width

    def _micro_batches(self, batch: Batch, rows_N: Tensor) -> list[MicroBatch]:
        return plan_micro_batches(batch, rows_N, self.config.micro_batch_tokens)

    @staticmethod
    def _complement(rows_N: Tensor, total: int) -> Tensor:
        keep = torch.ones(total, dtype=torch.bool, device=rows_N.device)
        keep[rows_N] = False
        return keep.nonzero().squeeze(-1)
