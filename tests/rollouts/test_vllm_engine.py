"""The vLLM engine for real, on its CPU build: every log-prob is held against transformers.

The tokens and their log-probs depend on fixed seeds only. One engine serves most tests; each finds it empty and with
the weights it was built from.
"""

import contextlib
import copy
import gc
import os
import queue
import time
import weakref
from concurrent.futures import Future

import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import chisquare

pytest.importorskip("vllm", reason="vLLM is not installed (make live)")

from gmc_core.rollouts.continuous import ContinuousEngine, GroupRequest, generate_groups
from gmc_core.rollouts.engine import RolloutEngine
from gmc_core.rollouts.engine_spec import EngineSpec
from gmc_core.rollouts.policy import load_policy, response_log_probs, snapshot
from gmc_core.rollouts.prompt_encoding import PromptEncoder
from gmc_core.rollouts.tasks import Prompt
from gmc_core.rollouts.vllm_transfer import TransferredWeights, WeightSender
from gmc_core.rollouts.workers.messages import Busy, Failed, Generate, GroupDone, LoadWeights, Probe, WeightsLoaded
from gmc_core.rollouts.workers.process import ProcessWorker
from gmc_core.rollouts.workers.weights import SharedMemoryWeights
from tests.models import random_policy
from tests.vllm_transport import register_handing_over

TOLERANCE = 1e-4
EOS = (1, 9)
BLOCK = 32  # tokens per block of the key/value cache: only whole blocks are found again by the prefix cache
LIMIT = 160
BUDGET = 512  # tokens of one step: some tests ask for more, in prefills and after an update
TEMPLATE = "{% for m in messages %}#{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
PROMPTS = [Prompt("1+2=", "3"), Prompt("4+5+6+7=", "2"), Prompt("7+7+1=", "5")]
LONG = Prompt("+".join("123456789012345678901234567890"), "0")
assert len(LONG.text) > BLOCK


def saved(folder, model, tokenizer):
    model.generation_config.eos_token_id = list(EOS)
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = TEMPLATE
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def untied(model):
    from transformers import Qwen3ForCausalLM

    config = copy.deepcopy(model.config)
    config.tie_word_embeddings = False
    torch.manual_seed(11)
    other = Qwen3ForCausalLM(config).eval()
    other.generation_config = model.generation_config
    with torch.no_grad():
        other.lm_head.weight.mul_(3.0)
    return other


def changed(model, seed=0):
    """A copy with other weights: every log-prob moves by far more than rounding."""
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return other


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    policy = random_policy()
    return saved(tmp_path_factory.mktemp("tied"), policy.model, policy.tokenizer)


@pytest.fixture(scope="module")
def model(folder):
    return load_policy(folder).model


@pytest.fixture(scope="module")
def the_engine(folder):
    register_handing_over()
    options = {
        "kv_cache_memory_bytes": 1 << 27,
        "block_size": BLOCK,
        "max_num_batched_tokens": BUDGET,
        "weight_transfer": "handing_over",
    }
    engine = EngineSpec("vllm", folder, chat=True, max_model_len=LIMIT, options=options).build()
    yield engine
    engine.close()


@pytest.fixture
def engine(the_engine, model):
    yield the_engine
    the_engine.abort(the_engine.in_flight)
    if the_engine.policy_version != 0:
        the_engine.update_weights(snapshot(model), 0)


def request(ticket, prompt=PROMPTS[0], *, group_size=4, max_new_tokens=12, temperature=1.0, seed=None):
    return GroupRequest(ticket, prompt, group_size, max_new_tokens, temperature, ticket if seed is None else seed)


@torch.no_grad()
def reference(model, group, temperature=1.0):
    """(G, T) log-probs of the group's tokens by transformers."""
    prompt_1L = group.prompt_tokens_L[None]
    index_G = torch.zeros(group.size, dtype=torch.long)
    mask_1L = torch.ones_like(prompt_1L, dtype=torch.bool)
    return response_log_probs(model, prompt_1L, mask_1L, group.response_GT, index_G, temperature=temperature)


