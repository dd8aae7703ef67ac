import json
import os
import subprocess
import sys

import pytest
import torch

from gmc_core import paths
from gmc_core.rollouts.engine import TransformersEngine
from gmc_core.rollouts.models import (
    BASE,
    DEFAULT_MODEL,
    INSTRUCT,
    MODELS,
    ModelShape,
    check_prompting,
    end_of_sequence_ids,
    kind_of,
    pinned_revision,
)
from gmc_core.rollouts.policy import load_policy
from gmc_core.rollouts.scoring import response_texts
from gmc_core.rollouts.tasks import Prompt
from gmc_core.rollouts.trajectories import Batch
from gmc_core.training.learner import Learner
from gmc_core.training.run_config import RunConfig
from tests.qwen3_like import SPARE, qwen3_tokenizer, save_qwen3

# as the Qwen3 report (arXiv 2505.09388) and the hub's pages round them: 0.6, 1.7, 4.0 and 8.2 billion
PUBLISHED = {"0.6B": 0.6e9, "1.7B": 1.7e9, "4B": 4.0e9, "8B": 8.2e9}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {kind: save_qwen3(root / kind, instruct=kind == INSTRUCT) for kind in (BASE, INSTRUCT)}


# --- the list ---


def test_the_default_is_a_pinned_base_model_and_every_hub_model_is_pinned():
    assert MODELS[DEFAULT_MODEL].kind == BASE
    for name, spec in MODELS.items():
        assert spec.name == name
        assert spec.extra or (len(spec.revision) == 40 and int(spec.revision, 16) >= 0), name
    pins = [spec.revision for spec in MODELS.values() if spec.revision]
    assert len(set(pins)) == len(pins) == 8


@pytest.mark.parametrize("name", MODELS)
def test_shapes_have_the_parameters_of_the_model_built_from_them(name):
    """Counted on a model without memory, built by transformers from the same numbers."""
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

    shape = MODELS[name].shape
    config = (Qwen3Config if shape.qk_norm else LlamaConfig)(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim, tie_word_embeddings=shape.tied,
    )  # fmt: skip
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == shape.parameters
    matrices = sum(
        parameter.numel() for key, parameter in model.named_parameters() if parameter.ndim == 2 and ".layers." in key
    )
    assert (matrices, ModelShape.of(config)) == (shape.matrix_parameters, shape)
    if name.startswith("Qwen/"):
        size = name.removeprefix("Qwen/Qwen3-").removesuffix("-Base")
        assert shape.parameters == pytest.approx(PUBLISHED[size], rel=0.02)


def test_what_kind_a_model_is():
    assert kind_of("Qwen/Qwen3-0.6B") == INSTRUCT and kind_of("Qwen/Qwen3-0.6B-Base") == BASE
    assert kind_of("somebody/Some-7B-Instruct") == kind_of("google/gemma-3-1b-it") == INSTRUCT
    assert kind_of("somebody/some-7b_base") == BASE
    assert kind_of("data/tiny_qwen3") is None and kind_of("Qwen/Qwen2.5-Math-7B") is None


def test_revisions_are_those_asked_for_else_pinned_else_open():
    pin = MODELS[DEFAULT_MODEL].revision
    assert pinned_revision(DEFAULT_MODEL, None) == pin and pinned_revision(DEFAULT_MODEL, "main") == "main"
    assert pinned_revision("somebody/something", None) is None and pinned_revision("somebody/else", "v1") == "v1"
    for local in (str(paths.TINY_QWEN3), "./here", "smollm2-135m"):
        assert pinned_revision(local, None) is None
        with pytest.raises(ValueError, match=r"'v1' was given for .* no hub repository"):
            pinned_revision(local, "v1")


def test_prompts_of_the_wrong_kind_are_warned_of():
    with pytest.warns(UserWarning, match=r"Qwen3-0.6B-Base is a base model .* Set chat=False"):
        check_prompting(DEFAULT_MODEL, chat=True)
    with pytest.warns(UserWarning, match=r"Qwen3-0.6B is an instruct model .* Set chat=True"):
        check_prompting("Qwen/Qwen3-0.6B", chat=False)


