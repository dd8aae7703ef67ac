import dataclasses
import json
import subprocess
import sys

import pytest
import torch

from benchmarks.gpu_check.flops import forward_flops as counted_flops
from benchmarks.gpu_check.sizes import Rollouts
from gmc_core import RunConfig, paths
from gmc_core.rollouts.models import MODELS, ModelShape
from gmc_core.training.gpu_cost import (
    GB,
    HARDWARE,
    MIB,
    Efficiency,
    Lengths,
    activation_bytes,
    benchmark_seconds,
    cache_bytes_per_token,
    decoding_seconds,
    engine_memory,
    evaluation_seconds,
    forward_flops,
    layer_bytes_per_token,
    learner_memory,
    update_flops,
    update_seconds,
)

QWEN3 = MODELS["Qwen/Qwen3-0.6B-Base"].shape
H200 = HARDWARE["H200"]
SMALL = [
    ModelShape(layers=2, hidden=64, intermediate=128, heads=4, kv_heads=2, head_dim=32, vocabulary=64, tied=True),
    ModelShape(layers=1, hidden=128, intermediate=512, heads=4, kv_heads=1, head_dim=64, vocabulary=64, tied=False),
    ModelShape(layers=3, hidden=256, intermediate=256, heads=8, kv_heads=8, head_dim=32, vocabulary=64, tied=True),
]


def build(shape, dtype=torch.float32, device="cpu"):
    from transformers import AutoModelForCausalLM, Qwen3Config

    config = Qwen3Config(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim, tie_word_embeddings=shape.tied,
    )  # fmt: skip
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def config_of(**changes):
    """32 x 8 rollouts of 512 tokens, in micro-batches, as a model of real size is trained."""
    common = RunConfig(
        dtype="bfloat16", optimizer="adamw", gradient_checkpointing=True, logits_mib=256, micro_batch_tokens=8192,
        prompts_per_update=32, group_size=8, max_new_tokens=512, evaluation_prompts=64,
    )  # fmt: skip
    return common.replace(**changes)


# --- operations ---


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("Qwen/")])
def test_operations_are_those_counted_on_the_built_model(name):
    """benchmarks/gpu_check counts the linear layers of a model; the shape must give the same."""
    shape, rollouts = MODELS[name].shape, Rollouts(prompts=3, group=5, prompt=70, response=90)
    counted = counted_flops(build(shape, device="meta"), rollouts)
    assert forward_flops(shape, 15, 160, 90) == pytest.approx(counted.total, rel=1e-12)
    assert forward_flops(shape, 15, 160, 0) == pytest.approx(counted.body, rel=1e-12)


def test_operations_are_those_that_torch_counts():
    """FlopCounterMode sees the products themselves; attention over the whole square, which is twice the causal half."""
    from torch.utils.flop_counter import FlopCounterMode

    shape = SMALL[0]
    model, length = build(shape), 48
    model.set_attn_implementation("eager")  # as plain products, which the counter knows
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.zeros((2, length), dtype=torch.long), use_cache=False)
    square = 2 * 4 * shape.layers * shape.heads * shape.head_dim * (length * length - length * (length + 1) / 2)
    assert counter.get_total_flops() == pytest.approx(forward_flops(shape, 2, length, length) + square, rel=0.01)


def test_an_update_is_four_forwards_and_what_is_computed_again():
    lengths = Lengths(prompt=64, response=512)
    whole, layers = (forward_flops(QWEN3, 256, 576, scored) for scored in (512, 0))
    again = update_flops(QWEN3, config_of(), lengths)
    plain = update_flops(QWEN3, config_of(gradient_checkpointing=False), lengths)
    assert again - plain == layers and plain == 4 * whole + (whole - layers)
    tokens = 256 * 576
    assert 8 * QWEN3.matrix_parameters * tokens < again < 12 * QWEN3.parameters * tokens


