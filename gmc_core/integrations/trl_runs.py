"""A trainer of TRL that does what a RunConfig asks: for comparisons of TRL with `gmc_core.train`, like with like.

The same weights, prompts in the same order, verifier, group size, batch, response limit, loss and step, one optimiser
step on each batch, nothing logged, saved or evaluated in between unless asked for. What the two do alike is tested
in tests/integrations/test_trl_runs.py.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from gmc_core.integrations.versions import TRL, check_version
from gmc_core.rollouts.policy import load_policy
from gmc_core.rollouts.random_streams import stream_generator
from gmc_core.rollouts.tasks import Prompt, make_task
from gmc_core.training.run_config import RunConfig
from gmc_core.training.session import model_path

INSTALL = TRL[-1]
SCALE_REWARDS = {"std": "group", "center": "none"}  # advantages of ours that TRL has too, by their name there


def trl_version() -> str | None:
    """The installed version of TRL; None without it."""
    try:
        return metadata.version("trl")
    except metadata.PackageNotFoundError:
        return None


def trl_trainer(
    config: RunConfig,
    folder: Path,
    *,
    trainer_class: Callable[..., Any] | None = None,
    after_update: Callable[[], None] | None = None,
    arguments: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """A GRPOTrainer whose `train()` takes the updates of `config`.

    Args:
        config: of the reference learner, in a setting that TRL has too (`check_comparable`). Its estimator and delay
            are not looked at: they enter by `trainer_class=GMCTrainer` with `estimator=...` and by
            `rollout_func=DelayedRollouts(delay)`.
        folder: where TRL may write.
        trainer_class: GRPOTrainer (default) or a subclass. after_update: called after each update.
        arguments: changes to the GRPOConfig. options: further arguments of the trainer.
    Raises: ValueError for a config whose update TRL cannot take, ImportError without TRL 1.16.
    """
    check_comparable(config)
    check_version(*TRL)
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class AfterUpdate(TrainerCallback):
        def on_step_end(self, *_, **__):
            after_update()

    policy = load_policy(model_path(config.model))  # fp32
    rows = [
        {"prompt": prompt.text, "answer": prompt.answer}
        for update in range(config.updates)
        for prompt in prompts_of_update(config, update)
    ]
    trainer = (trainer_class or GRPOTrainer)(
        model=policy.model,
        reward_funcs=verifier_reward(config, policy.eos_ids),
        args=GRPOConfig(**{"output_dir": str(folder), **grpo_arguments(config), **(arguments or {})}),
        train_dataset=Dataset.from_list(rows),
        processing_class=policy.tokenizer,
        callbacks=[AfterUpdate()] if after_update else None,
        **options,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def grpo_arguments(config: RunConfig) -> dict[str, Any]:
    """The arguments of GRPOConfig under which an update is that of `config`."""
    return {
        "seed": config.seed,
        "max_steps": config.updates,
        # The update: GRPO's advantages, the Dr. GRPO normaliser, one optimiser step on each fresh batch.
        "per_device_train_batch_size": config.prompts_per_update * config.group_size,  # one pass, one generate() call
        "gradient_accumulation_steps": 1,
        "num_generations": config.group_size,
        "num_iterations": 1,
        "loss_type": "dr_grpo",
        "scale_rewards": SCALE_REWARDS[config.advantage],
        "beta": 0.0,  # no reference model
        "temperature": config.temperature,
        "max_completion_length": config.response_limit,
        "mask_truncated_completions": config.mask_truncated,
        "shuffle_dataset": False,
        "optim": "sgd",
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "constant",
        "max_grad_norm": config.gradient_clip or 0.0,
        # What TRL would do by default, and what costs time here.
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": False,
        "logging_strategy": "no",
        "save_strategy": "no",
        "eval_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def prompts_of_update(config: RunConfig, update: int) -> list[Prompt]:
    """The prompts that our loop draws for the update of that number, counted from 0."""
    task = make_task(config.task, **config.task_options)
    return task.sample_prompts(config.prompts_per_update, stream_generator(config.seed, "prompts", update))


def verifier_reward(config: RunConfig, eos_ids: tuple[int, ...]) -> Callable[..., list[float]]:
    """The task's verifier as a reward function of TRL."""
    task = make_task(config.task, **config.task_options)

    def verifier(prompts, completions, completion_ids, answer, **_) -> list[float]:
        finished = [ids[-1] in eos_ids for ids in completion_ids]
        return [
            task.reward(Prompt(text, key), completion, done)
            for text, key, completion, done in zip(prompts, answer, completions, finished, strict=True)
        ]

    return verifier


def check_comparable(config: RunConfig) -> None:
    """ValueError for a setting in which TRL takes another update than the reference learner does."""
    if config.advantage not in SCALE_REWARDS:
        raise ValueError(
            f"RunConfig.advantage is {config.advantage!r}; TRL has {' and '.join(map(repr, SCALE_REWARDS))} of ours"
        )
    needed = {
        "schedule": "fixed_delay",
        "normalizer": "sequence_mean_token_sum",
        "divide_by_max_length": True,
        "optimizer": "sgd",
        "warmup_updates": 0,
        "updates_per_batch": 1,
        "max_update_length": None,
        "rescale_to": None,
        "detached": True,
        "dtype": "float32",
        "device": "cpu",
        "chat": False,
    }
    for name, value in needed.items():
        if getattr(config, name) != value:
            raise ValueError(
                f"RunConfig.{name} is {getattr(config, name)!r}; the comparison with TRL needs {value!r}, the setting "
                "in which both take the same update"
            )
