"""A benchmark is evaluated once: what is interrupted goes on, what is missing counts, every line stays."""

import json
from dataclasses import replace

import pytest
import torch

from gmc_core.reporting.evaluation import read_result
from gmc_core.rollouts.engine import TransformersEngine
from gmc_core.rollouts.evaluation import BenchmarkPlan, RunningElsewhereError, evaluate_benchmark, problems_of
from gmc_core.rollouts.scoring import evaluate, pass_at_k
from gmc_core.rollouts.tasks import make_task
from gmc_core.rollouts.verification import VerifierFault, VerifierPool
from tests.models import warm_policy

PLAN = BenchmarkPlan(
    method="warm start",
    model="tiny_qwen3",
    task="running_sums",
    samples=4,
    problems=10,
    problems_per_batch=3,
)


class Interrupted(Exception):
    pass


class Counting(TransformersEngine):
    """Stops after `batches` calls; loses rollouts and groups when told to."""

    def __init__(self, batches=10**6, drop=()):
        super().__init__(warm_policy())
        self.batches, self.drop, self.calls = batches, drop, 0

    def generate(self, prompts, **options):
        if self.calls == self.batches:
            raise Interrupted
        self.calls += 1
        groups = super().generate(prompts, **options)
        if "group" in self.drop:
            groups = groups[1:]
        if "rollout" in self.drop:
            last = groups[-1]
            fields = ("response_GT", "mask_GT", "behavior_logp_GT", "version_GT", "finished_G")
            groups[-1] = replace(last, **{name: getattr(last, name)[1:] for name in fields})
        return groups


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    engine = Counting()
    path = evaluate_benchmark(PLAN, engine, engine.policy.tokenizer, tmp_path_factory.mktemp("whole") / "a.jsonl")
    assert engine.calls == 4
    return path


def run(path, plan=PLAN, engine=None, **options):
    engine = engine or Counting()
    return evaluate_benchmark(plan, engine, engine.policy.tokenizer, path, **options)


def test_every_problem_has_a_line_with_its_rewards(whole):
    first, *rows = [json.loads(line) for line in whole.read_text().splitlines()]
    assert first["settings"]["problems"] == 10 and first["settings"]["max_new_tokens"] == 14
    assert [row["problem"] for row in rows] == list(range(10))
    assert all(len(row[name]) == 4 for row in rows for name in ("rewards", "finished", "lengths"))
    rewards = [reward for row in rows for reward in row["rewards"]]
    assert set(rewards) == {0.0, 1.0}
    result = read_result(whole)
    assert result.scores().mean() == pytest.approx(sum(rewards) / 40)
    assert (result.missing, result.faults, result.problems, result.samples) == (0, 0, 10, 4)


def test_an_interrupted_evaluation_goes_on_and_writes_the_same(whole, tmp_path):
    path = tmp_path / "a.jsonl"
    with pytest.raises(Interrupted):
        run(path, engine=Counting(batches=2))
    assert len(path.read_bytes().splitlines()) == 7
    with pytest.raises(ValueError, match=r"holds 6 of 10 problems; run the evaluation again"):
        read_result(path)
    assert read_result(path, interrupted=True).missing == 16
    torn = path.read_bytes()
    path.write_bytes(torn[:-40])  # killed in the middle of the last line
    engine = Counting()
    run(path, engine=engine)
    assert engine.calls == 3  # the torn batch once more, the two others
    assert path.read_bytes() == whole.read_bytes()
    before = path.read_bytes()
    engine = Counting()
    run(path, engine=engine)
    assert engine.calls == 0 and path.read_bytes() == before


