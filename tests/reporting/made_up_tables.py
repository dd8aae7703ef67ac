"""Made-up tables of every experiment, for the figures of records that do not exist yet: test data, no results.

Runs are those of the real grids, shortened to `UPDATES` updates; curves are invented from a run's own digest, so they
are the same everywhere and look like runs: they rise, and some fall. They go through `write_tables`, as real ones do.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from gmc_core.experiments.experiment import Experiment, chosen_step_sizes
from gmc_core.experiments.grids import EXPERIMENTS
from gmc_core.experiments.snapshot_probing import SnapshotSchedule
from gmc_core.reporting.run_records import write_tables
from gmc_core.reporting.timelines import RunTimeline
from gmc_core.training.loop import summarize
from gmc_core.training.run_config import RunConfig
from gmc_core.training.run_directory import RunRecord
from gmc_core.training.timeline import LEARNER

UPDATES, EVERY = 16, 4
NOTE = "Made up for a test: these numbers were not measured.\n"
BEST = {"gmc": 0.07, "tic_truncate": 0.1, "tic_mask": 0.14, "ppo_clip": 0.1}  # step size at which a method is best


def made_up(experiment: str, root: Path) -> Path:
    """Write made-up tables of `experiment` under `root`, where those that tune it have to be."""
    found = EXPERIMENTS[experiment]
    configs = found.configs_at(chosen_step_sizes(found.tuning, root)) if found.tuning else found.configs
    updates = UPDATES + 8 if found.timed else UPDATES  # a pace leaves out more than 16 updates
    records = [made_up_run(config.replace(updates=updates, evaluation_every=EVERY)) for config in configs]
    probes = None
    if found.probe is not None:
        rows = made_up_snapshots if isinstance(found.probe, SnapshotSchedule) else made_up_probes
        probes = {record.config.run_id: rows(found, record.config) for record in records}
    timelines = {record.config.run_id: made_up_timeline(record.config) for record in records} if found.timed else None
    return write_tables(
        experiment,
        found.version,
        NOTE,
        records,
        probes=probes,
        timelines=timelines,
        keep_metrics=found.keep_metrics,
        root=root,
    )


def made_up_run(config: RunConfig) -> RunRecord:
    """A record that looks like a run. A large step size at a large delay loses some runs, after a long update."""
    luck = random.Random(config.digest)
    start = 0.12 if "weak" in config.model else 0.3 if "strong" in config.model else 0.2
    rate = config.learning_rate if config.optimizer == "sgd" else 1000 * config.learning_rate
    if config.advantage != "std":
        rate *= config.gradient_clip / 0.3 if config.gradient_clip else 1
    off = abs(math.log2(rate / BEST.get(config.estimator, 0.05))) + 0.25 * math.log2(1 + config.delay / 8)
    if config.estimator in ("uncorrected", "cispo") and config.delay:
        off += 3
    risk = min(0.02 * off**2, 0.9)
    fall = luck.randrange(UPDATES // 3, UPDATES) if luck.random() < risk else None
    back = fall + 5 if fall is not None and luck.random() < 0.3 else UPDATES + 1
    level = min(max(0.98 - 0.06 * off + 0.05 * (luck.random() - 0.5), 0.0), 1.0)

    def accuracy(update: int) -> float:
        if fall is not None and fall <= update < back:
            return 0.0
        return round(level - (level - start) * math.exp(-update / (2 + 2 * off)), 6) if update else start

    metrics = []
    for update in range(1, config.updates + 1):
        dead = fall is not None and fall < update <= back
        mass = -6.0 - luck.random() if dead else -0.3 * luck.random()
        excess = 0.3 * luck.random() / math.sqrt(config.group_size)
        norm = 0.001 if dead else 0.15 + 0.3 * luck.random() + (2.0 if update == fall else 0.0)
        length = rate * min(norm, config.gradient_clip or math.inf)
        weight = math.exp(mass) * (0.3 if config.estimator.startswith("tic") and not config.rescale_to else 1.0)
        metrics.append(
            {
                "update": update,
                "grad_norm": norm,
                "update_length": min(length, config.max_update_length or math.inf),
                "log_mass_mean": mass,
                "ess_fraction": 0.2 + 0.5 * luck.random(),
                "capped_fraction": 0.3 * luck.random(),
                "weight_mean": weight,
                "log_ratio_std": math.inf if update == 3 else luck.random() * math.sqrt(config.response_limit / 14),
                "excess_group": excess,
                "excess_truncate": 0.25 + 0.05 * luck.random(),
                "excess_mask": 0.5 + 0.05 * luck.random(),
            }
        )
    evaluations = [
        {"update": update, "accuracy": accuracy(update), "response_length": 14.0, "truncated_fraction": 0.0}
        for update in range(0, config.updates + 1, config.evaluation_every)
    ]
    provenance = {"commit": "made up", "dirty": False, "model_fingerprint": "made up", "note": NOTE}
    seconds = {"wall": 0.0, "cpu": 0.0}
    return RunRecord(
        config, metrics, evaluations, summarize(evaluations), provenance | {"seconds": seconds}, Path("made up")
    )


def made_up_timeline(config: RunConfig) -> RunTimeline:
    """A worker that needs 0.5 s a batch and a learner that needs 0.4 s, in turns at k = 0, else side by side."""
    P, bound, events, ages = config.prompts_per_update, config.max_staleness, [], {}
    clock = generated = 1e9
    for version in range(config.updates):
        began = max(generated, clock) if bound == 0 else generated
        generated = began + 0.5
        age = min(version, bound, 2)
        if generated > clock:
            events.append({"worker": LEARNER, "kind": "wait", "start": clock, "end": generated, "version": version})
        start = max(clock, generated)
        clock = start + 0.4
        events += [
            {"worker": "rollouts-0", "kind": "load_weights", "start": began, "end": began + 0.01, "version": version},
            {"worker": "rollouts-0", "kind": "generate", "start": began + 0.01, "end": generated,
             "version": version - age, "tokens": 100},
            {"worker": "verifier", "kind": "verify", "start": generated, "end": generated + 0.001},
            {"worker": LEARNER, "kind": "learn", "start": start, "end": clock - 0.02, "version": version,
             "staleness": 0.5 * age, "staleness_max": age},
            {"worker": LEARNER, "kind": "publish", "start": clock - 0.02, "end": clock, "version": version + 1},
        ]  # fmt: skip
        ages[str(age)] = ages.get(str(age), 0) + P * config.group_size
    counts = {"generating": 0, "verifying": 0, "ready": 0, "trained": P * config.updates, "dropped": 0}
    issued = {"issued": P * config.updates, "counts": counts, "drop_reasons": {}, "reissued": 0}
    return RunTimeline([event | {"update": 0} for event in events], issued | {"staleness_rollouts": ages})


def made_up_snapshots(experiment: Experiment, config: RunConfig) -> list[dict[str, Any]]:
    """Rows as `gmc_core.training.snapshot_fidelity.snapshot_rows` gives them, of ratios that drift like k^1.5."""
    luck, rows, plan = random.Random(config.digest), [], experiment.probe.plan

    def kind(name: str, delay: int, where: dict[str, Any], values: dict[str, float], error: float = 0.1) -> None:
        errors = {f"{key}_error": error * abs(value) for key, value in values.items()}
        rows.append({"update": config.updates, "delay": delay, "kind": name} | where | values | errors)

    for delay in experiment.probe.delays:
        kl = 0.002 * delay**1.5 * (0.8 + 0.4 * luck.random())
        drift = {"kl_forward": kl, "kl_backward": 1.2 * kl, "log_ratio_variance": 2.5 * kl, "log_ratio_mean": -1.2 * kl}
        more = {"log_ratio_skewness": -0.5, "mean_ratio": 1.0, "length": 14.0, "reward": 0.4}
        plain = {"distance": 0.004 * delay, "fresh_reward": 0.5, "distinct": 40.0}
        kind("drift", delay, plain, drift | more)
        for tokens in (1, 2, 4, 8, 14):
            kind("length", delay, {"tokens": tokens}, {"log_ratio_variance": 2.5 * kl * tokens / 14})
        for size in (1, *plan.group_sizes):
            spread = math.sqrt(2 * kl / size)
            quantiles = {f"log_mass_{q:02}": spread * z for q, z in ((1, -3), (5, -2), (25, -1), (50, 0), (75, 1),
                                                                      (95, 2), (99, 3))}  # fmt: skip
            for epsilon in plan.epsilons:
                excess = max(0.4 * math.sqrt(2 * kl / size) - epsilon, 0.0)
                single = max(0.4 * math.sqrt(2 * kl) - epsilon, 0.0)
                values = {"excess_group": excess, "excess_truncate": single, "excess_mask": 2 * single,
                          "capped_fraction": min(1.0, 3 * excess), "ess_fraction": 1 / (1 + kl)}  # fmt: skip
                kind("law", delay, {"group_size": size, "epsilon": epsilon} | quantiles, values)
        for size in plan.group_sizes:
            for k, rule in enumerate(plan.rules):
                lost = min(1.0, 0.2 * kl * (k + 1) / (size if k == 0 else 4)) * (0.8 + 0.4 * luck.random())
                values = {"bias_squared": lost**2 - 0.01, "variance": 8 / size, "norm_squared": 1.0, "cosine": 0.9,
                          "fresh_norm_squared": 1.0, "signal": 1 - lost, "paired_lost": lost,
                          "paired_bias_squared": lost**2}  # fmt: skip
                kind("gradient", delay, {"group_size": size, "rule": rule}, values)
    return rows


def made_up_probes(experiment: Experiment, config: RunConfig) -> list[dict[str, Any]]:
    """Rows as `gmc_core.training.fidelity.probe` gives them; the last probe has next to no fresh gradient."""
    luck, rows = random.Random(config.digest), []
    for update in experiment.probe.updates:
        for size in experiment.probe.plan.group_sizes:
            fresh = 0.05 * (1 + luck.random()) if update < experiment.probe.updates[-1] else 0.001
            for k, label in enumerate(experiment.probe.estimators):
                bias = fresh * (0.1 * k * luck.random() - 0.02) * (1 if k > 3 else 8 / size)
                row = {
                    "bias_squared": bias,
                    "norm_squared": fresh,
                    "fresh_norm_squared": fresh,
                    "signal": 0.8,
                    "cosine": max(1 - 0.1 * k * luck.random(), -0.2),
                    "variance": fresh * (1 + 10 * luck.random() / (k + 1)) * 16 / size,
                    "mean_squared_error": fresh * 2,
                    "update_cosine": 0.5 * luck.random(),
                }
                errors = {f"{name}_error": 0.005 for name in row}
                means = {"weight_mean": 1.0, "log_mass_mean": -0.1, "ess_fraction": 0.4}
                rows.append(
                    {"update": update, "staleness": min(update, config.delay), "estimator": label, "group_size": size}
                    | row
                    | errors
                    | means
                )
    return rows
