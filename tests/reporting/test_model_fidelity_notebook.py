"""Notebook 07: what it says is what the committed records say; the settings of its profiles can be made."""

import nbformat
import pytest

from gmc_core import load_runs, paths
from gmc_core.experiments.grids import get_experiment
from gmc_core.experiments.studies import model_fidelity as study
from gmc_core.reporting import model_fidelity as report
from gmc_core.reporting.figures.needs import complete

NOTEBOOK = nbformat.read(paths.NOTEBOOKS / "07_estimator_fidelity_on_real_models.ipynb", as_version=4)
CELLS = {cell.id: cell.source for cell in NOTEBOOK.cells}
SIZES = (4, 8, 16, 32, 64)
SMOLLM2 = "model_fidelity_smollm2"


def paragraph(start):
    (found,) = [line for line in CELLS["closing"].split("\n- ") if line.startswith(f"**{start}")]
    return found


def listed(values, form):
    *most, last = (format(value, form) for value in values)
    return f"{', '.join(most)} and {last}"


def ends(row, name, form):
    return f"{row[name]:{form}} [{row[f'{name}_low']:{form}}, {row[f'{name}_high']:{form}}]"


class Read:
    """Every table of one experiment, computed once."""

    def __init__(self, name):
        self.tables = load_runs(name)
        self.law, self.drift = report.law_table(self.tables), report.drift_table(self.tables)
        self.gradient, self.lengths = report.gradient_table(self.tables), report.length_table(self.tables)
        self.fit = report.fitted_drift(self.tables)

    def at_64(self, rule, name):
        return [self.gradient.loc[(64, size, rule), name] for size in SIZES]

    def excess(self):
        return [self.law.loc[(64, size, 0.2), "excess_group"] for size in SIZES]


@pytest.fixture(scope="module")
def tiny():
    return Read("model_fidelity")


def test_what_is_said_of_the_bias(tiny):
    text = paragraph("As the group grows")
    gmc, truncate, mask = (tiny.at_64(rule, "paired_bias") for rule in ("gmc", "tic_truncate", "tic_mask"))
    assert f"GMC {listed(gmc, '.4f')}" in text
    assert f"truncation {min(truncate):.2f} to {max(truncate):.2f}, masking {min(mask):.2f} to {max(mask):.2f}" in text
    assert gmc == sorted(gmc, reverse=True) and gmc[-1] < 0.02 * gmc[0] and min(truncate) > 0.9 * max(truncate)
    first, last = (tiny.gradient.loc[(64, size, "gmc")] for size in (4, 64))
    assert f"{ends(first, 'bias', '.3f')} at G = 4 and {ends(last, 'bias', '.3f')} at G = 64" in text
    assert f"truncation at G = 64 {ends(tiny.gradient.loc[(64, 64, 'tic_truncate')], 'bias', '.2f')}" in text
    check = tiny.gradient.loc[(0, 64, "gmc")]
    assert check["bias_low"] <= 0 <= check["bias_high"]  # without staleness there is no bias


def test_what_is_said_of_the_loss(tiny):
    text = paragraph("What GMC loses")
    lost, excess = tiny.at_64("gmc", "paired_lost"), tiny.excess()
    assert f"the share {listed(lost, '.3f')}" in text and f"is {listed(excess, '.3f')}." in text
    assert all(0.5 < a / b < 1.5 for a, b in zip(lost, excess, strict=True))
    assert f"at G = 4 {ends(tiny.gradient.loc[(64, 4, 'gmc')], 'paired_lost', '.2f')}" in text


def test_what_is_said_of_the_law(tiny):
    text, drift = paragraph("The law of"), tiny.drift.loc[64]
    assert f"skewness is {ends(drift, 'log_ratio_skewness', '.2f')}" in text and drift["log_ratio_skewness_high"] < 0
    assert f"b)$ {drift['kl_forward']:.2f}" in text and f"pi)$ {drift['kl_backward']:.2f}" in text
    assert f"half the variance {drift['half_variance']:.2f} nats" in text
    by_kl, by_variance = (report.prediction_errors(tiny.law, column) for column in ("from_kl", "from_variance"))
    assert f"median factor of {by_variance.median():.1f} (up to {by_variance.max():.0f})" in text
    assert f"it is {by_kl.median():.1f} (from {by_kl.min():.2f} to {by_kl.max():.1f})" in text
    assert f"{by_kl.between(0.5, 2).sum()} of {len(by_kl)} settings are within a factor of two" in text


