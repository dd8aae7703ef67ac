"""What runs in a worker's process: `python -m gmc_core.rollouts.workers.process_main`, started by `ProcessWorker`."""

from __future__ import annotations

import time
import traceback
from multiprocessing.connection import Connection

from gmc_core.rollouts.child_process import await_orphaned, connect, dumps, loads
from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.workers.messages import Failed, Ready
from gmc_core.rollouts.workers.server import EngineServer
from gmc_core.rollouts.workers.weights import remove_leftovers


def main() -> None:
    pipe = connect(at_orphaned=remove_leftovers)  # a killed learner cannot clean up its shared memory
    try:
        name, spec, in_flight_updates = loads(pipe.recv_bytes())
        try:
            failed = serve(pipe, name, spec, in_flight_updates)
        except (EOFError, ConnectionError):
            raise
        except Exception:
            reason = f"worker {name} failed outside its engine:\n{traceback.format_exc()}"
            failed = Failed(name, reason, recoverable=False)
        if failed is not None:
            pipe.send_bytes(dumps(failed))
    except (EOFError, ConnectionError):  # nobody is there any more
        await_orphaned()


def serve(pipe: Connection, name: str, spec: EngineSpec, in_flight_updates: bool) -> Failed | None:
    """Build the engine and serve it until it is closed. Returns why it could not be built."""
    started = time.time()
    try:
        engine = spec.build()
    except Exception as error:
        return Failed(name, f"worker {name} could not start: {type(error).__name__}: {error}", recoverable=False)
    pipe.send_bytes(dumps(Ready(name, time.time() - started)))
    server = EngineServer(engine, name, in_flight_updates)
    while not server.closed:
        if server.idle:
            server.take(loads(pipe.recv_bytes()))
        while pipe.poll(0):
            server.take(loads(pipe.recv_bytes()))
        for event in server.advance():
            pipe.send_bytes(dumps(event))
    return None


if __name__ == "__main__":
    main()
