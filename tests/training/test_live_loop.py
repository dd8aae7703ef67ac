"""The live loop as a whole: staleness, determinism, resuming, partial rollouts. The worker is inline: no process."""

import json
import time
from types import SimpleNamespace

import pytest
import torch

from gmc_core.estimators import METRICS
from gmc_core.rollouts.policy import load_policy, load_snapshot, response_log_probs, snapshot
from gmc_core.training import live_loop
from gmc_core.training.fleet import Command, Fleet
from gmc_core.training.learner import Learner
from gmc_core.training.ledger import Ledger
from gmc_core.training.loop import train
from gmc_core.training.run_config import RunConfig
from gmc_core.training.run_directory import CHECKPOINT
from gmc_core.training.session import model_path
from gmc_core.training.timeline import KINDS

CONFIG = RunConfig(
    schedule="bounded_staleness", max_staleness=2, updates=6, evaluation_every=2, evaluation_prompts=8,
    prompts_per_update=2, group_size=4, verifier_processes=0, optimizer="adamw", learning_rate=1e-3,
)  # fmt: skip
# long and hot, so that groups end at different steps and the others see an update in their middle
IN_FLIGHT = CONFIG.replace(in_flight_updates=True, updates=8, max_new_tokens=24, temperature=1.5)
BYTES = ("metrics.jsonl", "evaluations.jsonl", "policy.safetensors", "summary.json")


class Stop(Exception):
    pass


def stop_at(update):
    def on_update(row):
        if row["update"] == update:
            raise Stop

    return on_update


def contents(path):
    return {name: (path / name).read_bytes() for name in BYTES}


def ledger_of(record):
    return Ledger.from_plain(json.loads((record.path / live_loop.LEDGER).read_text()))


