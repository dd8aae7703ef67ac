"""Questions from files with the columns of the hub: what is read, what is left out and why, what is trained on."""

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gmc_core import paths
from gmc_core.rollouts.datasets import loading
from gmc_core.rollouts.datasets.loading import clean, load_questions, resolved_revision
from gmc_core.rollouts.datasets.quality import duplicates, normalized_question, overlap, split_by_question
from gmc_core.rollouts.datasets.registry import BENCHMARK, BENCHMARKS, DATASETS, TRAINING_SETS
from gmc_core.rollouts.datasets.templates import TEMPLATES, fill
from gmc_core.rollouts.tasks import TASKS, Prompt, Task, data_provenance, evaluation_prompts, make_task


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def write(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def gsm8k_row(first: int, second: int) -> dict:
    return {
        "question": f"Ann has {first} apples and gets {second} more. How many has she?",
        "answer": f"{first}+{second} = <<{first}+{second}={first + second}>>{first + second}\n#### {first + second}",
    }


GSM8K = [gsm8k_row(first, second) for first in range(2, 22) for second in range(3, 13)]


# --- the registry ---


def test_the_registry_holds_what_is_promised():
    assert set(TRAINING_SETS) == {"gsm8k", "math", "dapo_math", "deepscaler"}
    assert set(BENCHMARKS) == {"math_500", "aime_2024", "aime_2025", "amc23", "minerva", "olympiadbench"}
    assert set(TASKS) == {"running_sums", "addition", "reasoning_gym", *DATASETS}


@pytest.mark.parametrize("name", DATASETS)
def test_every_entry_is_complete(name):
    spec = DATASETS[name]
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", spec.hub_id)
    assert spec.revision is None or re.fullmatch(r"[0-9a-f]{40}", spec.revision)
    assert all((spec.licence, spec.defects, spec.source, spec.splits)) and all(
        rows > 0 for rows in spec.splits.values()
    )
    assert spec.verifier in ("number", "math") and spec.answer_form in ("value", "hash", "boxed", "list")


def test_tasks_are_listed_without_the_datasets_package():
    code = """
import sys
sys.modules["datasets"] = sys.modules["math_verify"] = sys.modules["reasoning_gym"] = None  # importing them fails
from gmc_core import RunConfig
from gmc_core.rollouts.tasks import TASKS, make_task
assert "gsm8k" in TASKS
config = RunConfig(task="math", task_options={"held_out": 0.1}, max_new_tokens=8)
task = make_task("gsm8k")
try:
    task.loaded
except ImportError as error:
    assert "path" in str(error), error
else:
    raise SystemExit("no ImportError")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=paths.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- reading ---


def test_jsonl_parquet_and_json_give_the_same_questions(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    import pyarrow

    parquet.write_table(pyarrow.Table.from_pylist(GSM8K), tmp_path / "rows.parquet")
    (tmp_path / "rows.json").write_text(json.dumps(GSM8K), encoding="utf-8")
    read = [
        load_questions("gsm8k", path).questions
        for path in (
            write(tmp_path / "rows.jsonl", GSM8K),
            str(tmp_path / "rows.parquet"),
            str(tmp_path / "rows.json"),
        )
    ]
    assert len(read[0]) == len(GSM8K) and read[0] == read[1] == read[2]
    assert (read[0][3].row, read[0][3].answer) == (3, "8")


def test_a_folder_of_save_to_disk(tmp_path):
    datasets = pytest.importorskip("datasets", reason="the datasets package is not installed")
    datasets.Dataset.from_list(GSM8K[:5]).save_to_disk(str(tmp_path / "saved"))
    assert [question.answer for question in load_questions("gsm8k", str(tmp_path / "saved")).questions] == [
        "5", "6", "7", "8", "9",
    ]  # fmt: skip


def test_a_line_separator_inside_a_question_is_no_line(tmp_path):
    row = {"question": "How many\u2028are there?", "answer": "#### 3"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    assert load_questions("gsm8k", str(tmp_path / "a.jsonl")).questions[0].text == row["question"]


def test_defects_are_reported_with_their_rows(tmp_path):
    rows = [
        gsm8k_row(1, 2),
        {"question": "No answer?", "answer": ""},
        {"question": "None?", "answer": None},
        {"question": "No mark?", "answer": "it is 3"},
        {"question": "A word?", "answer": "#### three"},
        {"question": "  ", "answer": "#### 3"},
        {"question": "Half a row?"},
        {**gsm8k_row(1, 2), "question": gsm8k_row(1, 2)["question"].upper().replace(" ", "  ")},
        {"question": "Twice?", "answer": "#### 4"},
        {"question": "Twice?", "answer": "#### 5"},
        gsm8k_row(5, 6),
    ]
    loaded = load_questions("gsm8k", write(tmp_path / "a.jsonl", rows))
    assert [question.row for question in loaded.questions] == [0, 10]
    assert {issue.row: issue.kind for issue in loaded.issues} == {
        1: "empty answer",
        2: "empty answer",
        3: "no final answer",
        4: "answer is no number",
        5: "empty question",
        6: "missing column",
        7: "duplicate",
        8: "contradiction",
        9: "contradiction",
    }
    assert loaded.counts["contradiction"] == 2
    assert "2 questions of 11 rows, 9 left out" in str(loaded) and "row 1: column 'answer' holds ''" in str(loaded)
    assert "repeats row 0" in str(loaded.issues[6])


def test_what_cannot_be_used_at_all_says_why(tmp_path):
    with pytest.raises(
        ValueError, match=r"no row has the column 'answer'; expected question, answer, found question, sol"
    ):
        load_questions("gsm8k", write(tmp_path / "a.jsonl", [{"question": "?", "solution": "#### 1"}]))
    with pytest.raises(ValueError, match=r"no usable row is left\..*row 0: column 'answer' holds ''"):
        load_questions("gsm8k", write(tmp_path / "b.jsonl", [{"question": "?", "answer": ""}]))
    (tmp_path / "c.jsonl").write_text('{"question": "?", "answer": "#### 1"}\n{"question"\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"c\.jsonl, line 2: no JSON"):
        load_questions("gsm8k", str(tmp_path / "c.jsonl"))
    (tmp_path / "d.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match="has no rows"):
        load_questions("gsm8k", str(tmp_path / "d.jsonl"))
    with pytest.raises(FileNotFoundError, match="neither in the checkout nor as given"):
        load_questions("gsm8k", str(tmp_path / "none.jsonl"))
    with pytest.raises(ValueError, match=r"neither \.parquet"):
        load_questions("gsm8k", write(tmp_path / "e.csv", GSM8K))
    with pytest.raises(ValueError, match="no split 'validation'; it has train, test"):
        load_questions("gsm8k", split="validation")
    with pytest.raises(ValueError, match="unknown data set 'gsm9k'"):
        load_questions("gsm9k")


def test_math_keeps_levels_3_to_5_and_reads_the_boxed_answer():
    rows = [
        {"problem": f"p{level}", "solution": rf"So $\boxed{{\frac{{{level}}}{{7}}}}$.", "level": f"Level {level}"}
        for level in range(1, 6)
    ]
    rows += [
        {"problem": "fbox", "solution": r"\fbox{8}", "level": "Level 4"},
        {"problem": "none", "solution": "no box", "level": "Level 4"},
        {"problem": "odd", "solution": r"\boxed 9", "level": "Level ?"},
    ]
    loaded = clean(rows, DATASETS["math"], version=None, origin="test")
    assert [question.answer for question in loaded.questions] == [r"\frac{3}{7}", r"\frac{4}{7}", r"\frac{5}{7}", "8"]
    assert loaded.filtered == 3 and loaded.counts == {"no final answer": 1}


def test_dapo_prompts_lose_their_wrapper_and_olympiad_answers_are_lists():
    wrapped = (
        "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
        "$Answer (without quotes) where $Answer is the answer to the problem.\n\nWhat is 1+1?\n\nRemember to put your "
        'answer on its own line after "Answer:".'
    )
    rows = [{"prompt": wrapped, "solution": "2"}, {"prompt": "What is 2+2?", "solution": 4}]
    questions = clean(rows, DATASETS["dapo_math"], version=None, origin="test").questions
    assert [(question.text, question.answer) for question in questions] == [
        ("What is 1+1?", "2"),
        ("What is 2+2?", "4"),
    ]
    rows = [
        {"question": "one", "final_answer": ["$\\frac{1}{2}$"]},
        {"question": "two", "final_answer": ["1", "2"]},
        {"question": "none", "final_answer": []},
        {"question": "null", "final_answer": None},
    ]
    loaded = clean(rows, DATASETS["olympiadbench"], version=None, origin="test")
    assert [question.answer for question in loaded.questions] == ["\\frac{1}{2}", "1, 2"]
    assert loaded.counts == {"empty answer": 2}


def test_numbers_in_answer_columns_are_written_as_such():
    rows = [{"question": str(value), "answer": value} for value in (27.0, 27.5, 12, float("nan"), True)]
    loaded = clean(rows, DATASETS["amc23"], version=None, origin="test")
    assert [question.answer for question in loaded.questions] == ["27", "27.5", "12"]


def test_the_revision_that_was_read_is_found_in_what_the_hub_recorded():
    sources = {
        "hf://datasets/openai/gsm8k@740312add88f781978c0658806c59bc2815b9866/main/train-0.parquet": {"num_bytes": 1}
    }
    assert resolved_revision(sources, "openai/gsm8k") == "740312add88f781978c0658806c59bc2815b9866"
    assert resolved_revision(sources, "openai/gsm9k") is None
    assert resolved_revision(None, "openai/gsm8k") is None


def test_the_hub_is_asked_for_the_pinned_revision(monkeypatch):
    asked = []

    class Rows(list):
        info = SimpleNamespace(download_checksums={"hf://datasets/openai/gsm8k@" + "b" * 40 + "/main/test.parquet": {}})

    def load_dataset(hub_id, config, *, split, revision):
        asked.append((hub_id, config, split, revision))
        return Rows(GSM8K)

    monkeypatch.setattr(loading, "_datasets", lambda: SimpleNamespace(load_dataset=load_dataset))
    load_questions.cache_clear()
    loaded = load_questions("gsm8k", split="test")
    assert asked == [("openai/gsm8k", "main", "test", DATASETS["gsm8k"].revision)]
    assert loaded.version == "b" * 40 and loaded.origin == "openai/gsm8k (test)"
    assert load_questions("gsm8k", revision="main").version == "b" * 40
    assert asked[-1] == ("openai/gsm8k", "main", "train", "main")
    load_questions.cache_clear()


# --- quality ---


def test_duplicates_see_through_mark_up_and_not_through_mathematics():
    texts = ["Find $x+1$.", "find  \\( x + 1 \\)", "Find $x-1$.", "Find $\\dfrac12$", "Find $\\frac12$.", "Find 12"]
    assert duplicates(texts) == [[0, 1], [3, 4]]
    assert normalized_question("2 − 1") == normalized_question("2 - 1")


def test_a_split_depends_on_the_question_alone():
    texts = [row["question"] for row in GSM8K]
    training, held_out = split_by_question(texts, 0.2)
    assert sorted(training + held_out) == list(range(len(texts)))
    assert 0.1 * len(texts) < len(held_out) < 0.3 * len(texts)
    others = [*texts[::-1], "another"]
    again, _ = split_by_question(others, 0.2)
    assert {texts[place] for place in training} <= {others[place] for place in again}
    assert split_by_question(texts, 0.2, salt="b") != (training, held_out)
    assert split_by_question(texts, 0.0) == (list(range(len(texts))), [])
    with pytest.raises(ValueError, match=r"share=1\.0"):
        split_by_question(texts, 1.0)


def test_overlap_counts_equal_and_nearly_equal_questions():
    long = (
        "A train leaves the station at noon and travels north at sixty miles per hour for three hours before it stops"
    )
    benchmark = [
        long + " in a town.",
        "What is 1+1?",
        "Nothing of this text occurs anywhere else in the training set, not at all ever.",
    ]
    training = ["What is  1 + 1 ?", long + " for lunch, how far is it?", "unrelated", "What is 1-1?"]
    found = overlap(training, benchmark)
    assert found.exact == ((0, 1),)
    assert [pair[:2] for pair in found.near] == [(1, 0)] and found.near[0][2] >= 0.5
    assert found.too_short == 1 and found.contaminated == (0, 1)
    assert str(found).startswith("1 benchmark questions stand in the training set word for word, 1 more share")


# --- tasks ---


@pytest.fixture
def task(tmp_path) -> Task:
    return make_task("gsm8k", path=write(tmp_path / "gsm8k.jsonl", GSM8K), held_out=0.2)


def test_a_data_set_is_a_task(task):
    assert isinstance(task, Task) and task.max_response_tokens == 512
    draws = [task.sample_prompts(6, generator(seed)) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    assert len({prompt.text for prompt in draws[0]}) == 6
    prompt = draws[0][0]
    assert prompt.text.endswith("put your final answer within \\boxed{}.")
    assert task.reward(prompt, f"\\boxed{{{prompt.answer}}}", True) == 1.0
    assert task.reward(prompt, f"\\boxed{{{prompt.answer}}}", False) == 0.0
    assert task.reward(prompt, "\\boxed{-1}", True) == 0.0
    assert pickle.loads(pickle.dumps(task)) == task


def test_evaluation_questions_are_never_trained_on(task):
    training = {prompt.text for prompt in task.sample_prompts(len(GSM8K), generator())}
    held_out = {prompt.text for prompt in evaluation_prompts(task, 10_000, generator())}
    assert training and held_out and not training & held_out
    assert len(training) + len(held_out) == len(GSM8K)
    assert task.provenance()["held_out"] == len(held_out)
    assert len(task.sample_prompts(1000, generator())) == 1000  # more than there are: each again


def test_a_run_record_can_name_its_data(task, tmp_path):
    provenance = data_provenance(task)
    assert provenance["version"].startswith("sha256:") and provenance["rows"] == len(GSM8K)
    assert data_provenance(make_task("running_sums")) is None
    changed = make_task("gsm8k", path=write(tmp_path / "other.jsonl", GSM8K[:-1]))
    assert data_provenance(changed)["version"] != provenance["version"]


def test_benchmark_questions_can_be_kept_out_of_training(tmp_path, task):
    pytest.importorskip("math_verify", reason="math-verify is not installed: pip install -e '.[math]'")
    stolen = [{"problem": row["question"].lower(), "answer": "1"} for row in GSM8K[:7]]
    benchmark = write(tmp_path / "math_500.jsonl", stolen)
    careful = make_task("gsm8k", path=task.path, held_out=0.2, exclude={"math_500": benchmark})
    assert careful.provenance()["overlapping"] == {"math_500": 7}
    texts = {prompt.text.casefold() for prompt in careful.sample_prompts(193, generator())}
    assert not any(row["problem"] in text for text in texts for row in stolen)
    assert DATASETS["math_500"].role == BENCHMARK
    whole = make_task("math_500", path=benchmark)
    assert [prompt.answer for prompt in whole.prompts()] == ["1"] * 7
    assert len(whole.sample_evaluation_prompts(100, generator())) == 7


def test_bad_options_are_refused_on_construction(tmp_path):
    for options, message in (
        ({"held_out": 1.0}, "held_out is 1.0"),
        ({"template": "no place"}, "holds {question} once"),
        ({"split": "dev"}, "no split 'dev'"),
        ({"path": "x", "split": "test"}, "give path alone"),
        ({"exclude": {"mmlu": None}}, "unknown data set 'mmlu'"),
        ({"max_response_tokens": -1}, "max_response_tokens is -1"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            make_task("gsm8k", **options)
    with pytest.raises(TypeError, match="colour"):
        make_task("gsm8k", colour="red")


def test_truncated_answers_can_be_rewarded_for_evaluation(task):
    lenient = make_task("gsm8k", path=task.path, require_finished=False)
    assert lenient.reward(Prompt("?", "5"), "\\boxed{5} and so", False) == 1.0


def test_templates_keep_the_braces_of_latex():
    assert fill("boxed", "Find $\\frac{1}{2}$.").startswith("Find $\\frac{1}{2}$.\nPlease reason")
    assert all(fill(name, "Q{}").count("Q{}") == 1 for name in TEMPLATES)
    assert fill("My {question}!", "x") == "My x!"


def test_a_short_run_trains_on_a_data_set(tmp_path):
    from gmc_core import RunConfig, train

    rows = [{"question": f"{a}+{b}=", "answer": f"#### {a + b}"} for a in range(10) for b in range(10)]
    options = {"path": write(tmp_path / "sums.jsonl", rows), "template": "question", "held_out": 0.3}
    config = RunConfig(
        task="gsm8k",
        task_options=options,
        updates=2,
        prompts_per_update=2,
        group_size=4,
        max_new_tokens=4,
        evaluation_prompts=8,
        evaluation_every=2,
    )
    record = train(config, root=tmp_path)
    assert [row["update"] for row in record.metrics] == [1, 2]
    assert record.provenance["data"]["training"] + record.provenance["data"]["held_out"] == 100


# --- real questions, where there are some ---

REAL = os.environ.get("GMC_TEST_DATA")


@pytest.mark.skipif(not REAL, reason="GMC_TEST_DATA names no folder that holds gsm8k/*.jsonl (questions of GSM8K)")
def test_real_gsm8k():
    (file,) = sorted(Path(REAL).glob("gsm8k/*.jsonl"))
    task = make_task("gsm8k", path=str(file))
    loaded = task.loaded
    assert len(loaded.questions) >= 0.99 * loaded.rows, str(loaded)
    solutions = [json.loads(line)["answer"] for line in file.read_text(encoding="utf-8").split("\n") if line]
    for question in loaded.questions:  # a data set's own solution is right, and another question's is not
        prompt = Prompt(question.text, question.answer)
        assert task.reward(prompt, solutions[question.row], True) == 1.0, question
        assert task.reward(prompt, f"The answer is {question.answer}.", True) == 1.0, question
        assert task.reward(prompt, f"The answer is 1{question.answer}.", True) == 0.0, question
    provenance = task.provenance()
    assert 0.03 < provenance["held_out"] / len(loaded.questions) < 0.07
