"""Continuous generation with a transformers model: the engine that serves wherever vLLM is not installed.

All groups in flight are decoded together, one token per step, each distinct prefix once (prefix_cache.py). The uniform
numbers behind the tokens of a group come from its own generator when it is added, and a token is the inverse of the
cumulative distribution at such a number: what else is in flight, or when an update comes, changes nothing in the draws.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn.functional import pad

from gmc_core.rollouts.continuous import GroupRequest
from gmc_core.rollouts.engine import grow_prefixes
from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.policy import load_policy, load_snapshot, response_log_probs
from gmc_core.rollouts.prefix_cache import PrefixCache
from gmc_core.rollouts.prompt_encoding import PromptEncoder
from gmc_core.rollouts.tasks import Prompt
from gmc_core.rollouts.trajectories import Group

OPTIONS = {"max_rollouts": 512, "prefill_tokens": 16384}


class ContinuousTransformersEngine:
    """`ContinuousEngine` with a model of its own, loaded from `spec.model` as version 0.

    `spec.options`: `max_rollouts`, how many are decoded at once (further groups wait in order; a larger group runs
    alone), and `prefill_tokens`, how many prompt tokens go through the model at a time.
    Raises ValueError for an unknown option or dtype, FileNotFoundError or OSError for a missing model.
    """

    def __init__(self, spec: EngineSpec) -> None:
        if unknown := spec.options.keys() - OPTIONS.keys():
            raise ValueError(
                f"the transformers engine has no option {sorted(unknown)[0]!r}; it takes {', '.join(OPTIONS)}"
            )
        options = OPTIONS | dict(spec.options)
        for name, value in options.items():
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"engine option {name} is {value!r}; expected an integer of at least 1")
        dtype = getattr(torch, spec.dtype, None)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ValueError(f"EngineSpec.dtype is {spec.dtype!r}; expected float32, bfloat16 or float16")
        self.policy = load_policy(spec.model, revision=spec.revision, dtype=dtype, device=spec.device)
        self.policy_version = 0
        self.tokens_sampled = 0
        self._max_rollouts, self._prefill_tokens = options["max_rollouts"], options["prefill_tokens"]
        self._limit = spec.max_model_len or getattr(self.policy.model.config, "max_position_embeddings", None)
        self._encode = PromptEncoder(self.policy.tokenizer, spec.chat, spec.enable_thinking)
        self._eos = torch.tensor(self.policy.eos_ids, device=self.policy.device)
        self._waiting: dict[int, _Running] = {}  # by ticket, oldest first
        self._running: dict[int, _Running] = {}
        self._rows = _Rows.empty(self.policy.device)  # the rollouts of `_running`, in its order
        self._prefixes: PrefixCache | None = None  # None: to be computed from the tokens

    @property
    def in_flight(self) -> tuple[int, ...]:
        return (*self._running, *self._waiting)

    def add(self, request: GroupRequest) -> None:
        if request.ticket in self._running or request.ticket in self._waiting:
            raise ValueError(f"ticket {request.ticket} is in flight already; a ticket names one group for life")
        prompt_L = torch.tensor(self._encode(request.prompt), device=self.policy.device)
        total = prompt_L.numel() + request.max_new_tokens
        if self._limit is not None and total > self._limit:
            raise ValueError(
                f"ticket {request.ticket}: {prompt_L.numel()} prompt tokens and {request.max_new_tokens} new ones "
                f"exceed the model's {self._limit} (max_model_len); shorten the response limit or the prompts"
            )
        self._waiting[request.ticket] = _Running(request, prompt_L)

    def step(self) -> list[tuple[int, Group]]:
        new = self._admit()
        if not (self._running or new):
            return []
        self._advance(new)
        self._sample()
        return self._collect()

    def abort(self, tickets: Iterable[int]) -> None:
        tickets = set(tickets)
        self._waiting = {ticket: group for ticket, group in self._waiting.items() if ticket not in tickets}
        self._keep([ticket not in tickets for ticket in self._running])

    def update_weights(self, weights: Mapping[str, Tensor], policy_version: int) -> None:
        load_snapshot(self.policy.model, weights)
        self.policy_version = policy_version
        self._prefixes = None

    @torch.no_grad()
    def score(self, prompt_tokens_L: Tensor, response_tokens_T: Tensor) -> Tensor:
        prompt_1L, response_1T = (x.to(self.policy.device)[None] for x in (prompt_tokens_L, response_tokens_T))
        index_1 = torch.zeros(1, dtype=torch.long, device=self.policy.device)
        mask_1L = torch.ones_like(prompt_1L, dtype=torch.bool)
        return response_log_probs(self.policy.model, prompt_1L, mask_1L, response_1T, index_1)[0]

    def close(self) -> None:
        self.abort(self.in_flight)
        self._prefixes = None

    # --- one step ---

    def _admit(self) -> list[_Running]:
        """Groups that start now, oldest first, as far as there is room."""
        new, rollouts = [], len(self._rows.alive_N)
        for group in self._waiting.values():
            if rollouts and rollouts + group.request.group_size > self._max_rollouts:
                break
            new.append(group)
            rollouts += group.request.group_size
        for group in new:
            del self._waiting[group.request.ticket]
        return new

    def _advance(self, new: list[_Running]) -> None:
        """Bring the prefixes up to the sampled tokens, let new groups join; `node_N` then points at the prefixes."""
        rows, device = self._rows, self.policy.device
        nodes = 0
        if len(rows.alive_N):
            last_N = rows.response_NT.gather(1, (rows.length_N - 1)[:, None]).squeeze(1)
            parent_K, token_K, rows.node_N = grow_prefixes(rows.node_N, last_N, rows.alive_N, int(last_N.max()) + 1)
            nodes = len(parent_K)
            if self._prefixes is not None:
                self._prefixes.extend(parent_K, token_K)
        if self._prefixes is not None and new and not self._prefixes.joinable:
            self._prefixes = None
        prompts = [group.prompt_L for group in new]
        if self._prefixes is None:
            sequences = self._sequences(nodes) + prompts
            self._prefixes = PrefixCache(self.policy.model, sequences, token_budget=self._prefill_tokens)
        elif new:
            self._prefixes.join(PrefixCache(self.policy.model, prompts, token_budget=self._prefill_tokens))
        for offset, group in enumerate(new):
            self._rows.append(_Rows.of(group.request, slot=len(self._running), node=nodes + offset, device=device))
            self._running[group.request.ticket] = group

    def _sequences(self, nodes: int) -> list[Tensor]:
        """The tokens of every prefix, prompt and response so far, read off one of its rollouts."""
        rows, groups = self._rows, list(self._running.values())
        alive = rows.alive_N.nonzero().squeeze(-1)
        representative_K = alive.new_zeros(nodes)
        representative_K[rows.node_N[alive]] = alive
        return [
            torch.cat([groups[rows.slot_N[row]].prompt_L, rows.response_NT[row, : rows.length_N[row]]])
            for row in representative_K.tolist()
        ]

    def _sample(self) -> None:
        rows = self._rows
        alive = rows.alive_N.nonzero().squeeze(-1)
        column, node = rows.length_N[alive], rows.node_N[alive]
        logits_KV = self._prefixes.logits_KV
        temperature_K = torch.ones(len(logits_KV), device=logits_KV.device)
        temperature_K[node] = rows.temperature_N[alive]
        token, logp = draw_tokens(logits_KV, temperature_K, node, rows.uniform_NT[alive, column])
        rows.response_NT[alive, column] = token
        rows.logp_NT[alive, column] = logp
        rows.version_NT[alive, column] = self.policy_version
        rows.length_N[alive] += 1
        rows.finished_N[alive] = torch.isin(token, self._eos)
        rows.alive_N = ~rows.finished_N & (rows.length_N < rows.limit_N)
        self.tokens_sampled += len(alive)

    def _collect(self) -> list[tuple[int, Group]]:
        """The groups without a living rollout; they leave."""
        rows = self._rows
        lives = torch.zeros(len(self._running), dtype=torch.bool, device=rows.alive_N.device)
        lives[rows.slot_N[rows.alive_N]] = True
        if bool(lives.all()):
            return []
        done, start = [], 0
        for (ticket, group), alive in zip(self._running.items(), lives.tolist(), strict=True):
            part = slice(start, start + group.request.group_size)
            start = part.stop
            if not alive:
                done.append((ticket, rows.group(part, group)))
        self._keep(lives.tolist())
        return done

    def _keep(self, keep: list[bool]) -> None:
        """Drop the running groups for which `keep` is False. Their prefixes go when the others are extended."""
        if all(keep):
            return
        keep_groups = torch.tensor(keep, device=self._rows.slot_N.device)
        self._rows.select(keep_groups[self._rows.slot_N])
        self._rows.slot_N = (keep_groups.cumsum(0) - 1)[self._rows.slot_N]
        self._running = {
            ticket: group for (ticket, group), kept in zip(self._running.items(), keep, strict=True) if kept
        }
        if not self._running:
            self._prefixes = None


def draw_tokens(logits_KV: Tensor, temperature_K: Tensor, node_N: Tensor, uniform_N: Tensor) -> tuple[Tensor, Tensor]:
    """A token for every rollout from softmax(logits / temperature) of its node, and its fp32 log-prob there.

    `uniform_N` in [0, 1), float64: the token is the first whose cumulative probability exceeds it. Where the
    temperature is 0 it is the likeliest one, with its log-prob at temperature 1.
    """
    greedy_K = temperature_K == 0
    logp_KV = torch.log_softmax(logits_KV.float() / temperature_K.masked_fill(greedy_K, 1.0)[:, None], dim=-1)
    cumulative_KV = logp_KV.double().exp().cumsum(-1)
    threshold_N = uniform_N * cumulative_KV[node_N, -1]  # below the total, whatever the rounding of the sum
    rows = max(1, 2**25 // logp_KV.shape[-1])  # bounds the copy of rows by node for large vocabularies
    token_N = torch.cat(
        [
            torch.searchsorted(cumulative_KV[node], threshold[:, None], right=True).squeeze(-1)
            for node, threshold in zip(node_N.split(rows), threshold_N.split(rows), strict=True)
        ]
    )
    if bool(greedy_K.any()):
        token_N = torch.where(greedy_K[node_N], logp_KV.argmax(-1)[node_N], token_N)
    return token_N, logp_KV[node_N, token_N]


@dataclass(frozen=True)
class _Running:
    request: GroupRequest
    prompt_L: Tensor


@dataclass
class _Rows:
    """The rollouts in flight, groups in one piece. `slot_N` the place of the group, `node_N` of the prefix."""

    slot_N: Tensor
    node_N: Tensor
    length_N: Tensor
    limit_N: Tensor
    temperature_N: Tensor
    alive_N: Tensor
    finished_N: Tensor
    response_NT: Tensor
    logp_NT: Tensor
    version_NT: Tensor
    uniform_NT: Tensor

    @classmethod
    def of(cls, request: GroupRequest, *, slot: int, node: int, device: torch.device) -> _Rows:
        G, T = request.group_size, request.max_new_tokens
        generator = torch.Generator().manual_seed(request.seed)  # on the CPU: the same draws on every device

        def full(value, dtype: torch.dtype, *more: int) -> Tensor:
            return torch.full((G, *more), value, dtype=dtype, device=device)

        return cls(
            slot_N=full(slot, torch.long),
            node_N=full(node, torch.long),
            length_N=full(0, torch.long),
            limit_N=full(T, torch.long),
            temperature_N=full(request.temperature, torch.float32),
            alive_N=full(True, torch.bool),
            finished_N=full(False, torch.bool),
            response_NT=full(0, torch.long, T),
            logp_NT=full(0.0, torch.float32, T),
            version_NT=full(0, torch.long, T),
            uniform_NT=torch.rand((G, T), generator=generator, dtype=torch.float64).to(device),
        )

    @classmethod
    def empty(cls, device: torch.device) -> _Rows:
        rows = cls.of(GroupRequest(0, Prompt("", ""), 1, 1, 1.0, 0), slot=0, node=0, device=device)
        rows.select(torch.zeros(1, dtype=torch.bool, device=device))
        return rows

    def select(self, keep_N: Tensor) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name)[keep_N])

    def append(self, other: _Rows) -> None:
        width = max(self.response_NT.shape[1], other.response_NT.shape[1])
        for field in fields(self):
            parts = [getattr(self, field.name), getattr(other, field.name)]
            if parts[0].dim() == 2:
                parts = [pad(part, (0, width - part.shape[1])) for part in parts]
            setattr(self, field.name, torch.cat(parts))

    def group(self, part: slice, running: _Running) -> Group:
        """The rollouts of one group, as wide as the longest."""
        length_G = self.length_N[part]
        width = int(length_G.max())
        columns_T = torch.arange(width, device=length_G.device)
        return Group(
            prompt=running.request.prompt,
            prompt_tokens_L=running.prompt_L,
            response_GT=self.response_NT[part, :width].clone(),
            mask_GT=columns_T < length_G[:, None],
            behavior_logp_GT=self.logp_NT[part, :width].clone(),
            version_GT=self.version_NT[part, :width].clone(),
            finished_G=self.finished_N[part].clone(),
        )