def test_what_is_said_of_the_drift_and_the_planner(tiny):
    text, kl = paragraph("The drift is"), tiny.drift["kl_forward"]
    assert f"fitted power is {tiny.fit.delay_power:.2f}" in text
    assert f"from {kl[1]:.4f} over {kl[4]:.4f} and {kl[16]:.3f} to {kl[64]:.2f}" in text
    early, whole = (tiny.lengths.loc[(16, tokens), "log_ratio_variance"] for tokens in (8, 14))
    assert f"first 8 of 14 tokens is {early:.3f} and that of all {whole:.2f}" in text
    text = paragraph("The planner is cautious")
    check, strict = (report.plan_check(tiny.tables, target) for target in (0.05, 0.02))
    assert f"judges {check['right'].sum()} of {len(check)} settings rightly at a target of .05" in text
    wrong = strict[~strict["right"]]
    assert f"right in {strict['right'].sum()} and refuses the other {len(wrong)}" in text and wrong["kept"].all()


@pytest.mark.skipif(not complete(SMOLLM2, paths.COMMITTED_RUNS), reason="SmolLM2 has no committed records")
def test_what_is_said_of_smollm2():
    found = Read(SMOLLM2)
    text, drift = paragraph("SmolLM2-135M"), found.drift.loc[64]
    assert f"b)$ is {ends(drift, 'kl_forward', '.2f')}, half the variance {drift['half_variance']:.2f} nats" in text
    assert f"is {listed(found.excess(), '.3f')} at G = 4 to 64" in text
    by_kl, by_variance = (report.prediction_errors(found.law, column) for column in ("from_kl", "from_variance"))
    assert f"factor of {by_kl.median():.1f} with the KL (up to {by_kl.max():.0f})" in text
    assert f"and {by_variance.median():.1f} with the variance (n = {len(by_kl)} settings)" in text
    assert found.law.loc[[1, 4, 16]].xs(0.2, level="epsilon")["excess_group"].max() < 1e-3
    check = report.plan_check(found.tables, 0.05)
    assert f"judges {check['right'].sum()} of {len(check)} rightly at a target of .05" in text
    first, middle = (found.gradient.loc[(64, size, "gmc")] for size in (4, 16))
    assert f"{ends(first, 'paired_bias', '.3f')} at G = 4 and {ends(middle, 'paired_bias', '.3f')} at G = 16" in text
    assert f"truncation has {ends(found.gradient.loc[(64, 16, 'tic_truncate')], 'paired_bias', '.2f')}" in text


@pytest.mark.skipif(not complete(SMOLLM2, paths.COMMITTED_RUNS), reason="SmolLM2 has no committed records")
def test_what_is_said_of_missed_tails(tiny):
    text, drift = paragraph("Part of the caution"), report.drift_table(load_runs(SMOLLM2)).loc[64]
    assert f"{ends(drift, 'mean_ratio', '.2f')} for SmolLM2" in text
    assert f"{ends(tiny.drift.loc[64], 'mean_ratio', '.2f')} for the tiny model" in text


def test_the_settings_of_every_profile_fit_their_schedules():
    for config, schedule in (
        (study.SMALLEST, study.SMALLEST_SCHEDULE),
        (study.LIVE, study.LIVE_SCHEDULE),
        (study.TINY, study.TINY_SCHEDULE),
        (study.SMOLLM2, study.SMOLLM2_SCHEDULE),
        (study.QWEN3, study.QWEN3_SCHEDULE),
    ):
        assert schedule.update == config.updates and config.advantage == "center" and config.delay == 0
    assert study.QWEN3.device == "cuda" and study.QWEN3.task == "gsm8k"
    assert get_experiment(SMOLLM2).extra == "smollm2" and get_experiment("model_fidelity").extra is None
