"""verl's experimental recipe `fully_async_policy` with the weights of an estimator; a command in place of verl's own:

    python -m gmc_core.integrations.verl_fully_async ...   # for verl.experimental.fully_async_policy.fully_async_main

The recipe has no registry for trainers, so its task runner is told here to build this one. `gmc_core.integrations.verl`
says what the weights are and which settings are refused; docs/verl.md has a whole configuration.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gmc_core.integrations.verl import Weighting, check_config, rollout_weights  # first: it refuses other versions

# isort: split
import ray
from verl import DataProto
from verl.experimental.fully_async_policy import fully_async_main as recipe
from verl.experimental.separation.ray_trainer import SeparateRayPPOTrainer

# What is reached into, as it is in verl/experimental of version `gmc_core.integrations.verl.READ_IN`. Ray's actor
# classes cannot be derived from; `__ray_actor_class__` is the class below, which verl itself takes the same way.
FullyAsyncTrainer = recipe.FullyAsyncTrainer.__ray_actor_class__
FullyAsyncTaskRunner = recipe.FullyAsyncTaskRunner.__ray_actor_class__
PRIVATE_METHODS = {
    "_fit_compute_advantage": "its DataProto holds uid, response_mask and both log-probs, and goes on to the actor",
    "_compute_old_log_prob": "SeparateRayPPOTrainer's takes the policy as it is; the recipe's that of the last sync",
}
PRIVATE_OF_THE_RUNNER = {"_create_trainer": "looks the trainer's class up in its module"}


class GroupWeights:
    """Mixin for the recipe's trainer. Raises and logs as `verl_trainers.GroupWeights`."""

    def __init__(self, config: Any, *arguments: Any, **options: Any) -> None:
        self.weighting = Weighting.of(config)
        steps = config.async_training.require_batches * config.actor_rollout_ref.actor.ppo_epochs
        check_config(config, self.weighting, steps)
        super().__init__(config, *arguments, **options)

    def _compute_old_log_prob(self, batch: DataProto) -> Any:
        """Old log-probs of the policy as it is, or of the one that the recipe takes."""
        if self.weighting.weights_at == "optimizer_step":
            return SeparateRayPPOTrainer._compute_old_log_prob(self, batch)
        return super()._compute_old_log_prob(batch)

    def _fit_compute_advantage(self, batch: DataProto) -> DataProto:
        """verl's advantages, and `rollout_is_weights` beside them."""
        batch = super()._fit_compute_advantage(batch)
        data = batch.batch
        if "rollout_log_probs" not in data:
            raise ValueError("the batch has no rollout_log_probs: the sampler or the agent loop did not report any")
        data["rollout_is_weights"], diagnostics = rollout_weights(
            self.weighting.estimator,
            data["old_log_probs"],
            data["rollout_log_probs"],
            data["response_mask"],
            data["advantages"],
            batch.non_tensor_batch["uid"].tolist(),
        )
        self.metrics.update(diagnostics)
        return batch


class GMCFullyAsyncTrainer(GroupWeights, FullyAsyncTrainer):
    """The recipe's trainer with the weights."""


class TaskRunner(FullyAsyncTaskRunner):
    """The recipe's task runner, with this trainer in the place of verl's."""

    def _create_trainer(self, config: Any) -> None:
        remote = ray.remote(num_cpus=10)(GMCFullyAsyncTrainer)  # as many as verl asks for
        with patch.object(recipe, "FullyAsyncTrainer", remote):
            super()._create_trainer(config)


def main() -> None:
    """verl's command, for this task runner."""
    # verl's configs lie beside its command, where hydra looks only when that is what Python was started with.
    sys.argv[1:1] = ["--config-path", str(Path(recipe.__file__).parent / "config")]
    with patch.object(recipe, "FullyAsyncTaskRunner", ray.remote(num_cpus=1)(TaskRunner)):
        recipe.main()


if __name__ == "__main__":
    from gmc_core.integrations.verl_fully_async import main as main_of_the_module  # Ray then finds its classes by name

    main_of_the_module()
