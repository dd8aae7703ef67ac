"""The benchmarks beside TRL: sides that take turns, and what each of them runs."""

import multiprocessing

import pytest

from benchmarks import against_trl, trl_overhead, turns
from benchmarks.__main__ import main
from benchmarks.turns import BLOCK, BLOCKS, WARM_UP, Block, Pace, _receive
from gmc_core import RunConfig
from gmc_core.integrations.trl_runs import prompts_of_update
from gmc_core.rollouts.engine import TransformersEngine
from gmc_core.training.learner import Learner
from tests.spies import spy

UPDATES = 2
CONFIG = RunConfig(updates=UPDATES, evaluation_every=UPDATES, evaluation_prompts=1)
P, G, T = CONFIG.prompts_per_update, CONFIG.group_size, CONFIG.response_limit


@pytest.mark.parametrize("module", [against_trl, trl_overhead], ids=lambda module: module.__name__)
def test_without_trl_it_is_skipped_by_name_and_says_how_to_install_it(monkeypatch, capsys, tmp_path, module):
    monkeypatch.setattr(module, "trl_version", lambda: None)
    monkeypatch.setattr("gmc_core.paths.BUILD", tmp_path / "build")
    name = module.__name__.removeprefix("benchmarks.")
    assert main([name]) == 0
    printed = capsys.readouterr().out
    assert f"{name} skipped" in printed and "pip install trl==1.16.0" in printed


def test_a_side_waits_for_its_turn_and_reports_each_block():
    parent, child = multiprocessing.Pipe()
    pace = Pace(child)
    for _ in range(BLOCKS):
        parent.send("go")
    for _ in range(WARM_UP + BLOCK * BLOCKS):
        pace.watch(sum)([1])
        pace.after_update()
    messages = [parent.recv() for _ in range(1 + BLOCKS)]
    assert messages[0] == "ready" and all(isinstance(block, Block) for block in messages[1:])
    assert all(0 < block.part < block.wall for block in messages[1:])
    assert not parent.poll() and not child.poll(), "every go was waited for, and nothing else was said"


def test_a_side_that_dies_is_named():
    parent, child = multiprocessing.Pipe()
    child.close()
    with pytest.raises(RuntimeError, match="'trl' ended too early"):
        _receive("trl", parent)


def test_our_side_samples_whole_groups_of_the_shared_prompts(monkeypatch, tmp_path):
    batches = spy(monkeypatch, Learner, "update", lambda arguments, result: arguments[1])
    generate = TransformersEngine.generate
    monkeypatch.setattr(TransformersEngine, "generate", generate)  # run_ours times it; put back after the test
    asked = spy(monkeypatch, TransformersEngine, "generate", lambda arguments, result: arguments[1])
    parent, child = multiprocessing.Pipe()
    parent.send("go")
    pace = Pace(child)
    against_trl.run_ours(CONFIG, tmp_path, pace)
    assert pace.updates == UPDATES and pace.part > 0
    assert [batch.shape for batch in batches] == [(P, G, T)] * UPDATES
    rollouts = [prompts for prompts in asked if len(prompts) == P]
    assert rollouts == [prompts_of_update(CONFIG, update) for update in range(UPDATES)]


def test_what_gmc_adds_to_a_step_of_trl_is_counted_and_nothing_else(monkeypatch, tmp_path):
    """Both sides for two updates on the same rollouts: TRL's own correction is on, and GMC's part is watched."""
    pytest.importorskip("trl", reason="TRL is an optional extra: pip install trl==1.16.0")
    for name, value in (("WARM_UP", 1), ("BLOCK", 1), ("BLOCKS", 1)):
        monkeypatch.setattr(turns, name, value)
    monkeypatch.setattr(trl_overhead, "UPDATES", 2)
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    blocks = {}
    for side in (trl_overhead.run_trl, trl_overhead.run_optimizer_step):
        parent, child = multiprocessing.Pipe()
        parent.send("go")
        side(1, tmp_path, Pace(child))
        assert parent.recv() == "ready"
        blocks[side] = parent.recv()
    trl, ours = blocks.values()
    assert trl.part == 0 and 0 < ours.part < 0.5 * ours.wall
