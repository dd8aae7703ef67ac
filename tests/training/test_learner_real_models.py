"""What real models need of the learner: bf16, recomputed layers, compiled passes, a vocabulary of 151,936, resume."""

import copy
import functools

import pytest
import torch

from gmc_core.training.learner import Learner
from gmc_core.training.loop import train
from gmc_core.training.micro_batches import plan_micro_batches
from gmc_core.training.recomputed_layers import recomputed_layers
from gmc_core.training.run_config import RunConfig
from tests.models import change, random_policy, sampled_batch, warm_policy

CONFIG = RunConfig(prompts_per_update=4, group_size=8, gradient_clip=None, learning_rate=0.5)
VOCABULARY = 151_936


@pytest.fixture(scope="module")
def stale_batch():
    """Rollouts of the warm start, for a learner that has moved on."""
    return sampled_batch(warm_policy())


def test_a_bf16_model_takes_the_step_of_the_fp32_model(stale_batch):
    config = CONFIG.replace(micro_batch_tokens=200)
    long, metrics = change(warm_policy(), config, stale_batch)
    policy = warm_policy()
    policy.model.to(torch.bfloat16)
    learner = Learner(policy, config.replace(dtype="bfloat16"))
    start = [master.detach().clone() for master in learner.step.masters]
    short_metrics = learner.update(stale_batch)
    moved = torch.cat([(now - then).flatten() for now, then in zip(learner.step.masters, start, strict=True)]).detach()
    assert torch.nn.functional.cosine_similarity(moved, long, dim=0) > 0.98
    assert short_metrics["grad_norm"] == pytest.approx(metrics["grad_norm"], rel=0.05)
    assert short_metrics["log_mass_mean"] == pytest.approx(metrics["log_mass_mean"], abs=0.02)


def test_recomputed_layers_run_twice_keep_less_and_leave_no_trace(stale_batch, monkeypatch):
    policy = warm_policy()
    layers = list(policy.model.model.layers)
    calls, kept = [], []
    forward = type(layers[0]).forward
    monkeypatch.setattr(type(layers[0]), "forward", lambda layer, *a, **k: calls.append(k) or forward(layer, *a, **k))
    part = plan_micro_batches(stale_batch, torch.arange(32), 10_000)[0]

    def count(config):
        calls.clear(), kept.clear()
        learner = Learner(policy, config)
        with torch.autograd.graph.saved_tensors_hooks(lambda value: kept.append(value.numel()) or value, lambda v: v):
            logp = learner._log_probs(stale_batch, part)
        held, forwards = sum(kept), len(calls)
        logp.sum().backward()
        return held, forwards, len(calls)

    held, forwards, total = count(CONFIG)
    assert (forwards, total) == (2 * len(layers), 2 * len(layers)), "prompts and responses, once each"
    less, forwards, total = count(CONFIG.replace(gradient_checkpointing=True))
    assert (forwards, total) == (len(layers), 2 * len(layers))
    assert all(call.get("past_key_values") is None for call in calls), "no cache that would be written twice"
    assert less < held / 4
    assert not policy.model.training
    assert all("forward" not in vars(layer) for layer in layers)
    copy.deepcopy(policy.model)


def test_a_model_without_layers_to_recompute_is_refused():
    with pytest.raises(ValueError, match="Linear has no layers"), recomputed_layers(torch.nn.Linear(2, 2)):
        pass


@pytest.mark.parametrize("more", [{"micro_batch_tokens": 200}, {"gradient_checkpointing": True}])
def test_compiled_passes_take_the_same_step(stale_batch, monkeypatch, more):
    """Through torch's graph capture; its C++ code generation takes minutes and is not part of the tests."""
    used = []

    def capture(graph, inputs):
        used.append(len(inputs))
        return graph

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=capture))
    plain, metrics = change(random_policy(), CONFIG, stale_batch)
    compiled, compiled_metrics = change(random_policy(), CONFIG.replace(compile=True, **more), stale_batch)
    assert 1 <= len(used) <= 2, "all layers share one graph, and one more where no gradient is wanted"
    assert metrics["grad_norm"] > 0
    torch.testing.assert_close(compiled, plain, atol=1e-6, rtol=1e-3)
    assert compiled_metrics["loss"] == pytest.approx(metrics["loss"], abs=1e-4)


