"""What a run costs on a GPU, before it is made: tokens, hours and memory from stated formulas.

No GPU was to be had here, so nothing below was measured on one. The operations and the bytes are counted; how much of
a data sheet's speed a program reaches is assumed (`Efficiency`), and `make gpu-check` measures it on a machine.

With N parameters, of which the layers' matrices and the output layer multiply every token, floating-point operations
of one forward pass are 2 per such parameter and token, and 4 x layers x heads x head_dim per pair of positions that
attention joins. The learner's update is 1 forward pass for the log-probs (the weights of a group need all of it), then
a forward and a backward pass (2 more forwards); layers computed again to save memory are another forward of the layers.
Generation reads all weights and the cache of every sequence once for each token it decodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gmc_core.rollouts.models import ModelShape
from gmc_core.training.run_config import RunConfig

GB = 1e9
MIB = 2**20
ENGINE_RESERVE = 2 * GB  # assumed: CUDA context, graphs and activations of vLLM
LEARNER_RESERVE = 1 * GB  # assumed: CUDA context and kernels' workspaces


@dataclass(frozen=True)
class Hardware:
    """One GPU: memory in bytes, bytes per second from it, dense bf16 operations per second."""

    name: str
    memory: float
    bandwidth: float
    flops: float
    source: str


HARDWARE: dict[str, Hardware] = {
    "H200": Hardware("H200", 141 * GB, 4.8e12, 989e12, "NVIDIA H200 data sheet, SXM"),
    "H100": Hardware("H100", 80 * GB, 3.35e12, 989e12, "NVIDIA H100 data sheet, SXM"),
    "A100": Hardware("A100", 80 * GB, 2.039e12, 312e12, "NVIDIA A100 data sheet, SXM 80 GB"),
    "RTX 4090": Hardware("RTX 4090", 24 * GB, 1.008e12, 165.2e12, "NVIDIA Ada architecture white paper"),
}


@dataclass(frozen=True)
class Efficiency:
    """Assumed, not measured. Give your own: `make gpu-check` measures `training` and the decoding pace.

    `training`: share of the dense peak that the learner's passes reach: the target of gpu-check, 0.35 of what plain
    products reach, which is taken as 0.7 of the data sheet. `prefill`: the same of vLLM's prompts. `bandwidth`: share
    of the memory bandwidth that decoding reaches. `step_seconds`: least time of one decoding step of vLLM (scheduling,
    sampling, log-probs), `slow_step_seconds` of one of transformers, which evaluates. `sync`: bytes per second of new
    weights on their way to the engine, `sync_seconds` what they cost beside. `startup_seconds`: of a run, imports and
    engine.
    """

    training: float = 0.25
    prefill: float = 0.4
    bandwidth: float = 0.6
    step_seconds: float = 0.005
    slow_step_seconds: float = 0.035
    sync: float = 4e9
    sync_seconds: float = 0.3
    startup_seconds: float = 90.0


@dataclass(frozen=True)
class Lengths:
    """Mean tokens of a prompt and of a response; the longest response is the config's limit."""

    prompt: int
    response: int


# --- operations ---


def forward_flops(shape: ModelShape, sequences: float, length: float, scored: float) -> float:
    """Of one forward pass over `sequences` of `length` tokens, with logits for `scored` of the tokens of each."""
    layers = 2 * shape.matrix_parameters * length
    attention = 4 * shape.layers * shape.heads * shape.head_dim * length * (length + 1) / 2
    return sequences * (layers + attention + 2 * shape.embedding_parameters * scored)


def update_flops(shape: ModelShape, config: RunConfig, lengths: Lengths) -> float:
    """Of one update of the learner, recomputation included."""
    rollouts = config.prompts_per_update * config.group_size
    length = lengths.prompt + lengths.response
    whole = forward_flops(shape, rollouts, length, lengths.response)
    layers = forward_flops(shape, rollouts, length, 0)
    return 4 * whole + (layers if config.gradient_checkpointing else 0) + (whole - layers)  # blocks: the head again


# --- bytes ---


