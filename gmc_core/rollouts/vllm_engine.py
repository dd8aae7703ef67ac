"""Rollouts from vLLM: its synchronous engine in this process, one `step` of ours being one of its engine steps.

A group is one vLLM request with `n = group_size`. Token ids go in and come out, nothing is tokenised twice; log-probs
are those of the sampling distribution, temperature included; every token carries the weight version that vLLM had when
it sampled it. The CPU build runs in CI. On CUDA the same code is meant to run, with compiled model and CUDA graphs, and
weights may come through vLLM's transfer (vllm_transfer.py): that was not run here.

Between two steps nothing is being computed on CPU. On CUDA vLLM schedules one step ahead; a weight update makes it drop
the tokens that are under way and sample them anew from the new policy.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Any

import torch
from torch import Tensor

from gmc_core.rollouts.continuous import EngineLost, GroupRequest, generate_groups
from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.models import pinned_revision
from gmc_core.rollouts.packaged_models import locate
from gmc_core.rollouts.prompt_encoding import PromptEncoder
from gmc_core.rollouts.random_streams import stream_generator
from gmc_core.rollouts.tasks import Prompt
from gmc_core.rollouts.trajectories import Group
from gmc_core.rollouts.vllm_build import (
    SPARE,
    build_engine,
    check_folder,
    check_options,
    cpu_head_sizes,
    eos_ids,
    shut_down,
)
from gmc_core.rollouts.vllm_environment import check_device, import_vllm, stepping
from gmc_core.rollouts.vllm_transfer import TransferredWeights
from gmc_core.rollouts.vllm_weights import check_weights, parameter_shapes, reload_by_file

LEAST_TEMPERATURE = 0.01  # vLLM raises lower ones to this without telling


class VllmEngine:
    """`ContinuousEngine` and `RolloutEngine` on vLLM, built from `spec.model` as version 0.

    `spec.options`: arguments of vLLM's `EngineArgs`, e.g. `gpu_memory_utilization`, `kv_cache_memory_bytes` (CPU: 1 GiB
    when not given), `tensor_parallel_size`; `max_num_seqs`, how many rollouts are decoded at once: further groups wait
    here, in order, since what is to be scored after a weight update would wait behind them in vLLM's queue; and
    `weight_transfer`, the backend of vllm_transfer.py. Groups have their tensors on the CPU.

    Raises ImportError without vLLM or a packaged model's package, FileNotFoundError for a local folder without a model,
    ValueError for options that vLLM does not know or that are fixed here, RuntimeError for a build of vLLM for another
    device and for what vLLM itself refuses.
    """

    def __init__(self, spec: EngineSpec) -> None:
        if spec.device not in ("cpu", "cuda"):
            raise ValueError(f"EngineSpec.device is {spec.device!r}; expected 'cpu' or 'cuda' (CUDA_VISIBLE_DEVICES)")
        check_options(spec.options)
        revision = pinned_revision(spec.model, spec.revision)
        spec = replace(spec, model=str(locate(spec.model)), revision=revision)
        check_folder(spec.model)
        import_vllm()
        check_device(spec.device)
        from transformers import AutoConfig, AutoTokenizer

        self.spec, self.policy_version = spec, 0
        self.tokenizer = AutoTokenizer.from_pretrained(spec.model, revision=revision, padding_side="left")
        self.eos_ids = eos_ids(spec.model, self.tokenizer, revision)
        config = AutoConfig.from_pretrained(spec.model, revision=revision).get_text_config()
        self.max_model_len = spec.max_model_len or getattr(config, "max_position_embeddings", None)
        self.encode = PromptEncoder(self.tokenizer, spec.chat, spec.enable_thinking)
        self._shapes = parameter_shapes(spec.model, revision)
        self._waiting: dict[int, tuple[GroupRequest, list[int]]] = {}  # by ticket, oldest first: with its prompt
        self._flying: dict[int, _Flight] = {}  # likewise: what vLLM has
        self._landed: dict[int, Group] = {}  # complete, not yet returned by `step`
        self._tickets: dict[str, int] = {}  # vLLM's request id -> ticket
        self._requests = 0
        self._engine: Any = build_engine(spec, self.max_model_len)
        self._engine.set_weight_version("0")
        self._places = self._engine.vllm_config.scheduler_config.max_num_seqs - SPARE
        self._sampled = _count_tokens(self._engine)
        self._finalizer = weakref.finalize(self, shut_down, self._engine)
        self._try_a_step()

    # --- ContinuousEngine ---

    @property
    def tokens_sampled(self) -> int:
        return self._sampled.total

    @property
    def in_flight(self) -> tuple[int, ...]:
        return (*self._flying, *self._waiting)

    def add(self, request: GroupRequest) -> None:
        """See `ContinuousEngine`. Also ValueError for what exceeds `max_model_len`, for temperatures in (0, 0.01), and
        for several rollouts of one prompt at temperature 0 (greedy decoding), which would be copies.
        """
        self._alive()
        if request.ticket in self._flying or request.ticket in self._waiting:
            raise ValueError(f"ticket {request.ticket} is in flight already; a ticket names one group for life")
        if request.temperature == 0 and request.group_size > 1:
            raise ValueError(
                f"ticket {request.ticket}: greedy decoding gives {request.group_size} copies of one; ask for one"
            )
        if 0 < request.temperature < LEAST_TEMPERATURE:
            raise ValueError(
                f"ticket {request.ticket}: temperature {request.temperature} is below {LEAST_TEMPERATURE}, the least "
                "that vLLM samples at; 0 is greedy"
            )
        prompt = self.encode(request.prompt)
        if self.max_model_len is not None and len(prompt) + request.max_new_tokens > self.max_model_len:
            raise ValueError(
                f"ticket {request.ticket}: {len(prompt)} prompt tokens and {request.max_new_tokens} new ones exceed "
                f"the model's {self.max_model_len} (max_model_len); shorten the response limit or the prompts"
            )
        self._waiting[request.ticket] = (request, prompt)

    def step(self) -> list[tuple[int, Group]]:
        """See `ContinuousEngine`. FloatingPointError names a ticket whose log-probs are not finite; it is dropped.

        Groups that were completed together with it come with the next step.
        """
        self._alive()
        if self._waiting or self._flying.keys() - self._landed.keys():
            self._advance()
        done, self._landed = list(self._landed.items()), {}
        for ticket, _ in done:
            self._forget(ticket)
        return done

    def abort(self, tickets: Iterable[int]) -> None:
        engine, tickets = self._alive(), set(tickets)
        self._waiting = {ticket: entry for ticket, entry in self._waiting.items() if ticket not in tickets}
        for ticket in tickets & self._flying.keys():
            if self._landed.pop(ticket, None) is None:
                engine.abort_request([self._flying[ticket].internal], internal=True)
            self._forget(ticket)

    def update_weights(self, weights: Mapping[str, Tensor] | TransferredWeights, policy_version: int) -> None:
        """See `ContinuousEngine`. ValueError, before anything is changed, for weights of another model.

        `weights` may be on any device, and of another dtype. Running requests are preempted, their tokens kept and
        their key/value cache recomputed under the new weights.
        """
        engine = self._alive()
        if isinstance(weights, TransferredWeights):
            if weights.connect is not None:
                engine.collective_rpc("init_weight_transfer_engine", kwargs={"init_info": dict(weights.connect)})
            if not weights.updates:
                return
        else:
            check_weights(weights, self._shapes)
        # First, so that tokens under way are dropped before the weights under them change.
        if not engine.reset_prefix_cache(reset_running_requests=True, reset_connector=True):
            raise RuntimeError("vLLM did not reset its caches; sampling would mix the keys and values of two policies")
        with stepping(self.spec.device):
            if isinstance(weights, TransferredWeights):
                engine.collective_rpc("gmc_receive", args=(weights.updates,))
            elif engine.vllm_config.parallel_config.world_size > 1:
                reload_by_file(engine, weights)
            else:
                engine.collective_rpc("gmc_reload", args=(list(weights.items()),))
        engine.set_weight_version(str(policy_version))
        self.policy_version = policy_version

    def score(self, prompt_tokens_L: Tensor, response_tokens_T: Tensor) -> Tensor:
        """See `ContinuousEngine`. What is in flight advances meanwhile; nothing of it is lost."""
        from vllm import SamplingParams

        engine = self._alive()
        T = response_tokens_T.numel()
        if T == 0:
            return torch.zeros(0)
        tokens = [*prompt_tokens_L.tolist(), *response_tokens_T.tolist()]
        if self.max_model_len is not None and len(tokens) > self.max_model_len:
            raise ValueError(f"{len(tokens)} tokens to score exceed the model's {self.max_model_len} (max_model_len)")
        name = self._name("score")
        params = SamplingParams(max_tokens=1, prompt_logprobs=0, flat_logprobs=True, detokenize=False, temperature=1.0)
        engine.add_request(name, _tokens(tokens), params)
        while True:
            for output in self._advance():
                if output.request_id == name and output.finished:
                    return torch.tensor(output.prompt_logprobs.logprobs[-T:], dtype=torch.float32)

    def close(self) -> None:
        """Release the engine's memory; what is in flight is forgotten. A closed engine raises RuntimeError."""
        if self._engine is None:
            return
        self._waiting, self._flying, self._landed, self._tickets, self._engine = {}, {}, {}, {}, None
        self._finalizer()
        gc.collect()
        if self.spec.device == "cuda":
            torch.cuda.empty_cache()

    # --- RolloutEngine ---

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        group_size: int,
        max_new_tokens: int,
        temperature: float,
        generator: torch.Generator,
    ) -> list[Group]:
        """See `RolloutEngine`. `generator` gives every group its seed. RuntimeError while tickets are in flight."""
        seeds = torch.randint(2**62, (len(prompts),), generator=generator, device=generator.device).tolist()
        requests = [
            GroupRequest(ticket, prompt, group_size, max_new_tokens, temperature, seed)
            for ticket, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
        ]
        return generate_groups(self, requests)

    # --- one step ---

    def _try_a_step(self) -> None:
        """Some of what vLLM cannot compute shows at the first step only: better now than in the middle of a run."""
        try:
            self.score(torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long))
        except Exception as error:
            self.close()
            hint = f". {cpu_head_sizes()}" if self.spec.device == "cpu" else ""
            raise RuntimeError(f"vLLM cannot run {self.spec.model} on {self.spec.device}: {error}{hint}") from error

    def _advance(self) -> list[Any]:
        """One engine step; complete groups land. Its outputs."""
        from vllm.v1.engine.exceptions import EngineDeadError

        self._admit()
        try:
            with stepping(self.spec.device):
                outputs = self._alive().step()
        except EngineDeadError as error:
            raise EngineLost(f"vLLM's engine has died: {error}") from error
        broken: FloatingPointError | None = None
        for output in outputs:
            ticket = self._tickets.get(output.request_id)
            if ticket is None or not output.finished:
                continue
            try:
                self._landed[ticket] = _group(self._flying[ticket], output.outputs)
            except FloatingPointError as error:
                self._forget(ticket)
                broken = error
        if broken is not None:
            raise broken
        return outputs

    def _admit(self) -> None:
        """Hand to vLLM the groups for which there is room, oldest first; a larger one than that goes alone."""
        engine = self._alive()
        rollouts = engine.get_num_unfinished_requests()
        for ticket, (request, prompt) in list(self._waiting.items()):
            if rollouts and rollouts + request.group_size > self._places:
                return
            name = self._name("group")
            internal = engine.add_request(name, _tokens(prompt), self.sampling_params(request))
            self._flying[ticket] = _Flight(request, prompt, name, internal)
            self._tickets[name] = ticket
            del self._waiting[ticket]
            rollouts += request.group_size

    def sampling_params(self, request: GroupRequest) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        # vLLM gives rollout g the seed plus g. Spread over 62 bits, the seeds of two groups do not overlap.
        seed = stream_generator(request.seed, "vllm").initial_seed() >> 1
        return SamplingParams(
            n=request.group_size,
            temperature=request.temperature,
            max_tokens=request.max_new_tokens,
            stop_token_ids=list(self.eos_ids),
            seed=seed,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _name(self, kind: str) -> str:
        self._requests += 1
        return f"{kind}-{self._requests}"

    def _forget(self, ticket: int) -> None:
        del self._tickets[self._flying.pop(ticket).name]

    def _alive(self) -> Any:
        if self._engine is None:
            raise RuntimeError("this VllmEngine is closed; build a new one from its spec")
        return self._engine


class _Sampled:
    total = 0


def _count_tokens(engine: Any) -> _Sampled:
    """A counter that follows what vLLM's core returns: finished requests alone would miss the aborted ones."""
    sampled, core = _Sampled(), engine.engine_core
    get_output = core.get_output

    def counted() -> Any:
        outputs = get_output()
        sampled.total += sum(len(out.new_token_ids) for out in outputs.outputs if "score-" not in out.request_id)
        return outputs

    core.get_output = counted
    return sampled


@dataclass(frozen=True)
class _Flight:
    request: GroupRequest
    prompt: list[int]
    name: str  # what we call the request, and vLLM in its outputs
    internal: str  # what vLLM calls it


def _group(flight: _Flight, rollouts: Sequence[Any]) -> Group:
    """vLLM's completions of one request as a group, as wide as the longest."""
    request = flight.request
    length_G = torch.tensor([len(rollout.token_ids) for rollout in rollouts])
    mask_GT = torch.arange(int(length_G.max())) < length_G[:, None]

    def spread(values: Iterable[Iterable[Any]], dtype: torch.dtype) -> Tensor:
        """Rollout after rollout into the rectangle."""
        out_GT = torch.zeros(mask_GT.shape, dtype=dtype)
        out_GT[mask_GT] = torch.tensor(list(chain.from_iterable(values)), dtype=dtype)
        return out_GT

    logp_GT = spread((rollout.logprobs.logprobs for rollout in rollouts), torch.float32)
    version_GT = spread((_versions(rollout.weight_versions) for rollout in rollouts), torch.long)
    if not bool(torch.isfinite(logp_GT).all()):
        g, t = (~torch.isfinite(logp_GT)).nonzero()[0].tolist()
        raise FloatingPointError(
            f"ticket {request.ticket}: the log-prob of token {t} of rollout {g} is {logp_GT[g, t].item()} under policy "
            f"version {version_GT[g, t].item()}. Either its weights are broken (look at grad_norm and loss before that "
            "version; resume from the last checkpoint with a smaller step) or they did not arrive whole"
        )
    return Group(
        prompt=request.prompt,
        prompt_tokens_L=torch.tensor(flight.prompt),
        response_GT=spread((rollout.token_ids for rollout in rollouts), torch.long),
        mask_GT=mask_GT,
        behavior_logp_GT=logp_GT,
        version_GT=version_GT,
        finished_G=torch.tensor([rollout.finish_reason == "stop" for rollout in rollouts]),
    )


def _versions(spans: Sequence[Any]) -> Iterable[int]:
    """The policy version of every token of a rollout."""
    return chain.from_iterable(repeat(int(span.version), span.end - span.start) for span in spans)


def _tokens(ids: list[int]) -> Any:
    from vllm.inputs import tokens_input

    return tokens_input(ids)