@pytest.mark.filterwarnings("error")
def test_prompts_of_the_right_kind_are_not():
    check_prompting(DEFAULT_MODEL, chat=False)
    check_prompting("Qwen/Qwen3-0.6B", chat=True)
    check_prompting("data/tiny_qwen3", chat=True)


# --- ends of sequence and padding ---


def test_ends_of_sequence_are_those_of_the_kind(folders):
    base, instruct = load_policy(folders[BASE]), load_policy(folders[INSTRUCT])
    assert base.tokenizer.convert_ids_to_tokens(base.eos_ids) == ["<|endoftext|>"]
    assert instruct.tokenizer.convert_ids_to_tokens(instruct.eos_ids) == ["<|im_end|>", "<|endoftext|>"]
    assert base.revision is None


def test_an_end_that_only_one_of_the_files_names_is_found():
    tokenizer = qwen3_tokenizer(instruct=True)
    end_of_text, im_end = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
    assert end_of_sequence_ids("x", end_of_text, tokenizer) == (end_of_text, im_end)
    assert end_of_sequence_ids("x", [im_end], tokenizer) == (im_end, end_of_text)
    assert end_of_sequence_ids("x", None, tokenizer) == (im_end, end_of_text)


def test_a_model_without_an_end_is_refused():
    class Endless:
        eos_token_id = None

        def get_added_vocab(self):
            return {}

    with pytest.raises(ValueError, match="model x names no end-of-sequence id"):
        end_of_sequence_ids("x", None, Endless())


def batch_of(policy, filler=0):
    """A batch whose responses end early, hold the padding token as a real one, and are filled up with `filler`."""
    end = policy.eos_ids[-1]
    assert end == policy.tokenizer.pad_token_id
    response = torch.full((1, 4, 6), filler)
    rows = [[65, 66, end], [end], [70, policy.eos_ids[0], 71, 72, 73, 74], [65, 66, 67, end]]
    mask = torch.zeros(1, 4, 6, dtype=torch.bool)
    for place, row in enumerate(rows):
        response[0, place, : len(row)] = torch.tensor(row)
        mask[0, place, : len(row)] = True
    prompt = torch.tensor([[filler, filler, *policy.tokenizer("<|im_start|>a<|im_end|>b")["input_ids"]]])
    prompt_mask = torch.ones_like(prompt, dtype=torch.bool)
    prompt_mask[0, :2] = False
    return Batch(
        prompt_PL=prompt,
        prompt_mask_PL=prompt_mask,
        response_PGT=response,
        mask_PGT=mask,
        behavior_logp_PGT=torch.full((1, 4, 6), -5.0),
        version_PGT=torch.zeros(1, 4, 6, dtype=torch.long),
        finished_PG=torch.ones(1, 4, dtype=torch.bool),
        reward_PG=torch.tensor([[1.0, 0.0, 0.0, 1.0]]),
        valid_PG=torch.ones(1, 4, dtype=torch.bool),
    )


@pytest.mark.parametrize("budget", [8192, 12])  # one pass; several packed ones
def test_what_fills_up_a_batch_changes_nothing_even_if_it_is_a_token_that_ends_responses(folders, budget):
    """Padding is where the masks say; its id (0, the pad token, an end, a letter) is never looked at."""
    results = []
    for filler in (0, "pad", "end", 65):
        policy = load_policy(folders[INSTRUCT])
        ids = {"pad": policy.tokenizer.pad_token_id, "end": policy.eos_ids[0]}
        config = RunConfig(prompts_per_update=1, group_size=4, micro_batch_tokens=budget, learning_rate=0.1)
        metrics = Learner(policy, config).update(batch_of(policy, ids.get(filler, filler)))
        results.append((metrics, {name: tensor.detach() for name, tensor in policy.model.named_parameters()}))
    (metrics, weights), *others = results
    assert metrics["grad_norm"] > 0
    for other, moved in others:
        assert other == metrics
        assert all(torch.equal(moved[name], tensor) for name, tensor in weights.items())


