"""From a data set or a local file with the same columns to questions with answers, and a report of what was left out.

A row is left out, with its number and the reason, when a column is missing or empty, when its answer cannot be read
out, when its question was there before (the first stays), or when its question stands there with different answers
(none stays). Rows are counted from 0, as in `datasets` and in the viewer of the hub.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from gmc_core import paths
from gmc_core.rollouts.datasets.quality import duplicates
from gmc_core.rollouts.datasets.registry import DATASETS, DatasetSpec
from gmc_core.rollouts.verifiers.answers import last_boxed, normalized
from gmc_core.rollouts.verifiers.numbers import parse_number

# What DAPO's own prompts wrap around a question; copies of the set differ in whether it is still there.
_WRAPPER = re.compile(
    r"\s*Solve the following math problem step by step\. The last line of your response should be of the form "
    r"Answer: \$Answer \(without quotes\) where \$Answer is the answer to the problem\.\s*(.*?)\s*"
    r"Remember to put your answer on its own line after \"Answer:\"\.\s*",
    flags=re.DOTALL,
)


@dataclass(frozen=True)
class Question:
    """`row` of the source, the question's text, the reference answer."""

    row: int
    text: str
    answer: str


@dataclass(frozen=True)
class Issue:
    """A row that was left out: `kind` for counting, `detail` for the reader."""

    row: int
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"row {self.row}: {self.detail}"


@dataclass(frozen=True)
class Loaded:
    """`questions` that are usable; `rows` read, `filtered` by the registry's `keep`, `issues` left out for a defect.

    `version` identifies the data: the revision of the hub repository that was read (None if it could not be told), or
    `sha256:` of the local file. `origin` says where it came from.
    """

    questions: tuple[Question, ...]
    rows: int
    filtered: int
    issues: tuple[Issue, ...]
    version: str | None
    origin: str

    @property
    def counts(self) -> dict[str, int]:
        """How many rows were left out, per kind of defect."""
        return dict(Counter(issue.kind for issue in self.issues))

    def __str__(self) -> str:
        text = f"{self.origin}: {len(self.questions)} questions of {self.rows} rows"
        if self.filtered:
            text += f", {self.filtered} filtered"
        if self.issues:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.counts.items()))
            shown = "; ".join(map(str, self.issues[:5])) + ("; ..." if len(self.issues) > 5 else "")
            text += f", {len(self.issues)} left out ({kinds}): {shown}"
        return text


@lru_cache(maxsize=8)
def load_questions(name: str, path: str | None = None, split: str | None = None, revision: str | None = None) -> Loaded:
    """The questions of data set `name`, from the hub or, with `path`, from a local .parquet, .jsonl or .json file or a
    folder of `Dataset.save_to_disk`, with the same columns. Read once per process.

    `split` and `revision` default to those of the registry.
    Raises ValueError for an unknown name or split, for a column that no row has, or when no usable row is left;
    FileNotFoundError for a missing path; ImportError naming the extra when the hub is asked without `datasets`.
    """
    spec = find_spec(name)
    if path is not None:
        file = _resolve(path)
        rows, version, origin = _read_local(file), _fingerprint(file), str(path)
    else:
        split = split or next(iter(spec.splits))
        if split not in spec.splits:
            raise ValueError(f"{name} has no split {split!r}; it has {', '.join(spec.splits)}")
        rows, version = _read_hub(spec, split, revision or spec.revision)
        origin = f"{spec.hub_id} ({split})"
    return clean(rows, spec, version=version, origin=origin)


def find_spec(name: str) -> DatasetSpec:
    if name not in DATASETS:
        raise ValueError(f"unknown data set {name!r}; known: {', '.join(DATASETS)}")
    return DATASETS[name]


def clean(rows: Iterable[Mapping[str, Any]], spec: DatasetSpec, *, version: str | None, origin: str) -> Loaded:
    """`Loaded` from the raw rows of a data set. ValueError as `load_questions`."""
    questions, issues, filtered, total, seen = [], [], 0, 0, set()
    for row, content in enumerate(rows):
        total += 1
        seen |= content.keys()
        missing = [column for column in spec.columns if column not in content]
        if missing:
            issues.append(Issue(row, "missing column", f"no column {', '.join(map(repr, missing))}"))
        elif spec.keep is not None and content[spec.keep[0]] not in spec.keep[1]:
            filtered += 1
        else:
            outcome = _question(row, content, spec)
            (questions if isinstance(outcome, Question) else issues).append(outcome)
    if total == 0:
        raise ValueError(f"{origin} has no rows")
    if absent := [column for column in spec.columns if column not in seen]:
        raise ValueError(
            f"{origin}: no row has the column {', '.join(map(repr, absent))}; expected {', '.join(spec.columns)}, "
            f"found {', '.join(sorted(seen))}. Rename the columns of the file to these"
        )
    questions, repeated = _without_repeats(questions)
    issues = sorted(issues + repeated, key=lambda issue: issue.row)
    loaded = Loaded(tuple(questions), total, filtered, tuple(issues), version, origin)
    if not questions:
        raise ValueError(f"no usable row is left. {loaded}")
    return loaded


