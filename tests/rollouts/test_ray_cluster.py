"""Joining a cluster by its address: actors and weights on another node than the driver's, and the loss of that node."""

import queue

import pytest
import torch

pytest.importorskip("ray", reason="Ray is not installed (make live)")

from ray.cluster_utils import Cluster

from gmc_core import paths
from gmc_core.rollouts.continuous import GroupRequest
from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.policy import load_policy, snapshot
from gmc_core.rollouts.tasks import RunningSums
from gmc_core.rollouts.workers import ray_runtime
from gmc_core.rollouts.workers.inline import InlineWorker
from gmc_core.rollouts.workers.messages import Failed, Generate, GroupDone, LoadWeights, Ready, WeightsLoaded
from gmc_core.rollouts.workers.ray_actor import RayWorker
from gmc_core.rollouts.workers.ray_weights import RayWeights

SPEC = EngineSpec("transformers", str(paths.TINY_QWEN3))
PROMPTS = RunningSums(6).sample_prompts(2, torch.Generator().manual_seed(0))
SHORT = GroupRequest(0, PROMPTS[0], 4, 14, 1.0, seed=0)
LONG = GroupRequest(1, PROMPTS[1], 256, 200, 3.0, seed=1)  # hot, so few ends of sequence


def patiently(start):
    """Ray gives its processes 15 s and 30 s to come up, fixed; on a busy machine a second try finds it warm."""
    for attempt in range(3):
        try:
            return start()
        except Exception as error:
            if attempt == 2 or "timed out" not in str(error):
                raise


@pytest.fixture
def cluster():
    """A head without CPUs, where the driver is and no actor can be."""
    cluster = patiently(
        lambda: Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    )
    yield cluster
    ray_runtime.stop_ray()
    cluster.shutdown()


def until(worker, kind):
    while not isinstance(event := worker.events.get(timeout=120), kind):
        assert kind is Failed or not isinstance(event, Failed), event.reason
    return event


def test_a_lost_node_is_a_lost_worker_and_another_node_takes_its_ticket(cluster):
    node = patiently(lambda: cluster.add_node(num_cpus=1))
    assert ray_runtime.start_ray(cluster.address)
    assert not ray_runtime.start_ray()  # there already
    weights = RayWeights()
    worker = RayWorker("w0", SPEC, queue.SimpleQueue())
    until(worker, Ready)
    worker.send(LoadWeights(1, weights.publish(1, snapshot(load_policy(paths.TINY_QWEN3).model))))
    until(worker, WeightsLoaded)
    worker.send(Generate([SHORT, LONG]))
    first = until(worker, GroupDone)
    assert first.ticket == 0 and (first.group.version_GT[first.group.mask_GT] == 1).all()
    cluster.remove_node(node, allow_graceful=False)
    failed = until(worker, Failed)
    assert failed.recoverable and "while it worked" in failed.reason
    worker.close()

    patiently(lambda: cluster.add_node(num_cpus=1))
    other = RayWorker("w0", SPEC, queue.SimpleQueue())
    other.send(LoadWeights(1, weights.publish(1, {})))  # still stored, on the driver's node
    other.send(Generate([SHORT]))
    again = until(other, GroupDone).group
    other.close()
    inline = InlineWorker("inline", SPEC, queue.SimpleQueue())
    inline.send(Generate([SHORT]))
    while inline.pump():
        pass
    twin = until(inline, GroupDone).group
    assert torch.equal(again.response_GT, twin.response_GT) and torch.equal(first.group.response_GT, twin.response_GT)


def test_an_address_where_no_cluster_is(monkeypatch):
    with pytest.raises(ConnectionError, match=r"no Ray cluster could be joined at '127\.0\.0\.1:1'.*ray start --head"):
        ray_runtime.start_ray("127.0.0.1:1")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ConnectionError, match="'auto'"):
        ray_runtime.start_ray("auto")