def gap(model, group, temperature=1.0, where=None):
    mask_GT = group.mask_GT if where is None else group.mask_GT & where
    assert bool(mask_GT.any())
    return (reference(model, group, temperature) - group.behavior_logp_GT)[mask_GT].abs().max().item()


def same(one, other):
    return torch.equal(one.response_GT, other.response_GT) and torch.equal(one.mask_GT, other.mask_GT)


# --- sampling ---


def test_it_is_both_kinds_of_engine(engine):
    assert isinstance(engine, ContinuousEngine)
    assert isinstance(engine, RolloutEngine)


def test_temperature_0_is_greedy(engine, model):
    (group,) = generate_groups(engine, [request(0, group_size=1, temperature=0.0)])
    tokens = torch.cat([group.prompt_tokens_L, group.response_GT[0][group.mask_GT[0]]])
    with torch.no_grad():
        likeliest = model(input_ids=tokens[None]).logits[0].argmax(-1)
    start = len(group.prompt_tokens_L)
    assert torch.equal(likeliest[start - 1 : -1], tokens[start:])
    assert gap(model, group) < 1e-3
    with pytest.raises(ValueError, match="greedy decoding gives 4 copies"):
        engine.add(request(1, temperature=0.0))
    with pytest.raises(ValueError, match=r"below 0\.01"):
        engine.add(request(1, temperature=0.001))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_are_those_of_the_sampling_distribution(engine, model, temperature):
    groups = engine.generate(
        PROMPTS,
        group_size=6,
        max_new_tokens=24,
        temperature=temperature,
        generator=torch.Generator().manual_seed(1),
    )
    assert [group.prompt for group in groups] == PROMPTS
    for group in groups:
        assert group.size == 6
        assert gap(model, group, temperature) < TOLERANCE
        assert gap(model, group, 1.6 - temperature) > 0.1  # at the other temperature they are others
        assert bool((group.version_GT[group.mask_GT] == 0).all())


def test_every_end_of_sequence_id_stops_and_the_limit_is_not_an_end(engine):
    groups = generate_groups(engine, [request(t, PROMPTS[t % 3], group_size=8, max_new_tokens=16) for t in range(6)])
    ends, cut = set(), 0
    for group in groups:
        for tokens, mask, finished in zip(group.response_GT, group.mask_GT, group.finished_G.tolist(), strict=True):
            tokens = tokens[mask].tolist()
            assert not set(tokens[:-1]) & set(EOS)
            assert finished == (tokens[-1] in EOS)
            assert finished or len(tokens) == 16
            ends |= {tokens[-1]} & set(EOS)
            cut += not finished
    assert ends == set(EOS)
    assert cut > 0


def test_a_seed_determines_its_group_and_no_other(engine):
    alone = generate_groups(engine, [request(0, seed=7)])[0]
    crowd = generate_groups(engine, [request(0, PROMPTS[1]), request(1, seed=7), request(2, seed=8)])
    assert same(alone, crowd[1])
    torch.testing.assert_close(alone.behavior_logp_GT, crowd[1].behavior_logp_GT, atol=1e-5, rtol=0)
    assert not same(alone, crowd[2])
    rows = {tuple(row[mask].tolist()) for row, mask in zip(alone.response_GT, alone.mask_GT, strict=True)}
    assert len(rows) == alone.size


def test_neighbouring_seeds_share_no_rollout(engine):
    """vLLM numbers the rollouts of a request by adding to its seed; groups seeded 0, 1, 2, ... must not overlap."""
    groups = generate_groups(engine, [request(seed, max_new_tokens=24) for seed in range(6)])
    rows = [tuple(row[mask].tolist()) for g in groups for row, mask in zip(g.response_GT, g.mask_GT, strict=True)]
    long = [row for row in rows if len(row) >= 6]
    assert len(long) > 6
    assert len(set(long)) == len(long)