def _question(row: int, content: Mapping[str, Any], spec: DatasetSpec) -> Question | Issue:
    text = content[spec.question]
    if not isinstance(text, str) or not text.strip():
        return Issue(row, "empty question", f"column {spec.question!r} holds {text!r}")
    if wrapped := _WRAPPER.fullmatch(text):
        text = wrapped[1]
    raw = content[spec.answer]
    answer = _answer(raw, spec.answer_form)
    if not answer or not normalized(answer):
        shown = repr(raw)[:80]
        if spec.answer_form in ("hash", "boxed") and isinstance(raw, str) and raw.strip():
            mark = "####" if spec.answer_form == "hash" else "\\boxed{}"
            return Issue(row, "no final answer", f"column {spec.answer!r} has no {mark}: {shown}")
        return Issue(row, "empty answer", f"column {spec.answer!r} holds {shown}")
    if spec.verifier == "number" and parse_number(answer) is None:
        return Issue(row, "answer is no number", f"column {spec.answer!r} ends on {answer[:80]!r}")
    return Question(row, text.strip(), answer)


def _answer(raw: Any, form: str) -> str:
    """The reference answer as text, "" if there is none."""
    if raw is None or isinstance(raw, bool):
        return ""
    if form == "hash":
        return str(raw).rpartition("####")[2].strip() if "####" in str(raw) else ""
    if form == "boxed":
        return (last_boxed(str(raw)) or "").strip()
    if form == "list" and not isinstance(raw, str):
        return ", ".join(str(part).strip().strip("$") for part in raw) if all(raw) else ""
    if isinstance(raw, float) and raw.is_integer():
        raw = int(raw)
    return "" if raw != raw else str(raw).strip()  # a missing number is NaN, which differs from itself


def _without_repeats(questions: list[Question]) -> tuple[list[Question], list[Issue]]:
    left_out = {}
    for places in duplicates([question.text for question in questions]):
        same = [questions[place] for place in places]
        first, answers = same[0], {re.sub(r"\s+", "", normalized(question.answer)) for question in same}
        if len(answers) > 1:
            rows = ", ".join(str(question.row) for question in same)
            for question in same:
                reason = f"its question stands in rows {rows} with different answers"
                left_out[question.row] = Issue(question.row, "contradiction", reason)
        else:
            for question in same[1:]:
                left_out[question.row] = Issue(question.row, "duplicate", f"repeats row {first.row}")
    return [question for question in questions if question.row not in left_out], list(left_out.values())


# --- reading ---


def _resolve(path: str) -> Path:
    """A path inside the checkout if there is one of that name, else the path as given. FileNotFoundError."""
    for candidate in (paths.ROOT / path, Path(path)):
        if candidate.exists():
            return candidate
    raise FileNotFoundError(f"no file or folder {path!r}, neither in the checkout nor as given")


def _read_local(path: Path) -> list[dict[str, Any]]:
    if path.is_dir():
        return list(_datasets().load_from_disk(str(path)))
    if path.suffix == ".parquet":
        try:
            from pyarrow import parquet
        except ImportError as error:
            raise ImportError("reading .parquet needs pyarrow: pip install -e '.[notebooks]'") from error
        return parquet.read_table(path).to_pylist()
    if path.suffix not in (".jsonl", ".json"):
        raise ValueError(f"{path} is neither .parquet, .jsonl, .json nor a folder of Dataset.save_to_disk")
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return _mappings(path, json.loads(text))
    rows = []
    for number, line in enumerate(text.split("\n")):  # not splitlines: a question may hold U+2028
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number + 1}: no JSON ({error})") from error
    return _mappings(path, rows)


def _mappings(path: Path, rows: Any) -> list[dict[str, Any]]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path} does not hold one JSON object per row")
    return rows


def _fingerprint(path: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(file.read_bytes())
    return f"sha256:{digest.hexdigest()}"


def _read_hub(spec: DatasetSpec, split: str, revision: str | None) -> tuple[Iterable[Mapping[str, Any]], str | None]:
    config = None if spec.config == "default" else spec.config
    data = _datasets().load_dataset(spec.hub_id, config, split=split, revision=revision)
    return data, resolved_revision(data.info.download_checksums, spec.hub_id) or revision


def resolved_revision(sources: Mapping[str, Any] | None, hub_id: str) -> str | None:
    """The commit in `hf://datasets/<hub_id>@<commit>/...`, as `datasets` records where its files came from."""
    for source in sources or ():
        if match := re.search(rf"datasets/{re.escape(hub_id)}@([0-9a-f]{{40}})/", source):
            return match[1]
    return None


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ImportError(
            "reading from the hub needs the datasets package: pip install -e '.[notebooks]', or give `path`, a local "
            "file with the same columns"
        ) from error
    return datasets
