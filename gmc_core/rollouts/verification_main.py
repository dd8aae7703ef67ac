"""What runs in a verifier's process: `python -m gmc_core.rollouts.verification_main`, started by `VerifierPool`."""

from __future__ import annotations

from gmc_core.rollouts.child_process import connect, dumps, loads
from gmc_core.rollouts.verification import attempt


def main() -> None:
    pipe = connect()
    try:
        task = loads(pipe.recv_bytes())
    except EOFError:
        return
    except Exception as error:
        pipe.send_bytes(dumps(("unavailable", f"the task cannot be loaded: {type(error).__name__}: {error}")))
        return
    pipe.send_bytes(dumps(("ready", None)))
    while True:
        try:
            question = loads(pipe.recv_bytes())
        except EOFError:
            return
        pipe.send_bytes(dumps(attempt(task, *question)))


if __name__ == "__main__":
    main()