def test_sampling_frequencies_follow_the_model(engine, model):
    """1024 first tokens of 16 groups. The same test against the distribution at another temperature rejects."""
    groups = generate_groups(engine, [request(seed, group_size=64, max_new_tokens=1) for seed in range(16)])
    tokens = torch.cat([group.response_GT[:, 0] for group in groups])
    observed = torch.bincount(tokens, minlength=model.config.vocab_size).double()
    with torch.no_grad():
        logits = model(groups[0].prompt_tokens_L[None]).logits[0, -1].double()

    def p_value(temperature):
        expected = torch.softmax(logits / temperature, -1) * len(tokens)
        order = expected.argsort()
        rare = int((expected.sort().values.cumsum(0) < 5).sum()) + 1  # in one class, of at least 5 expected
        cells = [torch.cat([x[order[:rare]].sum()[None], x[order[rare:]]]) for x in (observed, expected)]
        return chisquare(*(x.numpy() for x in cells)).pvalue

    assert p_value(1.0) > 0.01
    assert p_value(0.8) < 1e-6


def test_prompts_go_through_the_chat_template_once(engine):
    group = generate_groups(engine, [request(0)])[0]
    assert group.prompt_tokens_L.tolist() == PromptEncoder(engine.tokenizer, chat=True)(PROMPTS[0])
    assert engine.tokenizer.decode(group.prompt_tokens_L) == "#1+2=>"


# --- scoring ---


def test_score_is_the_log_prob_at_temperature_one_up_to_the_full_length(engine, model):
    prompt_L, generator = torch.tensor([3, 12, 4, 13]), torch.Generator().manual_seed(0)
    for T in (1, 7, LIMIT - len(prompt_L)):
        response_T = torch.randint(2, 16, (T,), generator=generator)
        with torch.no_grad():
            logits = model(torch.cat([prompt_L, response_T])[None]).logits[0, len(prompt_L) - 1 : -1]
        logp_T = torch.log_softmax(logits, -1).gather(1, response_T[:, None])[:, 0]
        torch.testing.assert_close(engine.score(prompt_L, response_T), logp_T, atol=TOLERANCE, rtol=0)
    with pytest.raises(ValueError, match=rf"{LIMIT + 1} tokens.*max_model_len"):
        engine.score(prompt_L, torch.full((LIMIT + 1 - len(prompt_L),), 5))


def test_scoring_loses_nothing_of_what_is_in_flight(engine):
    expected = generate_groups(engine, [request(0), request(1, max_new_tokens=1)])
    engine.add(request(0))
    engine.add(request(1, max_new_tokens=1))
    engine.score(torch.tensor([3, 12]), torch.tensor([4]))  # ticket 1 is complete when this returns
    assert set(engine.in_flight) == {0, 1}
    done = dict(engine.step())
    assert 1 in done
    while engine.in_flight:
        done |= dict(engine.step())
    assert [same(done[ticket], expected[ticket]) for ticket in (0, 1)] == [True, True]


def test_scoring_does_not_wait_for_a_backlog(engine):
    """After a weight update a run stands still until its probe is scored: 1200 rollouts wait here, 256 are decoded."""
    requests = [request(t, group_size=16, max_new_tokens=12) for t in range(75)]
    for one in requests:
        engine.add(one)
    engine.step()
    assert engine.in_flight == tuple(range(75))
    sampled = engine.tokens_sampled
    engine.score(torch.tensor([3, 12]), torch.tensor([4]))
    assert engine.tokens_sampled - sampled <= 4 * 256  # steps: what was begun has its prefills first
    engine.abort(range(3, 75))
    assert engine.in_flight == (0, 1, 2)
    done = {}
    while engine.in_flight:
        done |= dict(engine.step())
    expected = generate_groups(engine, requests[:3])
    assert [same(done[t], expected[t]) for t in range(3)] == [True] * 3