def cache_bytes_per_token(shape: ModelShape, element: int = 2) -> int:
    """Keys and values of all layers."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * element


def layer_bytes_per_token(shape: ModelShape, element: int = 2) -> int:
    """What autograd keeps of one of transformers' Qwen3 layers for the backward pass, for one token; a test counts it.

    The two norms keep their input in fp32, its inverse root, what it is scaled to and what leaves them; those of
    queries and keys all but the last. Fused attention keeps queries, keys, values, its output and the logarithm of its
    sum; the MLP the two products, the gate's activation and what enters the last matrix.
    """
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    norms = 2 * (shape.hidden * (4 + 2 * element) + 4)
    head_norms = (queries + keys) * (4 + element) + 4 * (shape.heads + shape.kv_heads) if shape.qk_norm else 0
    attention = element * 2 * (queries + keys) + 4 * shape.heads
    return norms + head_norms + attention + 4 * shape.intermediate * element


def activation_bytes(shape: ModelShape, tokens: int, *, recomputed: bool, element: int = 2) -> float:
    """What a forward pass over `tokens` keeps for the backward pass, logits aside."""
    layer = tokens * layer_bytes_per_token(shape, element)
    if not recomputed:
        return shape.layers * layer
    return (
        shape.layers * tokens * shape.hidden * element + 2 * layer
    )  # inputs of all layers; one layer and its gradient


@dataclass(frozen=True)
class LearnerMemory:
    """Bytes of the learner: what stays, and what comes on top while gradients, the step or an evaluation are made."""

    weights: float
    masters: float
    gradients: float
    moments: float
    backward: float
    step: float
    evaluation: float

    @property
    def standing(self) -> float:
        return self.weights + self.masters + self.gradients + self.moments

    @property
    def update(self) -> float:
        """Peak of an update."""
        return self.standing + max(self.backward, self.step)

    @property
    def peak(self) -> float:
        return max(self.update, self.standing + self.evaluation)


def learner_memory(shape: ModelShape, config: RunConfig, lengths: Lengths) -> LearnerMemory:
    """Of the learner of `config`.

    bf16 weights have an fp32 copy with gradients of its own (`master_weights`); the gradients of one micro-batch come
    on top of them in bf16. The step keeps the parameters of before, to measure how far it went. Of logits in fp32 there
    are three copies, or two blocks of `logits_mib` where that is less. An evaluation decodes all its prompts together.
    """
    N, element = shape.parameters, 2 if config.dtype == "bfloat16" else 4
    masters = config.master_weights and element == 2
    stepped = 4 if masters or element == 4 else element
    longest = lengths.prompt + config.response_limit
    rollouts = config.prompts_per_update * config.group_size
    tokens = min(rollouts * longest, max(config.micro_batch_tokens, longest))
    scored = tokens * config.response_limit / longest
    logits = min(2.0 * config.logits_mib * MIB, 3 * 4.0 * scored * shape.vocabulary)
    kept = activation_bytes(shape, tokens, recomputed=config.gradient_checkpointing, element=element)
    hidden = 2 * 4 * tokens * shape.hidden  # of the last layer, and their gradient, in fp32
    prompts = config.evaluation_prompts
    return LearnerMemory(
        weights=element * N,
        masters=4.0 * N if masters else 0.0,
        gradients=stepped * N,
        moments=2 * stepped * N if config.optimizer == "adamw" else 0.0,
        backward=(element * N if masters else 0) + kept + logits + hidden,
        step=stepped * N,
        evaluation=prompts * (longest * cache_bytes_per_token(shape, element) + 3 * 4 * shape.vocabulary),
    )


def engine_memory(shape: ModelShape, config: RunConfig, lengths: Lengths, places: int) -> float:
    """Bytes that vLLM needs to decode `places` rollouts of full length at once."""
    element = 2 if config.dtype == "bfloat16" else 4
    sequences = min(places, config.prompts_per_update * config.group_size)
    cache = sequences * (lengths.prompt + config.response_limit) * cache_bytes_per_token(shape, element)
    return element * shape.parameters + cache + ENGINE_RESERVE


# --- seconds ---


def decoding_seconds(
    shape: ModelShape, sequences: int, lengths: Lengths, limit: int, places: int, gpu: Hardware, assumed: Efficiency
) -> float:
    """Of generating `sequences` responses, `places` at once: as many steps as the tokens need, at least `limit`."""
    together = min(sequences, places)
    cached = together * (lengths.prompt + lengths.response / 2) * cache_bytes_per_token(shape)
    active = shape.matrix_parameters + shape.embedding_parameters
    read = (2 * active + cached) / (gpu.bandwidth * assumed.bandwidth)
    computed = 2 * active * together / (gpu.flops * assumed.prefill)
    steps = max(limit, math.ceil(sequences * lengths.response / together))
    return steps * max(assumed.step_seconds, read, computed)


def update_seconds(
    shape: ModelShape,
    config: RunConfig,
    lengths: Lengths,
    gpu: Hardware,
    assumed: Efficiency,
    *,
    places: int,
    shared: bool,
) -> float:
    """Wall time of one update.

    On one GPU generation and learning share its operations, so their times add up. On GPUs of their own they overlap,
    but where no batch is made ahead: there the learner waits for every one.
    """
    learning = update_flops(shape, config, lengths) / (gpu.flops * assumed.training)
    prefill = forward_flops(shape, config.prompts_per_update, lengths.prompt, 1) / (gpu.flops * assumed.prefill)
    rollouts = config.prompts_per_update * config.group_size
    decoding = decoding_seconds(shape, rollouts, lengths, config.response_limit, places, gpu, assumed)
    sync = 2 * shape.parameters / assumed.sync + assumed.sync_seconds
    generating = prefill + decoding + sync
    if shared or config.max_staleness < config.updates_per_batch:
        return learning + generating
    return max(learning, generating)


def evaluation_seconds(config: RunConfig, assumed: Efficiency) -> float:
    """Of the evaluations along a run, which transformers decodes, all prompts at once, to the longest response."""
    return (config.updates // config.evaluation_every + 1) * config.response_limit * assumed.slow_step_seconds


def benchmark_seconds(
    shape: ModelShape, responses: int, lengths: Lengths, limit: int, places: int, gpu: Hardware, assumed: Efficiency
) -> float:
    """Of a benchmark with vLLM, every response taken to be `limit` tokens long."""
    return decoding_seconds(shape, responses, Lengths(lengths.prompt, limit), limit, places, gpu, assumed)
