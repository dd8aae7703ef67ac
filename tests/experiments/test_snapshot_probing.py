"""Snapshots along a run: the right ages, the record untouched, nothing left behind, resumed after a kill."""

import pytest
import torch

from gmc_core.experiments.snapshot_probing import SNAPSHOTS, SnapshotSchedule
from gmc_core.rollouts.policy import snapshot
from gmc_core.training.loop import TrainingView, train
from gmc_core.training.run_config import RunConfig
from gmc_core.training.snapshot_fidelity import SnapshotPlan

CONFIG = RunConfig(
    updates=4, evaluation_every=4, evaluation_prompts=4, prompts_per_update=2, group_size=4, max_new_tokens=3,
    advantage="center",
)  # fmt: skip
PLAN = SnapshotPlan(prompts=2, stale_rollouts=8, fresh_rollouts=8, fresh_blocks=2, group_sizes=(4,), epsilons=(0.2,))
SCHEDULE = SnapshotSchedule(4, (0, 1, 3), PLAN)


def test_a_run_is_compared_with_its_own_past(tmp_path):
    seen = {}

    def observer(folder):
        measure = SCHEDULE.observer(folder)

        def observe(view: TrainingView) -> None:
            seen[view.update] = snapshot(view.policy.model)
            measure(view)

        return observe

    watched = train(CONFIG, root=tmp_path / "a", observe=observer(tmp_path / "a" / CONFIG.run_id))
    alone = train(CONFIG, root=tmp_path / "b")
    for name in ("metrics.jsonl", "evaluations.jsonl", "policy.safetensors", "summary.json"):
        assert (watched.path / name).read_bytes() == (alone.path / name).read_bytes()
    assert not (watched.path / SNAPSHOTS).exists()
    rows = SCHEDULE.rows(watched.path)
    assert {row["update"] for row in rows} == {4} and [r["delay"] for r in rows if r["kind"] == "drift"] == [0, 1, 3]
    for row in rows:
        if row["kind"] == "drift":
            past = seen[4 - row["delay"]]
            gaps = [(seen[4][name] - past[name]).double().square().sum() for name in past]
            assert row["distance"] == pytest.approx(torch.stack(gaps).sum().sqrt().item(), rel=1e-6)
    with pytest.raises(FileNotFoundError, match="is finished but was not measured"):
        SCHEDULE.rows(alone.path)


def test_a_run_that_was_killed_finds_its_snapshots(tmp_path):
    folder = tmp_path / CONFIG.run_id
    measure = SCHEDULE.observer(folder)

    def die(view: TrainingView) -> None:
        measure(view)
        if view.update == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, root=tmp_path, observe=die, checkpoint_seconds=0)
    assert sorted(path.name for path in (folder / SNAPSHOTS).iterdir()) == [
        "update-00001.safetensors", "update-00003.safetensors"
    ]  # fmt: skip
    record = train(CONFIG, root=tmp_path, observe=measure, checkpoint_seconds=0)
    whole = train(CONFIG, root=tmp_path / "whole", observe=SCHEDULE.observer(tmp_path / "whole" / CONFIG.run_id))
    assert SCHEDULE.rows(record.path) == SCHEDULE.rows(whole.path)


def test_ages_beyond_the_run_are_refused():
    with pytest.raises(ValueError, match=r"update=4 and delays=\(4,\); expected delays from 0 to 3"):
        SnapshotSchedule(4, (4,), PLAN)
