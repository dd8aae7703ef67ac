import json

import pytest

from gmc_core.training.run_config import RunConfig


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
        "logits_mib": 512, "compile": True,
    }  # fmt: skip
    assert set(other) | {"task"} == set(config.to_dict())
    ids = {config.replace(**{name: value}).run_id for name, value in other.items()}
    assert len(ids | {config.run_id}) == len(other) + 1


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


def test_unknown_field_is_named():
    with pytest.raises(ValueError, match=r"no field 'learnig_rate'"):
        RunConfig.from_dict({"learnig_rate": 0.1})


def test_response_limit_comes_from_the_task():
    assert RunConfig().response_limit == 14
    assert RunConfig(max_new_tokens=9).response_limit == 9
