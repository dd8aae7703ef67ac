import json
from dataclasses import replace

import pytest
import torch

from gmc_core import paths
from gmc_core.rollouts.policy import load_policy
from gmc_core.rollouts.random_streams import stream_generator
from gmc_core.rollouts.tasks import RunningSums
from gmc_core.rollouts.tiny_qwen3 import character_tokenizer
from gmc_core.rollouts.warm_start import (
    WarmStart,
    largest_digits,
    main,
    teacher_batch,
    warm_start_accuracy,
)

WARM_STARTS = [paths.TINY_QWEN3, *sorted(path.parent for path in paths.WARM_STARTS.glob("*/warm_start.json"))]


@pytest.mark.parametrize("folder", WARM_STARTS, ids=lambda folder: folder.name)
def test_a_committed_model_is_the_one_its_record_describes(folder):
    record = json.loads((folder / "warm_start.json").read_text())
    policy, recipe = load_policy(folder), WarmStart(**record["recipe"])
    assert policy.fingerprint == record["fingerprint"]
    assert sum(parameter.numel() for parameter in policy.model.parameters()) == 445_504
    n = 1024 * 6 // recipe.digits
    accuracy, measured = warm_start_accuracy(policy, replace(recipe, evaluation_prompts=n)), record["measured"]
    expected = measured["accuracy_after_noisy"]
    assert abs(accuracy - expected) < 4 * (expected * (1 - expected) / n) ** 0.5
    assert expected < measured["accuracy_after_clean"] and measured["evaluation_prompts"] == 4096


def test_the_default_recipe_is_that_of_the_committed_tiny_qwen3():
    record = json.loads((paths.TINY_QWEN3 / "warm_start.json").read_text())
    assert WarmStart(**record["recipe"]) == WarmStart()


def test_the_cards_give_the_accuracies_that_were_measured():
    """Long tasks start about where the short one does; the weak and the strong start lie on either side of it."""
    accuracy = {
        folder.name: json.loads((folder / "warm_start.json").read_text())["measured"]["accuracy_after_noisy"]
        for folder in WARM_STARTS
    }
    base = accuracy["tiny_qwen3"]
    assert abs(base - 0.17) < 0.02
    long = [value for name, value in accuracy.items() if name.startswith("digits_")]
    assert long and all(abs(value - base) < 0.03 for value in long)
    assert 0.10 < accuracy["weak"] < base - 0.02 and base + 0.1 < accuracy["strong"] < 0.5
    rows = (paths.WARM_STARTS / "README.md").read_text().splitlines()
    for name, value in accuracy.items():
        row = next(line for line in rows if f"{name}`" in line and line.startswith("|"))
        assert f"{100 * value:.1f} %" in row, row


def test_with_easy_steps_the_sums_were_learnt():
    """After the clean steps nearly every single addition was right, whatever the number of digits.

    An error is uniform and carried on, so accuracy = 0.1 + 0.9 x^(digits - 1) with x = 1 - 10 / 9 P(error); a form
    without sums has x = 0.
    """
    assert len(WARM_STARTS) > 1
    for folder in WARM_STARTS:
        record = json.loads((folder / "warm_start.json").read_text())
        recipe, accuracy = WarmStart(**record["recipe"]), record["measured"]["accuracy_after_clean"]
        if recipe.easy_steps:
            assert ((accuracy - 0.1) / 0.9) ** (1 / (recipe.digits - 1)) > 0.85, folder.name


def test_easy_rows_have_small_digits():
    task, tokenizer = RunningSums(), character_tokenizer()
    generator = stream_generator(0, "test")
    recipe = WarmStart(easy_steps=1, batch_size=64)
    for phase, low, high in (("easy", 1, 1), ("clean", 1, 9), ("noisy", 9, 9)):
        largest = largest_digits(phase, recipe, generator)
        rows = teacher_batch(task, tokenizer, 64, 0.0, generator, largest=largest)
        prompts = [text.split("=")[0] for text in tokenizer.batch_decode(rows)]
        found = torch.tensor([[int(digit) for digit in prompt.split("+")] for prompt in prompts])
        assert (found <= largest).all() and found.max() == high
        limits = torch.as_tensor(largest)
        assert limits.min() == low and limits.max() == high
    assert largest_digits("clean", WarmStart(), generator) == 9


def test_clean_teacher_is_always_right_and_noisy_teacher_about_as_often_as_computed():
    task, tokenizer = RunningSums(), character_tokenizer()

    def accuracy(corruption: float) -> float:
        rows = teacher_batch(task, tokenizer, 4000, corruption, stream_generator(0, "test"))
        texts = tokenizer.batch_decode(rows, skip_special_tokens=True)
        pairs = [text.split("=") for text in texts]
        prompts = [task.prompt([int(digit) for digit in question.split("+")]) for question, _ in pairs]
        return sum(task.reward(p, answer, True) for p, (_, answer) in zip(prompts, pairs, strict=True)) / len(pairs)

    assert accuracy(0.0) == 1.0
    expected = 0.1 * (1 + 9 * (0.67 - 0.33 / 9) ** 5)  # five chances to add a uniform non-zero error modulo 10
    assert abs(accuracy(0.33) - expected) < 0.03


def test_the_recipe_runs_and_writes_a_model_that_loads(tmp_path, capsys):
    assert main(["--output", str(tmp_path), "--clean-steps", "2", "--noisy-steps", "1", "--digits", "3"]) == 0
    policy = load_policy(tmp_path)
    assert policy.fingerprint in capsys.readouterr().out
    text = policy.tokenizer.decode(policy.tokenizer("3+8+1=3>1>2#2<eos>", add_special_tokens=False)["input_ids"])
    assert text == "3+8+1=3>1>2#2<eos>"
    assert policy.eos_ids == (policy.tokenizer.eos_token_id,) and policy.tokenizer.pad_token_id not in policy.eos_ids