# --- whole runs -----------------------------------------------------------------------------------------------------


class Stop(Exception):
    pass


def stop_at(update):
    def on_update(row):
        if row["update"] == update:
            raise Stop

    return on_update


RUN = RunConfig(
    delay=1, updates=5, evaluation_every=5, evaluation_prompts=8, prompts_per_update=4, group_size=8, optimizer="adamw",
    learning_rate=3e-4, warmup_updates=3, micro_batch_tokens=300,
)  # fmt: skip


@pytest.mark.parametrize("config", [RUN, RUN.replace(dtype="bfloat16", fused_optimizer=True)], ids=["fp32", "bf16"])
def test_adamw_with_a_warm_up_resumes_to_the_same_bytes(tmp_path, config):
    whole = train(config, root=tmp_path / "whole")
    rates = [row["learning_rate"] for row in whole.metrics]
    assert rates == pytest.approx([1e-4, 2e-4, 3e-4, 3e-4, 3e-4])
    assert all(row["update_length"] > 0 for row in whole.metrics)
    for update in (1, 4):  # within the warm-up, and after it
        root = tmp_path / str(update)
        with pytest.raises(Stop):
            train(config, root=root, checkpoint_seconds=0, on_update=stop_at(update))
        record = train(config, root=root)
        for name in ("metrics.jsonl", "evaluations.jsonl", "policy.safetensors"):
            assert (record.path / name).read_bytes() == (whole.path / name).read_bytes()


def with_vocabulary(policy, words):
    """The same policy in a vocabulary of `words`: the new words have logits of about -25 wherever it goes."""
    from transformers import GenerationConfig, Qwen3ForCausalLM

    batch = sampled_batch(policy, seed=1)
    prompt = batch.prompt_PL.repeat_interleave(8, 0)
    with torch.no_grad():
        ids = torch.cat([prompt, batch.response_PGT.flatten(0, 1)], dim=1)
        hidden = policy.model.model(input_ids=ids).last_hidden_state[:, prompt.shape[1] - 1 : -1].flatten(0, 1)
        away = torch.linalg.lstsq(hidden, torch.full((len(hidden), 1), -25.0)).solution[:, 0]
    config = copy.deepcopy(policy.model.config)
    config.vocab_size = words
    model = Qwen3ForCausalLM(config).eval()
    weights = dict(policy.model.named_parameters())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.shape == weights[name].shape:
                parameter.copy_(weights[name])
            else:
                parameter.copy_(away.expand_as(parameter))
                parameter[: len(weights[name])] = weights[name]
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=0)
    return model.to(torch.bfloat16)


def test_the_whole_path_in_bf16_at_a_vocabulary_of_151936(tmp_path, monkeypatch):
    policy = warm_policy()
    with_vocabulary(policy, VOCABULARY).save_pretrained(tmp_path / "model")
    policy.tokenizer.save_pretrained(tmp_path / "model")
    largest = []
    softmax = torch.log_softmax
    monkeypatch.setattr(torch, "log_softmax", lambda x, dim: largest.append(x.numel()) or softmax(x, dim=dim))
    config = RUN.replace(
        model=str(tmp_path / "model"), dtype="bfloat16", updates=2, evaluation_every=2, delay=1,
        gradient_checkpointing=True, micro_batch_tokens=200, logits_mib=8, warmup_updates=2, evaluation_prompts=4,
    )  # fmt: skip
    record = train(config, root=tmp_path / "runs")
    assert record.evaluations[0]["truncated_fraction"] < 1, "it says what the tiny model says"
    first, second = record.metrics
    assert first["reward_mean"] > 0 and first["zero_advantage_groups"] < 4
    for row in (first, second):
        assert row["skipped_update"] == 0 and row["update_length"] > 0 and row["grad_norm"] > 0
        assert row["excluded_rollouts"] == 0
        assert abs(row["log_ratio_mean"]) < 0.3
    assert first["log_ratio_std"] < 0.2, "learner and sampler agree at staleness 0 but for bf16"
    assert [row["learning_rate"] for row in record.metrics] == [1.5e-4, 3e-4]
    # the sampler's softmax is one row per rollout at most; the learner's, a row per token, never happens
    assert largest and max(largest) <= 32 * VOCABULARY
