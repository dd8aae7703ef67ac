"""A learner to be killed: `python -m tests.orphans` prints the process of its worker and the folder of its weights."""

from __future__ import annotations

import queue
import time

from gmc_core.paths import TINY_QWEN3
from gmc_core.rollouts.continuous import GroupRequest
from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.policy import load_policy, snapshot
from gmc_core.rollouts.tasks import Prompt
from gmc_core.rollouts.workers.messages import Generate, LoadWeights, WeightsLoaded
from gmc_core.rollouts.workers.process import ProcessWorker
from gmc_core.rollouts.workers.weights import SharedMemoryWeights

if __name__ == "__main__":
    events = queue.SimpleQueue()
    worker, shared = ProcessWorker("w0", EngineSpec("transformers", str(TINY_QWEN3)), events), SharedMemoryWeights()
    source = shared.publish(1, snapshot(load_policy(TINY_QWEN3).model))
    worker.send(LoadWeights(1, source))
    while not isinstance(events.get(), WeightsLoaded):
        pass
    worker.send(Generate([GroupRequest(ticket, Prompt("1+2=", "3"), 64, 240, 1.0, ticket) for ticket in range(32)]))
    print(worker.pid, shared.folder, flush=True)
    time.sleep(600)
