"""GMC, or any other estimator of the menu, inside TRL's GRPOTrainer.

    from gmc_core.integrations.trl import GMCTrainer

    trainer = GMCTrainer(model, reward_funcs, args=GRPOConfig(...), train_dataset=dataset,
                         estimator="gmc", estimator_options={"epsilon": 0.2})

TRL's loss sees micro-batches of a shuffled batch, in which a group is torn apart. So the weights are made where whole
groups can be had, from per-token log-probs gathered over all processes, and travel with the rollouts into TRL's own
loss, where the advantage A of a rollout becomes w A. A weight is detached and never negative, so this is the weighted
surrogate, whatever TRL's clip does.

What the ratio of a rollout is. Denominator: the log-probs that the sampler reports (vLLM, or a `rollout_func`); with
transformers generation TRL keeps none, and the training model's log-probs at generation stand in: such rollouts start
with ratio 1 exactly. Numerator, by `weights_at`:

    "optimizer_step" (default)  the policy that is about to be updated. Before each optimiser step on a batch that is
        older than the last step, the log-probs of the whole generation batch are computed again (one pass without
        gradient over `steps_per_generation` micro-batches) and all its weights with them. TRL's own ratio against the
        old policy is then left out (it is 1), so the gradient is exactly w A grad log pi: that of `gmc_core.train`.
        With `num_iterations=1` and `steps_per_generation <= gradient_accumulation_steps` no batch outlives a step and
        nothing is computed twice.
    "generation"  the policy when the batch was generated, once per batch. What happens between this and the step is
        left to TRL's clipped token ratio: the gradient carries w(pi_old / b) times PPO's clipped pi / pi_old per token.
        It costs nothing beyond what TRL does with its importance correction on, equals the other for the first step on
        a batch, and corrects nothing by groups afterwards. With transformers generation all its ratios are 1.

TRL's own importance correction of vLLM's samples is replaced, not multiplied (its metrics are still logged; leaving
`vllm_importance_sampling_correction` on costs nothing, since the weights use the log-probs that it computes). Rollouts
cut at the length limit under `mask_truncated_completions`, and rollouts with a log-prob that is missing or NaN, are
left out of their group's mean and have weight 0; TRL still counts their reward in the group's baseline. A KL term or an
entropy bonus is not weighted. Evaluation is TRL's, unweighted.

TRL's asynchronous trainer (`trl.experimental.async_grpo`, read in 1.16.0) has no clean place for this. Its queue and
its two batchers know `group_id`, but a micro-batch closes when it has its number of samples or tokens, so the rollouts
of a group may lie in different ones; the collator then drops `group_id` from what reaches the loss, the loss clips
per token and has no input for a weight, and no log-probs of the current policy exist before it. What it lacks: a
batcher that holds a group back until it is complete, a group label in the batch, and a pass without gradient over
a step's micro-batches before the first loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gmc_core.estimators import ESTIMATORS, Estimator, make_estimator
from gmc_core.estimators.checks import check_choice
from gmc_core.integrations.gathered_groups import gathered_weights
from gmc_core.integrations.versions import TRL, check_version

READ_IN = "1.16.0"
check_version(*TRL)

# What is reached into beyond TRL's documented methods, as it is in trl/trainer/grpo_trainer.py of version READ_IN.
PRIVATE_METHODS = {
    "_generate_and_score_completions": "its output has whole groups, in the order of the gathered rewards",
    "_prepare_inputs": "called before every micro-batch; in training it returns an entry of `_buffered_inputs`",
    "_get_per_token_logps_and_entropies": "log-probs as TRL's loss computes them (temperature, fp32 head, images)",
}
PRIVATE_ATTRIBUTES = {
    "_buffered_inputs": "the micro-batches of the generation batch, shuffled and split",
    "_metrics": "what `log` averages and writes",
}
# Keys of a batch that are written to: advantages, importance_sampling_ratio, old_per_token_logps. Further keys, with
# one entry per rollout, pass through TRL's shuffling and splitting like its own.
GROUP, BEHAVIOR, WEIGHT = "estimator_group", "estimator_behavior_logps", "estimator_weight"

from trl import GRPOTrainer  # noqa: E402  (only once the version is known to be one of the range)

WEIGHTS_AT = ("optimizer_step", "generation")
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo")  # those whose gradient at ratio 1 is A grad log pi per token
RATIOS_ONLY = set(ESTIMATORS) - {"gepo"}  # rules that are the same for equal log-ratios; gepo looks at probabilities
IMAGE_INPUTS = (
    "pixel_values",
    "image_grid_thw",
    "num_images",
    "pixel_attention_mask",
    "spatial_shapes",
    "num_tiles",
    "image_sizes",
    "token_type_ids",
    "mm_token_type_ids",
    "image_position_ids",
)
LOGGED = (
    "weight_mean",
    "weight_max",
    "weight_zero_fraction",
    "capped_fraction",
    "ess_fraction",
    "log_mass_mean",
    "log_mass_max",
    "log_ratio_mean",
    "log_ratio_std",
    "log_ratio_min",
    "log_ratio_max",
    "excess_group",
    "excluded_rollouts",
)


class GroupWeights:
    """Mixin for GRPOTrainer and its subclasses, to be named first: `class Mine(GroupWeights, MyGRPOTrainer)`.

    Args, by keyword and in addition to those of the trainer:
        estimator: a name of `ESTIMATORS`, or an Estimator. estimator_options: its options, {"epsilon": 0.2}.
        weights_at: "optimizer_step" or "generation"; the module's docstring says what they mean.
    Raises:
        ValueError, TypeError: an unknown estimator, option or weights_at, or a setting of GRPOConfig that puts a
            correction of its own on top or makes the sampler's log-probs another distribution's.

    Metrics `estimator/...`, as in `gmc_core.estimators.METRICS`, are logged with TRL's own, averaged over the times
    that weights were made.
    """

    def __init__(
        self,
        *arguments: Any,
        estimator: str | Estimator = "gmc",
        estimator_options: Mapping[str, Any] | None = None,
        weights_at: str = "optimizer_step",
        **options: Any,
    ) -> None:
        self.weights_at = check_choice("weights_at", weights_at, WEIGHTS_AT)
        if isinstance(estimator, Estimator):
            if estimator_options:
                raise TypeError("estimator_options go with the name of an estimator; this estimator has its options")
            self.estimator = estimator
        else:
            self.estimator = make_estimator(estimator, **(estimator_options or {}))
        self._weighted_step: int | None = None  # the optimiser step that the weights in the buffer are for
        super().__init__(*arguments, **options)
        check_arguments(self.args, self.weights_at)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's batch, with the weights of the policy as it is now, and what it takes to make them again later."""
        batch = super()._generate_and_score_completions(inputs)
        if not self.model.training:
            return batch
        rows = len(batch["advantages"])
        row_N = self.accelerator.process_index * rows + torch.arange(rows, device=batch["advantages"].device)
        batch[GROUP] = row_N // self.num_generations  # as TRL groups the rewards that it gathers
        current_NT = batch.get("old_per_token_logps")
        behavior_NT = batch.get("sampling_per_token_logps", current_NT)
        if behavior_NT is None and _known_by_name(self.estimator):
            # The model's own samples, used up within this step: every ratio is 1 and stays so.
            current_NT = behavior_NT = torch.zeros_like(batch["completion_mask"], dtype=torch.float32)
        else:
            current_NT = self._log_probs(batch) if current_NT is None else current_NT
            behavior_NT = current_NT if behavior_NT is None else behavior_NT
            batch[BEHAVIOR] = behavior_NT
        self._put_weights([batch], current_NT, behavior_NT)
        return batch

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """TRL's next micro-batch; before the first of an optimiser step, with weights of the policy of that step."""
        inputs = super()._prepare_inputs(generation_batch)
        late = self._weighted_step != self.state.global_step
        if self.model.training and self.weights_at == "optimizer_step" and late:
            parts = self._buffered_inputs
            if any(BEHAVIOR not in part for part in parts):
                raise RuntimeError(
                    "a batch outlived its optimiser step although TRL kept no log-probs of its sampler: "
                    "gradient_accumulation_steps was taken for a multiple of steps_per_generation * num_iterations. "
                    "Set steps_per_generation so that it is, or num_iterations above 1"
                )
            current_NT = torch.cat([self._log_probs(part) for part in parts])
            self._put_weights(parts, current_NT, torch.cat([part[BEHAVIOR] for part in parts]))
        return inputs

    def compute_loss(self, model: Any, inputs: dict[str, Any], *arguments: Any, **options: Any) -> Tensor:
        """TRL's loss of a micro-batch, each advantage multiplied by its weight."""
        if WEIGHT in inputs:
            inputs = weighted_inputs(inputs, drop_old=self.weights_at == "optimizer_step")
        return super().compute_loss(model, inputs, *arguments, **options)

    def _put_weights(self, parts: list[dict[str, Any]], current_NT: Tensor, behavior_NT: Tensor) -> None:
        """Make the weights of a generation batch, in one part or shuffled into several, and put them into the parts."""
        weight, diagnostics = gathered_weights(
            self.estimator,
            self.accelerator,
            current_NT.float(),
            behavior_NT.float(),
            torch.cat([response_mask(part) for part in parts]),
            torch.cat([part["advantages"] for part in parts]),
            torch.cat([part[GROUP] for part in parts]),
        )
        sizes = [len(part["advantages"]) for part in parts]
        for part, own in zip(parts, weight.split(sizes), strict=True):
            part[WEIGHT] = own
        self._weighted_step = self.state.global_step
        for name in LOGGED:
            self._metrics["train"][f"estimator/{name}"].append(diagnostics[name])

    @torch.no_grad()
    def _log_probs(self, part: dict[str, Any]) -> Tensor:
        """(N, T) log-probs of the policy as it is, by the call that TRL's loss makes, in its micro-batch size."""
        logps_NT, _, _ = self._get_per_token_logps_and_entropies(
            self.model,
            torch.cat([part["prompt_ids"], part["completion_ids"]], dim=1),
            torch.cat([part["prompt_mask"], part["completion_mask"]], dim=1),
            part["completion_ids"].size(1),
            batch_size=self.args.per_device_train_batch_size,
            **{name: part[name] for name in IMAGE_INPUTS if name in part},
        )
        return logps_NT


