import json

from gmc_core import paths
from gmc_core.rollouts.policy import load_policy
from gmc_core.rollouts.random_streams import stream_generator
from gmc_core.rollouts.tasks import RunningSums
from gmc_core.rollouts.tiny_qwen3 import character_tokenizer
from gmc_core.rollouts.warm_start import WarmStart, main, teacher_batch, warm_start_accuracy
from tests.models import warm_policy


def test_the_committed_model_is_the_one_its_card_describes():
    record = json.loads((paths.TINY_QWEN3 / "warm_start.json").read_text())
    policy = warm_policy()
    assert policy.fingerprint == record["fingerprint"]
    assert WarmStart(**record["recipe"]) == WarmStart()
    assert sum(parameter.numel() for parameter in policy.model.parameters()) == 445_504
    accuracy, n = warm_start_accuracy(policy, WarmStart(evaluation_prompts=1024)), 1024
    measured = record["measured"]["accuracy_after_noisy"]
    assert abs(accuracy - measured) < 4 * (measured * (1 - measured) / n) ** 0.5
    assert abs(measured - 0.17) < 0.02


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
