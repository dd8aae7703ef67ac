"""Stale rollouts inside TRL: a `rollout_func` that samples from the policy of some optimiser steps ago.

    trainer = GMCTrainer(model, reward_funcs, args=GRPOConfig(...), train_dataset=dataset,
                         rollout_func=DelayedRollouts(delay=64), estimator="gmc")

It is `FixedDelay` of this project for TRL's trainers, to measure what staleness does to them: a run differs from an
on-policy one in nothing but the age of the sampler. With the prompts of `gmc_core.train` and one optimiser step per
batch its rollouts are those of `gmc_core.train`, token by token, as long as the two policies agree.

It samples with `TransformersEngine` on a copy of the model and keeps `delay / (steps per batch) + 1` snapshots on the
model's device: for models that fit. Weights that are sharded over processes (FSDP, ZeRO-3) are refused.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from gmc_core.rollouts.engine import TransformersEngine
from gmc_core.rollouts.policy import Policy, snapshot
from gmc_core.rollouts.prompt_encoding import PromptEncoder
from gmc_core.rollouts.random_streams import stream_generator
from gmc_core.rollouts.tasks import Prompt
from gmc_core.training.staleness import Snapshot


class DelayedRollouts:
    """`rollout_func(prompts, trainer)` of TRL 1.16, whose samples are `delay` optimiser steps old.

    Args:
        delay: age of the sampling policy in optimiser steps; the first policy samples until there is one that old.
            When batches are made every n steps, the sampler is the youngest policy of a batch that is at least as old.
        encode: prompt -> token ids (default: its text without special tokens). TRL's prompts must be texts.
    The random numbers are those of `gmc_core.train` with the trainer's `seed`. Evaluation samples the current policy.
    Raises: ValueError for a delay below 0, conversational prompts, or weights that this process holds only a part of.
    """

    def __init__(self, delay: int, *, encode: PromptEncoder | None = None) -> None:
        if not isinstance(delay, int) or isinstance(delay, bool) or delay < 0:
            raise ValueError(
                f"DelayedRollouts got delay={delay!r}; expected a number of optimiser steps, an integer of at least 0"
            )
        self.delay, self.encode = delay, encode
        self.staleness = 0  # of the last batch, in optimiser steps
        self._engine: TransformersEngine | None = None
        self._policies: deque[Snapshot] = deque()  # oldest first; none that could no longer be asked for

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, list]:
        if not all(isinstance(prompt, str) for prompt in prompts):
            raise ValueError(
                "DelayedRollouts got conversational prompts; it takes texts. Apply the chat template in the dataset "
                "(tokenizer.apply_chat_template(..., tokenize=False)), or give the user's message as text and "
                "encode=PromptEncoder(tokenizer, chat=True)"
            )
        model, step = trainer.accelerator.unwrap_model(trainer.model), trainer.state.global_step
        if any(parameter.numel() == 0 or hasattr(parameter, "ds_id") for parameter in model.parameters()):
            raise ValueError("DelayedRollouts needs whole weights in every process; FSDP and ZeRO-3 shard them")
        if self._engine is None:
            ends = tuple(trainer.eos_token_ids)
            policy = Policy(_twin(model), trainer.processing_class, ends, fingerprint="")
            self._engine = TransformersEngine(policy, policy_version=-1, encode=self.encode)
        training = trainer.model.training
        if training:
            behavior = self._behavior(model, step)
            self.staleness = step - behavior.version
        else:
            behavior = Snapshot(step, snapshot(model))
        if self._engine.policy_version != behavior.version:
            self._engine.update_weights(behavior.weights, behavior.version)
        size = self._group_size(prompts, trainer.num_generations if training else trainer.num_generations_eval)
        rank = trainer.accelerator.process_index
        stream = ("rollouts" if training else "evaluation") + (f" of process {rank}" if rank else "")
        groups = self._engine.generate(
            [Prompt(prompt, "") for prompt in prompts[::size]],
            group_size=size,
            max_new_tokens=trainer.args.max_completion_length,
            temperature=trainer.args.temperature,
            generator=stream_generator(trainer.args.seed, stream, step, self._engine.policy.device),
        )
        completions, logprobs, ids = [], [], []
        for group in groups:
            for tokens, logp, mask in zip(group.response_GT, group.behavior_logp_GT, group.mask_GT, strict=True):
                completions.append(tokens[mask].tolist())
                logprobs.append(logp[mask].tolist())
                ids.append(group.prompt_tokens_L.tolist())
        return {"prompt_ids": ids, "completion_ids": completions, "logprobs": logprobs}

    def _behavior(self, model: torch.nn.Module, step: int) -> Snapshot:
        """Record the policy of this step; the youngest one that is at least `delay` steps old, or the first."""
        if not self._policies or self._policies[-1].version != step:
            self._policies.append(Snapshot(step, snapshot(model)))
        while len(self._policies) > 1 and step - self._policies[1].version >= self.delay:
            self._policies.popleft()
        return self._policies[0]

    @staticmethod
    def _group_size(prompts: Sequence[str], size: int) -> int:
        """Rollouts of a prompt that lie together here: `size`, or 1 where processes have torn a group."""
        starts = range(0, len(prompts), size)
        whole = len(prompts) % size == 0 and all(len(set(prompts[at : at + size])) == 1 for at in starts)
        return size if whole else 1


def _twin(model: Any) -> Any:
    """A model of the same architecture, to be given weights. Not a deep copy: accelerate has put a `forward` bound to
    the trained model into it, which a copy would go on calling."""
    if not hasattr(type(model), "from_pretrained") or not hasattr(model, "config"):
        raise ValueError(f"DelayedRollouts samples with a transformers model; {type(model).__name__} is none")
    weight = next(model.parameters())
    return type(model)(copy.deepcopy(model.config)).to(weight.device, weight.dtype).eval()
