import dataclasses
import json

import pytest

from gmc_core import RunConfig, train
from gmc_core.reporting.evaluation import read_result
from gmc_core.reporting.gpu_table import gpu_tiers_table, main
from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.models import MODELS
from gmc_core.training.gpu_cost import GB, HARDWARE, Efficiency, Hardware
from gmc_core.training.gpu_tiers import TIERS, Tier, estimate, evaluate_last
from tests.qwen3_like import save_qwen3


def shrunk(tier: Tier, model: str) -> Tier:
    """The same tier with a tiny model, the transformers engine and a task without data, for a CPU and seconds."""
    base = tier.base.replace(
        model=model, dtype="float32", device="cpu", engine="transformers", engine_options={}, task="addition",
        task_options={}, max_model_len=None, max_new_tokens=3, prompts_per_update=2, group_size=4, updates=4,
        updates_per_batch=2, evaluation_every=2, evaluation_prompts=2, verifier_processes=1,
    )  # fmt: skip
    return dataclasses.replace(
        tier,
        base=base,
        delays=(0, 2),
        estimators=tier.estimators[:2],
        seeds=tier.seeds[:1],
        sweep=tier.sweep[:1],
        benchmarks={"addition": 2},
        benchmark_tokens=3,
        benchmark_options={},
    )


@pytest.mark.parametrize("tier", TIERS.values(), ids=TIERS)
def test_the_grid_is_what_the_tier_says(tier):
    runs = tier.runs
    assert len({config.run_id for config in runs}) == len(runs)
    per_seed = len(tier.estimators) * len(tier.delays)
    assert len(runs) == per_seed * len(tier.seeds) + 2 * len(tier.sweep) * len(tier.estimators)
    assert {config.updates_per_batch for config in runs} == {4}
    assert {config.max_staleness for config in runs} == {delay + 3 for delay in tier.delays} and 0 in tier.delays
    assert {config.estimator for config in runs} == set(tier.estimators) and "gmc" in tier.estimators
    for config in runs:
        assert config.is_live and config.is_deterministic, "first in, first out"
        assert config.updates >= 2 * config.max_staleness, "longer than its delay by far"
        assert (config.temperature, config.engine, config.device, config.delay) == (1.0, "vllm", "cuda", 0)
        if config.learning_rate != tier.learning_rate:
            assert config.max_staleness - 3 in (min(tier.delays), max(tier.delays))
    assert MODELS[tier.base.model].revision, "a pinned checkpoint"
    EngineSpec(tier.base.engine, tier.base.model, tier.base.dtype, tier.base.device, options=tier.base.engine_options)
    assert tier.base.max_new_tokens + 4 * tier.lengths.prompt <= tier.base.max_model_len
    assert tier.lengths.response < tier.base.max_new_tokens
    assert tier.base.engine_options["max_num_seqs"] == tier.places


def test_the_largest_tier_has_the_delays_and_the_batch_of_m2po():
    tier = TIERS["gpu_node"]
    assert tier.delays == (0, 16, 64, 256) and "m2po" in tier.estimators
    assert (tier.base.prompts_per_update, tier.base.group_size, tier.learning_rate) == (64, 8, 1e-6)
    assert tier.benchmarks["aime_2024"] == tier.benchmarks["aime_2025"] == 32


@pytest.mark.parametrize(
    ("name", "least", "most"), [("gpu_quarter_hour", 0.1, 0.25), ("gpu_night", 6, 12), ("gpu_node", 48, 7 * 24)]
)
def test_each_tier_takes_the_time_and_the_memory_that_it_promises(name, least, most):
    """By the estimate: nothing of this was run."""
    tier = TIERS[name]
    cost, gpu = estimate(tier), HARDWARE[tier.hardware]
    assert least <= cost.hours <= most
    share = tier.base.engine_options["gpu_memory_utilization"] * gpu.memory
    assert cost.engine <= share and cost.learner + share <= gpu.memory


def test_the_estimate_follows_what_it_is_given():
    tier = TIERS["gpu_night"]
    cost = estimate(tier)
    assert estimate(tier, "A100").hours > cost.hours > estimate(tier, shared=False).hours * 0.5
    assert estimate(tier, assumed=Efficiency(training=0.125)).hours > cost.hours
    twice = dataclasses.replace(tier, gpus=2)
    assert estimate(twice).hours == pytest.approx(cost.hours / 2)
    assert estimate(twice, shared=False).hours == estimate(tier, shared=False).hours, "two GPUs for one run"
    mine = Hardware("mine", 48 * GB, 1e12, 100e12, "made up")
    assert estimate(tier, mine).hours > cost.hours and estimate(tier, mine).learner == cost.learner
    base = tier.base
    per_run = base.updates * base.prompts_per_update * base.group_size
    assert cost.trained_tokens == len(tier.runs) * per_run * (tier.lengths.prompt + tier.lengths.response)
    assert cost.generated_tokens == len(tier.runs) * (per_run * tier.lengths.response + (500 + 32 * 30) * 1024)
    with pytest.raises(ValueError, match="unknown hardware 'B200'; known are H200"):
        estimate(tier, "B200")


def test_the_table_says_where_memory_does_not_suffice(capsys):
    assert "more than" not in gpu_tiers_table()
    assert main(["--hardware", "RTX 4090", "--training", "0.2"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("more than the 24 there are") == 3 and "`gpu_night`" in printed
    assert gpu_tiers_table("RTX 4090", shared=False).count("more than the 24 there are") < 3


def test_a_shrunken_tier_runs_from_grid_to_benchmark(tmp_path):
    """Every config of the shrunken night through `train`, the last policy through the benchmark."""
    tier = shrunk(TIERS["gpu_night"], save_qwen3(tmp_path / "model", instruct=False))
    runs = tier.runs
    assert len(runs) == 2 * 2 + 2 * 2 and all(isinstance(config, RunConfig) for config in runs)
    picked = [(runs[0], [0, 1, 0, 1]), (runs[2], [0, 1, 2, 3])]  # no batch ahead, and a delay of 2
    for config, staleness in picked:
        record = train(config.replace(workers="inline"), root=tmp_path / "runs")
        assert [row["staleness"] for row in record.metrics] == staleness
        (path,) = evaluate_last(record, tier, tmp_path / "benchmarks")
        result = read_result(path)
        assert (result.problems, result.samples) == (100, 2) and result.settings["policy_version"] == 4
        assert record.path.name in path.name and json.loads(path.read_text().splitlines()[0])["settings"]["model"]
