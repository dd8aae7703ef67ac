"""Weights in shared memory: written once, mapped, and never left behind."""

import errno
import os
import pickle
import resource
import sys
from collections import namedtuple

import pytest
import torch

from gmc_core.rollouts.policy import load_snapshot, snapshot
from gmc_core.rollouts.workers import weights as module
from gmc_core.rollouts.workers.messages import WeightSource
from gmc_core.rollouts.workers.weights import SharedMemoryWeights, remove_leftovers, shared_folder
from tests.models import random_policy

WEIGHTS = {
    "a": torch.arange(6.0).view(2, 3),
    "b": torch.arange(6.0).view(2, 3).t(),  # not contiguous
    "c": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
}


@pytest.fixture
def shared(tmp_path):
    shared = SharedMemoryWeights(tmp_path)
    yield shared
    shared.close()


def folders(path):
    return os.listdir(path)


def test_a_version_arrives_as_it_was(shared):
    source = pickle.loads(pickle.dumps(shared.publish(3, WEIGHTS)))
    assert isinstance(source, WeightSource) and source.version == 3
    loaded = source.load()
    assert loaded.keys() == WEIGHTS.keys()
    for name, tensor in WEIGHTS.items():
        assert loaded[name].dtype == tensor.dtype and torch.equal(loaded[name], tensor)
    policy, other = random_policy(0), random_policy(1)
    load_snapshot(other.model, shared.publish(4, snapshot(policy.model)).load())
    for mine, theirs in zip(policy.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory map of the process")
def test_loading_maps_the_file_and_copies_nothing(shared):
    source = shared.publish(0, {"w": torch.rand(1 << 20)})
    tensor = source.load()["w"]
    with open("/proc/self/maps") as maps:
        ranges = [line.split()[0].split("-") for line in maps if source.path in line]
    assert any(int(low, 16) <= tensor.data_ptr() < int(high, 16) for low, high in ranges)


def test_a_released_version_is_gone_from_the_folder_but_not_from_who_has_it(shared):
    first, second = shared.publish(1, WEIGHTS), shared.publish(2, WEIGHTS)
    assert shared.versions == (1, 2) and shared.publish(1, {}) is first
    held = first.load()
    shared.release(1)
    shared.release(1)
    assert shared.versions == (2,) and not os.path.exists(first.path) and os.path.exists(second.path)
    assert torch.equal(held["a"], WEIGHTS["a"])
    with pytest.raises(FileNotFoundError, match=r"policy version 1 are gone from .*released"):
        first.load()


def test_closing_removes_everything(tmp_path):
    shared = SharedMemoryWeights(tmp_path)
    shared.publish(1, WEIGHTS)
    shared.close()
    shared.close()
    assert folders(tmp_path) == []
    with pytest.raises(RuntimeError, match="closed"):
        shared.publish(2, WEIGHTS)
    dropped = SharedMemoryWeights(tmp_path)
    dropped.publish(1, WEIGHTS)
    del dropped
    assert folders(tmp_path) == []


def test_the_next_publisher_removes_what_the_dead_left_and_nothing_of_the_living(tmp_path):
    dead, living = SharedMemoryWeights(tmp_path), SharedMemoryWeights(tmp_path)
    dead.publish(1, WEIGHTS)
    source = living.publish(1, WEIGHTS)
    dead._finalizer.detach()
    dead._lock.close()  # what a kill leaves: the folder, and nobody who holds its lock
    (tmp_path / "somebody-elses").mkdir()
    shared = SharedMemoryWeights(tmp_path)
    assert {living.folder.name, shared.folder.name, "somebody-elses"} == set(folders(tmp_path))
    assert torch.equal(source.load()["a"], WEIGHTS["a"])
    living.close()
    shared.close()
    remove_leftovers(tmp_path)
    assert folders(tmp_path) == ["somebody-elses"]


def test_a_full_disk_is_named_with_the_bytes_needed(shared, monkeypatch):
    big = {"w": torch.zeros(1 << 18)}
    needed = str(4 << 18)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))  # a write fails in its middle
    try:
        with pytest.raises(OSError, match=needed) as caught:
            shared.publish(1, big)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(shared.folder) in str(caught.value) and "policy version 1" in str(caught.value)
    assert caught.value.errno == errno.ENOSPC
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage(10, 0, 10))
    with pytest.raises(OSError, match="10 bytes are free"):
        shared.publish(1, big)
    assert folders(shared.folder) == ["owner.lock"] and shared.versions == ()
    monkeypatch.undo()
    assert torch.equal(shared.publish(1, big).load()["w"], big["w"])


def test_the_folder_is_memory_where_there_is_such_a_folder():
    folder = shared_folder()
    assert folder.is_dir() and os.access(folder, os.W_OK)
    assert str(folder) == "/dev/shm" or not os.path.isdir("/dev/shm")
