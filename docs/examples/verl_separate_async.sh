#!/usr/bin/env bash
# GMC in verl 0.9.x, fully asynchronous with the V1 trainer: rollouts on nodes of their own, generated without pause
# while the actor trains. docs/verl.md says what each part does. Further verl settings may follow as arguments.
#
#   TRAIN=train.parquet VAL=val.parquet bash docs/examples/verl_separate_async.sh trainer.total_epochs=1
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

settings=(
  # which trainer, and what its weights are
  trainer.v1.trainer_mode=gmc_separate_async
  +trainer.gmc.estimator=gmc
  +trainer.gmc.estimator_options.epsilon=0.2
  +trainer.gmc.weights_at=optimizer_step
  actor_rollout_ref.actor.policy_loss.loss_mode=gmc_surrogate
  # in every process of the job, on every node
  +ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES=gmc_core.integrations.verl_trainers
  # no second correction
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
  data.train_batch_size=$((PROMPTS * STEPS_PER_SYNC))
  actor_rollout_ref.actor.ppo_mini_batch_size="$PROMPTS"
  actor_rollout_ref.actor.ppo_epochs=1
  actor_rollout_ref.rollout.n="$GROUP"
  # the gradient of the theory: sums over tokens, divided by a constant
  algorithm.adv_estimator=grpo
  actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm
  actor_rollout_ref.actor.loss_scale_factor="$MAX_LENGTH"
  actor_rollout_ref.actor.use_kl_loss=False
  actor_rollout_ref.actor.entropy_coeff=0
  # asynchrony: how much is prepared, how stale a rollout may be, how often the samplers get new weights
  trainer.v1.separate_async.num_warmup_batches=1
  trainer.v1.separate_async.parameter_sync_step="$STEPS_PER_SYNC"
  trainer.v1.sampler.max_off_policy_threshold=8
  trainer.v1.sampler.max_off_policy_strategy=drop
  actor_rollout_ref.hybrid_engine=False
  actor_rollout_ref.rollout.checkpoint_engine.backend=nccl
  # data, model, hardware
  data.train_files="$TRAIN"
  data.val_files="$VAL"
  data.max_prompt_length=2048
  data.max_response_length="$MAX_LENGTH"
  actor_rollout_ref.model.path="$MODEL"
  actor_rollout_ref.actor.strategy=fsdp2
  actor_rollout_ref.actor.optim.lr=1e-6
  actor_rollout_ref.actor.use_dynamic_bsz=True
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$((2 * (2048 + MAX_LENGTH)))
  actor_rollout_ref.rollout.name=vllm
  actor_rollout_ref.rollout.tensor_model_parallel_size=1
  actor_rollout_ref.rollout.nnodes="$ROLLOUT_NODES"
  actor_rollout_ref.rollout.n_gpus_per_node="$GPUS"
  trainer.nnodes="$TRAIN_NODES"
  trainer.n_gpus_per_node="$GPUS"
  trainer.logger='[console]'
)
exec python3 -m verl.trainer.main_ppo "${settings[@]}" "$@"
