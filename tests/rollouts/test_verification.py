"""A verifier may do anything: a group has its rewards or a fault with a reason, and the driver never waits for ever."""

import pytest

from gmc_core.rollouts.tasks import Prompt, RunningSums
from gmc_core.rollouts.verification import FAULTS, Verified, VerifierFault, VerifierPool
from tests.awkward_verifiers import AwkwardTask, Unloadable

PROMPT = Prompt("do", "")


def verdicts(pool, count):
    found = [pool.results.get(timeout=120) for _ in range(count)]
    return {verdict.ticket: verdict for verdict in found}


@pytest.fixture(scope="module")
def pool():
    pool = VerifierPool(AwkwardTask(), processes=1, limit_seconds=0.5)
    yield pool
    pool.close()


def test_rewards_come_back_in_order(pool):
    pool.submit(3, PROMPT, ["a", "bbb", "cc"], [True, True, False])
    verdict = verdicts(pool, 1)[3]
    assert verdict == Verified(3, (1.0, 3.0, 0.0), verdict.started, verdict.finished)
    assert verdict.finished >= verdict.started > 0


def test_what_raises_is_a_fault_and_the_process_goes_on(pool):
    for ticket, text in enumerate(["raise", "exit", "nan", "none", "fine"]):
        pool.submit(ticket, PROMPT, ["ok", text], [True, True])
    (child,) = pool._children
    found = verdicts(pool, 5)
    assert [getattr(found[ticket], "kind", "") for ticket in range(5)] == ["raised", "raised", "invalid", "invalid", ""]
    assert "the parser choked" in found[0].reason and "ticket 0" in found[0].reason
    assert "SystemExit" in found[1].reason
    assert "nan" in found[2].reason and "'none'" in found[3].reason
    assert found[4].rewards == (2.0, 4.0)
    assert pool._children == {child} and child.alive


def test_what_hangs_or_dies_is_killed_and_replaced(pool):
    """A busy loop that ignores signals, a wait in C, a lost process and a closed pipe, and a healthy group behind."""
    awkward = ["loop", "block in C", "end process", "close pipe"]
    for ticket, text in enumerate(awkward):
        pool.submit(2 * ticket, PROMPT, [text], [True])
    pool.submit(99, PROMPT, ["fine"], [True])
    (first,) = pool._children
    found = verdicts(pool, len(awkward) + 1)
    assert [found[2 * ticket].kind for ticket in range(4)] == ["hung", "hung", "died", "died"]
    assert "within 0.5 seconds" in found[0].reason
    assert "exit code 7" in found[4].reason
    assert found[99].rewards == (4.0,)
    assert not first.alive and first not in pool._children


def test_a_task_that_cannot_be_loaded_says_why():
    pool = VerifierPool(Unloadable(), processes=1)
    pool.submit(5, PROMPT, ["a"], [True])
    verdict = verdicts(pool, 1)[5]
    pool.close()
    assert isinstance(verdict, VerifierFault) and verdict.kind == "unavailable"
    assert "a_parser" in verdict.reason


def test_closing_does_not_wait_for_a_hanging_verifier():
    pool = VerifierPool(AwkwardTask(), processes=1, limit_seconds=3600)
    pool.submit(0, PROMPT, ["fine"], [True])
    verdicts(pool, 1)
    pool.submit(1, PROMPT, ["block in C"], [True])
    (child,) = pool._children
    pool.close()
    assert not child.alive and not pool._children and pool.results.empty()
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(2, PROMPT, ["a"], [True])


def test_in_the_caller_it_is_a_plain_call():
    task = RunningSums(digits=2)
    pool = VerifierPool(task, processes=0)
    prompt = task.prompt([3, 9])
    pool.submit(0, prompt, ["3>2#2", "3>2#1", "3>2#2"], [True, True, False])
    assert pool.results.get_nowait().rewards == (1.0, 0.0, 0.0)
    faulty = VerifierPool(AwkwardTask(), processes=0, results=pool.results)
    faulty.submit(1, PROMPT, ["raise"], [True])
    assert pool.results.get_nowait().kind == "raised"
    pool.close()


def test_bad_arguments_are_named():
    for arguments, message in (({"processes": -1}, "processes"), ({"limit_seconds": 0}, "limit_seconds")):
        with pytest.raises(ValueError, match=message):
            VerifierPool(AwkwardTask(), **arguments)
    with pytest.raises(ValueError, match="2 texts and 1"):
        VerifierPool(AwkwardTask(), processes=0).submit(0, PROMPT, ["a", "b"], [True])
    local = type("LocalTask", (AwkwardTask,), {"__module__": "__main__"})
    with pytest.raises(ValueError, match="notebook or script"):
        VerifierPool(local())
    nowhere = type("NowhereTask", (AwkwardTask,), {})
    with pytest.raises(ValueError, match="cannot be sent"):
        VerifierPool(nowhere())


def test_every_kind_of_fault_is_explained():
    assert set(FAULTS) == {"raised", "invalid", "hung", "died", "unavailable"}
