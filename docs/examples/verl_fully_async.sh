#!/usr/bin/env bash
# GMC in verl 0.9.x, in its experimental recipe `fully_async_policy`: verl's own command for it is replaced by the one of
# gmc_core. docs/verl.md says what each part does. Further verl settings may follow as arguments.
#
#   TRAIN=train.parquet VAL=val.parquet bash docs/examples/verl_fully_async.sh
#
# Several nodes: `ray start --head` on one, `ray start --address=...` on the others, then this once, on the head.
set -euo pipefail

MODEL=${MODEL:-Qwen/Qwen3-4B}
TRAIN=${TRAIN:?a parquet file of prompts in the format of verl}
VAL=${VAL:?a parquet file of prompts in the format of verl}
GPUS=${GPUS:-8}                   # of every node
TRAIN_NODES=${TRAIN_NODES:-1}
ROLLOUT_NODES=${ROLLOUT_NODES:-1}
PROMPTS=${PROMPTS:-32}            # of an optimiser step, each with GROUP rollouts
GROUP=${GROUP:-16}
STEPS_PER_SYNC=${STEPS_PER_SYNC:-4} # optimiser steps between two copies of the weights to the rollout nodes
MAX_LENGTH=${MAX_LENGTH:-8192}    # response tokens
TOTAL_PROMPTS=${TOTAL_PROMPTS:-51200}

settings=(
  # what the weights are
  +trainer.gmc.estimator=gmc
  +trainer.gmc.estimator_options.epsilon=0.2
  +trainer.gmc.weights_at=optimizer_step
  actor_rollout_ref.actor.policy_loss.loss_mode=gmc_surrogate
  # in every process of the job, on every node
  +ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES=gmc_core.integrations.verl
  # no second correction; the recipe's default is bypass_mode=True
  algorithm.rollout_correction.bypass_mode=False
  algorithm.rollout_correction.rollout_is=null
  algorithm.rollout_correction.rollout_rs=null
  # log-probs of the sampler, of the whole distribution at the sampling temperature
  actor_rollout_ref.rollout.calculate_log_probs=True
  actor_rollout_ref.rollout.logprobs_mode=processed_logprobs
  actor_rollout_ref.rollout.temperature=1.0
  actor_rollout_ref.rollout.top_p=1.0
  actor_rollout_ref.rollout.top_k=-1
  # one optimiser step per advantage stage; groups
  async_training.require_batches=1
  actor_rollout_ref.actor.ppo_mini_batch_size="$PROMPTS"
  actor_rollout_ref.actor.ppo_epochs=1
  actor_rollout_ref.rollout.n="$GROUP"
  # the gradient of the theory: sums over tokens, divided by a constant
  algorithm.adv_estimator=grpo
  actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm
  actor_rollout_ref.actor.loss_scale_factor="$MAX_LENGTH"
  actor_rollout_ref.actor.use_kl_loss=False
  actor_rollout_ref.actor.entropy_coeff=0
  # asynchrony: how stale a rollout may be, how often the samplers get new weights, with rollouts under way or not
  async_training.staleness_threshold=0.5
  async_training.trigger_parameter_sync_step="$STEPS_PER_SYNC"
  async_training.partial_rollout=True
  actor_rollout_ref.hybrid_engine=False
  actor_rollout_ref.rollout.checkpoint_engine.backend=nccl
  # data, model, hardware
  data.train_files="$TRAIN"
  data.val_files="$VAL"
  data.train_batch_size=0
  data.gen_batch_size=1
  data.max_prompt_length=2048
  data.max_response_length="$MAX_LENGTH"
  actor_rollout_ref.model.path="$MODEL"
  actor_rollout_ref.actor.strategy=fsdp2
  actor_rollout_ref.actor.optim.lr=1e-6
  actor_rollout_ref.actor.use_dynamic_bsz=True
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$((2 * (2048 + MAX_LENGTH)))
  actor_rollout_ref.rollout.name=vllm
  actor_rollout_ref.rollout.tensor_model_parallel_size=1
  rollout.total_rollout_steps="$TOTAL_PROMPTS"
  rollout.nnodes="$ROLLOUT_NODES"
  rollout.n_gpus_per_node="$GPUS"
  trainer.nnodes="$TRAIN_NODES"
  trainer.n_gpus_per_node="$GPUS"
  trainer.logger='[console]'
)
exec python3 -m gmc_core.integrations.verl_fully_async "${settings[@]}" "$@"
