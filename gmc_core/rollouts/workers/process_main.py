"""What runs in a worker's process: `python -m gmc_core.rollouts.workers.process_main`, started by `ProcessWorker`."""

from __future__ import annotations

import time
import traceback

from gmc_core.rollouts.child_process import connect, dumps, loads
from gmc_core.rollouts.workers.messages import Failed, Ready
from gmc_core.rollouts.workers.server import EngineServer
from gmc_core.rollouts.workers.weights import remove_leftovers


def main() -> None:
    pipe = connect(at_orphaned=remove_leftovers)  # a killed learner cannot clean up its shared memory
    name, spec, in_flight_updates = loads(pipe.recv_bytes())
    started = time.time()
    try:
        engine = spec.build()
    except Exception as error:
        reason = f"worker {name} could not start: {type(error).__name__}: {error}"
        pipe.send_bytes(dumps(Failed(name, reason, recoverable=False)))
        return
    pipe.send_bytes(dumps(Ready(name, time.time() - started)))
    server = EngineServer(engine, name, in_flight_updates)
    try:
        while not server.closed:
            if server.idle:
                server.take(loads(pipe.recv_bytes()))
            while pipe.poll(0):
                server.take(loads(pipe.recv_bytes()))
            for event in server.advance():
                pipe.send_bytes(dumps(event))
    except (EOFError, BrokenPipeError):
        server.close()  # nobody listens any more
    except Exception:
        reason = f"worker {name} failed outside its engine:\n{traceback.format_exc()}"
        pipe.send_bytes(dumps(Failed(name, reason, recoverable=False)))


if __name__ == "__main__":
    main()
