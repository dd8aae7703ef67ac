"""verl's V1 trainers with the weights of an estimator: `trainer.v1.trainer_mode=gmc_separate_async` and its siblings.

verl finds them when this module is imported in its processes, which it does by itself:

    +ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES=gmc_core.integrations.verl_trainers

`gmc_core.integrations.verl` says what the weights are and which settings are refused; docs/verl.md has a whole
configuration.
"""

from __future__ import annotations

from typing import Any, ClassVar

from gmc_core.integrations.verl import INSTALL, Weighting, check_config, rollout_weights

try:
    from verl.trainer.ppo.v1 import (
        PPOTrainer,
        PPOTrainerColocateAsync,
        PPOTrainerSeparateAsync,
        PPOTrainerSync,
        register_trainer,
    )
except ModuleNotFoundError as error:
    raise ImportError(f"verl's V1 trainers need what its extra verl-core brings ({error}): {INSTALL}") from error
from verl.utils.tensordict_utils import get_tensordict
from verl.utils.transferqueue_utils import KVBatchMeta, tq
from verl.workers.utils.padding import response_to_nested

# What is overridden beyond verl's registries, as it is in verl/trainer/ppo/v1/trainer_base.py of version READ_IN.
PRIVATE_METHODS = {
    "_compute_advantage": "its batch holds uid, response_mask and both log-probs, and what it puts reaches the actor",
    "_compute_old_log_prob": "PPOTrainer's own takes the policy as it is; PPOTrainerSeparateAsync's that of the sync",
}
FIELDS = ["uid", "response_mask", "rollout_log_probs", "old_log_probs", "advantages"]


class GroupWeights:
    """Mixin for V1 trainers, to be named first: `@register_trainer("mine") class Mine(GroupWeights, MyTrainer)`.

    `mode` names the section of `trainer.v1` that the trainer's own code reads. Raises ValueError and TypeError, before
    anything is started, for a config that does not go with the weights. Logs the diagnostics `estimator/...`.
    """

    mode: ClassVar[str]

    def __init__(self, config: Any) -> None:
        self.weighting = Weighting.of(config)
        actor, v1 = config.actor_rollout_ref.actor, config.trainer.v1
        prompts = config.data.train_batch_size / v1.get(self.mode, {}).get("parameter_sync_step", 1)
        check_config(config, self.weighting, prompts / actor.ppo_mini_batch_size * actor.ppo_epochs)
        v1.trainer_mode = self.mode  # verl's code asks for its own names; ours has done its work
        super().__init__(config)

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Old log-probs of the policy as it is, or of the one that verl's trainer takes."""
        if self.weighting.weights_at == "optimizer_step":
            return PPOTrainer._compute_old_log_prob(self, batch, metrics)
        return super()._compute_old_log_prob(batch, metrics)

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """verl's advantages, and `rollout_is_weights` beside them."""
        batch = super()._compute_advantage(batch, metrics)
        config = self.config.actor_rollout_ref
        rows = config.actor.ppo_mini_batch_size * config.rollout.n
        if self.weighting.weights_at == "optimizer_step" and len(batch) > rows:
            raise RuntimeError(
                f"a batch of {len(batch)} rows takes more than one optimiser step of {rows} rows (rollouts of several "
                "rows, or padding to the critic's mini-batch), and the weights are of the policy before the first. Set "
                "trainer.gmc.weights_at=old_policy and loss_mode=vanilla"
            )
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=FIELDS)
        if "rollout_log_probs" not in data:
            raise ValueError("the batch has no rollout_log_probs: the sampler or the agent loop did not report any")
        nested_mask, uid = data["response_mask"], data.pop("uid").tolist()
        data = data.to_padded_tensor()
        weight_NT, diagnostics = rollout_weights(
            self.weighting.estimator,
            data["old_log_probs"],
            data["rollout_log_probs"],
            data["response_mask"],
            data["advantages"],
            uid,
            [key.rsplit("_", 1)[0] for key in batch.keys],  # {uid}_{session}_{row of the session}
        )
        metrics.update(diagnostics)
        weights = get_tensordict({"rollout_is_weights": response_to_nested(weight_NT, nested_mask)})
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=weights)


@register_trainer("gmc_sync")
class GMCTrainerSync(GroupWeights, PPOTrainerSync):
    """`trainer_mode=sync` with the weights: they then correct the mismatch between sampler and trainer."""

    mode = "sync"


@register_trainer("gmc_colocate_async")
class GMCTrainerColocateAsync(GroupWeights, PPOTrainerColocateAsync):
    """`trainer_mode=colocate_async` with the weights."""

    mode = "colocate_async"


@register_trainer("gmc_separate_async")
class GMCTrainerSeparateAsync(GroupWeights, PPOTrainerSeparateAsync):
    """`trainer_mode=separate_async` with the weights."""

    mode = "separate_async"
