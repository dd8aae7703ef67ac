"""The claims ledger: today's verdicts of the exact claims, and for every rule data that give each other verdict."""

import dataclasses

import numpy as np
import pytest
import torch

from gmc_core import paths
from gmc_core.reporting import claims
from gmc_core.reporting import claims_bias as bias
from gmc_core.reporting import claims_convergence as convergence
from gmc_core.reporting.figure_files import decode_data
from gmc_core.reporting.verdicts import CONDITIONS, CONFIRMED, CONTRADICTED, NEEDS_GPU, NOT_VISIBLE, Finding, number


@pytest.fixture(scope="module")
def sources():
    return claims.Sources()


@pytest.fixture(scope="module")
def ledger(sources):
    return claims.judge_all(sources)


@pytest.fixture(scope="module")
def delayed(sources):
    return sources.delayed_runs


def figure(name):
    return decode_data((paths.FIGURES / f"{name}.data.json").read_bytes())


# --- the ledger -----------------------------------------------------------------------------------------------------

EXACT_TODAY = {
    "C1": CONDITIONS, "C2": CONFIRMED, "C3": CONFIRMED, "C4": CONDITIONS, "C5": CONDITIONS, "C6": CONDITIONS,
    "C7": CONFIRMED,
}  # fmt: skip


def test_today_s_verdicts(ledger):
    assert [row.id for row in ledger] == [*EXACT_TODAY, "C8a", "C8b"]
    assert {row.id: row.verdict for row in ledger if row.id in EXACT_TODAY} == EXACT_TODAY
    evidence = {row.id: row.evidence for row in ledger}
    for claim, numbers in {
        "C2": ("squared bias +0.93", "second moment -0.11"),
        "C3": ("100% of 28 groups", "so is water_filling"),
        "C4": ("40 of 40 settings", "0.019, 0.0089, 0.0056"),
        "C5": ("GMC -2.00", "-3.93 if it masks", "-2.00 if it truncates"),
        "C6": ("delay part -0.400", "-0.075"),
        "C7": ("2.6% of its bias at G = 64", "at least 100%"),
    }.items():
        for text in numbers:
            assert text in evidence[claim], f"{claim}: {evidence[claim]}"


def test_no_verdict_on_qwen3_without_tuned_runs(ledger):
    """At most `not visible` and `needs GPU`, whatever the untuned runs suggest; their differences are shown."""
    tables = {path.parent.name for path in paths.COMMITTED_RUNS.glob("*/provenance.json")}
    rows = {row.id: row for row in ledger}
    if "main" not in tables:
        assert rows["C8a"].verdict == NOT_VISIBLE
    if "first_staleness" in tables and "main" not in tables:
        assert "n = 3 seeds" in rows["C8a"].evidence and "not tuned" in rows["C8a"].evidence
    assert rows["C8b"].verdict in (NEEDS_GPU, NOT_VISIBLE) or "Qwen3" in rows["C8b"].evidence


def test_the_ledger_in_print_and_in_markdown(ledger, capsys):
    claims.print_ledger(ledger)
    printed = capsys.readouterr().out
    table = claims.ledger_markdown(ledger, figures="../figures")
    lines = table.splitlines()
    assert len(lines) == 2 + len(ledger) and lines[0].count("|") == 6
    for row, line in zip(ledger, lines[2:], strict=True):
        assert line.startswith(f"| {row.id} | {row.statement} | **{row.verdict}** | ")
        assert row.verdict.upper() in printed and row.evidence.split()[0] in printed
        if row.picture:
            assert f"(../figures/{row.picture.name})" in line and row.picture.exists()


def test_a_figure_that_is_not_drawn_is_not_linked(ledger):
    missing = dataclasses.replace(ledger[0], figure="fig0")
    assert "`fig0`, not drawn yet" in claims.ledger_markdown([missing])


def test_missing_figure_data_say_how_to_make_them(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"fig2_geometry.data.json is missing.*make figures"):
        claims.Sources(tmp_path).figure("fig2_geometry")


def test_a_finding_has_a_known_verdict_and_one_line_of_evidence():
    with pytest.raises(ValueError, match="unknown verdict 'proved'; choose one of confirmed, "):
        dataclasses.replace(Finding(CONFIRMED, "x"), verdict="proved")
    for evidence in ("", "two\nlines"):
        with pytest.raises(ValueError, match="one line"):
            Finding(CONFIRMED, evidence)
    assert [number(x) for x in (0.01234, 1234.5, 2.3e-7, -0.5)] == ["0.012", "1234", "2.3e-07", "-0.5"]


