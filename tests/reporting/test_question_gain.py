import numpy as np
import pandas as pd
import pytest

from gmc_core import paths
from gmc_core.reporting.question_gain import main, question_gain
from gmc_core.reporting.run_records import Runs, load_runs


def tables(rows):
    return Runs("made_up", pd.DataFrame({"run_id": ["a"]}), pd.DataFrame(), pd.DataFrame(), {}, rows, None, None)


def test_the_gain_is_paired_by_question():
    """A question that stays as hard as it was adds to the spread of both accuracies and nothing to the gain."""
    rows = [
        {"run_id": "a", "update": update, "question": str(q), "correct": min(4, q % 4 + (update > 0)), "samples": 8}
        for update in (0, 9)
        for q in range(12)
    ]
    gain = question_gain(tables(pd.DataFrame(rows[:12] + rows[:11:-1])), "a", np.random.default_rng(0))
    assert (gain.gain.estimate, gain.gain.low, gain.gain.high) == (0.125, 0.125, 0.125)
    assert gain.before.high - gain.before.low > 0.05
    assert (gain.questions, gain.better, gain.worse, gain.samples) == (12, 12, 0, 8)
    assert "paired gain +0.125 [+0.125, +0.125]; 12 questions better, 0 worse (of 12, 8 responses each)" in str(gain)


def test_a_run_without_questions_is_refused():
    for rows in (None, pd.DataFrame({"run_id": ["a"], "update": [0]})):
        with pytest.raises(ValueError, match="run a of made_up has no questions"):
            question_gain(tables(rows), "a", np.random.default_rng(0))


def test_the_committed_run_of_smollm2_improves_and_readme_says_by_how_much(capsys):
    found = load_runs("smollm2_addition")
    (run_id,) = found.runs["run_id"]
    gain = question_gain(found, run_id, np.random.default_rng(0))
    assert gain.questions == 100 and gain.samples == 16 and gain.gain.low > 0.1
    readme = " ".join((paths.ROOT / "README.md").read_text(encoding="utf-8").split())
    before, after, paired = (
        f"{value.estimate:.3f} [{value.low:.3f}, {value.high:.3f}]" for value in (gain.before, gain.after, gain.gain)
    )
    assert f"from {before} to {after} right: a paired gain of {paired}" in readme
    assert main(["smollm2_addition"]) == 0 and run_id in capsys.readouterr().out
    assert main(["main"]) == 1