def test_groups_are_begun_in_order_as_places_become_free(engine):
    sizes = {0: 200, 1: 56, 2: 300, 3: 8}  # 300 are more than there are places: they wait for an empty engine
    for ticket, size in sizes.items():
        engine.add(request(ticket, group_size=size, max_new_tokens=3))
    seen = []
    while engine.in_flight:
        seen.append((engine.step(), engine.in_flight))
    order = [ticket for done, _ in seen for ticket, _ in done]
    assert set(order[:2]) == {0, 1} and order[2:] == [2, 3]
    assert [group.size for done, _ in seen for _, group in done if group.size == 300] == [300]


# --- weights ---


def test_new_weights_of_a_tied_model(engine, model):
    new = changed(model)
    weights = snapshot(new)
    engine.update_weights(weights, 1)
    for tensor in weights.values():
        tensor.zero_()  # they were copied
    group = generate_groups(engine, [request(0)])[0]
    assert gap(new, group) < TOLERANCE
    assert gap(model, group) > 0.1
    assert set(group.version_GT[group.mask_GT].tolist()) == {1}
    assert engine.policy_version == 1


def test_the_prefix_cache_forgets_the_old_policy(engine, model, monkeypatch):
    new = changed(model)
    assert gap(model, generate_groups(engine, [request(0, LONG)])[0]) < TOLERANCE
    with monkeypatch.context() as patched:  # what the test is about: without the reset the cache is found and wrong
        patched.setattr(engine._engine, "reset_prefix_cache", lambda **_: True)
        engine.update_weights(snapshot(new), 1)
        assert gap(new, generate_groups(engine, [request(0, LONG)])[0]) > 0.1
    engine.update_weights(snapshot(model), 0)
    assert gap(model, generate_groups(engine, [request(0, LONG)])[0]) < TOLERANCE
    engine.update_weights(snapshot(new), 1)
    assert gap(new, generate_groups(engine, [request(0, LONG)])[0]) < TOLERANCE


def test_an_update_in_the_middle_of_generation(engine, model):
    """Every token belongs to the policy whose version it carries; what was sampled before the update stays."""
    requests = [request(t, PROMPTS[t % 3], max_new_tokens=30, temperature=0.8) for t in range(4)]
    undisturbed = generate_groups(engine, requests)
    second, third = changed(model, 1), changed(model, 2)
    for one in requests:
        engine.add(one)
    done = dict(pair for _ in range(8) for pair in engine.step())
    engine.update_weights(snapshot(second), 5)
    done |= dict(pair for _ in range(8) for pair in engine.step())
    engine.update_weights(snapshot(third), 6)
    while engine.in_flight:
        done |= dict(engine.step())
    seen = set()
    for ticket, before in enumerate(undisturbed):
        group = done[ticket]
        for version, policy in ((0, model), (5, second), (6, third)):
            where = group.version_GT == version
            if bool((where & group.mask_GT).any()):
                seen.add(version)
                assert gap(policy, group, 0.8, where) < TOLERANCE
                others = [p for p in (model, second, third) if p is not policy]
                assert all(gap(p, group, 0.8, where) > 0.05 for p in others)
        assert torch.equal(group.response_GT[:, :8] * group.mask_GT[:, :8], before.response_GT[:, :8])
        assert bool((group.version_GT[:, :8][group.mask_GT[:, :8]] == 0).all())
    assert seen == {0, 5, 6}


def test_workers_in_processes_of_their_own_read_a_file(engine, model, monkeypatch):
    """As with tensor parallelism, here with the one worker of this process."""
    new, read = changed(model), []
    monkeypatch.setattr("safetensors.torch.load_file", lambda path: read.append(path) or load_file(path))
    with monkeypatch.context() as patched:
        patched.setattr(engine._engine.vllm_config.parallel_config, "world_size", 2)
        engine.update_weights(snapshot(new), 1)
    assert gap(new, generate_groups(engine, [request(0)])[0]) < TOLERANCE
    assert [os.path.exists(path) for path in read] == [False]


