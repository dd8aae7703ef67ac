import json

import pytest

from gmc_core import RunConfig, train
from gmc_core.experiments.question_probing import QuestionProbe
from gmc_core.rollouts import tasks
from tests.qwen3_like import save_qwen3


def config(tmp_path, **changes):
    folder = tmp_path / "model"
    if not folder.exists():
        save_qwen3(folder, instruct=False)
    common = {"evaluation_every": 3, "evaluation_prompts": 2, "prompts_per_update": 2, "group_size": 2}
    return RunConfig(model=str(folder), task="addition", updates=3, max_new_tokens=3, **common, **changes)


def test_every_question_is_asked_before_and_after(tmp_path, monkeypatch):
    """An answer that a random model often gives: the first token decides."""
    monkeypatch.setattr(tasks.Addition, "reward", lambda self, prompt, response, finished: float(response[:1] < "a"))
    probe, run = QuestionProbe(samples=4), config(tmp_path)
    record = train(run, root=tmp_path, observe=probe.observer(tmp_path / run.run_id))
    rows = probe.rows(record.path)
    assert [row["update"] for row in rows] == [0] * 100 + [3] * 100
    assert [row["question"] for row in rows[:100]] == [prompt.text for prompt in tasks.make_task("addition").prompts()]
    assert [row["question"] for row in rows[100:]] == [row["question"] for row in rows[:100]]
    assert {row["samples"] for row in rows} == {4} and 0 < sum(row["correct"] for row in rows[:100]) < 400
    # the first half is the initial policy's, although it is measured when that has moved
    again = QuestionProbe(samples=4)
    other = run.replace(learning_rate=0.1)
    again_record = train(other, root=tmp_path, observe=again.observer(tmp_path / other.run_id))
    assert again.rows(again_record.path)[:100] == rows[:100]
    assert json.dumps(again.rows(again_record.path)[100:]) != json.dumps(rows[100:])


def test_a_run_without_the_measurement_and_a_task_without_a_list_say_so(tmp_path):
    run = config(tmp_path)
    record = train(run, root=tmp_path)
    with pytest.raises(FileNotFoundError, match="has 0 of its 2 measurements"):
        QuestionProbe(samples=1).rows(record.path)
    sums = RunConfig(updates=1, evaluation_prompts=2, prompts_per_update=2, group_size=2)
    with pytest.raises(ValueError, match="'running_sums' has no list of all its questions"):
        train(sums, root=tmp_path, observe=QuestionProbe(samples=1).observer(tmp_path / sums.run_id))
