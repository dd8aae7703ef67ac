import json

import pytest

from gmc_core.training.run_config import RunConfig

LIVE = {"schedule": "bounded_staleness"}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"estimator": "gcm"}, ValueError, "gmc"),
        ({"estimator_options": {"epsilon": -0.1}}, ValueError, "epsilon"),
        ({"estimator_options": {"epsilon": float("nan")}}, ValueError, "epsilon"),
        ({"learning_rate": float("nan")}, ValueError, "finite number above 0"),
        ({"learning_rate": "0.2"}, TypeError, "expected a number"),
        ({"learning_rate": 0}, ValueError, "above 0"),
        ({"gradient_clip": -1.0}, ValueError, "gradient_clip"),
        ({"delay": -1}, ValueError, "at least 0"),
        ({"delay": 1.5}, TypeError, "expected an integer"),
        ({"updates": True}, TypeError, "expected an integer"),
        ({"optimizer": "adam"}, ValueError, "sgd, adamw"),
        ({"normalizer": "mean"}, ValueError, "token_mean"),
        ({"advantage": "zscore"}, ValueError, "center"),
        ({"task": "sums"}, ValueError, "known tasks"),
        ({"task_options": {"digits": 1}}, ValueError, "at least 2"),
        ({"dtype": "float16"}, ValueError, "bfloat16"),
        ({"max_update_length": 0.0}, ValueError, "above 0"),
        ({"rescale_to": "gcm"}, ValueError, "rescale_to is 'gcm'; choose one of .*gmc"),
        ({"detached": 1}, TypeError, "True or False"),
        ({"warmup_updates": -1}, ValueError, "at least 0"),
        ({"warmup_updates": 0.1}, TypeError, "expected an integer"),
        ({"logits_mib": 0}, ValueError, "at least 1"),
        ({"gradient_checkpointing": 1}, TypeError, "True or False"),
        ({"master_weights": None}, TypeError, "True or False"),
        ({"fused_optimizer": "yes"}, TypeError, "True or False"),
        ({"compile": "max-autotune"}, TypeError, "True or False"),
        ({"schedule": "live"}, ValueError, "fixed_delay, bounded_staleness"),
        (
            {"max_staleness": 4},
            ValueError,
            "does not read it; set schedule='bounded_staleness', or leave max_staleness",
        ),
        ({"engine_options": {"seed": 1}}, ValueError, "engine_options"),
        (LIVE | {"delay": 1}, ValueError, "leave delay=0 and set max_staleness"),
        (LIVE | {"max_staleness": -1}, ValueError, "at least 0"),
        (LIVE | {"max_staleness": 1.0}, TypeError, "expected an integer"),
        (LIVE | {"when_exceeded": "stop"}, ValueError, "wait, drop"),
        (LIVE | {"in_flight_updates": "yes"}, TypeError, "True or False"),
        (LIVE | {"engine": "sglang"}, ValueError, "transformers, vllm"),
        (LIVE | {"engine_options": [1]}, TypeError, "expected a dict"),
        (LIVE | {"engine": "vllm", "engine_options": {"weight_transfer": "ipc"}}, ValueError, "in_flight_updates=True"),
        (LIVE | {"workers": "thread"}, ValueError, "inline, process, ray"),
        (LIVE | {"worker_count": 2}, ValueError, "take turns"),
        (LIVE | {"worker_count": 0, "workers": "process"}, ValueError, "at least 1"),
        (LIVE | {"engine_threads": 2}, ValueError, "an inline worker has the learner's"),
        (LIVE | {"group_timeout": 0.0}, ValueError, "above 0"),
        (LIVE | {"over_provision": -0.5}, ValueError, "at least 0"),
        (LIVE | {"over_provision": "half"}, TypeError, "expected a number"),
        (LIVE | {"verifier_limit": 0}, ValueError, "above 0"),
        (LIVE | {"probe_tolerance": float("inf")}, ValueError, "finite"),
        (LIVE | {"max_model_len": 0}, ValueError, "at least 1"),
        (LIVE | {"ray_address": "auto"}, ValueError, "set workers='ray'"),
        ({"enable_thinking": False}, ValueError, "set chat=True"),
        ({"chat": 1}, TypeError, "True or False"),
        ({"revision": 3}, TypeError, "commit, tag or branch"),
        ({"model": "./here", "revision": "main"}, ValueError, "no hub repository"),
        ({"model": "smollm2-135m", "revision": "main"}, ValueError, "no hub repository"),
        ({"estimator": "snis", "detached": False}, ValueError, "not for 'snis'"),
        ({"rescale_to": "gmc", "detached": False}, ValueError, "without rescale_to"),
    ],
)
def test_what_cannot_run_is_refused_with_a_reason(change, error, message):
    with pytest.raises(error, match=message):
        RunConfig(**change)