def test_weights_of_another_model_change_nothing(engine, model):
    weights = snapshot(changed(model))
    name = "model.layers.0.mlp.up_proj.weight"
    for wrong, message in (
        ({**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}, "lm_head.weight.*unknown"),
        ({n: w for n, w in weights.items() if n != name}, f"{name}.*missing"),
        ({**weights, name: weights[name].T}, rf"{name} has shape \(64, 128\), expected \(128, 64\)"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.update_weights(wrong, 1)
    assert engine.policy_version == 0
    assert gap(model, generate_groups(engine, [request(0)])[0]) < TOLERANCE


def test_log_probs_that_are_no_numbers_stop_with_ticket_and_version(engine, model):
    weights = snapshot(model)
    weights["model.norm.weight"] = weights["model.norm.weight"] * float("nan")
    engine.update_weights(weights, 3)
    engine.add(request(41, max_new_tokens=1))
    with pytest.raises(FloatingPointError, match=r"ticket 41.*nan.*policy version 3"):
        engine.step()
    assert engine.in_flight == ()
    engine.update_weights(snapshot(model), 4)
    assert gap(model, generate_groups(engine, [request(0)])[0]) < TOLERANCE


def test_untied_embeddings_two_engines_in_one_process_and_close(engine, tmp_path):
    """The one that is closed gives its memory back, and the other goes on."""
    policy = random_policy()
    model = untied(policy.model)
    folder = saved(tmp_path, model, policy.tokenizer)
    before = generate_groups(engine, [request(0)])[0]
    other = EngineSpec("vllm", folder, options={"kv_cache_memory_bytes": 1 << 26}).build()
    assert gap(model, generate_groups(other, [request(0)])[0]) < TOLERANCE
    new = changed(model)
    weights = snapshot(new)
    other.update_weights(weights, 1)
    for tensor in weights.values():
        tensor.zero_()
    assert gap(new, generate_groups(other, [request(0)])[0]) < TOLERANCE
    other.add(request(1))
    runner = other._engine.model_executor.driver_worker.model_runner
    held = [weakref.ref(runner.model), weakref.ref(runner.kv_caches[0])]
    del runner
    other.close()
    other.close()
    gc.collect()
    assert [ref() for ref in held] == [None, None]
    assert other.in_flight == ()
    for call in (other.step, lambda: other.add(request(2)), lambda: other.abort([1])):
        with pytest.raises(RuntimeError, match="closed"):
            call()
    assert same(generate_groups(engine, [request(0)])[0], before)


# --- vLLM's native weight transfer, with a transport of our own ---


def test_a_round_of_native_weight_transfer_in_the_middle_of_generation(engine, model, monkeypatch):
    log, second = [], []

    def deliver(message: TransferredWeights, version: int) -> Future:
        log.append((message.connect, len(message.updates), version))
        engine.update_weights(message.load(), version)
        future = Future()
        future.set_result(None)
        return future

    def deliver_to_another(message: TransferredWeights, version: int) -> Future:
        second.append(message.connect)
        future = Future()
        future.set_result(None)
        return future

    monkeypatch.setattr(
        "gmc_core.rollouts.vllm_transfer._init_info",
        lambda backend, *_, **__: register_handing_over.trainer_init(rank=0),
    )
    new = changed(model)
    sender = WeightSender(new, "handing_over", [deliver, deliver_to_another], workers_per_engine=2)
    assert register_handing_over.receiver.connected == [1]
    assert second == [{"rank_offset": 3}]
    assert engine.policy_version == 0
    engine.add(request(0, max_new_tokens=24))
    for _ in range(5):
        engine.step()
    sender.send(9)
    sender.close()
    done = {}
    while engine.in_flight:
        done |= dict(engine.step())
    group = done[0]
    assert gap(model, group, where=group.version_GT == 0) < TOLERANCE
    assert gap(new, group, where=group.version_GT == 9) < TOLERANCE
    assert log == [({"rank_offset": 1}, 0, 0), (None, 1, 9)]


def test_an_engine_that_does_not_take_an_update_is_named(model, monkeypatch):
    monkeypatch.setattr(
        "gmc_core.rollouts.vllm_transfer._init_info",
        lambda backend, *_, **__: register_handing_over.trainer_init(rank=0),
    )
    with pytest.raises(TimeoutError, match="engine 0 of 1 did not take policy version 0"):
        WeightSender(model, "handing_over", [lambda message, version: Future()], timeout=0.01)


def test_an_unknown_transfer_backend_is_refused(model):
    with pytest.raises(ValueError, match=r"'carrier_pigeon'.*ipc, nccl"):
        WeightSender(model, "carrier_pigeon", [])


# --- in a process of its own ---


def test_a_worker_process_with_this_engine(model, folder):
    """Groups, an update with the learner's probe while others are in flight, and groups of the new policy."""
    events, response_T, prompt_L = queue.SimpleQueue(), torch.tensor([4, 12, 9]), torch.tensor([3, 13])
    new = changed(model)
    with torch.no_grad():
        logits = new(torch.cat([prompt_L, response_T])[None]).logits[0, 1:-1]
    logp_T = torch.log_softmax(logits, -1).gather(1, response_T[:, None])[:, 0]
    probe = Probe(prompt_L, response_T, logp_T, TOLERANCE)
    worker = ProcessWorker("w0", EngineSpec("vllm", folder, options={"kv_cache_memory_bytes": 1 << 26}), events)
    with contextlib.closing(SharedMemoryWeights()) as shared, contextlib.closing(worker):
        worker.send(Generate([request(0, max_new_tokens=1)] + [request(t, max_new_tokens=100) for t in range(1, 7)]))
        seen = collect(events, GroupDone, 1)
        worker.send(LoadWeights(1, shared.publish(1, snapshot(new)), probe))
        worker.send(Generate([request(t) for t in range(7, 9)]))
        seen += collect(events, GroupDone, 8) + collect(events, Busy, 1)
    (loaded,) = [event for event in seen if isinstance(event, WeightsLoaded)]
    assert loaded.gap < TOLERANCE
    groups = {event.ticket: event.group for event in seen if isinstance(event, GroupDone)}
    assert groups.keys() == set(range(9))
    versions = {ticket: set(group.version_GT[group.mask_GT].tolist()) for ticket, group in groups.items()}
    assert versions[0] == {0}
    assert versions[7] == versions[8] == {1}
    for ticket, group in groups.items():
        for version in versions[ticket]:
            assert gap((model, new)[version], group, where=group.version_GT == version) < TOLERANCE
    busy = sum(event.tokens for event in seen if isinstance(event, Busy))
    sampled = sum(int(group.mask_GT.sum()) for group in groups.values())
    assert sampled - 4 * 6 <= busy <= sampled  # scoring the probe takes the six groups in flight a step further


def collect(events, kind, count, seconds=120):
    """What comes until `count` events of this kind have come."""
    seen, deadline = [], time.monotonic() + seconds
    while sum(isinstance(event, kind) for event in seen) < count:
        event = events.get(timeout=max(0.0, deadline - time.monotonic()))
        assert not isinstance(event, Failed), event.reason
        seen.append(event)
    return seen


# --- requests ---


def test_abort_and_what_it_leaves(engine):
    undisturbed = generate_groups(engine, [request(t, PROMPTS[t], max_new_tokens=20) for t in range(3)])
    for ticket in range(3):
        engine.add(request(ticket, PROMPTS[ticket], max_new_tokens=20))
    sampled = engine.tokens_sampled
    for _ in range(2):
        assert engine.step() == []
    assert engine.tokens_sampled == sampled + 2 * 3 * 4
    engine.abort([1, 99])
    assert engine.in_flight == (0, 2)
    done = {}
    while engine.in_flight:
        done |= dict(engine.step())
    assert done.keys() == {0, 2}
    assert same(done[0], undisturbed[0])
    assert same(done[2], undisturbed[2])
    assert same(generate_groups(engine, [request(1, PROMPTS[1], max_new_tokens=20)])[0], undisturbed[1])


def test_groups_of_one_and_more_groups_than_fit(engine, model):
    requests = [request(t, PROMPTS[t % 3], group_size=1, max_new_tokens=3) for t in range(300)]
    groups = generate_groups(engine, requests)
    assert {group.size for group in groups} == {1}
    assert max(gap(model, group) for group in groups[::50]) < TOLERANCE
    assert engine.step() == []


def test_prefills_beyond_the_budget_of_a_step_wait_whole(engine, model):
    """vLLM on CPU fails on a seeded request whose prefill it cuts: here none fits evenly, at the start and again."""
    requests = [request(t, LONG, group_size=5, max_new_tokens=8) for t in range(3)]
    assert 15 * len(LONG.text) > BUDGET
    for one in requests:
        engine.add(one)
    done = dict(pair for _ in range(5) for pair in engine.step())
    new = changed(model)
    engine.update_weights(snapshot(new), 1)
    while engine.in_flight:
        done |= dict(engine.step())
    assert max(gap(new, group, where=group.version_GT == 1) for group in done.values()) < TOLERANCE
    with pytest.raises(ValueError, match="'enable_chunked_prefill' cannot be True on CPU"):
        EngineSpec("vllm", engine.spec.model, options={"enable_chunked_prefill": True}).build()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": 0.005}, r"ticket 3: temperature 0\.005"),
        ({"max_new_tokens": LIMIT}, rf"ticket 3: 6 prompt tokens and {LIMIT} new ones exceed the model's {LIMIT}"),
    ],
)
def test_requests_that_cannot_be_served_are_refused(engine, wrong, message):
    with pytest.raises(ValueError, match=message):
        engine.add(request(3, **wrong))
    assert engine.in_flight == ()