# --- bytes ---


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", SMALL)
def test_what_a_layer_keeps_is_what_autograd_saves(shape, dtype):
    """Every tensor saved for the backward pass, its storage once, less what does not grow with the layers."""

    def saved(layers, rows=2, length=64):
        model = build(dataclasses.replace(shape, layers=layers), dtype)
        weights, found = {parameter.data_ptr() for parameter in model.parameters()}, {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                found[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that no address is used again
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            states = model.model(input_ids=torch.randint(64, (rows, length)), use_cache=False)
        assert states is not None
        return sum(size for size, _ in found.values()) / (rows * length)

    element = dtype.itemsize
    assert saved(3) - saved(2) == layer_bytes_per_token(shape, element)
    assert activation_bytes(shape, 10, recomputed=False, element=element) == 10 * shape.layers * layer_bytes_per_token(
        shape, element
    )


def test_the_cache_is_that_of_the_built_model():
    shape = SMALL[0]
    cache = build(shape)(input_ids=torch.zeros((1, 7), dtype=torch.long), use_cache=True).past_key_values
    size = sum(part.numel() * part.element_size() for layer in cache.layers for part in (layer.keys, layer.values))
    assert size == 7 * cache_bytes_per_token(shape, 4)
    assert cache_bytes_per_token(QWEN3) == 114_688


@pytest.mark.parametrize(("dtype", "logits_mib"), [("float32", 64), ("bfloat16", 64), ("float32", 2**20)])
def test_memory_is_what_an_update_takes_on_a_cpu(dtype, logits_mib):
    """benchmarks/learner_memory.py in a process of its own: growth of resident memory, of a model that is mostly
    vocabulary. What stands before (weights, fp32 copies) is not part of it."""
    command = [sys.executable, "-m", "benchmarks.learner_memory", dtype, str(logits_mib)]
    done = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True)
    if done.returncode and "/proc" in done.stderr:
        pytest.skip("the peak of resident memory is read from /proc, which only Linux has")
    assert done.returncode == 0, done.stderr[-2000:]
    measured = json.loads(done.stdout.splitlines()[-1])["mib"] * MIB
    shape = ModelShape(2, 64, 128, 2, 1, 32, vocabulary=151_936, tied=True)
    config = RunConfig(
        dtype=dtype, logits_mib=logits_mib, prompts_per_update=2, group_size=8, max_new_tokens=64, evaluation_prompts=1
    )
    memory = learner_memory(shape, config, Lengths(16, 64))
    assert memory.gradients + max(memory.backward, memory.step) == pytest.approx(measured, rel=0.15)


def test_an_update_of_the_smallest_qwen3_fits_in_24_gb():
    """32 x 8 rollouts of 512 tokens, micro-batched: the target that `make gpu-check` measures."""
    memory = learner_memory(QWEN3, config_of(), Lengths(64, 512))
    N = QWEN3.parameters
    assert memory.standing == (2 + 4 + 4 + 8) * N and memory.step == 4 * N
    assert 10 * GB < memory.update < 16 * GB < 24 * GB
    without = learner_memory(QWEN3, config_of(gradient_checkpointing=False), Lengths(64, 512))
    assert without.update - memory.update > 14 * GB and without.update > 24 * GB
    full = learner_memory(QWEN3, config_of(logits_mib=2**20), Lengths(64, 512))
    assert full.update > memory.update + 3 * 4 * 7000 * QWEN3.vocabulary - 1 * GB
    fp32 = learner_memory(QWEN3, config_of(dtype="float32"), Lengths(64, 512))
    assert fp32.standing == (4 + 4 + 8) * N and fp32.masters == 0
    sgd = learner_memory(QWEN3, config_of(optimizer="sgd"), Lengths(64, 512))
    assert memory.standing - sgd.standing == 8 * N
    many = learner_memory(QWEN3, config_of(evaluation_prompts=1024), Lengths(64, 512))
    assert many.peak > memory.peak and many.update == memory.update


def test_the_engine_needs_weights_and_the_cache_of_what_it_decodes():
    lengths = Lengths(64, 300)
    few, all_ = (engine_memory(QWEN3, config_of(), lengths, places) for places in (64, 10_000))
    assert all_ - few == (256 - 64) * (64 + 512) * 114_688


# --- seconds ---


def test_decoding_takes_as_many_steps_as_the_longest_response():
    quick = Efficiency(step_seconds=0.01)
    one_wave = decoding_seconds(QWEN3, 64, Lengths(64, 100), 512, 64, H200, quick)
    assert one_wave == pytest.approx(512 * 0.01)
    assert decoding_seconds(QWEN3, 640, Lengths(64, 100), 512, 64, H200, quick) == pytest.approx(1000 * 0.01)
    bound = decoding_seconds(QWEN3, 64, Lengths(64, 512), 512, 64, H200, Efficiency(step_seconds=0.0))
    read = 2 * (QWEN3.matrix_parameters + QWEN3.embedding_parameters) + 64 * (64 + 256) * 114_688
    assert bound == pytest.approx(512 * read / (0.6 * 4.8e12))
    assert benchmark_seconds(QWEN3, 128, Lengths(64, 1), 100, 64, H200, quick) == pytest.approx(200 * 0.01)


def test_generation_and_learning_overlap_on_two_gpus_and_not_in_the_synchronous_loop():
    live = {"schedule": "bounded_staleness"}
    pace = {
        (delay, shared): update_seconds(
            QWEN3, config_of(**live, max_staleness=delay), Lengths(64, 300), H200, Efficiency(), places=256,
            shared=shared,
        )
        for delay in (0, 16)
        for shared in (True, False)
    }  # fmt: skip
    assert pace[0, True] == pace[0, False] == pace[16, True] > pace[16, False] > pace[0, True] / 2
    slower = Efficiency(training=0.1)
    assert update_seconds(
        QWEN3, config_of(), Lengths(64, 300), H200, slower, places=256, shared=True
    ) > pace[0, True]  # fmt: skip
    assert evaluation_seconds(config_of(updates=10, evaluation_every=5), Efficiency(slow_step_seconds=1.0)) == 3 * 512
