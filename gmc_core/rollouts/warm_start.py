"""Supervised warm start of the tiny Qwen3: `python -m gmc_core.rollouts.warm_start [--output data/tiny_qwen3]`.

First clean solutions teach the form and the sums, then a noisy teacher (each running sum corrupted with some
probability, the error carried on) brings the sampled accuracy down to a level from which reinforcement can learn.
A base model that knows the form and is often wrong is what reasoning RL starts from; this is its small image.

From clean solutions alone the sums are learnt all at once after a plateau; when it ends is a matter of rounding (model
card of `data/tiny_qwen3`). With `easy_steps` they were learnt at every length that was tried (`data/warm_starts`): sums
of zeros and ones show where to look, rows whose largest digit varies then how to add.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from gmc_core.paths import TINY_QWEN3
from gmc_core.rollouts.engine import TransformersEngine
from gmc_core.rollouts.policy import Policy, weights_fingerprint
from gmc_core.rollouts.random_streams import stream_generator
from gmc_core.rollouts.scoring import evaluate
from gmc_core.rollouts.tasks import RunningSums
from gmc_core.rollouts.tiny_qwen3 import character_tokenizer, tiny_qwen3


@dataclass(frozen=True)
class WarmStart:
    """The recipe. `corruption` is the probability that the noisy teacher gets one running sum wrong.

    `easy_steps` come first, on digits 0 and 1; if there are any, each row of the clean steps has a largest digit of its
    own, uniform from 1 to 9. The noisy steps are always on the task itself.
    """

    digits: int = 6
    clean_steps: int = 240
    noisy_steps: int = 120
    clean_learning_rate: float = 1.5e-3
    noisy_learning_rate: float = 1e-3
    batch_size: int = 128
    corruption: float = 0.33
    seed: int = 0
    evaluation_prompts: int = 4096
    easy_steps: int = 0


def teacher_batch(
    task: RunningSums,
    tokenizer,
    count: int,
    corruption: float,
    generator: torch.Generator,
    *,
    largest: torch.Tensor | int = 9,
) -> torch.Tensor:
    """Token ids of `count` prompts with their worked responses and end of sequence, (count, 4 * digits + 2).

    `largest`: the largest digit of a prompt, 1 to 9, of all or of each (count, 1).
    """
    digits = torch.randint(0, 10, (count, task.digits), generator=generator) * (largest + 1) // 10
    wrong = torch.rand((count, task.digits), generator=generator) < corruption
    wrong[:, 0] = False  # the first running sum copies a digit; there is nothing to add up wrongly
    shift = torch.randint(1, 10, (count, task.digits), generator=generator) * wrong
    texts = [
        task.prompt(row).text + task.solution(row, errors) + tokenizer.eos_token
        for row, errors in zip(digits.tolist(), shift.tolist(), strict=True)
    ]
    return torch.tensor(tokenizer(texts, add_special_tokens=False)["input_ids"])


def largest_digits(phase: str, recipe: WarmStart, generator: torch.Generator) -> torch.Tensor | int:
    """What a batch of this phase has as largest digit: one for all rows, or one each (batch size, 1)."""
    if phase == "easy":
        return 1
    if phase == "clean" and recipe.easy_steps:
        return torch.randint(1, 10, (recipe.batch_size, 1), generator=generator)
    return 9


def train_warm_start(recipe: WarmStart, *, model=None, progress=print) -> tuple[Policy, dict[str, float | int]]:
    """Train from scratch; returns the policy and what was measured: sampled accuracy after each phase, with its n.

    `model`: a fresh one, of another size than `tiny_qwen3(recipe.seed)` or on another device; it is trained in place.
    """
    tokenizer, model = character_tokenizer(), tiny_qwen3(recipe.seed) if model is None else model
    generator = stream_generator(recipe.seed, "warm start")
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.clean_learning_rate)
    measured: dict[str, float | int] = {"evaluation_prompts": recipe.evaluation_prompts}
    phases = (
        ("easy", recipe.easy_steps, recipe.clean_learning_rate, 0.0),
        ("clean", recipe.clean_steps, recipe.clean_learning_rate, 0.0),
        ("noisy", recipe.noisy_steps, recipe.noisy_learning_rate, recipe.corruption),
    )
    task, prompt_length = RunningSums(recipe.digits), 2 * recipe.digits
    started = time.perf_counter()
    for phase, steps, learning_rate, corruption in phases:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        for step in range(steps):
            largest = largest_digits(phase, recipe, generator)
            ids = teacher_batch(task, tokenizer, recipe.batch_size, corruption, generator, largest=largest)
            ids = ids.to(model.device)
            logits = model(input_ids=ids, use_cache=False).logits[:, prompt_length - 1 : -1]
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, prompt_length:].flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if (step + 1) % 60 == 0:
                progress(
                    f"{phase} step {step + 1}/{steps}: loss {loss.item():.3f} ({time.perf_counter() - started:.0f} s)"
                )
        policy = Policy(model, tokenizer, (tokenizer.eos_token_id,), weights_fingerprint(model))
        if phase == "easy":
            continue  # it knows zeros and ones
        measured[f"accuracy_after_{phase}"] = warm_start_accuracy(policy, recipe)
        progress(f"{phase} phase done: sampled accuracy {measured[f'accuracy_after_{phase}']:.3f}")
    return policy, measured


def warm_start_accuracy(policy: Policy, recipe: WarmStart) -> float:
    """Sampled accuracy (temperature 1) on the recipe's evaluation prompts."""
    task = RunningSums(recipe.digits)
    prompts = task.sample_prompts(recipe.evaluation_prompts, stream_generator(recipe.seed, "warm start evaluation"))
    sampler = stream_generator(recipe.seed, "warm start evaluation samples", device=policy.device)
    return evaluate(TransformersEngine(policy), policy.tokenizer, task, prompts, generator=sampler).accuracy


def save_policy(policy: Policy, folder: Path, recipe: WarmStart, measured: dict[str, float | int]) -> None:
    """Model, tokenizer and the recipe beside them, in the formats that `from_pretrained` reads."""
    import json

    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    folder.mkdir(parents=True, exist_ok=True)
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    record = {"recipe": asdict(recipe), "measured": measured, "fingerprint": policy.fingerprint}
    (folder / "warm_start.json").write_text(json.dumps(record, indent=2) + "\n")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=TINY_QWEN3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--digits", type=int, default=6)
    parser.add_argument("--corruption", type=float, default=0.33)
    parser.add_argument("--clean-steps", type=int, default=240)
    parser.add_argument("--noisy-steps", type=int, default=120)
    parser.add_argument("--easy-steps", type=int, default=0, help="steps on digits 0 and 1 first (default: none)")
    arguments = vars(parser.parse_args(argv))
    output = arguments.pop("output")
    recipe = WarmStart(**arguments)
    torch.set_num_threads(1)
    policy, measured = train_warm_start(recipe, progress=lambda line: print(line, file=sys.stderr))
    save_policy(policy, output, recipe, measured)
    print(f"wrote {output}: fingerprint {policy.fingerprint}, sampled accuracy {measured['accuracy_after_noisy']:.3f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