def events_of(record):
    return [json.loads(line) for line in (record.path / "events.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(CONFIG, root=tmp_path_factory.mktemp("whole"))


def test_record_of_a_live_run(whole):
    assert [row["update"] for row in whole.metrics] == [1, 2, 3, 4, 5, 6]
    assert [row["staleness"] for row in whole.metrics] == [0, 1, 2, 2, 2, 2]  # drained: like a fixed delay
    assert [row["update"] for row in whole.evaluations] == [0, 2, 4, 6]
    named = set().union(*whole.metrics, *whole.evaluations, whole.summary)
    assert named <= set(METRICS), f"metrics without an entry in METRICS: {named - set(METRICS)}"
    ledger = ledger_of(whole)
    assert ledger.counts() == {"generating": 0, "verifying": 0, "ready": 0, "trained": 12, "dropped": 0}
    assert ledger.staleness == {0: 8, 1: 8, 2: 32}
    assert ledger.updates == {u: (2 * u - 2, 2 * u - 1) for u in range(1, 7)}
    assert whole.provenance["live"] == {"restarts": 0, "reissued": 0}
    assert not (whole.path / CHECKPOINT).exists()


def test_timeline_of_a_live_run(whole):
    events = events_of(whole)
    assert all(event["kind"] in KINDS and event["start"] <= event["end"] for event in events)
    learned = [event for event in events if event["kind"] == "learn"]
    assert [event["version"] for event in learned] == [0, 1, 2, 3, 4, 5]
    assert [event["staleness"] for event in learned] == [row["staleness"] for row in whole.metrics]
    generated = [event for event in events if event["kind"] == "generate"]
    assert {event["worker"] for event in generated} == {"rollouts-0"}
    assert sum(event["tokens"] for event in generated) == sum(row["tokens"] for row in whole.metrics)
    loaded = [event for event in events if event["kind"] == "load_weights"]
    assert [event["version"] for event in loaded][:4] == [0, 1, 2, 3]
    assert all(event["gap"] < 1e-4 for event in loaded)


def test_the_same_config_gives_the_same_bytes(whole, tmp_path):
    assert contents(train(CONFIG, root=tmp_path).path) == contents(whole.path)


def test_k_0_is_on_policy(tmp_path):
    record = train(CONFIG.replace(max_staleness=0), root=tmp_path)
    assert [row["staleness_max"] for row in record.metrics] == [0] * 6
    assert ledger_of(record).staleness == {0: 48}
    for row in record.metrics:  # current and behaviour policy are one, up to the rounding of two batch shapes
        assert abs(row["log_ratio_min"]) < 1e-4 and abs(row["log_ratio_max"]) < 1e-4


def test_updates_that_share_a_batch_learn_from_one_policy_and_resume_like_any_other(tmp_path):
    config = CONFIG.replace(max_staleness=3, updates_per_batch=2)
    record = train(config, root=tmp_path / "whole")
    assert [row["staleness"] for row in record.metrics] == [0, 1, 2, 3, 2, 3]
    assert [row["behavior_version"] for row in record.metrics] == [0, 0, 0, 0, 2, 2]
    with pytest.raises(Stop):
        train(config, root=tmp_path / "resumed", checkpoint_seconds=0, on_update=stop_at(3))
    assert contents(train(config, root=tmp_path / "resumed").path) == contents(record.path)
    with pytest.raises(ValueError, match=r"updates_per_batch is 5 with max_staleness=3"):
        config.replace(updates_per_batch=5)


def test_a_chat_template_that_is_not_there_is_missed_at_once(tmp_path):
    with pytest.raises(ValueError, match="no chat template: use chat=False for a base model"):
        train(CONFIG.replace(chat=True), root=tmp_path)


@pytest.mark.parametrize("update", [1, 2, 5])
def test_an_interrupted_run_resumes_to_the_same_bytes(whole, tmp_path, update):
    with pytest.raises(Stop):
        train(CONFIG, root=tmp_path, checkpoint_seconds=0, on_update=stop_at(update))
    record = train(CONFIG, root=tmp_path)
    assert contents(record.path) == contents(whole.path)
    assert ledger_of(record).updates == ledger_of(whole).updates


def test_a_resume_replays_what_the_checkpoint_had_in_flight(whole, tmp_path):
    """With k = 2 the worker owes groups of versions 0, 1 and 2 at the checkpoint; their weights are in it."""
    versions = []

    def keep(self, version, weights, probe=None):
        versions.append(version)
        return original(self, version, weights, probe)

    original = Fleet.keep
    with pytest.raises(Stop):
        train(CONFIG, root=tmp_path, checkpoint_seconds=0, on_update=stop_at(4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fleet, "keep", keep)
        train(CONFIG, root=tmp_path)
    assert versions[:3] == [1, 2, 3]


def test_an_interrupt_from_the_keyboard_closes_everything_and_keeps_a_checkpoint(whole, tmp_path, monkeypatch):
    calls, closed = [], []
    next_event, close = Fleet.next_event, Fleet.close

    def interrupted(self, timeout):
        calls.append(timeout)
        if len(calls) == 14:
            raise KeyboardInterrupt
        return next_event(self, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(Fleet, "next_event", interrupted)
        patch.setattr(Fleet, "close", lambda self: (closed.append(True), close(self)))
        with pytest.raises(KeyboardInterrupt):
            train(CONFIG, root=tmp_path, checkpoint_seconds=1e9)
    assert closed == [True]
    path = tmp_path / CONFIG.run_id
    done = len((path / "metrics.jsonl").read_text().splitlines())
    assert (path / CHECKPOINT).exists() and 0 < done < 6
    Ledger.from_plain(json.loads((path / live_loop.LEDGER).read_text())).check()
    assert contents(train(CONFIG, root=tmp_path).path) == contents(whole.path)


def test_a_half_written_event_is_cut_off_on_resume(whole, tmp_path):
    with pytest.raises(Stop):
        train(CONFIG, root=tmp_path, checkpoint_seconds=0, on_update=stop_at(3))
    with open(tmp_path / CONFIG.run_id / "events.jsonl", "a") as file:
        file.write('{"worker": "learner", "ki')
    record = train(CONFIG, root=tmp_path)
    assert contents(record.path) == contents(whole.path)
    assert all(event["kind"] in KINDS for event in events_of(record))


def test_a_checkpoint_whose_ledger_and_groups_disagree_is_set_aside(whole, tmp_path, monkeypatch):
    save = live_loop.save_checkpoint

    def with_a_stray_group(path, content, **origin):
        backlog = content["backlog"] | {"groups": {"0": {}}}
        save(path, content | {"backlog": backlog}, **origin)

    with monkeypatch.context() as patch:
        patch.setattr(live_loop, "save_checkpoint", with_a_stray_group)
        with pytest.raises(Stop):
            train(CONFIG, root=tmp_path, checkpoint_seconds=0, on_update=stop_at(3))
    with pytest.warns(UserWarning, match="not those of its ledger.* set aside"):
        record = train(CONFIG, root=tmp_path)
    assert contents(record.path) == contents(whole.path)


# --- partial rollouts ---


class Watched:
    """A run whose batches and policies are kept."""

    def __init__(self, config, root, **options):
        self.batches, self.policies = [], {0: snapshot(load_policy(model_path(config.model)).model)}
        update = Learner.update

        def watched(learner, batch):
            self.batches.append(batch)
            return update(learner, batch)

        def observe(view):
            self.policies[view.update] = snapshot(view.policy.model)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Learner, "update", watched)
            self.record = train(config, root=root, observe=observe, **options)


@pytest.fixture(scope="module")
def partial(tmp_path_factory):
    return Watched(IN_FLIGHT, tmp_path_factory.mktemp("partial"))


def test_rollouts_go_on_over_an_update_and_every_token_names_its_policy(partial):
    model, mixed, largest = load_policy(model_path(IN_FLIGHT.model)).model, 0, 0.0
    for batch in partial.batches:
        P, G, T = batch.shape
        by_version = {}
        for version in batch.version_PGT[batch.mask_PGT].unique().tolist():
            load_snapshot(model, partial.policies[version])
            with torch.no_grad():
                logp_NT = response_log_probs(
                    model, batch.prompt_PL, batch.prompt_mask_PL, batch.response_PGT.flatten(0, 1),
                    torch.arange(P).repeat_interleave(G), temperature=IN_FLIGHT.temperature,
                )  # fmt: skip
            by_version[version] = logp_NT.view(P, G, T)
        for version, logp_PGT in by_version.items():
            where_PGT = batch.mask_PGT & (batch.version_PGT == version)
            gap = (logp_PGT - batch.behavior_logp_PGT)[where_PGT].abs().max().item()
            largest = max(largest, gap)
        first_PG1 = batch.version_PGT[..., :1]
        mixed += (batch.mask_PGT & (batch.version_PGT != first_PG1)).any(-1).sum().item()
    assert mixed > 0, "no rollout was sampled under two policies: the test tests nothing"
    assert largest < 1e-4, "a behaviour log-prob is not that of the policy its token names"
    fractions = [row["mixed_version_fraction"] for row in partial.record.metrics]
    assert sum(fractions) * 8 == pytest.approx(mixed)


def test_staleness_counts_from_the_oldest_token_and_stays_within_the_bound(partial):
    for row, batch in zip(partial.record.metrics, partial.batches, strict=True):
        lowest_PG = batch.version_PGT.where(batch.mask_PGT, 10**6).amin(-1)
        assert row["staleness_max"] == row["policy_version"] - lowest_PG.min().item() <= 2
        assert row["staleness"] == pytest.approx(row["policy_version"] - lowest_PG.float().mean().item())
    ledger = ledger_of(partial.record)
    ledger.check()
    assert max(ledger.staleness) <= 2 and ledger.counts()["dropped"] == 0
    assert {"queue_length", "dropped_groups", "restarts"} <= set(partial.record.metrics[0]) <= set(METRICS)


def test_a_resumed_run_in_flight_trains_on_the_prompts_that_were_issued(partial, tmp_path):
    with pytest.raises(Stop):
        train(IN_FLIGHT, root=tmp_path, checkpoint_seconds=0, on_update=stop_at(4))
    before = Ledger.from_plain(json.loads((tmp_path / IN_FLIGHT.run_id / live_loop.LEDGER).read_text()))
    resumed = Watched(IN_FLIGHT, tmp_path)
    after = ledger_of(resumed.record)
    after.check()
    checkpoint = {update: tickets for update, tickets in before.updates.items() if update <= 3}
    assert {update: after.updates[update] for update in checkpoint} == checkpoint
    trained = sorted(ticket for tickets in after.updates.values() for ticket in tickets)
    assert trained == list(range(16)) and after.issued == 16  # every prompt once, none skipped
    # what was ready at the checkpoint is trained on as it was, not sampled a second time
    (first,) = (batch for batch in partial.batches[3:4])
    torch.testing.assert_close(resumed.batches[0].response_PGT, first.response_PGT, rtol=0, atol=0)


# --- clocks ---


def test_stragglers_do_not_hold_a_step(tmp_path):
    """Over-provision: 3 groups are generated for 2; what is too old afterwards is dropped and counted."""
    config = IN_FLIGHT.replace(max_staleness=0, over_provision=0.5, when_exceeded="drop", updates=4)
    record = train(config, root=tmp_path)
    ledger = ledger_of(record)
    assert ledger.counts()["trained"] == 8 and ledger.staleness == {0: 32}
    assert ledger.counts()["dropped"] == 4 and set(ledger.drop_reasons()) == {"stale", "surplus"}
    assert sum(row["dropped_groups"] for row in record.metrics) == ledger.drop_reasons()["stale"]


def test_a_group_that_takes_too_long_is_given_up_and_replaced(tmp_path, monkeypatch):
    """Ticket 1 is sent to nobody: it can only end by its time-out. The clock jumps when nothing else is to be done."""
    config = IN_FLIGHT.replace(group_timeout=0.2, updates=2, max_staleness=0)
    clock, send, next_event = [0.0], Fleet._send_generate, Fleet.next_event

    def lose_ticket_1(self, name, command):
        self._assigned |= {ticket: name for ticket in command.tickets}
        if kept := tuple(ticket for ticket in command.tickets if ticket != 1):
            send(self, name, Command(command.version, kept))

    def next_event_or_later(self, timeout):
        event = next_event(self, timeout)
        clock[0] += 1000.0 * (event is None)
        return event

    monkeypatch.setattr(Fleet, "_send_generate", lose_ticket_1)
    monkeypatch.setattr(Fleet, "next_event", next_event_or_later)
    monkeypatch.setattr(live_loop, "time", SimpleNamespace(time=time.time, monotonic=lambda: clock[0]))
    ledger = ledger_of(train(config, root=tmp_path))
    ledger.check()
    assert ledger.reasons == {1: "timeout"} and ledger.updates == {1: (0, 2), 2: (3, 4)}
