"""Weights of groups that are spread over processes; and which versions an integration accepts."""

import os
import tomllib
from importlib import metadata

import pytest
import torch

from gmc_core import gmc_weights, make_estimator, paths
from gmc_core.integrations.gathered_groups import gathered_weights
from gmc_core.integrations.versions import check_version

N, T, G = 12, 5, 3


def batch():
    """12 rollouts of 4 groups in no order: one masked out, one with a missing log-prob, one wide row in each half."""
    generator = torch.Generator().manual_seed(0)
    current = -torch.rand((N, T), generator=generator)
    behavior = current + 0.5 * torch.randn((N, T), generator=generator)
    mask = torch.arange(T) < torch.randint(1, 4, (N, 1), generator=generator)
    mask[0], mask[11], mask[2] = True, torch.arange(T) < 4, False
    behavior[7, 0] = torch.nan
    group = torch.arange(N)[torch.randperm(N, generator=generator)] // G
    return current, behavior, mask, torch.randn(N, generator=generator), group


class Alone:
    process_index = 0

    def gather(self, tensor):
        return tensor

    def pad_across_processes(self, tensor, dim=0, pad_index=0):
        return tensor


@pytest.mark.parametrize("name", ["gmc", "gepo", "ppo_clip"])
def test_one_process_gives_what_the_estimator_gives(name):
    current, behavior, mask, advantage, group = batch()
    estimator = make_estimator(name)
    weight, diagnostics = gathered_weights(estimator, Alone(), *batch())
    expected = estimator(current, behavior, mask, advantage, group_index=group)
    assert torch.equal(expected, (weight if weight.dim() == 2 else weight.unsqueeze(-1)) * (mask & (expected != 0)))
    assert diagnostics["excluded_rollouts"] == 1, "the poisoned one; the masked one was meant to be left out"
    if name == "gmc":
        log_ratio = torch.where(mask, current - behavior, 0.0).sum(-1)
        log_ratio[2] = torch.nan
        assert torch.allclose(weight, gmc_weights(log_ratio, 0.2, group_index=group))
        assert 0 < diagnostics["capped_fraction"] < 1


def half(rank, folder):
    """One of two processes: 6 of the 12 rollouts, its width cut to its own longest response."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True)
    assert accelerator.num_processes == 2
    rows = slice(rank * N // 2, (rank + 1) * N // 2)
    current, behavior, mask, advantage, group = (tensor[rows] for tensor in batch())
    width = int(mask.sum(-1).max())
    result = {}
    for name in ("gmc", "ppo_clip"):
        arguments = (current[:, :width], behavior[:, :width], mask[:, :width], advantage, group)
        result[name] = gathered_weights(make_estimator(name), accelerator, *arguments)
    torch.save(result, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_with_split_groups_give_the_weights_of_one(tmp_path):
    pytest.importorskip("accelerate", reason="accelerate comes with transformers' trainers: pip install trl==1.16.0")
    torch.multiprocessing.spawn(half, (str(tmp_path),), nprocs=2)
    halves = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    group = batch()[4]
    assert set(group[:6].tolist()) & set(group[6:].tolist()), "no group is split"
    for name in ("gmc", "ppo_clip"):
        alone, diagnostics = gathered_weights(make_estimator(name), Alone(), *batch())
        parts = [weights[name][0] for weights in halves]
        if name == "ppo_clip":
            assert [part.shape[1] for part in parts] == [5, 4], "the widths differ"
            parts[1] = torch.nn.functional.pad(parts[1], (0, 1))
        assert torch.equal(torch.cat(parts), alone)
        assert halves[0][name][1] == halves[1][name][1] == pytest.approx(diagnostics, nan_ok=True)


@pytest.mark.parametrize("version", ["1.15.3", "1.17.0", "0.20", "2.0.0", "unknown"])
def test_a_version_outside_the_range_is_refused_with_the_range(monkeypatch, version):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    with pytest.raises(ImportError, match=rf"some {version} .*some>=1\.16,<1\.17.*pip install some"):
        check_version("some", (1, 16), (1, 17), "pip install some")


def test_a_version_of_the_range_is_returned_and_a_missing_package_named(monkeypatch):
    with pytest.raises(ImportError, match=r"no-such-package is not installed.*>=1\.0,<2\.0: pip"):
        check_version("no-such-package", (1, 0), (2, 0), "pip install it")
    monkeypatch.setattr(metadata, "version", lambda name: "1.16.0.dev1")
    assert check_version("some", (1, 16), (1, 17), "") == "1.16.0.dev1"


def test_the_extra_is_the_version_that_the_integration_was_read_in():
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    source = (paths.ROOT / "gmc_core/integrations/trl.py").read_text(encoding="utf-8")
    assert f'READ_IN = "{project["optional-dependencies"]["trl"][0].removeprefix("trl==")}"' in source
