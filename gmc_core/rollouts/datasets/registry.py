"""Every data set a run can name: where it lies, its columns, its licence, its revision, what is wrong with it.

Data only. The table of the data card (data/README.md) is generated from this file. The revisions are commits of the hub
repositories, each taken from at least two public projects that pin the same one; none was downloaded here. A run record
stores the revision that was really read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TRAINING, BENCHMARK = "training", "benchmark"


@dataclass(frozen=True)
class DatasetSpec:
    """`splits`: rows of each split at the pinned revision; the first is the default.

    `answer_form`: how the answer stands in its column: "value" as it is, "hash" behind `####`, "boxed" in the last
    `\\boxed{}` of a solution, "list" a list of values. `verifier`: "number" or "math" (verifiers/). `keep`: only rows
    with one of these values in that column. `max_response_tokens`: what a response needs, for runs that set no limit.
    """

    hub_id: str
    config: str | None
    splits: Mapping[str, int]
    question: str
    answer: str
    answer_form: str
    verifier: str
    role: str
    licence: str
    revision: str | None
    defects: str
    source: str
    max_response_tokens: int
    keep: tuple[str, tuple[str, ...]] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that must be there."""
        return (self.question, self.answer, *((self.keep[0],) if self.keep else ()))


DATASETS: dict[str, DatasetSpec] = {
    "gsm8k": DatasetSpec(
        hub_id="openai/gsm8k",
        config="main",
        splits={"train": 7473, "test": 1319},
        question="question",
        answer="answer",
        answer_form="hash",
        verifier="number",
        role=TRAINING,
        licence="MIT",
        revision="740312add88f781978c0658806c59bc2815b9866",
        defects="some test questions are ambiguous or mislabelled (arXiv 2502.03461)",
        source="arXiv 2110.14168",
        max_response_tokens=512,
    ),
    "math": DatasetSpec(
        hub_id="DigitalLearningGmbH/MATH-lighteval",
        config="default",
        splits={"train": 7500, "test": 5000},
        question="problem",
        answer="solution",
        answer_form="boxed",
        verifier="math",
        role=TRAINING,
        licence="MIT",
        revision="0530c78699ea5e8eb5530600900e1f328b48acad",
        defects="levels 3 to 5 are kept; MATH-500 is part of its test split; boxes written `\\boxed 7` and `\\fbox{}`",
        source="arXiv 2103.03874",
        max_response_tokens=2048,
        keep=("level", ("Level 3", "Level 4", "Level 5")),
    ),
    "dapo_math": DatasetSpec(
        hub_id="open-r1/DAPO-Math-17k-Processed",
        config="en",
        splits={"train": 14116},
        question="prompt",
        answer="solution",
        answer_form="value",
        verifier="math",
        role=TRAINING,
        licence="none stated; its source, BytedTsinghua-SIA/DAPO-Math-17k, is Apache-2.0",
        revision="31dd309567e3da778038cc87d868b6097a3ccf68",
        defects="the source repeats its 17k prompts 100 times (verl#3065) and has two answers to 7 of them (discussion "
        "3 of its hub repository), of which this set keeps the first",
        source="arXiv 2503.14476",
        max_response_tokens=4096,
    ),
    "deepscaler": DatasetSpec(
        hub_id="agentica-org/DeepScaleR-Preview-Dataset",
        config="default",
        splits={"train": 40315},
        question="problem",
        answer="answer",
        answer_form="value",
        verifier="math",
        role=TRAINING,
        licence="MIT",
        revision="b6ae8c60f5c1f2b594e2140b91c49c9ad0949e29",
        defects="6 empty answers and some wrong ones (discussions 3 and 4 of the hub repository); holds AIME and AMC "
        "problems of years before 2024",
        source="github.com/rllm-org/rllm",
        max_response_tokens=8192,
    ),
    "math_500": DatasetSpec(
        hub_id="HuggingFaceH4/MATH-500",
        config="default",
        splits={"test": 500},
        question="problem",
        answer="answer",
        answer_form="value",
        verifier="math",
        role=BENCHMARK,
        licence="none stated; its source MATH is MIT",
        revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
        defects="500 problems of the test split of MATH: no training on that split",
        source="arXiv 2305.20050",
        max_response_tokens=4096,
    ),
    "aime_2024": DatasetSpec(
        hub_id="HuggingFaceH4/aime_2024",
        config="default",
        splits={"train": 30},
        question="problem",
        answer="answer",
        answer_form="value",
        verifier="math",
        role=BENCHMARK,
        licence="none stated; contest problems of the MAA",
        revision="2fe88a2f1091d5048c0f36abc874fb997b3dd99a",
        defects="its only split is called train; copies elsewhere repeat each problem 32 times (verl#3065) or leak "
        "answers into three problems (Qwen3#1183)",
        source="AIME I and II 2024",
        max_response_tokens=8192,
    ),
    "aime_2025": DatasetSpec(
        hub_id="math-ai/aime25",
        config="default",
        splits={"test": 30},
        question="problem",
        answer="answer",
        answer_form="value",
        verifier="math",
        role=BENCHMARK,
        licence="not verified; contest problems of the MAA",
        revision="563bb8404243c5f09de6ec262f2db674fe5bce9b",
        defects="copies elsewhere write one answer with a degree sign, `336^\\circ`; the verifier drops degrees",
        source="AIME I and II 2025",
        max_response_tokens=8192,
    ),
    "amc23": DatasetSpec(
        hub_id="math-ai/amc23",
        config="default",
        splits={"test": 40},
        question="question",
        answer="answer",
        answer_form="value",
        verifier="math",
        role=BENCHMARK,
        licence="none stated; contest problems of the MAA",
        revision="80815d37005feb82cd7f8fbc6901d5d3eff43057",
        defects="AMC 12 problems reworded so that the answer is an integer: not comparable with multiple choice",
        source="AMC 12 2023",
        max_response_tokens=8192,
    ),
    "minerva": DatasetSpec(
        hub_id="math-ai/minervamath",
        config="default",
        splits={"test": 272},
        question="question",
        answer="answer",
        answer_form="value",
        verifier="math",
        role=BENCHMARK,
        licence="none stated; questions of MIT OpenCourseWare",
        revision="ee46ddc498933b1977577953250ca5c66be64f96",
        defects="physical constants and roundings are left open, so right answers are marked wrong; answers in powers "
        "of ten that verifiers which round to six decimals take for 0",
        source="arXiv 2206.14858",
        max_response_tokens=4096,
    ),
    "olympiadbench": DatasetSpec(
        hub_id="Hothan/OlympiadBench",
        config="OE_TO_maths_en_COMP",
        splits={"train": 674},
        question="question",
        answer="final_answer",
        answer_form="list",
        verifier="math",
        role=BENCHMARK,
        licence="Apache-2.0",
        revision="91184b52131e7fc9455fef848035173aea8cc01a",
        defects="its only split is called train; answers are lists, of several values in about one of seven rows; "
        "units stand in a column of their own",
        source="arXiv 2402.14008",
        max_response_tokens=8192,
    ),
}
TRAINING_SETS = tuple(name for name, spec in DATASETS.items() if spec.role == TRAINING)
BENCHMARKS = tuple(name for name, spec in DATASETS.items() if spec.role == BENCHMARK)