class GMCTrainer(GroupWeights, GRPOTrainer):
    """TRL's GRPOTrainer with the weights of an estimator; arguments of both `GRPOTrainer` and `GroupWeights`."""


def weighted_inputs(inputs: dict[str, Any], *, drop_old: bool) -> dict[str, Any]:
    """A micro-batch for TRL's loss in which the weights are part of the advantages, (N,) or (N, T).

    TRL's own importance ratio becomes 1; with `drop_old` so does its ratio against the old policy.
    """
    weight, advantage_N = inputs[WEIGHT], inputs["advantages"]
    changed = {"advantages": advantage_N * weight if weight.dim() == 1 else advantage_N.unsqueeze(1) * weight}
    if "importance_sampling_ratio" in inputs:
        changed["importance_sampling_ratio"] = torch.ones_like(inputs["importance_sampling_ratio"])
    dropped = {"old_per_token_logps"} if drop_old else set()
    return {name: value for name, value in inputs.items() if name not in dropped} | changed


def response_mask(part: dict[str, Any]) -> Tensor:
    """(N, T) tokens that TRL's loss counts: sampled by the policy, of rollouts that were not masked."""
    mask = part["completion_mask"]
    return mask * part["tool_mask"] if "tool_mask" in part else mask


def check_arguments(args: Any, weights_at: str) -> None:
    """ValueError for a GRPOConfig under which the weights would not mean what they say."""
    if args.loss_type not in LOSS_TYPES:
        raise ValueError(
            f"loss_type is {args.loss_type!r}, which weights rollouts by a rule of its own; the estimator does that "
            f"here. Use one of {', '.join(LOSS_TYPES)}, and cispo or vespo as estimator if that is the rule you want"
        )
    if args.importance_sampling_level != "token":
        raise ValueError(
            f"importance_sampling_level is {args.importance_sampling_level!r}; TRL's loss must be per token ('token'): "
            "the trajectory enters through the weights. estimator='gspo' is the rule of GSPO"
        )
    if args.off_policy_mask_threshold is not None:
        raise ValueError("off_policy_mask_threshold drops rollouts whose group was weighted already; set it to None")
    if args.beta != 0 and args.use_bias_correction_kl and weights_at == "optimizer_step":
        raise ValueError(
            "use_bias_correction_kl needs TRL's ratio against the old policy, which weights_at='optimizer_step' takes "
            "out; turn it off, or use weights_at='generation'"
        )
    truncated = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}
    changed = [name for name, neutral in truncated.items() if getattr(args, name) not in (neutral, None)]
    if args.use_vllm and changed:
        raise ValueError(
            f"{', '.join(changed)} change what vLLM samples from, and it reports log-probs of that; those of the "
            "training model are of the whole distribution, so every ratio would be off. Leave them at their defaults"
        )


def _known_by_name(estimator: Estimator) -> bool:
    """Whether it is a rule of the menu that gives the same for equal log-ratios, whatever the log-probs."""
    return estimator.name in RATIOS_ONLY and type(estimator) is ESTIMATORS[estimator.name]