def test_a_file_of_other_settings_is_not_continued(whole, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(whole.read_bytes())
    with pytest.raises(ValueError, match=r"other settings \(temperature: 1\.0 there, 0\.6 now\)"):
        run(path, replace(PLAN, temperature=0.6))
    with pytest.raises(ValueError, match="problem_set"):
        run(path, replace(PLAN, problems=9))
    path.write_text("{}\n")
    with pytest.raises(ValueError, match="is no evaluation"):
        run(path)


def test_one_process_at_a_time(whole, tmp_path):
    filelock = pytest.importorskip("filelock")
    path = tmp_path / "a.jsonl"
    with filelock.FileLock(path.with_name(".a.jsonl.lock")), pytest.raises(RunningElsewhereError):
        run(path)
    run(path)  # the lock is gone again, also after the error


@pytest.mark.parametrize("drop", ["rollout", "group"])
def test_what_the_engine_does_not_deliver_is_a_failure(whole, tmp_path, drop):
    result = read_result(run(tmp_path / "a.jsonl", engine=Counting(drop=(drop,))))
    assert result.missing == {"rollout": 4, "group": 16}[drop]  # once per batch: four rollouts, or four groups of four
    full = read_result(whole)
    lost = [0, 3, 6, 9] if drop == "group" else [2, 5, 8, 9]
    kept = [problem for problem in range(10) if problem not in lost]
    assert [full.correct_P[problem] for problem in kept] == [result.correct_P[problem] for problem in kept]
    assert result.scores().mean() == result.correct_P.sum() / 40 < full.scores().mean()


def test_greedy_has_one_sample(tmp_path):
    with pytest.raises(ValueError, match="greedy decoding gives the same response every time; use samples=1"):
        replace(PLAN, temperature=0.0)
    greedy = replace(PLAN, temperature=0.0, samples=1)
    first, second = (run(tmp_path / name, greedy).read_bytes() for name in ("a.jsonl", "b.jsonl"))
    assert first == second
    other = read_result(run(tmp_path / "c.jsonl", replace(greedy, seed=7)))
    assert other.correct_P.tolist() == read_result(tmp_path / "a.jsonl").correct_P.tolist()


def test_responses_can_be_kept(tmp_path):
    path = run(tmp_path / "a.jsonl", replace(PLAN, problems=2), keep_responses=True)
    _, row, _ = [json.loads(line) for line in path.read_text().splitlines()]
    task = make_task("running_sums")
    (prompt, _) = problems_of(task, replace(PLAN, problems=2))
    rewards = [task.reward(prompt, *pair) for pair in zip(row["responses"], row["finished"], strict=True)]
    assert rewards == row["rewards"]


def test_a_pool_gives_the_same_rewards_and_its_faults_are_counted(whole, tmp_path):
    pool = VerifierPool(make_task("running_sums"), processes=0)
    assert run(tmp_path / "a.jsonl", pool=pool).read_bytes() == whole.read_bytes()

    class Faulty(VerifierPool):
        def submit(self, ticket, prompt, texts, finished):
            if ticket != 2:
                return super().submit(ticket, prompt, texts, finished)
            self.results.put(VerifierFault(ticket, "hung", "no answer", 0.0, 1.0))

    result = read_result(run(tmp_path / "b.jsonl", pool=Faulty(make_task("running_sums"), processes=0)))
    assert (result.faults, result.missing) == (10, 0)
    assert result.correct_P.sum() < read_result(whole).correct_P.sum()


def test_pass_at_k_is_the_mean_over_all_subsets():
    from itertools import combinations

    for samples, correct in ((5, 0), (5, 2), (6, 5), (4, 4)):
        outcomes = [1] * correct + [0] * (samples - correct)
        for k in range(1, samples + 1):
            subsets = list(combinations(outcomes, k))
            assert pass_at_k(correct, samples, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    for bad in ((3, 2, 1), (0, 4, 5), (-1, 4, 1), (1, 4, 0)):
        with pytest.raises(ValueError, match="1 <= k <= samples"):
            pass_at_k(*bad)


def test_evaluate_counts_what_is_missing():
    engine, task = Counting(drop=("rollout",)), make_task("running_sums")
    prompts = task.sample_prompts(3, torch.Generator().manual_seed(0))
    result = evaluate(
        engine, engine.policy.tokenizer, task, prompts, generator=torch.Generator().manual_seed(1), samples=4
    )
    assert result.missing == 1 and result.rewards_PG.shape == (3, 4) and result.rewards_PG[2, 3] == 0
    assert result.accuracy == pytest.approx(result.rewards_PG.sum().item() / 12)
    assert result.pass_at(1) == pytest.approx(result.accuracy)
    assert result.pass_at(4) == pytest.approx((result.rewards_PG.sum(-1) > 0).float().mean().item())


def test_plans_that_cannot_be_run_are_refused():
    for change in ({"samples": 0}, {"problems": 0}, {"problems_per_batch": 0}, {"temperature": -1.0}):
        with pytest.raises(ValueError, match=next(iter(change))):
            replace(PLAN, **change)