# --- C1 -------------------------------------------------------------------------------------------------------------


def trade_off(second_moment_slopes):
    slopes = np.asarray(second_moment_slopes, dtype=float)
    steps = np.arange(4.0)
    return bias.TradeOff(
        (0.0, 0.1, 0.2, 0.5),
        bias=np.outer(np.ones(len(slopes)), 1 - 0.2 * steps),
        second_moment=1 + np.outer(slopes, steps),
        better={"snis": 0},
        pairs=len(slopes),
    )


@pytest.mark.parametrize(
    ("slopes", "verdict"),
    [
        ([1] * 20, CONFIRMED),
        ([1] * 19 + [-1], CONDITIONS),
        ([1] * 12 + [-1] * 8, NOT_VISIBLE),
        ([-1] * 20, CONTRADICTED),
    ],
)
def test_trade_off(slopes, verdict):
    assert bias.judge_trade_off(trade_off(slopes)).verdict == verdict


def test_trade_off_broken_on_the_way_or_absent():
    found = trade_off([1] * 20)
    dip = found.second_moment.copy()
    dip[3, 1] -= 1.5
    assert bias.judge_trade_off(dataclasses.replace(found, second_moment=dip)).verdict == CONDITIONS
    flat = dataclasses.replace(found, bias=np.zeros_like(found.bias))
    assert bias.judge_trade_off(flat).verdict == NOT_VISIBLE
    better = bias.judge_trade_off(dataclasses.replace(found, better={"snis": 3, "mixture": 0})).evidence
    assert "smaller than GMC's: snis on 3 (of 20 pairs)" in better


# --- C3 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("worse", "verdict"), [(0, CONFIRMED), (1, CONDITIONS), (20, CONTRADICTED)])
def test_optimality(worse, verdict):
    data = figure("fig2_geometry")
    active = np.flatnonzero(data["groups_mass"] > 1.2)
    data["groups_gmc"][active[:worse]] += 0.01
    assert bias.judge_optimality(data).verdict == verdict


def test_optimality_names_who_else_is_optimal_and_needs_an_active_cap():
    data = figure("fig2_geometry")
    assert "so is water_filling" in bias.judge_optimality(data).evidence
    data["groups_water_filling"] = data["groups_water_filling"] + 0.1
    assert "so is no other rule" in bias.judge_optimality(data).evidence
    assert bias.judge_optimality(data | {"epsilon": 9.0}).verdict == NOT_VISIBLE


# --- C7 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, CONFIRMED),
        ({"pair_gmc": np.linspace(1.0, 0.2, 11)}, CONDITIONS),  # falls, but has not vanished
        ({"pair_gmc": np.linspace(1.0, 0.8, 11)}, CONTRADICTED),
        ({"sequence_gmc_3": np.full(11, 0.6)}, CONTRADICTED),
        ({"pair_tic_truncate": np.linspace(1.0, 0.3, 11)}, CONDITIONS),  # persists in some settings only
        (
            {f"{key}_{name}": np.geomspace(1, 1e-3, 11) for key in ("two", "pair") for name in bias.PER_ROLLOUT},
            CONTRADICTED,
        ),
    ],
)
def test_group_growth(changes, verdict):
    assert bias.judge_group_growth(figure("fig3_bias") | changes).verdict == verdict


# --- C2 and C4 ------------------------------------------------------------------------------------------------------


def with_rules(found, change):
    """`found` with `change(run)` made to every run of the comparison of rules."""
    return dataclasses.replace(found, rules={name: change(run) for name, run in found.rules.items()})


def test_delay_that_costs_against_the_bias_contradicts(delayed):
    def mirrored(run):
        cost = 0.5 - run.squared_bias.unsqueeze(-1)
        return dataclasses.replace(run, squared_gradient=cost.expand(-1, 2))

    assert convergence.judge_delay_through_bias(with_rules(delayed, mirrored)).verdict == CONTRADICTED


def test_delay_that_costs_through_the_second_moment_is_no_plain_confirmation(delayed):
    """Costs of which three quarters follow the second moment: the bias may explain some of it, not the most."""

    def blended(run):
        rank_like = run.second_moment * 0.75 + run.squared_bias * 0.25
        return dataclasses.replace(run, squared_gradient=rank_like.unsqueeze(-1).expand(-1, 2))

    assert convergence.judge_delay_through_bias(with_rules(delayed, blended)).verdict != CONFIRMED


