"""Are these questions what they should be: duplicates, contradictions, splits, overlap of training and benchmark.

Two questions are the same when their `normalized_question` is. That is deliberately cautious: spacing, case, dollar
signs and other mark-up do not matter, every digit and operator does.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

NGRAM = 13  # words of a run that two different questions hardly share

_MARKUP = re.compile(r"\\(?:left|right|displaystyle|text|mathrm|mbox|quad|qquad)(?![a-zA-Z])|\\[,;:!()\[\] ]|[$~{}]")


def normalized_question(text: str) -> str:
    """The question without case, spacing and mark-up that does not change its meaning."""
    text = re.sub(r"\\[dtc]frac(?![a-zA-Z])", r"\\frac", text.replace("−", "-"))
    return re.sub(r"[\s.?!,:;]+", "", _MARKUP.sub(" ", text).casefold())


def duplicates(texts: Sequence[str]) -> list[list[int]]:
    """Groups of positions with the same normalised question, each in order; only groups of two or more."""
    places = defaultdict(list)
    for place, text in enumerate(texts):
        places[normalized_question(text)].append(place)
    return [group for group in places.values() if len(group) > 1]


def split_by_question(texts: Sequence[str], share: float | int, salt: str = "") -> tuple[list[int], list[int]]:
    """Positions of (training, held-out) questions, held out with probability `share` by a hash of the question.

    The same question always lands on the same side, whatever else is in the list and in whatever order. `salt` makes
    another split. ValueError unless 0 <= share < 1.
    """
    if not 0 <= share < 1:
        raise ValueError(f"split_by_question got share={share!r}; expected a number from 0 to below 1")
    training, held_out = [], []
    for place, text in enumerate(texts):
        digest = hashlib.sha256(f"{salt}\0{normalized_question(text)}".encode()).digest()
        (held_out if int.from_bytes(digest[:8], "big") < share * 2**64 else training).append(place)
    return training, held_out


@dataclass(frozen=True)
class Overlap:
    """`exact`: (training position, benchmark position) of equal questions. `near`: (training, benchmark, share), where
    at least `threshold` of the benchmark question's runs of `NGRAM` words stand in one training question.

    `too_short`: benchmark questions of fewer than `NGRAM` words, which only the exact test can find.
    """

    exact: tuple[tuple[int, int], ...]
    near: tuple[tuple[int, int, float], ...]
    too_short: int
    threshold: float

    @property
    def contaminated(self) -> tuple[int, ...]:
        """Training positions that occur in either list."""
        return tuple(sorted({pair[0] for pair in self.exact} | {pair[0] for pair in self.near}))

    def __str__(self) -> str:
        return (
            f"{len({pair[1] for pair in self.exact})} benchmark questions stand in the training set word for word, "
            f"{len({pair[1] for pair in self.near} - {pair[1] for pair in self.exact})} more share at least "
            f"{self.threshold:.0%} of their {NGRAM}-word runs with one of its questions"
        )


def overlap(training: Sequence[str], benchmark: Sequence[str], *, threshold: float = 0.5) -> Overlap:
    """Which training questions are those of a benchmark, or nearly."""
    if not 0 < threshold <= 1:
        raise ValueError(f"overlap got threshold={threshold!r}; expected a number above 0, at most 1")
    whole, runs, totals = defaultdict(list), defaultdict(set), []
    for place, text in enumerate(benchmark):
        whole[normalized_question(text)].append(place)
        own = _runs(text)
        totals.append(len(own))
        for run in own:
            runs[run].add(place)
    exact, near = [], []
    for place, text in enumerate(training):
        exact += [(place, other) for other in whole.get(normalized_question(text), ())]
        shared: dict[int, int] = defaultdict(int)
        for run in _runs(text):
            for other in runs.get(run, ()):
                shared[other] += 1
        near += [(place, other, n / totals[other]) for other, n in shared.items() if n >= threshold * totals[other]]
    return Overlap(tuple(exact), tuple(near), sum(total == 0 for total in totals), threshold)


def _runs(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.casefold())
    return {tuple(words[start : start + NGRAM]) for start in range(len(words) - NGRAM + 1)}
