"""The GPU check on a CPU: it runs whole in its shrunken size, survives parts that go wrong, and counts right."""

import json
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu_check import device_tests, flops, grid, runner, targets
from benchmarks.gpu_check.sizes import QWEN3_0_6B, SIZES, SMALL_QWEN3, Rollouts
from benchmarks.random_rollouts import random_batch, random_qwen3
from gmc_core import paths
from gmc_core.estimators import ESTIMATORS
from gmc_core.rollouts.output_head import output_head
from gmc_core.training.rollout_log_probs import rollout_log_probs

SMOKE = SIZES["smoke"]


def numbers(value, name=""):
    """(name, number) of every number in nested dicts and lists."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from numbers(item, f"{name}.{key}")
    elif isinstance(value, list):
        for item in value:
            yield from numbers(item, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    output = tmp_path_factory.mktemp("check") / "check.json"
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--size", "smoke", "--output", str(output)]
    done = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = [line for line in done.stdout.splitlines() if line.startswith(("PASS", "FAIL", "NOT MEASURED"))]
    assert len(verdicts) == 4 and all(line.startswith("NOT MEASURED") for line in verdicts)
    return json.loads(output.read_text())


def test_every_part_comes_to_its_end(content):
    assert list(content["parts"]) == list(runner.PARTS)
    assert {name: part["status"] for name, part in content["parts"].items()} == dict.fromkeys(runner.PARTS, "done")
    assert content["commit"] and content["lock"] and content["versions"]["torch"] and content["machine"]["cores"]
    assert len(content["targets"]) == 4
    assert all(math.isfinite(value) for _, value in numbers(content))


def test_rates_and_times_are_positive_and_nothing_beats_the_ceiling(content):
    parts = content["parts"]
    assert parts["ceiling"]["flops_per_second"] > 0 and parts["ceiling"]["copied_bytes_per_second"] > 0
    rows = [row for name, row in parts["learner"].items() if name.startswith(("one_pass", "two_passes"))]
    assert len(rows) == 6
    for row in rows:
        assert row["tokens_per_second"] > 0 and row["grad_norm"] > 0
        assert 0 < row["utilisation"] <= row["hardware_utilisation"] <= 1
    assert parts["learner"]["kernels"]["share_of_attention"] > 0
    ways = [parts["memory"][name] for name in ("blocks_recomputed", "blocks", "full_logits_recomputed", "full_logits")]
    assert all(row["peak_gb"] >= 0 and row["update_s"] > 0 for row in ways)
    for engine in ("batch_engine", "continuous_engine"):
        assert parts["engine"][engine]["tokens_per_second"] > 0
    assert 0 <= parts["engine"]["gap_to_learner"]["largest_nats"] < 1e-3
    assert all(parts["estimators"][name]["ms"] > 0 for name in (*ESTIMATORS, "diagnostics"))


def test_the_grid_has_a_row_for_every_run(content):
    part = content["parts"]["grid"]
    expected = {(name, delay, 0) for name in grid.ESTIMATORS for delay in SMOKE.grid_delays}
    assert {(row["estimator"], row["delay"], row["seed"]) for row in part["runs"]} == expected
    assert part["left_out"] == [] and len(part["table"]) == len(expected)
    assert all(0 <= row["final_accuracy"] <= 1 and row["accuracies"][-1][0] == part["updates"] for row in part["runs"])


def test_the_tests_marked_gpu_were_collected(content):
    part = content["parts"]["tests"]
    skipped = part["tests_skipped"] if not torch.cuda.is_available() else 0
    assert part["tests"] >= 25 and part["tests_passed"] + part["tests_skipped"] == part["tests"]
    assert skipped in (0, part["tests"])


# --- parts that go wrong ----------------------------------------------------------------------------------------------


def run(monkeypatch, *functions, seconds=400.0, least=0.0):
    parts = {name: runner.Part("tests.broken_parts", 1.0, least, name) for name in functions}
    monkeypatch.setattr(runner, "PARTS", parts)
    kept = []
    found = runner.run_parts(list(parts), "smoke", seconds, lambda name, record: kept.append((name, dict(record))))
    return found, kept


def test_a_part_that_goes_wrong_keeps_what_it_found_and_takes_no_other_with_it(monkeypatch):
    found, kept = run(monkeypatch, "raises", "raises_in_a_row", "dies", "good")
    assert {name: part["status"] for name, part in found.items()} == {
        "raises": "error", "raises_in_a_row": "error", "dies": "error", "good": "done",
    }  # fmt: skip
    assert found["raises"]["value"] == 2.0 and "RuntimeError: no kernel image" in found["raises"]["why"]
    rows = found["raises_in_a_row"]
    assert "out of memory" in rows["first"]["error"] and rows["second"] == {"value": 3.0}
    assert "no time left" in rows["third"]["left_out"] and rows["why"] == "raised: first"
    assert found["dies"]["value"] == 5.0 and "exit code 7" in found["dies"]["why"]
    assert found["good"]["seen"] == ["dies", "raises", "raises_in_a_row"]
    assert ("raises", 2.0) in [(name, record.get("value")) for name, record in kept if record["status"] != "error"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for the child in /proc")
def test_a_part_that_hangs_is_ended_with_what_it_started(monkeypatch):
    found, _ = run(monkeypatch, "hangs", seconds=3.0)
    part = found["hangs"]
    assert part["status"] == "cut" and part["value"] == 6.0
    status = Path(f"/proc/{part['child']}/stat")
    for _ in range(50):
        if not status.exists() or status.read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    pytest.fail("the child of the part is still running")


def test_a_part_without_time_is_left_out_by_name(monkeypatch):
    found, kept = run(monkeypatch, "good", seconds=5.0, least=100.0)
    assert found["good"]["status"] == "left out" and "no time left" in found["good"]["why"] and kept


# --- what is counted --------------------------------------------------------------------------------------------------


def test_the_model_is_qwen3_of_600_million():
    assert random_qwen3(QWEN3_0_6B, dtype=torch.bfloat16, device="meta").model.num_parameters() == 596_049_920


@pytest.mark.parametrize("prompt", [1, 9])
def test_flops_are_those_that_torch_counts(prompt):
    """But for attention, whose whole square the plain kernel computes, while flops.py counts the causal half."""
    rollouts = Rollouts(prompts=2, group=3, prompt=prompt, response=20)
    policy = random_qwen3(SMALL_QWEN3, dtype=torch.float32)
    batch = random_batch(4096, 2, 3, prompt, 20)
    output_head(policy.model)  # its first call looks at the model, which is no part of a pass
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        rollout_log_probs(policy.model, batch, torch.arange(6), 1.0, share_prefix=False, logits_bytes=1)
    counted = {str(operator): count for operator, count in counter.get_flop_counts()["Global"].items()}
    forward = flops.forward_flops(policy.model, rollouts)
    S, layers, width = prompt + 20, SMALL_QWEN3["num_hidden_layers"], 4 * 16
    assert counted["aten.bmm"] == rollouts.count * 4 * layers * width * S * S
    assert counted["aten.mm"] == forward.total - rollouts.count * 4 * layers * width * S * (S + 1) / 2
    model, hardware = flops.update_flops(forward, passes=2, in_blocks=True, recomputed=True)
    assert model == 4 * forward.total and hardware == 5 * forward.total
    assert flops.update_flops(forward, passes=1, in_blocks=False, recomputed=False) == (3 * forward.total,) * 2


def test_targets_are_decided_on_a_gpu_at_full_size_only():
    parts = {
        "device": {"kind": "cuda"},
        "learner": {"two_passes_plain": {"utilisation": 0.3}, "two_passes_compiled": {"utilisation": 0.4}},
        "memory": {"blocks_recomputed": {"peak_gb": 25.0}, "blocks": {"peak_gb": 1.0}},
        "engine": {"probe_tolerance": 0.3, "gap_to_learner": {"largest_nats": 0.2}},
    }
    two, one, memory, gap = targets.conclusions(parts, "full")
    assert (two["verdict"], two["value"], two["how"]) == ("PASS", 0.4, "compiled")
    assert one["verdict"] == "NOT MEASURED" and "did not come to an end" in one["why"]
    assert memory["verdict"] == "FAIL" and gap["verdict"] == "PASS"
    elsewhere = [targets.conclusions(parts, "smoke"), targets.conclusions(parts | {"device": {"kind": "cpu"}}, "full")]
    assert {line["verdict"] for lines in elsewhere for line in lines} == {"NOT MEASURED"}


def test_the_number_of_updates_fits_the_time():
    limits = {"most": 100, "fewest": 20}
    assert grid.affordable_updates(150.0, 0.1, 2.0, rounds=7, **limits) == 100
    assert grid.affordable_updates(100.0, 0.125, 2.0, rounds=8, **limits) == 64
    assert grid.affordable_updates(10.0, 0.1, 2.0, rounds=7, **limits) == 20


def test_what_a_test_measured_is_read_from_its_report(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.gpu.test_engine_cuda" name="test_a[bf16]"><properties>'
        '<property name="largest_gap_nats" value="0.04"/></properties></testcase><testcase classname="x" name="test_b">'
        '<failure message="no"/></testcase><testcase classname="x" name="test_c"><skipped/></testcase>'
        "</testsuite></testsuites>"
    )
    found = device_tests.read_report(report)
    assert found["measured"] == {"test_engine_cuda::test_a[bf16]::largest_gap_nats": "0.04"}
    assert list(found["outcomes"].values()) == ["passed", "failure", "skipped"]
    assert (found["tests"], found["tests_passed"], found["tests_skipped"]) == (3, 1, 1)


def test_what_was_tested_before_the_time_ended_is_read_from_the_lines():
    text = """
tests/gpu/test_engine_cuda.py::test_a[{'dtype': 'bfloat16'}] PASSED      [ 3%]
tests/gpu/test_engine_cuda.py::test_b FAILED [ 6%]
tests/gpu/test_engine_cuda.py::test_c """
    assert device_tests.read_lines(text) == {
        "test_engine_cuda::test_a[{'dtype': 'bfloat16'}]": "passed", "test_engine_cuda::test_b": "failed",
    }  # fmt: skip
