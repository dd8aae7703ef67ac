"""The live loop: rollout workers run ahead, the learner takes batches of bounded staleness, weights flow back.

This is the driver, in one thread: it moves tickets between the schedule (bounded_staleness.py), the workers (fleet.py),
the verifiers (group_intake.py) and the learner. Whatever happens to workers and verifiers arrives as an event.

With `config.is_deterministic` the commands to the one worker, and the batches, do not depend on when events arrive:
metrics.jsonl and evaluations.jsonl are then a function of the config, also over a lost worker or a resumed run.
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from gmc_core.files import DiskFullError
from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.trajectories import Batch, Group
from gmc_core.rollouts.verification import Verified, VerifierFault
from gmc_core.rollouts.workers.messages import Busy, Failed, GroupDone, Ready, WeightsLoaded
from gmc_core.training.bounded_staleness import BoundedStaleness
from gmc_core.training.checkpoints import load_checkpoint, save_checkpoint
from gmc_core.training.fleet import Command, Fleet, RolloutFailure
from gmc_core.training.group_intake import (
    GroupIntake,
    from_tree,
    lowest_versions,
    mixed_fraction,
    moved,
    to_tree,
    with_rewards,
)
from gmc_core.training.learner import Learner
from gmc_core.training.ledger import GENERATING, READY, VERIFYING
from gmc_core.training.run_directory import CHECKPOINT, DamagedRecordError, RunRecord
from gmc_core.training.session import Session, batch_metrics
from gmc_core.training.tickets import Tickets
from gmc_core.training.timeline import LEARNER, VERIFIER, Timeline
from gmc_core.training.weight_probe import WeightProbe

LEDGER = "ledger.json"
QUIET_SECONDS = 600.0  # a wait of this length without any event is worth a warning


class LiveRun:
    """A run of schedule "bounded_staleness"."""

    def __init__(self, session: Session) -> None:
        self.session, self.config, self.policy = session, session.config, session.policy
        config = self.config
        self.learner = Learner(self.policy, config)
        self.schedule = BoundedStaleness(
            config.max_staleness,
            groups_per_update=config.prompts_per_update,
            updates=config.updates,
            when_exceeded=config.when_exceeded,
            in_order=config.is_deterministic,
            group_timeout=config.group_timeout,
            over_provision=config.over_provision,
        )
        self.groups: dict[int, Group] = {}  # generated and not yet trained on
        self.checkpoint_path = session.directory.path / CHECKPOINT
        self.timeline = Timeline(session.directory)
        self.restarts = 0  # of earlier sessions
        self._misses: list[str] = []  # groups dropped since the last that got its rewards: why
        self._whole = True  # False while an update is half done: a checkpoint could not be resumed exactly
        self.tickets = Tickets(config, session.task)

    def finish(self) -> RunRecord:
        self.intake = GroupIntake(self.session)
        try:
            self.fleet = Fleet(self.config, self._engine_spec(), self.tickets.request, self.intake)
            try:
                self._train()
            except RolloutFailure as error:
                self._keep()
                raise RolloutFailure(f"{error}\n{self._how_to_go_on()}") from error
            except KeyboardInterrupt:
                self._keep()
                raise
            finally:
                self.fleet.close()
                with contextlib.suppress(DiskFullError):  # if so, it has been raised already or will be
                    self._write_ledger()
        finally:
            self.intake.close()
        self._last_words()
        self.schedule.ledger.check()
        return self.session.finish(
            packages=("vllm", "ray"),
            live={"restarts": self.restarts + self.fleet.restarts, "reissued": self.schedule.ledger.reissued},
        )

    # --- a session ---

    def _train(self) -> None:
        session = self.session
        if self.checkpoint_path.exists():
            self._resume()
        else:
            self._begin()
        for _ in session.updates(self.schedule.version):
            batch = self._next_batch()
            self._whole = False
            row = self._learn(batch)
            done = self.schedule.version
            if done < self.config.updates:  # the workers go on while the rest is done
                self._publish()
                self._issue()
            session.record(row)
            if session.evaluation_due(done):
                self._evaluate(done)
            self._whole = True
            if session.checkpoint_due(done):
                self._checkpoint()

    def _begin(self) -> None:
        self.session.directory.rewind(-1)
        self.probe = WeightProbe(self.session)
        self._publish()
        self._issue()
        self._evaluate(0)

    def _resume(self) -> None:
        state = load_checkpoint(
            self.checkpoint_path,
            fingerprint=self.policy.fingerprint,
            digest=self.config.digest,
            device=self.policy.device,
        )
        self.learner.load_state_dict(state["learner"])
        self.session.seconds, self.restarts = state["seconds"], state["restarts"]
        self.schedule.restore(state["schedule"], time.monotonic())
        done, ledger = self.schedule.version, self.schedule.ledger
        self.session.directory.rewind(done)
        self.timeline.update = done
        if set(state["groups"]) != set(map(str, ledger.tickets(VERIFYING, READY))):
            raise DamagedRecordError(f"the groups in {self.checkpoint_path} are not those of its ledger")
        self.groups = {int(t): from_tree(self.tickets.prompt(int(t)), tree) for t, tree in state["groups"].items()}
        self.probe = WeightProbe(self.session)
        generating = ledger.tickets(GENERATING)
        if self.fleet.replayable:
            for item in state["snapshots"]:
                self.fleet.keep(item["version"], item["weights"])
            self.fleet.keep(done, self._weights(), self.probe.now())
            commands = [Command(item["version"], tuple(item["tickets"])) for item in state["commands"]]
            self.fleet.resume(commands, generating)
        else:
            self._publish()
            self._generate_again(generating)
        for ticket in ledger.tickets(VERIFYING):
            self.intake.verify(ticket, self.groups[ticket])

    def _checkpoint(self) -> None:
        """Everything that the rest of the run depends on; groups that are still generated are generated again."""
        ledger = self.schedule.ledger
        ledger.check()
        with self.timeline.noting(LEARNER, "checkpoint", self.schedule.version):
            self._write_ledger()
            versions = sorted({command.version for command in self.fleet.commands} - {self.schedule.version})
            content = {
                "update": self.schedule.version,
                "seconds": self.session.elapsed(),
                "restarts": self.restarts + self.fleet.restarts,
                "learner": self.learner.state_dict(),
                "schedule": self.schedule.to_plain(),
                "groups": {str(ticket): to_tree(self.groups[ticket]) for ticket in ledger.tickets(VERIFYING, READY)},
                "commands": [{"version": item.version, "tickets": item.tickets} for item in self.fleet.commands],
                "snapshots": [{"version": v, "weights": dict(self.fleet.weights(v))} for v in versions],
            }
            save_checkpoint(
                self.checkpoint_path, content, fingerprint=self.policy.fingerprint, digest=self.config.digest
            )
        self.session.checkpoint_written()

    def _keep(self) -> None:
        """The run stops between two updates: what has been done so far is kept."""
        if self._whole and 0 < self.schedule.version < self.config.updates:
            self._checkpoint()

    def _how_to_go_on(self) -> str:
        again = "from the last checkpoint" if self.checkpoint_path.exists() else "from the beginning"
        return (
            f"The run stopped after update {self.schedule.version} of {self.config.updates}. What was computed is in "
            f"{self.session.directory.path}; once the cause is removed, train(config) goes on {again}"
        )

    # --- one update ---

    def _next_batch(self) -> tuple[int, ...]:
        """Handle events until the schedule has a batch."""
        while (event := self.fleet.pending()) is not None:  # what came while the learner was busy
            self._handle(event)
        since = heard = time.time()
        while (batch := self.schedule.next_batch()) is None:
            self._issue()
            if (event := self.fleet.next_event(self._patience())) is not None:
                self._handle(event)
                heard = time.time()
            elif time.time() - heard > QUIET_SECONDS:
                heard = time.time()
                waiting = self.schedule.ledger.tickets(GENERATING, VERIFYING)
                warnings.warn(
                    f"workers and verifiers have said nothing for {QUIET_SECONDS:.0f} seconds; {len(waiting)} groups "
                    f"are awaited, tickets {waiting[:5]}. RunConfig.group_timeout would give stragglers up",
                    stacklevel=2,
                )
        if (now := time.time()) - since > 1e-3:
            self.timeline.note(LEARNER, "wait", since, now, self.schedule.version)
        return batch

    def _learn(self, tickets: tuple[int, ...]) -> dict[str, float]:
        """One update with these groups; its metrics."""
        config, version = self.config, self.schedule.version
        groups = [self.groups[ticket] for ticket in tickets]
        with self.timeline.noting(LEARNER, "learn", version) as more:
            batch = Batch.from_groups(
                [moved(group, self.policy.device) for group in groups],
                group_size=config.group_size,
                mask_truncated=config.mask_truncated,
            )
            row = {"update": version + 1, "policy_version": version} | _staleness_metrics(groups, version)
            clocked = {
                "queue_length": len(self.schedule.ledger.tickets(READY)) - len(tickets),
                "dropped_groups": self.schedule.dropped_since_update,
                "restarts": self.restarts + self.fleet.restarts,
            }
            row |= batch_metrics(batch)
            more |= {"tickets": list(tickets)} | {name: row[name] for name in ("staleness", "staleness_max", "tokens")}
            more |= clocked
            if not config.is_deterministic:
                row |= clocked
            row |= self.learner.update(batch)
            self.fleet.abort(self.schedule.train(tickets))
        self.fleet.updated()
        self.timeline.update = self.schedule.version
        in_flight = set(self.schedule.ledger.tickets())
        self.groups = {ticket: group for ticket, group in self.groups.items() if ticket in in_flight}
        return row

    def _evaluate(self, done: int) -> None:
        with self.timeline.noting(LEARNER, "evaluate", done):
            self.session.evaluate(done, score=self.intake.score)

    # --- to the workers ---

    def _publish(self) -> None:
        version = self.schedule.version
        with self.timeline.noting(LEARNER, "publish", version):
            self.fleet.publish(version, self._weights(), self.probe.now())

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: tensor.detach() for name, tensor in self.policy.model.named_parameters()}

    def _issue(self) -> None:
        """Give up what took too long, and have generated what the schedule allows."""
        now, P = time.monotonic(), self.config.prompts_per_update
        if late := self.schedule.expire(now):
            self.fleet.abort(late)
            for ticket in late:
                self._missed(f"ticket {ticket} was not there after {self.config.group_timeout:g} seconds")
        tickets = self.schedule.issue(now)
        for start in range(0, len(tickets), P):
            self.schedule.hold(self.fleet.generate(tickets[start : start + P]))

    def _generate_again(self, tickets: Sequence[int]) -> None:
        """Their groups were lost; the same tickets are generated under the newest weights."""
        for ticket in tickets:
            self.schedule.reissue(ticket, time.monotonic())
        self.schedule.hold(self.fleet.generate(tickets))

    def _patience(self) -> float:
        """Seconds to wait for an event: not beyond the next time-out."""
        expiry = self.schedule.next_expiry()
        return 10.0 if expiry is None else min(10.0, max(0.01, expiry - time.monotonic()))

    # --- from workers and verifiers ---

    def _handle(self, event: Any) -> None:
        if isinstance(event, GroupDone):
            if self.fleet.accept(event):
                self.groups[event.ticket] = event.group
                if not self.schedule.generated(event.ticket, lowest_versions(event.group)):
                    del self.groups[event.ticket]
        elif isinstance(event, Verified | VerifierFault):
            self._verdict(event)
        elif isinstance(event, WeightsLoaded):
            self.fleet.loaded(event)
            self.timeline.note(
                event.worker, "load_weights", event.started, event.finished, event.version, gap=event.gap
            )
        elif isinstance(event, Busy):
            self.timeline.note(
                event.worker, "generate", event.started, event.finished, event.version, tokens=event.tokens
            )
        elif isinstance(event, Ready):
            self.schedule.begin(self.fleet.ready(event), time.monotonic())
            self.timeline.note(event.worker, "start", time.time() - event.seconds, time.time())
        elif isinstance(event, Failed):
            self._lost(event)
        else:
            raise RolloutFailure(f"a group could not be handed to the verifiers: {event!r}") from event

    def _verdict(self, event: Verified | VerifierFault) -> None:
        ticket = event.ticket
        fault = {"fault": event.kind} if isinstance(event, VerifierFault) else {}
        self.timeline.note(VERIFIER, "verify", event.started, event.finished, ticket=ticket, **fault)
        if self.schedule.ledger.state(ticket) != VERIFYING:
            return  # dropped meanwhile, or verified a second time after a replay
        if isinstance(event, Verified):
            self.groups[ticket] = with_rewards(self.groups[ticket], event.rewards)
            self.schedule.verified(ticket)
            self._misses.clear()
            return
        if event.kind == "unavailable":
            raise RolloutFailure(event.reason)
        self.schedule.drop(ticket, f"verifier {event.kind}")
        del self.groups[ticket]
        self._missed(event.reason)

    def _missed(self, reason: str) -> None:
        """A group was given up. RolloutFailure when that is all that happens."""
        self._misses.append(reason)
        if len(self._misses) > max(8, 2 * self.config.prompts_per_update):
            raise RolloutFailure(
                f"{len(self._misses)} groups in a row were dropped and none got its rewards "
                f"({self.schedule.ledger.drop_reasons()} so far); the last: {reason}"
            )

    def _lost(self, event: Failed) -> None:
        lost = self.fleet.replace(event)
        now = time.time()
        self.timeline.note(event.worker, "lost", now, now, reason=event.reason, tickets=lost)
        if not self.fleet.replayable:
            self._generate_again(lost)
            return
        for ticket in lost:  # the new worker was told everything that the lost one was
            self.schedule.reissue(ticket, math.inf, version=self.schedule.bound(ticket))

    def _last_words(self) -> None:
        """What the workers did until they were closed belongs to the timeline."""
        while (event := self.fleet.pending()) is not None:
            if isinstance(event, Busy | WeightsLoaded):
                self._handle(event)

    def _engine_spec(self) -> EngineSpec:
        config = self.config
        return EngineSpec(
            kind=config.engine,
            model=str(self.session.model),
            dtype=config.dtype,
            device=config.device,
            threads=torch.get_num_threads() if config.workers == "inline" else config.engine_threads,
            chat=config.chat,
            enable_thinking=config.enable_thinking,
            max_model_len=config.max_model_len,
            options=config.engine_options,
        )

    def _write_ledger(self) -> None:
        self.session.directory.write_json(LEDGER, self.schedule.ledger.to_plain(), line_per_key=True)


def _staleness_metrics(groups: list[Group], version: int) -> dict[str, float]:
    """How old the rollouts of a batch are, each by the lowest version among its tokens."""
    lowest = [low for group in groups for low in lowest_versions(group)]
    return {
        "behavior_version": sum(lowest) / len(lowest),
        "staleness": version - sum(lowest) / len(lowest),
        "staleness_max": version - min(lowest),
        "mixed_version_fraction": mixed_fraction(groups),
    }
