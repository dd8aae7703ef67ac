"""reasoning-gym as a task: reproducible questions, full scores only, nothing raises."""

import json

import pytest
import torch

from gmc_core.rollouts.tasks import Prompt, Task, data_provenance, evaluation_prompts, make_task

pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed: pip install -e '.[procedural]'")

GENERATORS = ("chain_sum", "simple_equations", "gsm_symbolic", "countdown", "letter_counting", "number_sorting")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", GENERATORS)
def test_the_reference_is_right_and_everything_else_is_not(name):
    task = make_task("reasoning_gym", generator=name)
    assert isinstance(task, Task)
    for prompt in task.sample_prompts(3, generator()):
        answer = json.loads(prompt.answer)["answer"]
        assert task.reward(prompt, f"I think.\n<answer>{answer}</answer>", True) == 1.0
        assert task.reward(prompt, f"I think.\n<answer>{answer}</answer>", False) == 0.0
        assert (
            task.reward(prompt, f"\\boxed{{{answer}}}" if "{" not in answer else f"<answer>{answer}</answer>", True)
            == 1.0
        )
        for wrong in ("", "no answer", answer, f"<answer>{answer}", "<answer></answer>", "<answer>?</answer>"):
            assert task.reward(prompt, wrong, True) == 0.0
        assert task.reward(prompt, "<answer>" + "1" * 10_000 + "</answer>", True) == 0.0


def test_partial_credit_and_verbose_answers_are_wrong():
    """The scorers give part of the credit for these, or read their first number only."""
    task = make_task("reasoning_gym", generator="chain_sum")
    (prompt,) = task.sample_prompts(1, generator())
    answer = json.loads(prompt.answer)["answer"]
    for text in (f"{answer} or {int(answer) + 1}", f"The result is {answer}", f"{answer}{answer}", "1e400", "nan"):
        assert task.reward(prompt, f"<answer>{text}</answer>", True) == 0.0
    verbose = make_task("reasoning_gym", generator="simple_equations")
    (prompt,) = verbose.sample_prompts(1, generator())
    reference = json.loads(prompt.answer)
    given = f"x = {reference['answer']}, I think"
    assert 0 < verbose._data.score_answer(given, verbose._entry(reference["index"])) < 1
    assert verbose.reward(prompt, f"<answer>{given}</answer>", True) == 0.0


def test_many_solutions_are_accepted_where_the_generator_has_many():
    task = make_task("reasoning_gym", generator="countdown", options={"min_numbers": 3, "max_numbers": 3})
    (prompt,) = task.sample_prompts(1, generator(1))
    expression = json.loads(prompt.answer)["answer"]
    assert task.reward(prompt, f"<answer>({expression})*1</answer>", True) == 0.0  # a number that is not given
    assert task.reward(prompt, f"<answer>({expression})</answer>", True) == 1.0
    for hostile in ("__import__('os')", "9**9**9**9", "(" * 500, "1/0", "\x00"):
        assert task.reward(prompt, f"<answer>{hostile}</answer>", True) == 0.0


def test_questions_are_a_function_of_their_number():
    options = {"generator": "chain_sum", "options": {"min_terms": 2, "max_terms": 2}}
    one, same, other = (make_task("reasoning_gym", **options, seed=seed) for seed in (0, 0, 1))
    assert (
        one.sample_prompts(4, generator())
        == same.sample_prompts(4, generator())
        != other.sample_prompts(4, generator())
    )
    held_out = evaluation_prompts(one, 50, generator())
    training = one.sample_prompts(200, generator())
    numbers = [{json.loads(prompt.answer)["index"] for prompt in prompts} for prompts in (held_out, training)]
    assert min(numbers[0]) >= 10_000 > max(numbers[1])
    assert data_provenance(one)["dataset"] == "reasoning_gym/chain_sum"
    assert all("<answer>" in prompt.text for prompt in training)


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="no generator 'chain_sums'; it has"):
        make_task("reasoning_gym", generator="chain_sums").sample_prompts(1, generator())
    with pytest.raises(ValueError, match="refuses the options"):
        make_task("reasoning_gym", options={"colour": 1}).sample_prompts(1, generator())
    with pytest.raises(ValueError, match="seed is not an option"):
        make_task("reasoning_gym", options={"seed": 1})
    with pytest.raises(ValueError, match="questions is 0"):
        make_task("reasoning_gym", questions=0)


def test_a_generator_without_a_single_reference():
    task = make_task("reasoning_gym", generator="graph_color", questions=5, evaluation_questions=5)
    (prompt,) = task.sample_prompts(1, generator())
    assert json.loads(prompt.answer)["answer"] is None
    assert task.reward(prompt, "<answer>{}</answer>", True) == 0.0
    assert task.reward(Prompt("?", prompt.answer), "<answer>[1, 2</answer>", True) == 0.0
