import pytest
import torch

from gmc_core.rollouts.tasks import RunningSums, make_task


@pytest.mark.parametrize(
    ("response", "finished", "reward"),
    [
        ("3>1>2#2", True, 1.0),
        ("3>1>2#2", False, 0.0),  # the end of sequence is part of the form
        ("3>1>2#3", True, 0.0),
        ("9>9>9#2", True, 1.0),  # sums on the way are not graded
        ("3>1#2", True, 0.0),
        ("3>1>2>2#2", True, 0.0),
        ("3>1>2#22", True, 0.0),
        ("3+1>2#2", True, 0.0),
        ("#2", True, 0.0),
        ("", True, 0.0),
        ("3>1>2#2\n", True, 0.0),
    ],
)
def test_reward_asks_for_form_end_and_answer(response, finished, reward):
    task = RunningSums(digits=3)
    assert task.reward(task.prompt([3, 8, 1]), response, finished) == reward


def test_solution_and_its_length():
    task = RunningSums(digits=3)
    assert task.solution([3, 8, 1]) == "3>1>2#2"
    assert len(task.solution([3, 8, 1])) + 1 == task.max_response_tokens
    assert task.reward(task.prompt([3, 8, 1]), task.solution([3, 8, 1]), True) == 1.0


def test_corruption_propagates_to_the_answer():
    task = RunningSums(digits=3)
    assert task.solution([3, 8, 1], corruption=[0, 4, 0]) == "3>5>6#6"
    assert task.solution([3, 8, 1], corruption=[0, 4, 6]) == "3>5>2#2"


def test_prompts_come_from_the_generator():
    task = RunningSums()
    draw = [task.sample_prompts(5, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert draw[0] == draw[1] != draw[2]
    for prompt in draw[0]:
        assert str(sum(map(int, prompt.text[:-1].split("+"))) % 10) == prompt.answer


def test_unknown_task_and_bad_size():
    with pytest.raises(ValueError, match="known tasks: running_sums"):
        make_task("sums")
    with pytest.raises(ValueError, match="at least 2"):
        RunningSums(digits=1)


# --- addition ---


@pytest.mark.parametrize(
    ("response", "finished", "strict", "lenient"),
    [
        (" 11", True, 1.0, 1.0),
        ("11.", True, 1.0, 1.0),
        (" 11\n", True, 1.0, 1.0),
        (" 11", False, 0.0, 1.0),
        (" 11. This is", True, 0.0, 1.0),
        (" 11, which", False, 0.0, 1.0),
        (" 11.5", True, 0.0, 0.0),
        (" 11,000", True, 0.0, 0.0),
        (" 111", True, 0.0, 0.0),
        (" 1", True, 0.0, 0.0),
        (" 12", True, 0.0, 0.0),
        (" -11", True, 0.0, 0.0),
        ("The answer is 11", True, 0.0, 0.0),
        ("", True, 0.0, 0.0),
    ],
)
def test_addition_wants_the_number_and_perhaps_the_end(response, finished, strict, lenient):
    task = make_task("addition")
    prompt = task.prompt(3, 8)
    assert (prompt.text, prompt.answer, prompt.prefill) == ("What is 3 + 8?", "11", "3 + 8 =")
    assert task.reward(prompt, response, finished) == strict
    assert make_task("addition", require_finished=False).reward(prompt, response, finished) == lenient


def test_addition_evaluates_every_question_equally_often():
    task = make_task("addition")
    assert len(task.prompts()) == len(set(task.prompts())) == 100
    drawn = task.sample_evaluation_prompts(300, torch.Generator().manual_seed(0))
    assert all(drawn.count(prompt) == 3 for prompt in task.prompts())
    assert len(set(task.sample_evaluation_prompts(60, torch.Generator().manual_seed(0)))) == 60
    assert {prompt.answer for prompt in task.sample_prompts(200, torch.Generator().manual_seed(0))} <= set(
        map(str, range(19))
    )
    assert len(make_task("addition", digits=2).prompts()) == 10_000
    for digits in (0, 4, True):
        with pytest.raises(ValueError, match="expected 1, 2 or 3"):
            make_task("addition", digits=digits)
