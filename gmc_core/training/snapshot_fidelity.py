"""How stale is stale: one current policy against older snapshots of itself, from ratios to the bias of the gradient.

From every snapshot `snapshot_rows` samples many rollouts of the same prompts once, scores them under the current policy
and cuts them into groups of every size to be judged. What the theory speaks of is then measured on a real model: the
law of log r and of the group mass M, the three excesses, and bias and variance of the gradient against fresh rollouts.

The score (gradient of the log-prob) of every distinct response is taken once, under the current policy, and kept as a
sketch of some thousand numbers (`gradient_sketch`). For weights that are one per rollout, the gradient of any group,
rule and threshold is a combination of these, so group sizes and thresholds cost next to nothing. It is
g = (1/G) sum_i w_i A_i s_i for one prompt, docs/theory.md section 1, with the advantages of the config and without a
normaliser of lengths. `fidelity` takes whole gradients of a batch instead, of every rule, for small models.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gmc_core.estimators import ESTIMATORS, effective_sample_size, log_group_mass, trajectory_log_ratio
from gmc_core.rollouts.engine import TransformersEngine
from gmc_core.rollouts.policy import Policy, load_snapshot, response_log_probs, snapshot
from gmc_core.rollouts.prompt_encoding import PromptEncoder
from gmc_core.rollouts.random_streams import stream_generator
from gmc_core.rollouts.scoring import score_groups
from gmc_core.rollouts.tasks import Prompt, Task
from gmc_core.rollouts.trajectories import Batch
from gmc_core.training.gradient_moments import gradient_moments
from gmc_core.training.gradient_sketch import SIZE, GradientSketch
from gmc_core.training.micro_batches import plan_micro_batches
from gmc_core.training.rollout_log_probs import rollout_log_probs
from gmc_core.training.run_config import RunConfig
from gmc_core.training.weighting import Weighting, usable_rollouts

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
UNBIASED = ("center", "leave_one_out")  # advantages with which weights r have no bias: docs/theory.md section 7
RULES = {name: {"estimator": name} for name in ("gmc", "tic_truncate", "tic_mask", "snis", "is", "uncorrected")}


@dataclass(frozen=True)
class SnapshotPlan:
    """How much is sampled, and what is judged.

    Per prompt `stale_rollouts` from each snapshot, cut into groups of every size of `group_sizes` (at least two), and
    `fresh_rollouts` from the current policy, averaged to `fresh_blocks` gradients. The law of M comes from `shuffles`
    random partitions of the same rollouts, at every threshold of `epsilons`; gradients from disjoint groups, for
    `rules`: labels with the fields estimator and estimator_options of a RunConfig. `sketch_size`: numbers a gradient is
    kept as; `at_once`: rollouts sampled together, a matter of memory. The prompts are those of `seed`.
    """

    prompts: int = 16
    stale_rollouts: int = 256
    fresh_rollouts: int = 512
    fresh_blocks: int = 4
    group_sizes: tuple[int, ...] = (4, 8, 16, 32, 64)
    epsilons: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5)
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: RULES)
    shuffles: int = 8
    sketch_size: int = SIZE
    at_once: int = 8192
    seed: int = 0

    def __post_init__(self) -> None:
        if self.prompts < 2 or self.fresh_blocks < 2:
            raise ValueError(
                f"SnapshotPlan has prompts={self.prompts} and fresh_blocks={self.fresh_blocks}; expected at least 2 of "
                "each: standard errors come from the prompts, and pairs of blocks remove the noise"
            )
        for size in self.group_sizes:
            if size < 2 or self.stale_rollouts % size or self.stale_rollouts < 2 * size:
                raise ValueError(
                    f"SnapshotPlan.group_sizes holds {size}, but {self.stale_rollouts} stale rollouts cannot be cut "
                    "into two or more groups of that size (of at least 2 rollouts); take a divisor"
                )
            if self.fresh_rollouts % (size * self.fresh_blocks):
                raise ValueError(
                    f"SnapshotPlan.fresh_rollouts is {self.fresh_rollouts}; expected a multiple of group size x "
                    f"fresh_blocks = {size} x {self.fresh_blocks}"
                )
        for label, rule in self.rules.items():
            if foreign := sorted(set(rule) - {"estimator", "estimator_options"}):
                raise ValueError(f"rule {label!r} of a SnapshotPlan sets {', '.join(foreign)}; only estimator and "
                                 "estimator_options may be set")  # fmt: skip
            name = rule["estimator"]
            if name in ESTIMATORS and ESTIMATORS[name].level != "trajectory":
                raise ValueError(
                    f"rule {label!r} of a SnapshotPlan weighs tokens one by one; its gradient is no combination of the "
                    "scores of whole rollouts. `gmc_core.training.fidelity.probe` judges it"
                )


@dataclass(frozen=True)
class _Sample:
    """Rollouts of one sampler: `batch` (P, R, T), log-probs under the current policy, place (P, R) in the score table
    (-1: the advantage is 0 in any group, so no score was taken)."""

    batch: Batch
    logp_PRT: Tensor
    place_PR: Tensor


def snapshot_rows(
    policy: Policy,
    behaviors: Iterable[tuple[int, Mapping[str, Tensor]]],
    task: Task,
    config: RunConfig,
    *,
    plan: SnapshotPlan | None = None,
    index: int = 0,
) -> list[dict[str, Any]]:
    """What the age of the sampler does, at one current policy.

    Args:
        policy: the current policy; it is not changed.
        behaviors: age in updates and weights of each policy that samples, e.g. the items of a dict; a generator holds
            one at a time. Age 0 may be among them, as a check: its ratios are 1 up to rounding, its bias 0 up to noise.
        config: advantage, temperature, response limit, chat, micro_batch_tokens.
        index: another index samples other rollouts (of the same prompts).
    Returns:
        flat rows, told apart by `kind`, each with `delay` and, but for moments, with `<name>_error`, the standard error
        over the prompts:
        "drift"     log_ratio_mean, log_ratio_variance (within a prompt, over its rollouts; `_low` and `_high` of the
                    prompts), log_ratio_skewness, kl_forward KL(pi || b) and kl_backward KL(b || pi) (nats a
                    trajectory), mean_ratio (1 but for sampling error), length (tokens), reward of the sampler,
                    fresh_reward, distance (Euclidean, of the parameters), distinct (responses a prompt)
        "length"    tokens, log_ratio_variance of the first so many tokens of a response
        "law"       group_size (1: single ratios), epsilon, excess_group E(M - c)+, excess_truncate E(r - c)+,
                    excess_mask E r 1{r > c}, capped_fraction P(M > c), ess_fraction, log_mass_<q> the quantiles of
                    log M over groups and prompts
        "gradient"  group_size, rule, and what `gradient_moments` measures, a prompt being a set; further, with
                    advantages for which uncapped importance sampling has no bias (`UNBIASED`), the same against that
                    on the same groups, which has less noise: paired_bias_squared |E(n - n_is)|^2 and paired_lost, the
                    share <E(n_is - n), m*> / |m*|^2 of the fresh gradient that the rule loses
    Raises: FloatingPointError for log-probs that are NaN.
    """
    plan = plan or SnapshotPlan()
    current = _Current(policy, task, config, plan, index)
    rows = []
    for delay, weights in behaviors:
        sample = current.sample(weights, plan.stale_rollouts, f"snapshot rollouts {delay}")
        log_ratio_PRT = sample.logp_PRT - sample.batch.behavior_logp_PGT
        log_ratio_PRT = torch.where(sample.batch.mask_PGT, log_ratio_PRT, 0.0)
        log_ratio_PR = trajectory_log_ratio(sample.logp_PRT, sample.batch.behavior_logp_PGT, sample.batch.mask_PGT)
        if torch.isnan(log_ratio_PR).any():
            raise FloatingPointError(f"log-ratios to the policy of {delay} updates ago are NaN: its weights are broken")
        own = _drift(log_ratio_PR, sample.batch) | {"fresh_reward": current.fresh.batch.reward_PG.mean().item()}
        own["distance"] = _distance(policy, weights)
        found = [{"kind": "drift"} | own]
        found += [{"kind": "length"} | row for row in _length_rows(log_ratio_PRT)]
        found += [{"kind": "law"} | row for row in _law_rows(log_ratio_PR, plan, index)]
        found += [{"kind": "gradient"} | row for row in current.gradient_rows(sample)]
        rows += [{"delay": delay} | row for row in found]
    return rows


class _Current:
    """The current policy at its prompts: fresh rollouts, and the sketched score of every response met so far."""

    def __init__(self, policy: Policy, task: Task, config: RunConfig, plan: SnapshotPlan, index: int) -> None:
        self.policy, self.task, self.config, self.plan, self.index = policy, task, config, plan, index
        self.parameters = [parameter for parameter in policy.model.parameters() if parameter.requires_grad]
        self.sketch = GradientSketch(self.parameters, plan.sketch_size, plan.seed)
        self.places: dict[tuple[int, ...], int] = {}  # prompt and tokens of a response -> row of the score table
        self.scores: list[Tensor] = []
        self.prompts: Sequence[Prompt] = task.sample_prompts(
            plan.prompts, stream_generator(plan.seed, "snapshot prompts")
        )
        self.sampler = replace(policy, model=copy.deepcopy(policy.model))
        self.fresh = self.sample(snapshot(policy.model), plan.fresh_rollouts, "snapshot fresh rollouts")

    def sample(self, weights: Mapping[str, Tensor], count: int, stream: str) -> _Sample:
        """`count` rollouts a prompt from these weights, scored under the current policy."""
        policy, config = self.policy, self.config
        load_snapshot(self.sampler.model, weights)
        engine = TransformersEngine(
            self.sampler, encode=PromptEncoder(policy.tokenizer, config.chat, config.enable_thinking)
        )
        groups, together = [], max(1, self.plan.at_once // count)
        for start in range(0, len(self.prompts), together):
            groups += engine.generate(
                self.prompts[start : start + together],
                group_size=count,
                max_new_tokens=config.response_limit,
                temperature=config.temperature,
                generator=stream_generator(self.plan.seed, f"{stream} {start}", self.index, policy.device),
            )
        groups = score_groups(groups, self.task, policy.tokenizer)
        batch = Batch.from_groups(groups, group_size=count, mask_truncated=config.mask_truncated)
        logp_PRT = self._log_probs(batch)
        place_PR = torch.full(batch.shape[:2], -1)
        for p in range(batch.shape[0]):
            reward = batch.reward_PG[p]
            if bool((reward == reward[0]).all()) and config.advantage != "length_corrected":
                continue
            for r in range(count):
                tokens = batch.response_PGT[p, r][batch.mask_PGT[p, r]]
                key = (p, *tokens.tolist())
                if key not in self.places:
                    self.places[key] = len(self.scores)
                    self.scores.append(self._score(groups[p].prompt_tokens_L, tokens))
                place_PR[p, r] = self.places[key]
        return _Sample(batch, logp_PRT, place_PR)

    @torch.no_grad()
    def _log_probs(self, batch: Batch) -> Tensor:
        P, R, T = batch.shape
        out = torch.zeros((P * R, T), device=batch.response_PGT.device)
        for part in plan_micro_batches(batch, torch.arange(P * R, device=out.device), self.config.micro_batch_tokens):
            out[part.rows_M, : part.response_width] = rollout_log_probs(
                self.policy.model, batch, part.rows_M, self.config.temperature,
                prompt_width=part.prompt_width, response_width=part.response_width,
            )  # fmt: skip
        return out.view(P, R, T)

    def _score(self, prompt_L: Tensor, response_T: Tensor) -> Tensor:
        """The sketch of grad log pi(response | prompt), summed over its tokens."""
        logp_1T = response_log_probs(
            self.policy.model,
            prompt_L.unsqueeze(0),
            torch.ones_like(prompt_L, dtype=torch.bool).unsqueeze(0),
            response_T.unsqueeze(0),
            torch.zeros(1, dtype=torch.long, device=prompt_L.device),
            temperature=self.config.temperature,
            share_prefix=False,
        )
        return self.sketch(torch.autograd.grad(logp_1T.sum(), self.parameters))

    def gradient_rows(self, sample: _Sample) -> list[dict[str, Any]]:
        """Moments of every rule and group size against the fresh gradient at that size."""
        plan, rows = self.plan, []
        for size in plan.group_sizes:
            fresh_PKD = self._gradients(self.fresh, size, self._weighting("uncorrected"))
            unbiased_PKD = self._gradients(sample, size, self._weighting("is"))
            P, K, D = fresh_PKD.shape
            fresh_PJD = fresh_PKD.view(P, plan.fresh_blocks, K // plan.fresh_blocks, D).mean(2)
            for label, rule in plan.rules.items():
                stale_PKD = self._gradients(sample, size, self._weighting(**rule))
                row = {"group_size": size, "rule": label} | gradient_moments(stale_PKD, fresh_PJD)
                if self.config.advantage in UNBIASED:
                    lost = gradient_moments(unbiased_PKD - stale_PKD, fresh_PJD)
                    for name, moment in (("paired_bias_squared", "norm_squared"), ("paired_lost", "signal")):
                        row |= {name: lost[moment], f"{name}_error": lost[f"{moment}_error"]}
                rows.append(row)
        return rows

    def _weighting(self, estimator: str, estimator_options: Mapping[str, Any] | None = None) -> Weighting:
        return Weighting(
            self.config.replace(
                estimator=estimator, estimator_options=estimator_options or {}, rescale_to=None, detached=True
            )
        )

    def _gradients(self, sample: _Sample, size: int, weighting: Weighting) -> Tensor:
        """(P, K, D): sketched gradients of disjoint groups of `size`, prompt by prompt."""
        P, R, T = sample.batch.shape
        K = R // size
        batch = _regrouped(sample.batch, size)
        valid = usable_rollouts(batch)
        advantage = weighting.advantages(batch, valid)
        weight, advantage = weighting.weights(
            batch, sample.logp_PRT.view(P * K, size, T), advantage, torch.ones_like(advantage), valid
        )
        share_PKG = (weight[..., 0] * advantage / size).view(P, K, size).cpu()  # one weight for all tokens of a rollout
        out = torch.zeros((P, K, self.plan.sketch_size), device=self.policy.device)
        for p in range(P):
            place_R = sample.place_PR[p]
            used, own_R = torch.unique(place_R[place_R >= 0], return_inverse=True)
            if not len(used):
                continue
            share_KU = torch.zeros((K, len(used)))
            share_KU.index_put_((torch.arange(R) // size, own_R), share_PKG[p].flatten(), accumulate=True)
            scores_UD = torch.stack([self.scores[place] for place in used.tolist()])
            out[p] = share_KU.to(scores_UD) @ scores_UD
        return out


def _regrouped(batch: Batch, size: int) -> Batch:
    """The batch with its R rollouts a prompt as R / size groups a prompt."""
    P, R, _ = batch.shape
    K = R // size
    change = {}
    for name, value in vars(batch).items():
        if name.endswith("_PL"):
            change[name] = value.repeat_interleave(K, dim=0)
        else:
            change[name] = value.reshape(P * K, size, *value.shape[2:])
    return replace(batch, **change)


def _over_prompts(name: str, value_P: Tensor) -> dict[str, float]:
    """Mean over the prompts and its standard error."""
    value_P = value_P.double()
    return {name: value_P.mean().item(), f"{name}_error": value_P.std().item() / math.sqrt(len(value_P))}


def _drift(log_ratio_PR: Tensor, batch: Batch) -> dict[str, float]:
    log_ratio_PR = log_ratio_PR.double()
    ratio_PR, excess_PR = log_ratio_PR.exp(), log_ratio_PR.expm1()  # r - 1 has mean 0 under b: it takes noise away
    variance_P = log_ratio_PR.var(-1)
    centred_PR = log_ratio_PR - log_ratio_PR.mean(-1, keepdim=True)
    skewness_P = centred_PR.pow(3).mean(-1) / centred_PR.square().mean(-1).clamp_min(1e-30) ** 1.5
    distinct = [
        len({tuple(row[mask].tolist()) for row, mask in zip(*pair, strict=True)})
        for pair in zip(batch.response_PGT, batch.mask_PGT, strict=True)
    ]
    return {
        **_over_prompts("log_ratio_mean", log_ratio_PR.mean(-1)),
        **_over_prompts("log_ratio_variance", variance_P),
        "log_ratio_variance_low": variance_P.min().item(),
        "log_ratio_variance_high": variance_P.max().item(),
        **_over_prompts("log_ratio_skewness", skewness_P),
        **_over_prompts("kl_forward", (ratio_PR * log_ratio_PR - excess_PR).mean(-1)),
        **_over_prompts("kl_backward", (excess_PR - log_ratio_PR).mean(-1)),
        **_over_prompts("mean_ratio", ratio_PR.mean(-1)),
        **_over_prompts("length", batch.mask_PGT.sum(-1).double().mean(-1)),
        **_over_prompts("reward", batch.reward_PG.mean(-1)),
        "distinct": sum(distinct) / len(distinct),
    }


def _distance(policy: Policy, weights: Mapping[str, Tensor]) -> float:
    squares = [
        (tensor.detach() - weights[name]).double().square().sum() for name, tensor in policy.model.named_parameters()
    ]
    return torch.stack(squares).sum().sqrt().item()


def _length_rows(log_ratio_PRT: Tensor) -> list[dict[str, float]]:
    """Variance of log r of the first 1, 2, 4, ... tokens, and of all; a shorter response counts as it is."""
    T = log_ratio_PRT.shape[-1]
    lengths = sorted({min(2**k, T) for k in range(T.bit_length() + 1)})
    running_PRT = log_ratio_PRT.double().cumsum(-1)
    return [
        {"tokens": tokens} | _over_prompts("log_ratio_variance", running_PRT[..., tokens - 1].var(-1))
        for tokens in lengths
    ]


def _law_rows(log_ratio_PR: Tensor, plan: SnapshotPlan, index: int) -> list[dict[str, float]]:
    """Excesses at every group size and threshold, prompt by prompt, from random partitions of the same rollouts."""
    log_ratio_PR = log_ratio_PR.double().cpu()
    P, R = log_ratio_PR.shape
    generator = stream_generator(plan.seed, "snapshot partitions", index)
    ratio_PR = log_ratio_PR.exp()
    rows = []
    for size in (1, *plan.group_sizes):
        parts = []
        for _ in range(1 if size == 1 else plan.shuffles):
            order_PR = torch.rand((P, R), generator=generator).argsort(-1)
            parts.append(log_ratio_PR.gather(-1, order_PR).view(P, R // size, size))
        groups_PKG = torch.cat(parts, dim=1)
        log_mass_PK = log_group_mass(groups_PKG)
        mass_PK, ess_PK = log_mass_PK.exp(), effective_sample_size(groups_PKG) / size
        quantiles = torch.quantile(log_mass_PK.flatten(), torch.tensor(QUANTILES, dtype=torch.float64)).tolist()
        shown = {f"log_mass_{100 * q:02.0f}": value for q, value in zip(QUANTILES, quantiles, strict=True)}
        for epsilon in plan.epsilons:
            cap = 1 + epsilon
            rows.append(
                {"group_size": size, "epsilon": epsilon}
                | _over_prompts("excess_group", (mass_PK - cap).clamp_min(0).mean(-1))
                | _over_prompts("excess_truncate", (ratio_PR - cap).clamp_min(0).mean(-1))
                | _over_prompts("excess_mask", torch.where(ratio_PR > cap, ratio_PR, 0.0).mean(-1))
                | _over_prompts("capped_fraction", (mass_PK > cap).double().mean(-1))
                | _over_prompts("ess_fraction", ess_PK.mean(-1))
                | shown
            )
    return rows
