"""TRL's GRPOTrainer set up to do what a RunConfig at delay 0 asks, in the fastest way it documents for a CPU.

The same weights, prompts in the same order, verifier, group size, batch, response limit, loss and step; fp32, the whole
batch in one pass and one call of `generate` with its key/value cache, no gradient checkpointing, no reference model, no
logging, saving or evaluation, no loader processes. TRL takes the samples as on-policy and scores them only once.

Tried on two CPU cores and left out, with CPU time per update relative to the settings below: a static cache (1.00 to
1.09), torch.compile of the training pass (1.05, after minutes of compilation), eager attention (1.0), continuous
batching (more than 4 with its cache sized by hand; at its defaults it did not start within 75 s). vLLM, TRL's other
sampler, is left out: TRL 1.16 supports it up to 0.31, this project pins 0.32.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from gmc_core import RunConfig, paths
from gmc_core.rollouts.policy import load_policy
from gmc_core.rollouts.random_streams import stream_generator
from gmc_core.rollouts.tasks import Prompt, make_task

INSTALL = "pip install trl==1.16.0"


def trl_version() -> str | None:
    """The installed version of TRL, which is an optional extra of this project; None without it."""
    try:
        return metadata.version("trl")
    except metadata.PackageNotFoundError:
        return None


def grpo_trainer(config: RunConfig, folder: Path, after_update: Callable[[], None]) -> Any:
    """A GRPOTrainer whose `train()` takes `config.updates` updates and calls `after_update` after each.

    `folder` is where TRL may write. ValueError for a config whose update TRL cannot take (see `_check`).
    """
    _check(config)
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class AfterUpdate(TrainerCallback):
        def on_step_end(self, *_, **__):
            after_update()

    policy = load_policy(paths.ROOT / config.model)  # fp32
    rows = [
        {"prompt": prompt.text, "answer": prompt.answer}
        for update in range(config.updates)
        for prompt in prompts_of_update(config, update)
    ]
    arguments = GRPOConfig(
        output_dir=str(folder),
        seed=config.seed,
        max_steps=config.updates,
        # The update: GRPO's advantages, the Dr. GRPO normaliser, one optimiser step on each fresh batch.
        per_device_train_batch_size=config.prompts_per_update * config.group_size,  # one pass, one generate() call
        gradient_accumulation_steps=1,
        num_generations=config.group_size,
        num_iterations=1,
        loss_type="dr_grpo",
        scale_rewards="group",
        beta=0.0,  # no reference model
        temperature=config.temperature,
        max_completion_length=config.response_limit,
        shuffle_dataset=False,
        optim="sgd",
        learning_rate=config.learning_rate,
        lr_scheduler_type="constant",
        max_grad_norm=config.gradient_clip,
        # What TRL would do by default, and what costs time here.
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=policy.model,
        reward_funcs=verifier_reward(config, policy.eos_ids),
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=policy.tokenizer,
        callbacks=[AfterUpdate()],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


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


def _check(config: RunConfig) -> None:
    """Only what TRL does too can be compared."""
    needed = {
        "delay": 0,
        "advantage": "std",
        "normalizer": "sequence_mean_token_sum",
        "divide_by_max_length": True,
        "optimizer": "sgd",
        "max_update_length": None,
        "dtype": "float32",
        "device": "cpu",
    }
    for name, value in needed.items():
        if getattr(config, name) != value:
            raise ValueError(
                f"RunConfig.{name} is {getattr(config, name)!r}; the comparison with TRL needs {value!r}, the setting "
                "in which both take the same update"
            )
