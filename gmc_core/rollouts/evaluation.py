"""Evaluation on a benchmark: n samples of every problem, a line per problem on disk, resumable between batches.

The file is the result: its first line says what was evaluated and how, every further line is one problem. It is read by
`gmc_core.reporting.evaluation`, which turns it into avg@n, pass@k, intervals and tests.

Every batch of problems has its own random stream, so a resumed evaluation gives the same lines as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gmc_core.provenance import package_versions
from gmc_core.rollouts.engine import RolloutEngine
from gmc_core.rollouts.random_streams import stream_generator
from gmc_core.rollouts.scoring import response_texts
from gmc_core.rollouts.tasks import Prompt, Task, data_provenance, evaluation_prompts, make_task
from gmc_core.rollouts.trajectories import Group
from gmc_core.rollouts.verification import Verified, VerifierPool


@dataclass(frozen=True)
class BenchmarkPlan:
    """What to evaluate: `samples` responses to each problem of `task`.

    `method` names the row of a table (a run, a checkpoint, an estimator), `model` the weights (a fingerprint, or hub
    name and revision). `temperature` 0 is greedy decoding, with one sample. `problems`: only the first so many (None:
    all of a benchmark, or 256 held-out prompts of a task that has no list of problems).
    """

    method: str
    model: str
    task: str
    task_options: Mapping[str, Any] = field(default_factory=dict)
    samples: int = 1
    temperature: float = 1.0
    max_new_tokens: int | None = None
    seed: int = 0
    problems: int | None = None
    problems_per_batch: int = 8

    def __post_init__(self) -> None:
        for name, optional in (("samples", False), ("problems_per_batch", False), ("problems", True)):
            value = getattr(self, name)
            if not (optional and value is None) and (
                not isinstance(value, int) or isinstance(value, bool) or value < 1
            ):
                raise ValueError(f"BenchmarkPlan.{name} is {value!r}; expected an integer of at least 1")
        if not self.temperature >= 0:
            raise ValueError(f"BenchmarkPlan.temperature is {self.temperature!r}; expected a number of at least 0")
        if self.temperature == 0 and self.samples > 1:
            raise ValueError(
                f"BenchmarkPlan has temperature 0 and samples={self.samples}: greedy decoding gives the same response "
                "every time; use samples=1"
            )
        object.__setattr__(self, "task_options", dict(self.task_options))


def evaluate_benchmark(
    plan: BenchmarkPlan,
    engine: RolloutEngine,
    tokenizer: Any,
    path: Path | str,
    *,
    pool: VerifierPool | None = None,
    device: str = "cpu",
    keep_responses: bool = False,
) -> Path:
    """Evaluate `plan` into the file `path`, or go on where an interrupted evaluation stopped; returns the path.

    `pool`: verifiers in processes under a wall limit, made for the same task; each response is submitted on its own, so
    that one which hangs costs that response alone. Without it the verifier runs here. `device`: where the engine draws
    its random numbers. `keep_responses`: the texts go into the file as well.
    A response that the engine did not deliver, or whose verification failed, is a failure and is counted as such.
    Raises ValueError if the file was made with other settings, RunningElsewhereError if another process writes it.
    """
    path = Path(path)
    task = make_task(plan.task, **plan.task_options)
    prompts = problems_of(task, plan)
    settings = _settings(plan, task, prompts, engine)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _claimed(path):
        done = _open(path, settings)
        for start in range(0, len(prompts), plan.problems_per_batch):
            batch = range(start, min(start + plan.problems_per_batch, len(prompts)))
            if done.issuperset(batch):
                continue
            groups = engine.generate(
                [prompts[problem] for problem in batch],
                group_size=plan.samples,
                max_new_tokens=plan.max_new_tokens or task.max_response_tokens,
                temperature=plan.temperature,
                generator=stream_generator(plan.seed, "benchmark", start, device),
            )
            rows = _rows(batch, prompts, groups, task, tokenizer, pool, keep_responses)
            _append(path, [row for row in rows if row["problem"] not in done])
    return path


def problems_of(task: Task, plan: BenchmarkPlan) -> list[Prompt]:
    """The problems in their order: those of the data set, or evaluation prompts of a procedural task."""
    if hasattr(task, "prompts"):
        prompts = task.prompts()
    else:
        prompts = evaluation_prompts(task, plan.problems or 256, stream_generator(0, "benchmark problems"))
    return prompts[: plan.problems]


class RunningElsewhereError(RuntimeError):
    """Another process writes this evaluation."""


def _settings(plan: BenchmarkPlan, task: Task, prompts: Sequence[Prompt], engine: RolloutEngine) -> dict[str, Any]:
    together = hashlib.sha256("\0".join(f"{prompt.text}\0{prompt.answer}" for prompt in prompts).encode()).hexdigest()
    return {
        **asdict(plan),
        "problems": len(prompts),
        "max_new_tokens": plan.max_new_tokens or task.max_response_tokens,
        "engine": type(engine).__name__,
        "policy_version": engine.policy_version,
        "problem_set": together[:16],
        "data": data_provenance(task),
        "verifier_versions": package_versions(("math-verify", "reasoning-gym")),
    }


def _rows(
    batch: range,
    prompts: Sequence[Prompt],
    groups: Sequence[Group],
    task: Task,
    tokenizer: Any,
    pool: VerifierPool | None,
    keep_responses: bool,
) -> list[dict[str, Any]]:
    """A line for every problem of the batch, also for one whose group did not come."""
    waiting = list(groups)
    rows = []
    for problem in batch:
        prompt = prompts[problem]
        place = next((place for place, group in enumerate(waiting) if group.prompt == prompt), None)
        group = None if place is None else waiting.pop(place)
        texts = [] if group is None else response_texts(tokenizer, group)
        finished = [] if group is None else [bool(done) for done in group.finished_G.tolist()]
        rewards, faults = _verify(prompt, texts, finished, task, pool)
        row = {
            "problem": problem,
            "id": hashlib.sha256(prompt.text.encode()).hexdigest()[:16],
            "answer": prompt.answer,
            "rewards": rewards,
            "finished": finished,
            "lengths": [] if group is None else group.mask_GT.sum(-1).tolist(),
            "faults": faults,
        }
        rows.append(row | ({"responses": texts} if keep_responses else {}))
    return rows


def _verify(
    prompt: Prompt, texts: Sequence[str], finished: Sequence[bool], task: Task, pool: VerifierPool | None
) -> tuple[list[float], int]:
    """The reward of every text, 0 where its verification failed, and how many failed."""
    if pool is None:
        return [float(task.reward(prompt, text, done)) for text, done in zip(texts, finished, strict=True)], 0
    for ticket, (text, done) in enumerate(zip(texts, finished, strict=True)):
        pool.submit(ticket, prompt, [text], [done])
    rewards, faults = [0.0] * len(texts), 0
    for _ in texts:
        verdict = pool.results.get()
        if isinstance(verdict, Verified):
            rewards[verdict.ticket] = verdict.rewards[0]
        elif verdict.kind == "unavailable":
            raise RuntimeError(f"the verifier cannot run at all: {verdict.reason}")
        else:
            faults += 1
    return rewards, faults


# --- the file ---


@contextmanager
def _claimed(path: Path) -> Iterator[None]:
    from filelock import FileLock, Timeout

    lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise RunningElsewhereError(f"{path} is being written by another process") from None
    try:
        yield
    finally:
        lock.release()


def _open(path: Path, settings: Mapping[str, Any]) -> set[int]:
    """The problems that are done; a new file gets its first line, a half-written last line is cut off."""
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        with open(path, "r+b") as file:
            file.truncate(len(whole))
    if not whole:
        _append(path, [{"settings": settings}])
        return set()
    try:
        first, *rows = [json.loads(line) for line in whole.splitlines()]
        before = first["settings"]
        done = {row["problem"] for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no evaluation ({error!r}); move it away or choose another path") from error
    same = json.loads(json.dumps(settings))
    different = [key for key in {**same, **before} if before.get(key) != same.get(key)]
    if different:
        shown = "; ".join(f"{key}: {before.get(key)!r} there, {same.get(key)!r} now" for key in different)
        raise ValueError(f"{path} was made with other settings ({shown}); choose another path")
    return done


def _append(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """All lines at the end of the file, on disk when it returns. A kill in between leaves whole lines and one piece."""
    with open(path, "ab") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows).encode())
        file.flush()
        os.fsync(file.fileno())
