"""The optimiser step: small steps of bf16 weights, warm-up, fused kernels, its state in a checkpoint."""

import pytest
import torch

from gmc_core.training.checkpoints import load_checkpoint, save_checkpoint
from gmc_core.training.run_config import RunConfig
from gmc_core.training.step import OptimizerStep

ORIGIN = {"fingerprint": "0123456789abcdef", "digest": "89abcdef"}
ADAMW = RunConfig(optimizer="adamw", learning_rate=1e-3, gradient_clip=None)


def weights(dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(7, 5), (5,), (3, 4, 2)]
    return [torch.nn.Parameter(torch.randn(*shape, generator=generator).to(dtype)) for shape in shapes]


def updates(step, parameters, numbers, parts=1):
    """One update per number, from gradients that depend on nothing but it; each the sum of `parts` backward passes."""
    rows = []
    for number in numbers:
        generator = torch.Generator().manual_seed(number)
        directions = [torch.randn(parameter.shape, generator=generator) for parameter in parameters]
        step.clear()
        for _ in range(parts):
            pairs = zip(parameters, directions, strict=True)
            sum((parameter.float() * direction / parts).sum() for parameter, direction in pairs).backward()
            step.collect()
        rows.append(step.take())
    return rows


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_steps_below_the_resolution_of_bf16_add_up(optimizer):
    """Weights near 1 in bf16 are 0.008 apart; 200 steps of 1e-4 in one direction are worth 0.02."""

    def moved(master_weights):
        weight = torch.nn.Parameter(torch.full((1000,), 1.0, dtype=torch.bfloat16))
        config = RunConfig(
            optimizer=optimizer, learning_rate=1e-4, gradient_clip=None, dtype="bfloat16", master_weights=master_weights
        )
        step, lengths = OptimizerStep([weight], config), []
        for _ in range(200):
            step.clear()
            weight.float().sum().backward()  # a gradient of 1 everywhere
            step.collect()
            lengths.append(step.take()["update_length"])
        return 1.0 - weight.detach().float().mean().item(), lengths

    change, lengths = moved(True)
    assert change == pytest.approx(0.02, abs=0.004)
    assert lengths == pytest.approx([1e-4 * 1000**0.5] * 200, rel=0.02)
    lost, lengths = moved(False)
    assert lost == 0.0 and lengths == [0.0] * 200, "what master_weights is for"


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_bf16_weights_are_the_rounded_weights_of_the_fp32_run(optimizer):
    config = ADAMW.replace(optimizer=optimizer, gradient_clip=0.7, max_update_length=0.002, learning_rate=0.01)
    short = weights(torch.bfloat16)
    long = [torch.nn.Parameter(value.detach().float()) for value in short]
    start = [value.detach().clone() for value in long]
    step = OptimizerStep(short, config.replace(dtype="bfloat16"))
    rows = updates(step, short, range(40))
    assert rows[-1]["update_length"] == 0.002
    updates(OptimizerStep(long, config), long, range(40))
    for rounded, master, value, first in zip(short, step.masters, long, start, strict=True):
        assert torch.equal(rounded, master.to(torch.bfloat16))
        change = (value - first).norm()
        assert change > 0 and (master - value).norm() < 0.05 * change  # the gradients themselves came in bf16


def test_gradients_of_many_micro_batches_are_added_in_fp32():
    """The sum of 4096 equal bf16 parts stops growing at 256 parts if it is kept in bf16."""
    parameters = weights(torch.bfloat16)
    step = OptimizerStep(parameters, ADAMW.replace(dtype="bfloat16"))
    step.clear()
    for _ in range(1024):
        sum((parameter / 1024).sum() for parameter in parameters).backward()
        step.collect()
    assert all(parameter.grad is None for parameter in parameters)
    assert step.take()["grad_norm"] == pytest.approx(sum(value.numel() for value in parameters) ** 0.5, rel=1e-3)


def test_fp32_weights_have_no_second_copy():
    parameters = weights()
    step = OptimizerStep(parameters, ADAMW)
    assert step.masters is None and step.state_dict()["masters"] is None
    assert all(own is given for own, given in zip(step.parameters, parameters, strict=True))


def test_warm_up_is_linear_and_logged_as_applied():
    config = RunConfig(learning_rate=0.2, gradient_clip=None, warmup_updates=4)
    parameters = weights()
    rows = updates(OptimizerStep(parameters, config), parameters, range(6))
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.2, 0.2])
    for row in rows:
        assert row["update_length"] == pytest.approx(row["learning_rate"] * row["grad_norm"], rel=1e-4)
    assert (
        updates(OptimizerStep(parameters, config.replace(warmup_updates=0)), parameters, [0])[0]["learning_rate"] == 0.2
    )


def test_an_update_without_gradient_counts_for_the_warm_up():
    config = RunConfig(learning_rate=0.2, warmup_updates=2)
    parameters = weights()
    step = OptimizerStep(parameters, config)
    step.clear()
    assert step.take() == {
        "grad_norm": 0.0, "grad_norm_clipped": 0.0, "update_length": 0.0, "learning_rate": 0.1, "skipped_update": 0.0,
    }  # fmt: skip
    assert updates(step, parameters, [1])[0]["learning_rate"] == 0.2


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_fused_kernel_takes_the_same_steps(optimizer):
    config = ADAMW.replace(optimizer=optimizer, warmup_updates=3)
    plain, fused = weights(), weights()
    step = OptimizerStep(fused, config.replace(fused_optimizer=True))
    assert step.optimizer.defaults["fused"] is True
    assert not OptimizerStep(plain, config).optimizer.defaults["fused"], "off on a CPU unless asked for"
    first = updates(OptimizerStep(plain, config), plain, range(5))
    assert updates(step, fused, range(5)) == [pytest.approx(row, rel=1e-4) for row in first]
    torch.testing.assert_close(fused, plain, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize("stop", [0, 2, 7])
def test_a_resumed_step_goes_on_bit_by_bit(tmp_path, dtype, fused, stop):
    """AdamW within (stop = 2) and after a warm-up of 5 updates."""
    config = ADAMW.replace(warmup_updates=5, fused_optimizer=fused, dtype=str(dtype).removeprefix("torch."))
    whole = weights(dtype)
    rows = updates(OptimizerStep(whole, config), whole, range(10))
    half = weights(dtype)
    step = OptimizerStep(half, config)
    first = updates(step, half, range(stop))
    state = {"weights": [value.detach() for value in half], "step": step.state_dict()}
    save_checkpoint(tmp_path / "file", state, **ORIGIN)
    saved = load_checkpoint(tmp_path / "file", **ORIGIN)
    again = weights(dtype, seed=1)
    step = OptimizerStep(again, config)
    with torch.no_grad():
        for parameter, value in zip(again, saved["weights"], strict=True):
            parameter.copy_(value)
    step.load_state_dict(saved["step"])
    assert first + updates(step, again, range(stop, 10)) == rows
    assert all(torch.equal(left, right) for left, right in zip(again, whole, strict=True))


def test_a_state_without_master_weights_is_refused():
    state = OptimizerStep(weights(torch.bfloat16), ADAMW.replace(master_weights=False)).state_dict()
    with pytest.raises(ValueError, match="disagree on master_weights"):
        OptimizerStep(weights(torch.bfloat16), ADAMW).load_state_dict(state)
