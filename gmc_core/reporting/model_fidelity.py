"""What the comparison of a policy with its own snapshots says: estimates with intervals, and the planner beside them.

Tables of `model_fidelity` (several runs of one model) or of one run. Each estimate is a mean over the runs. Their 95 %
interval is that of the standard error over the prompts, taken as if all runs shared it, because they do share prompts
and random numbers; or that of a bootstrap over five runs or more, whichever end lies farther out. Squares of gradients
are relative to the squared norm of the fresh gradient, as ratios of sums over the runs. `paired` quantities compare
with uncapped importance sampling on the same groups, which has no bias, and have less noise than those against fresh
rollouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import norm

from gmc_core.reporting.run_records import Runs
from gmc_core.reporting.statistics import FEW, RESAMPLES
from gmc_core.theory.planner import SAMPLES, Drift, plan, predicted_excess

if TYPE_CHECKING:
    import pandas as pd

HALF = norm.ppf(0.975)
EXCESSES = ("excess_group", "excess_truncate", "excess_mask", "capped_fraction", "ess_fraction")
NOT_NEGATIVE = (*EXCESSES, "kl_forward", "kl_backward", "log_ratio_variance")  # nor is their interval
# of the rows of gradients: name of the estimate -> (column, sign, offset) in units of the fresh squared norm
RELATIVE = {
    "bias": ("bias_squared", 1, 0),
    "variance": ("variance", 1, 0),
    "paired_bias": ("paired_bias_squared", 1, 0),
}
SHARES = {"lost": ("signal", -1, 1), "paired_lost": ("paired_lost", 1, 0)}
NOTICED = 0.01  # E(M - c)+ from which on the protocol expects the planner to be right to within a factor of two


def as_tables(rows: Sequence[Mapping[str, Any]], name: str = "live") -> Runs:
    """The rows of one comparison that was just made (`snapshot_rows`), as tables that everything below reads."""
    import pandas as pd

    probes = pd.DataFrame(rows).assign(run_id=name)
    return Runs(name, pd.DataFrame({"run_id": [name]}), pd.DataFrame(), pd.DataFrame(), {}, probes=probes)


def rows_of(tables: Runs, kind: str) -> pd.DataFrame:
    """The rows of one kind of all runs, without the columns that this kind does not have."""
    rows = tables.probes[tables.probes["kind"] == kind].drop(columns="kind").dropna(axis=1, how="all")
    whole = [name for name in ("group_size", "tokens") if name in rows]
    return rows.astype({"run_id": str} | dict.fromkeys(whole, int))


def estimate(values: np.ndarray, errors: np.ndarray, generator: np.random.Generator) -> tuple[float, float, float]:
    """Mean over runs with the ends of its 95 % interval, see the text of the module."""
    return ratio_estimate(values, errors, np.ones_like(values), generator)


def ratio_estimate(
    values: np.ndarray, errors: np.ndarray, scales: np.ndarray, generator: np.random.Generator
) -> tuple[float, float, float]:
    """Sum of values by sum of scales over the runs, with the ends of its interval; the scales' own noise over the
    prompts is left out. NaN for a sum of scales that is not positive."""
    total = scales.sum()
    if not total > 0:
        return np.nan, np.nan, np.nan
    found, half = values.sum() / total, HALF * np.abs(errors).sum() / total
    low, high = found - half, found + half
    if len(values) >= FEW:
        draws = generator.integers(0, len(values), (RESAMPLES, len(values)))
        below = scales[draws].sum(-1)
        ends = np.quantile(values[draws].sum(-1)[below > 0] / below[below > 0], [0.025, 0.975])
        low, high = min(low, ends[0]), max(high, ends[1])
    return found, low, high


def drift_table(tables: Runs) -> pd.DataFrame:
    """By delay: kl_forward, kl_backward, log_ratio_variance and log_ratio_skewness with `_low` and `_high`, in nats a
    response; half_variance, the KL that a normal log r would have; length, distance, reward, fresh_reward."""
    import pandas as pd

    generator, found = np.random.default_rng(13), []
    for delay, own in rows_of(tables, "drift").groupby("delay"):
        row = {"delay": delay, "runs": len(own)}
        for name in ("kl_forward", "kl_backward", "log_ratio_variance", "log_ratio_skewness", "mean_ratio"):
            row |= _interval(name, own, name, generator)
        row["half_variance"] = row["log_ratio_variance"] / 2
        row |= {name: own[name].mean() for name in ("length", "distance", "reward", "fresh_reward", "distinct")}
        found.append(row)
    return pd.DataFrame(found).set_index("delay")


def length_table(tables: Runs) -> pd.DataFrame:
    """By delay and number of first tokens: log_ratio_variance with its interval."""
    import pandas as pd

    generator, found = np.random.default_rng(14), []
    for (delay, tokens), own in rows_of(tables, "length").groupby(["delay", "tokens"]):
        name = "log_ratio_variance"
        found.append({"delay": delay, "tokens": tokens} | _interval(name, own, name, generator))
    return pd.DataFrame(found).set_index(["delay", "tokens"])


def law_table(tables: Runs, *, samples: int = SAMPLES) -> pd.DataFrame:
    """By delay, group size and epsilon: excesses, capped and ESS fraction with intervals, quantiles of log M, and
    beside them E(M - c)+ of a lognormal law with the measured KL(pi || b) (`from_kl`) or variance (`from_variance`)."""
    import pandas as pd

    generator, drift, found = np.random.default_rng(15), drift_table(tables), []
    for (delay, size, epsilon), own in rows_of(tables, "law").groupby(["delay", "group_size", "epsilon"]):
        row = {"delay": delay, "group_size": size, "epsilon": round(float(epsilon), 6)}
        for name in EXCESSES:
            row |= _interval(name, own, name, generator)
        row |= {name: own[name].mean() for name in own if name.startswith("log_mass_")}
        for name, column in (("from_kl", "kl_forward"), ("from_variance", "half_variance")):
            kl = max(drift.loc[delay, column], 0.0)
            row[name] = predicted_excess(float(kl), int(size), row["epsilon"], samples=samples).value
        found.append(row)
    return pd.DataFrame(found).set_index(["delay", "group_size", "epsilon"])


def gradient_table(tables: Runs) -> pd.DataFrame:
    """By delay, group size and rule: relative squared `bias`, `paired_bias` and `variance`, and the shares `lost` and
    `paired_lost` of the fresh gradient, each with its interval."""
    import pandas as pd

    generator, found = np.random.default_rng(16), []
    for (delay, size, rule), own in rows_of(tables, "gradient").groupby(["delay", "group_size", "rule"], sort=False):
        row, fresh = {"delay": delay, "group_size": size, "rule": rule}, own["fresh_norm_squared"].to_numpy(float)
        for name, (column, sign, offset) in (RELATIVE | SHARES).items():
            scale = 1.0 if name in RELATIVE else fresh  # a share is a quotient already: weigh it like the sums
            values = (offset + sign * own[column].to_numpy(float)) * scale
            ends = ratio_estimate(values, own[f"{column}_error"].to_numpy(float) * scale, fresh, generator)
            row |= dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
        found.append(row)
    return pd.DataFrame(found).set_index(["delay", "group_size", "rule"])


def fitted_drift(tables: Runs, delays: Sequence[int] | None = None) -> Drift:
    """A power law through the measured KL(pi || b) at positive delays (or those given), at the mean length there."""
    table = drift_table(tables)
    kept = table[(table.index > 0) & (table["kl_forward"] > 0)] if delays is None else table.loc[list(delays)]
    return Drift.fit(kept.index.tolist(), kept["kl_forward"].tolist(), length=float(kept["length"].mean()))


def prediction_errors(law: pd.DataFrame, column: str = "from_kl") -> pd.Series:
    """Predicted by measured E(M - c)+, where the measured one is at least `NOTICED`: 1 is right, more is cautious."""
    seen = law[law["excess_group"] >= NOTICED]
    return seen[column] / seen["excess_group"]


def _interval(name: str, own: pd.DataFrame, column: str, generator: np.random.Generator) -> dict[str, float]:
    ends = estimate(own[column].to_numpy(float), own[f"{column}_error"].to_numpy(float), generator)
    if column in NOT_NEGATIVE:
        ends = tuple(max(end, 0.0) for end in ends)
    return dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))


def plan_check(tables: Runs, bias: float, epsilon: float = 0.2) -> pd.DataFrame:
    """By delay and group size: KL by the fitted power law, the planner's E(M - c)+ there, the measured one with its
    interval, and whether each of the two keeps below `bias`; `right` where they agree."""
    law = law_table(tables).xs(epsilon, level="epsilon")
    law = law[(law.index.get_level_values("delay") > 0) & (law.index.get_level_values("group_size") > 1)]
    delays, sizes = (sorted({int(value) for value in level}) for level in law.index.remove_unused_levels().levels)
    choices = plan(fitted_drift(tables), bias, delays=delays, group_sizes=sizes, epsilon=epsilon)
    table = law[["excess_group", "excess_group_low", "excess_group_high"]].rename(
        columns=lambda name: name.replace("excess_group", "measured")
    )
    by_place = {(choice.delay, choice.group_size): choice for choice in choices}
    own = [by_place[place] for place in table.index]
    table = table.assign(
        kl=[choice.kl for choice in own],
        predicted=[choice.excess.value for choice in own],
        planned=[choice.keeps for choice in own],
        kept=table["measured"] <= bias,
    )
    return table.assign(right=table["planned"] == table["kept"])