def test_the_padding_token_is_trained_where_it_is_a_real_one(folders):
    """Torch drops the gradient of an embedding's padding row; that row is <|endoftext|>, or <|im_end|>, of a prompt."""
    policy = load_policy(folders[BASE])
    pad = policy.tokenizer.pad_token_id
    assert policy.model.config.pad_token_id == pad and policy.model.get_input_embeddings().padding_idx is None
    inputs = policy.model.get_input_embeddings()(torch.tensor([[pad, 65]]))
    (gradient,) = torch.autograd.grad(inputs.sum(), policy.model.get_input_embeddings().weight)
    assert gradient[pad].eq(1).all() and gradient[65].eq(1).all()
    assert load_policy(paths.TINY_QWEN3).model.get_input_embeddings().padding_idx == 0  # only padding, never an end


def test_an_end_of_sequence_enters_the_loss_once(folders):
    policy = load_policy(folders[INSTRUCT])
    engine = TransformersEngine(policy)
    (group,) = engine.generate(
        [Prompt("a", "")], group_size=64, max_new_tokens=12, temperature=1.0, generator=torch.Generator().manual_seed(0)
    )
    ends = torch.isin(group.response_GT, torch.tensor(policy.eos_ids)) & group.mask_GT
    assert torch.equal(ends.sum(-1) == 1, group.finished_G) and ends.sum(-1).max() == 1
    assert 0 < int(group.finished_G.sum()) < 64
    last = group.mask_GT.sum(-1) - 1
    assert ends[group.finished_G, last[group.finished_G]].all()


def test_tokens_beyond_the_tokenizer_can_be_sampled_and_read(folders):
    """The embeddings are longer than the tokenizer; what stands there has no text."""
    policy = load_policy(folders[BASE])
    assert policy.model.config.vocab_size == len(policy.tokenizer) + SPARE
    with torch.no_grad():
        policy.model.get_output_embeddings().weight[:-SPARE] = 0
    engine = TransformersEngine(policy)
    (group,) = engine.generate(
        [Prompt("a", "")], group_size=32, max_new_tokens=8, temperature=1.0, generator=torch.Generator().manual_seed(0)
    )
    assert bool((group.response_GT >= len(policy.tokenizer)).any())
    assert all(isinstance(text, str) for text in response_texts(policy.tokenizer, group))


# --- a hub repository on disk ---


def hub_cache(root, name, commits):
    """The layout of huggingface_hub's cache: a snapshot for each commit; `main` is the last."""
    repository = root / f"models--{name.replace('/', '--')}"
    for seed, commit in enumerate(commits):
        save_qwen3(repository / "snapshots" / commit, instruct=False, seed=seed)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commits[-1])


RUN = """
import json, sys
from pathlib import Path
from gmc_core import RunConfig, train
from gmc_core.rollouts.policy import load_policy
common = dict(model=sys.argv[1], task="addition", updates=1, evaluation_every=1, evaluation_prompts=2,
              prompts_per_update=2, group_size=2, max_new_tokens=3)
live = dict(schedule="bounded_staleness", max_staleness=0)
found = {"default": load_policy().fingerprint}
for name, more in {"pinned": {}, "main": {"revision": "main"}, "live": live}.items():
    record = train(RunConfig(**common, **more), root=Path(sys.argv[2]))
    found[name] = [record.provenance["model_revision"], record.provenance["model_fingerprint"]]
print(json.dumps(found))
"""


def test_the_pinned_revision_is_what_is_read_and_the_commit_is_recorded(tmp_path):
    """In a process without network, whose hub cache holds two commits of the repository."""
    pin, newer = MODELS[DEFAULT_MODEL].revision, "f" * 40
    hub_cache(tmp_path / "hub", DEFAULT_MODEL, [pin, newer])
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, DEFAULT_MODEL, str(tmp_path / "runs")],
        cwd=paths.ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["pinned"] == found["live"] == [pin, found["default"]]
    assert found["main"][0] == newer and found["main"][1] != found["default"]