def test_round_trip_and_identity():
    config = RunConfig(estimator="tic_mask", estimator_options={"epsilon": 0.5}, delay=8, seed=3)
    again = RunConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config and again.run_id == config.run_id
    assert config.run_id.startswith("tic_mask-delay8-seed3-")


def test_every_field_enters_the_run_id():
    config = RunConfig()
    other = {
        "estimator": "snis", "estimator_options": {"epsilon": 0.3}, "delay": 1, "seed": 1, "updates": 99,
        "learning_rate": 0.1, "optimizer": "adamw", "gradient_clip": None, "prompts_per_update": 4, "group_size": 8,
        "advantage": "center", "normalizer": "token_mean", "divide_by_max_length": False, "mask_truncated": True,
        "temperature": 0.9, "max_new_tokens": 20, "micro_batch_tokens": 100, "task_options": {"digits": 4},
        "model": "elsewhere", "dtype": "bfloat16", "device": "cuda", "evaluation_every": 5, "evaluation_prompts": 7,
        "max_update_length": 0.1, "rescale_to": "gmc", "detached": False,
        "warmup_updates": 10, "master_weights": False, "fused_optimizer": True, "gradient_checkpointing": True,
        "logits_mib": 512, "compile": True, "chat": True,
    }  # fmt: skip
    live = {
        "max_staleness": 4, "when_exceeded": "drop", "in_flight_updates": True, "group_timeout": 60.0,
        "over_provision": 0.25, "workers": "process", "max_restarts": 1, "engine": "vllm",
        "engine_options": {"seed": 1}, "max_model_len": 512, "probe_tolerance": 0.1, "verifier_processes": 2,
        "verifier_limit": 1.0,
    }  # fmt: skip
    with_other = {  # fields that only go with another one
        "worker_count": LIVE | {"workers": "process", "worker_count": 2},
        "engine_threads": LIVE | {"workers": "process", "engine_threads": 2},
        "ray_address": LIVE | {"workers": "ray", "ray_address": "auto"},
        "enable_thinking": {"chat": True, "enable_thinking": False},
        "revision": {"model": "elsewhere", "revision": "0123abc"},
        "updates_per_batch": {"updates_per_batch": 4},
    }
    assert {*other, *live, *with_other, "task", "schedule"} == set(config.to_dict())
    changes = [{name: value} for name, value in other.items()] + [LIVE | {name: value} for name, value in live.items()]
    changes += [LIVE, LIVE | {"workers": "ray"}, *with_other.values()]
    ids = {config.replace(**change).run_id for change in changes}
    assert len(ids | {config.run_id}) == len(changes) + 1


@pytest.mark.parametrize(
    ("config", "run_id"),
    [
        (RunConfig(), "gmc-delay0-seed0-7c1151d4"),
        (
            RunConfig(estimator="tic_mask", estimator_options={"epsilon": 0.5}, delay=8, seed=3),
            "tic_mask-delay8-seed3-8b9ad97e",
        ),
    ],
)
def test_run_ids_of_the_first_records_stay(config, run_id):
    """Committed tables and their figures refer to these; a new field must stay out of the hash at its default."""
    assert config.run_id == run_id


def test_a_live_run_says_so_in_its_id_and_knows_when_it_is_a_function_of_its_config():
    live = RunConfig(**LIVE, max_staleness=4)
    assert live.run_id.startswith("gmc-stale4-seed0-") and live.is_live and not RunConfig().is_live
    assert RunConfig().is_deterministic and live.is_deterministic
    assert live.replace(workers="process").is_deterministic
    for change in (
        {"in_flight_updates": True},
        {"workers": "process", "worker_count": 2},
        {"group_timeout": 1.0},
        {"over_provision": 0.1},
    ):
        assert not live.replace(**change).is_deterministic
    assert (live.probe_limit, live.replace(dtype="bfloat16", probe_tolerance=0.5).probe_limit) == (0.01, 0.5)


def test_unknown_field_is_named():
    with pytest.raises(ValueError, match=r"no field 'learnig_rate'"):
        RunConfig.from_dict({"learnig_rate": 0.1})


def test_response_limit_comes_from_the_task():
    assert RunConfig().response_limit == 14
    assert RunConfig(max_new_tokens=9).response_limit == 9