@pytest.mark.parametrize(("share", "verdict"), [(1.0, CONFIRMED), (0.45, CONDITIONS), (0.2, NOT_VISIBLE)])
def test_the_strength_of_the_correlation_decides(delayed, share, verdict):
    """Ranks of the costs: those of the biases, part of them dealt out again."""
    names = list(convergence.MEAN_BOUNDED)
    biases = torch.cat([delayed.rules[name].squared_bias[1:] for name in names])
    rank = biases.argsort().argsort().double()
    shuffled = torch.randperm(len(rank), generator=torch.Generator().manual_seed(0)).double()
    cost = (share * rank + (1 - share) * shuffled).reshape(len(names), -1)
    rules = dict(delayed.rules)
    for name, row in zip(names, cost, strict=True):
        values = torch.cat([torch.zeros(1, dtype=torch.float64), 1 + row]).unsqueeze(-1).expand(-1, 2)
        rules[name] = dataclasses.replace(rules[name], squared_gradient=values)
    assert convergence.judge_delay_through_bias(dataclasses.replace(delayed, rules=rules)).verdict == verdict


def test_an_uncontrolled_second_moment_or_no_bias(delayed):
    wild = with_rules(delayed, lambda run: dataclasses.replace(run, largest_norm=run.largest_norm + 2))
    assert convergence.judge_delay_through_bias(wild).verdict == CONTRADICTED
    unbiased = with_rules(delayed, lambda run: dataclasses.replace(run, squared_bias=run.squared_bias * 0))
    assert convergence.judge_delay_through_bias(unbiased).verdict == NOT_VISIBLE


def with_horizons(found, **changes):
    horizons = [
        dataclasses.replace(run, **{key: change(k, getattr(run, key)) for key, change in changes.items()})
        for k, run in enumerate(found.horizons)
    ]
    return dataclasses.replace(found, horizons=horizons)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, CONDITIONS),
        ({"proved": lambda k, x: 0 * x + 0.02}, CONFIRMED),  # a provable bound below the start
        ({"bound": lambda k, x: 0 * x + 1e-4}, CONTRADICTED),
        ({"squared_gradient": lambda k, x: 0 * x + 1e-3}, CONTRADICTED),  # no progress with more updates
        ({"squared_gradient": lambda k, x: 0 * x + 1e-3 * 4 ** (-0.25 * k)}, NOT_VISIBLE),  # progress, not at the rate
        ({"changed": lambda k, x: 0 * x}, NOT_VISIBLE),
    ],
)
def test_convergence(delayed, changes, verdict):
    assert convergence.judge_convergence(with_horizons(delayed, **changes)).verdict == verdict


def test_a_bound_broken_by_any_rule_contradicts(delayed):
    broken = with_rules(delayed, lambda run: dataclasses.replace(run, bound=run.bound / 100))
    found = convergence.judge_convergence(broken)
    assert found.verdict == CONTRADICTED and "holds in 12 of 40 settings" in found.evidence


# --- C5 and C6 ------------------------------------------------------------------------------------------------------

GMC_POWERS = {"upper": -2.0, "attained": -2.0}


@pytest.mark.parametrize(
    ("powers", "gmc", "verdict"),
    [
        ({"tic_mask": -4, "tic_truncate": -2}, GMC_POWERS, CONDITIONS),
        ({"tic_mask": -4, "tic_truncate": -4}, GMC_POWERS, CONFIRMED),
        ({"tic_mask": -2, "tic_truncate": -2}, GMC_POWERS, CONTRADICTED),
        ({"tic_mask": -4, "tic_truncate": -2}, {"upper": -3.0, "attained": -3.0}, CONTRADICTED),
    ],
)
def test_threshold(powers, gmc, verdict):
    data = figure("fig4_delay")
    data |= {f"worst_{name}": 1e-9 * data["worst_epsilon"] ** power for name, power in powers.items()}
    assert convergence.judge_threshold(data, gmc).verdict == verdict


def test_powers_of_gmc_are_measured():
    assert convergence.measure_group_mass_slopes() == pytest.approx(GMC_POWERS, abs=0.01)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, CONDITIONS),
        ({"bound_delay_part": lambda d: d["bound_sizes"] ** -0.2}, CONTRADICTED),
        ({"bound_total": lambda d: np.stack([d["bound_sizes"] ** -0.4] * 3)}, CONFIRMED),
        ({"slope_window": lambda d: d["slope_window"][:, ::-1]}, NOT_VISIBLE),  # opens after it closes
    ],
)
def test_group_exponent(changes, verdict):
    data = figure("fig4_delay")
    data |= {key: change(data) for key, change in changes.items()}
    assert convergence.judge_group_exponent(data).verdict == verdict
