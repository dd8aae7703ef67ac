"""The claims ledger: what the abstract of arXiv 2610.01896 states, and what this checkout's data say of it.

`ledger()` measures and judges every claim anew, in seconds: exact results come from the committed data of the figures
and from `gmc_core.theory`, training results from the committed run tables. The rules and their thresholds stand in
`claims_bias`, `claims_convergence` and `claims_records`; a verdict may be unfavourable, it is never prettier than data.

    python -m gmc_core.reporting.claims          # prints it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from gmc_core import paths
from gmc_core.reporting import claims_bias as bias
from gmc_core.reporting import claims_convergence as convergence
from gmc_core.reporting import claims_records as records
from gmc_core.reporting.figure_files import decode_data
from gmc_core.reporting.markdown import markdown_table
from gmc_core.reporting.verdicts import MEANINGS, Finding

__all__ = ["CLAIMS", "Claim", "Verdict", "ledger", "ledger_markdown", "print_ledger"]


class Sources:
    """What the rules read: committed figure data, run tables, and one set of delayed runs shared by two claims."""

    def __init__(self, figures: Path | None = None, tables: Path | None = None) -> None:
        self._figures, self.tables = figures or paths.FIGURES, tables
        self._delayed: convergence.DelayedRuns | None = None

    def figure(self, name: str) -> Mapping[str, Any]:
        """The plotted arrays of a committed figure. FileNotFoundError says how to make them again."""
        path = self._figures / f"{name}.data.json"
        if not path.exists():
            raise FileNotFoundError(f"{path.name} is missing, and a claim is judged by it: `make figures` writes it")
        return decode_data(path.read_bytes())

    @property
    def delayed_runs(self) -> convergence.DelayedRuns:
        if self._delayed is None:
            self._delayed = convergence.measure_delayed_runs()
        return self._delayed


@dataclass(frozen=True)
class Claim:
    """One claim of the abstract in our words, how it is measured here, the figure that shows it, and its rule.

    `figure` is the beginning of a file name in figures/.
    """

    id: str
    statement: str
    test: str
    figure: str
    judge: Callable[[Sources], Finding]


@dataclass(frozen=True)
class Verdict:
    """A row of the ledger: the claim (id, statement, test, figure), the verdict and its evidence, one line."""

    id: str
    statement: str
    test: str
    figure: str
    verdict: str
    evidence: str

    @property
    def picture(self) -> Path | None:
        """The committed picture of `figure`, None while it is not drawn."""
        return next(iter(sorted(paths.FIGURES.glob(f"{self.figure}*.png"))), None)


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "C1",
        "What governs convergence under staleness is a trade-off between the second moment and the bias of the "
        "gradient estimator.",
        "Exact bias and second moment of three capped rules along rising thresholds, random stale pairs of policies.",
        "error_budget",
        lambda sources: bias.judge_trade_off(bias.measure_trade_off()),
    ),
    Claim(
        "C2",
        "Once the second moment is controlled, delay enters convergence through the bias.",
        "Exact delayed training of a three-response policy: what delay adds to the mean squared gradient, against bias "
        "and second moment, over the rules whose mean weight is bounded.",
        "error_budget",
        lambda sources: convergence.judge_delay_through_bias(sources.delayed_runs),
    ),
    Claim(
        "C3",
        "Group-mass capping minimises a ratio-based bound on the bias in its class of estimators.",
        "Distortion of GMC on random groups against the optimum of a linear program over the class (the class is our "
        "reconstruction).",
        "fig2",
        lambda sources: bias.judge_optimality(sources.figure("fig2_geometry"), bias.measure_larger_bias()),
    ),
    Claim(
        "C4",
        "Asynchronous training converges, with a bound that joins optimisation, second moment and bias.",
        "Theorem 1 (our reconstruction) along exact delayed runs: both sides, and the slope in the number of updates.",
        "stale_training",
        lambda sources: convergence.judge_convergence(sources.delayed_runs),
    ),
    Claim(
        "C5",
        "The dependence of the delay term on the threshold improves from ε⁻⁴ (TIC-GRPO) to ε⁻².",
        "Worst case of the squared bias bound over all laws of the ratio, by linear programs; both readings of TIC.",
        "fig4",
        lambda sources: convergence.judge_threshold(
            sources.figure("fig4_delay"), convergence.measure_group_mass_slopes()
        ),
    ),
    Claim(
        "C6",
        "Tuning the step size leaves a factor G^(-2/5) in the delay term.",
        "The tuned bound against the group size G: its delay part and its total.",
        "fig4",
        lambda sources: convergence.judge_group_exponent(sources.figure("fig4_delay")),
    ),
    Claim(
        "C7",
        "As the group grows, the bias of GMC vanishes, while that of trajectory clipping can persist.",
        "Exact bias against G: two outcomes, an autoregressive policy; the bias bound for long sequences.",
        "fig3",
        lambda sources: bias.judge_group_growth(sources.figure("fig3_bias")),
    ),
    Claim(
        "C8a",
        "GMC-GRPO is robust to staleness and the best of the stable baselines at large delay: on the small Qwen3 of "
        "this project.",
        "Tuned runs at the largest delay, final accuracy paired by seed; untuned ones are shown and decide nothing.",
        "fig5",
        lambda sources: records.judge_small_qwen3(sources.tables),
    ),
    Claim(
        "C8b",
        "The same on Qwen3 checkpoints, which is what the abstract reports.",
        "The same rule on runs of a checkpoint.",
        "fig5",
        lambda sources: records.judge_checkpoints(sources.tables),
    ),
)


def ledger(*, figures: Path | None = None, tables: Path | None = None) -> list[Verdict]:
    """Judge every claim, in the order of `CLAIMS`; a few seconds.

    `figures` and `tables` are the folders of the figures' data and of the run tables (default: the committed ones).
    Raises FileNotFoundError if a figure's data are missing, DamagedRecordError if a run table is damaged.
    """
    return judge_all(Sources(figures, tables))


def judge_all(sources: Sources) -> list[Verdict]:
    """`ledger` on given sources."""
    rows = []
    for claim in CLAIMS:
        found = claim.judge(sources)
        rows.append(Verdict(claim.id, claim.statement, claim.test, claim.figure, found.verdict, found.evidence))
    return rows


def ledger_markdown(rows: list[Verdict] | None = None, *, figures: str = "figures") -> str:
    """The ledger as a Markdown table; a notebook calls it with `figures="../figures"`."""
    cells = []
    for row in ledger() if rows is None else rows:
        picture = row.picture
        link = f"[{picture.stem}]({figures}/{picture.name})" if picture else f"`{row.figure}`, not drawn yet"
        cells.append((row.id, row.statement, f"**{row.verdict}**", row.evidence, link))
    return markdown_table(("", "what the abstract states, in our words", "verdict", "evidence", "figure"), cells)


def print_ledger(rows: list[Verdict] | None = None) -> None:
    """The ledger as text, with the test of each claim, and what the verdicts mean."""
    for row in ledger() if rows is None else rows:
        picture = row.picture
        print(f"{row.id}  {row.verdict.upper()}   (figure: {picture.stem if picture else row.figure + ', not drawn'})")
        for label, text in (("claim", row.statement), ("test", row.test), ("evidence", row.evidence)):
            print(fill(f"{label + ':':10}{text}", 118, initial_indent="    ", subsequent_indent=" " * 14))
    print("\nverdicts: " + "; ".join(f"{name} = {meaning}" for name, meaning in MEANINGS.items()))


if __name__ == "__main__":
    print_ledger()