def test_a_ticket_is_in_flight_once(engine):
    engine.add(request(3))
    with pytest.raises(ValueError, match="ticket 3 is in flight"):
        engine.add(request(3))
    assert engine.in_flight == (3,)


def test_options_that_vllm_does_not_know_are_named(folder):
    with pytest.raises(ValueError, match="'gpu_memory' is none of vLLM's EngineArgs"):
        EngineSpec("vllm", folder, options={"gpu_memory": 0.5}).build()


def test_what_vllm_itself_refuses_is_said_when_the_engine_is_built(folder, tmp_path):
    from transformers import Qwen3ForCausalLM

    policy = random_policy()
    config = copy.deepcopy(policy.model.config)
    config.head_dim = 16
    small = saved(tmp_path, Qwen3ForCausalLM(config), policy.tokenizer)
    with pytest.raises(RuntimeError, match=r"cannot run .* on cpu: .*head_dim=16.*head sizes.*: 32, 64"):
        EngineSpec("vllm", small, options={"kv_cache_memory_bytes": 1 << 26}).build()
    with pytest.raises(RuntimeError, match=r"could not build an engine from EngineSpec.*cache blocks"):
        EngineSpec("vllm", folder, options={"kv_cache_memory_bytes": 1 << 12}).build()


def test_the_cpu_build_is_not_asked_for_cuda(folder):
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        pytest.skip("this is not the CPU build")
    with pytest.raises(RuntimeError, match=r"device is 'cuda', but the installed vLLM sees cpu.*\[notebooks,vllm\]"):
        EngineSpec("vllm", folder, device="cuda").build()
