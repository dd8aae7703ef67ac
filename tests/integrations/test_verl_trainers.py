"""verl's trainers with our weights: its real advantage stages, its real queue, the launch scripts against its configs.

What needs GPUs is left out: verl's workers (log-probs, updates) and samplers. The trainers are constructed as verl does
it, and a recorder stands where the workers would be.
"""

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gmc_core import gmc_weights, make_estimator, paths
from gmc_core.estimators import METRICS

pytest.importorskip("verl", reason="verl is not installed: pip install 'verl[verl-core]==0.9.1', or make verl")
pytest.importorskip("transfer_queue", reason="verl's extra verl-core is not installed")
import verl
from verl import DataProto
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.v1 import PPOTrainer, get_trainer_cls
from verl.utils.config import validate_config
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.utils.transferqueue_utils import tq

from gmc_core.integrations import verl_fully_async, verl_trainers
from gmc_core.integrations.verl import rollout_weights
from gmc_core.rollouts.workers.ray_runtime import start_ray, stop_ray

hydra, omegaconf = pytest.importorskip("hydra"), pytest.importorskip("omegaconf")  # come with verl

SCRIPTS = {  # name -> the module that it starts, and which of verl's configs that module reads
    "verl_separate_async": ("verl.trainer.main_ppo", "trainer/config", "ppo_trainer"),
    "verl_fully_async": (
        "gmc_core.integrations.verl_fully_async",
        "experimental/fully_async_policy/config",
        "fully_async_ppo_trainer",
    ),
}
P, G, T = 3, 4, 6


def launched(name, tmp_path, **variables):
    """The arguments with which a script of docs/examples starts python3."""
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "python3").write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$ARGUMENTS"\n')
    (tmp_path / "python3").chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "ARGUMENTS": str(tmp_path / "arguments"),
        "TRAIN": "train.parquet",
        "VAL": "val.parquet",
        **variables,
    }
    subprocess.run(["bash", str(paths.ROOT / f"docs/examples/{name}.sh")], env=environment, check=True)
    return (tmp_path / "arguments").read_text().splitlines()


def compose(name, tmp_path, *changes, **variables):
    """The config that verl would have: hydra refuses a key that verl's files lack, unless it is added with +."""
    flag, started, *settings = launched(name, tmp_path, **variables)
    module, folder, file = SCRIPTS[name]
    assert (flag, started) == ("-m", module)
    with hydra.initialize_config_dir(str(Path(verl.__file__).parent / folder), version_base=None):
        return hydra.compose(file, overrides=[*settings, *changes])


# --- the launch scripts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_key_of_a_script_is_one_of_verl_s_or_ours(name, tmp_path):
    settings = launched(name, tmp_path)[2:]
    added = {re.match(r"\+([\w.]+)=", setting)[1] for setting in settings if setting.startswith("+")}
    variable = "ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES"
    assert added == {
        "trainer.gmc.estimator",
        "trainer.gmc.estimator_options.epsilon",
        "trainer.gmc.weights_at",
        variable,
    }
    config = compose(name, tmp_path)  # hydra checks the others
    assert len(settings) > 40 and config.data.train_files == "train.parquet"
    # what verl's run_ppo hands to Ray, and hence to every process
    merged = omegaconf.OmegaConf.merge(
        get_ppo_ray_runtime_env(config), config.ray_kwargs.ray_init.get("runtime_env", {})
    )
    module = import_module(merged.env_vars.VERL_USE_EXTERNAL_MODULES)
    assert module.__name__.startswith("gmc_core.integrations.verl")
    assert config.actor_rollout_ref.actor.policy_loss.loss_mode in core_algos.POLICY_LOSS_REGISTRY


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_command_of_a_script_finds_verl_s_configs(name, tmp_path):
    """The script as it is, to the point where hydra has the config: `--cfg job` prints it instead of starting."""
    (tmp_path / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(paths.ROOT),
        "TRAIN": "train.parquet",
        "VAL": "val.parquet",
    }
    command = ["bash", str(paths.ROOT / f"docs/examples/{name}.sh"), "--cfg", "job"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = omegaconf.OmegaConf.create(done.stdout[done.stdout.index("model_engine:") :])
    composed = compose(name, tmp_path / "again")
    assert printed.trainer.gmc == {
        "estimator": "gmc",
        "estimator_options": {"epsilon": 0.2},
        "weights_at": "optimizer_step",
    }
    assert printed == composed


def test_verl_accepts_the_config_and_finds_the_trainer(tmp_path):
    config = compose("verl_separate_async", tmp_path)
    validate_config(config, use_reference_policy=False, use_critic=False)
    kind = get_trainer_cls(config.trainer.v1.trainer_mode)
    trainer = kind(config)
    assert kind is verl_trainers.GMCTrainerSeparateAsync
    assert trainer.weighting.estimator == make_estimator("gmc", epsilon=0.2)
    assert (trainer.trainer_mode, trainer.parameter_sync_step) == ("separate_async", 4), "verl's own name and section"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("algorithm.rollout_correction.bypass_mode=True", "bypass_mode is True"),
        ("actor_rollout_ref.actor.ppo_epochs=2", "this config takes 2"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=vanilla trainer.gmc.weights_at=sometimes", "optimizer_step"),
    ],
)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_config_that_does_not_go_with_the_weights_is_refused_before_anything_starts(name, change, message, tmp_path):
    config = compose(name, tmp_path, *change.split())
    kind = {
        "verl_separate_async": verl_trainers.GMCTrainerSeparateAsync,
        "verl_fully_async": verl_fully_async.GMCFullyAsyncTrainer,
    }[name]
    with pytest.raises(ValueError, match=message):
        kind(config)


@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
def test_the_other_modes_are_there_and_one_step_per_stage_is_asked_of_them(mode, tmp_path):
    changes = [f"trainer.v1.trainer_mode=gmc_{mode}", "actor_rollout_ref.hybrid_engine=True"]
    config = compose("verl_separate_async", tmp_path, *changes)
    with pytest.raises(ValueError, match="this config takes 4"):
        get_trainer_cls(f"gmc_{mode}")(config)
    trainer = get_trainer_cls(f"gmc_{mode}")(compose("verl_separate_async", tmp_path, *changes, STEPS_PER_SYNC="1"))
    assert trainer.trainer_mode == mode and isinstance(trainer, PPOTrainer)


# --- the advantage stages ---------------------------------------------------------------------------------------------


def rows():
    """12 rollouts of 3 prompts in no order, as dicts; one masked as a whole, one with a log-prob missing."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for n in torch.randperm(P * G, generator=generator).tolist():
        length = int(torch.randint(2, T + 1, (), generator=generator))
        old = -torch.rand(length, generator=generator)
        made.append(
            {
                "uid": f"prompt{n // G}",
                "session": n % G,
                "responses": torch.ones(length, dtype=torch.long),
                "response_mask": torch.ones(length, dtype=torch.long),
                "old_log_probs": old,
                "rollout_log_probs": old + 0.5 * torch.randn(length, generator=generator),
                "rm_scores": torch.nn.functional.pad(torch.rand(1, generator=generator), (length - 1, 0)),
            }
        )
    made[2]["response_mask"][:] = 0
    made[7]["rollout_log_probs"][0] = torch.nan
    return made


def expected(made):
    """(N,) weights of the estimator in the scripts, and the labels of the groups."""
    log_ratio = torch.stack([(row["old_log_probs"] - row["rollout_log_probs"]).sum() for row in made])
    log_ratio[2] = torch.nan
    group = torch.tensor([int(row["uid"].removeprefix("prompt")) for row in made])
    return gmc_weights(log_ratio, 0.2, group_index=group), group


@pytest.fixture(scope="module")
def queue():
    """The queue of verl's V1 trainers, on one storage unit."""
    started = start_ray()
    storage = {"total_storage_size": 1000, "num_data_storage_units": 1}
    backend = {"storage_backend": "SimpleStorage", "SimpleStorage": storage}
    tq.init(omegaconf.OmegaConf.create({"backend": backend}))
    yield tq
    tq.close()
    if started:
        stop_ray()


def v1_trainer(tmp_path, *changes, prompts=P):
    config = compose("verl_separate_async", tmp_path, *changes, PROMPTS=str(prompts), GROUP=str(G))
    return get_trainer_cls("gmc_separate_async")(config)


def put(queue, made):
    keys = [f"{row['uid']}_{row['session']}_0" for row in made]
    fields = [{name: value for name, value in row.items() if name != "session"} for row in made]
    tags = [{"seq_len": len(row["responses"])} for row in made]
    return queue.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(fields), tags=tags)


def test_the_advantage_stage_of_v1_puts_the_weights_of_whole_groups_into_verl_s_queue(queue, tmp_path):
    trainer = get_trainer_cls("gmc_separate_async")(
        compose("verl_separate_async", tmp_path, PROMPTS=str(P), GROUP=str(G))
    )
    made, metrics = rows(), {}
    batch = trainer._compute_advantage(put(queue, made), metrics)
    weight, group = expected(made)
    assert (weight[[2, 7]] == 0).all() and weight.std() > 0.1
    fields = ["advantages", "rollout_is_weights", "response_mask"]
    assert set(fields) <= set(batch.fields), "what verl hands to the actor"
    data = queue.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=fields)
    for n, row in enumerate(made):
        torch.testing.assert_close(data["rollout_is_weights"][n], weight[n] * row["response_mask"])
    # verl's advantages are untouched: GRPO's of the group
    score = torch.stack([row["rm_scores"].sum() for row in made])
    own = score[group == group[0]]
    torch.testing.assert_close(
        data["advantages"][0], ((score[0] - own.mean()) / (own.std() + 1e-6)).expand(len(made[0]["responses"]))
    )
    assert metrics["estimator/excluded_rollouts"] == 1 and 0 < metrics["estimator/capped_fraction"] < 1
    named = {name.removeprefix("estimator/") for name in metrics if name.startswith("estimator/")}
    assert "log_mass_mean" in named and named <= set(METRICS)
    queue.kv_clear(keys=batch.keys, partition_id="train")


def test_a_batch_of_more_than_one_optimiser_step_is_refused_and_missing_log_probs_are_named(queue, tmp_path):
    config = compose("verl_separate_async", tmp_path, PROMPTS=str(P - 1), GROUP=str(G))
    batch = put(queue, rows())
    with pytest.raises(RuntimeError, match=r"12 rows takes more than one optimiser step of 8 rows.*old_policy"):
        get_trainer_cls("gmc_separate_async")(config)._compute_advantage(batch, {})
    queue.kv_clear(keys=batch.keys, partition_id="train")
    trainer = get_trainer_cls("gmc_separate_async")(
        compose("verl_separate_async", tmp_path, PROMPTS=str(P), GROUP=str(G))
    )
    batch = put(queue, [{name: row[name] for name in row if name != "rollout_log_probs"} for row in rows()])
    with pytest.raises(ValueError, match="no rollout_log_probs"):
        trainer._compute_advantage(batch, {})
    queue.kv_clear(keys=batch.keys, partition_id="train")


class Workers:
    """Where verl's actors would be: notes what is asked of them and answers with log-probs of two policies.

    `old` is the number under which a trainer keeps the policy of the last synchronisation.
    """

    def __init__(self, queue, old):
        self.queue, self.old, self.asked, self.restored = queue, old, [], False

    def compute_log_prob(self, batch):
        self.asked.append("compute_log_prob")
        lengths = [tag["seq_len"] + 1 for tag in batch.tags]  # verl's model output covers a prompt of one token too
        value = -1.0 if self.restored else -2.0
        filled = [{"log_probs": torch.full((n,), value), "entropy": torch.ones(n)} for n in lengths]
        return self.queue.kv_batch_put(
            keys=batch.keys, partition_id="train", fields=list_of_dict_to_tensordict(filled), tags=batch.tags
        )

    def __getattr__(self, name):
        def asked(version):
            self.asked.append(name)
            if name == "restore_model_from_cpu":
                self.restored = version == self.old

        return asked


@pytest.mark.parametrize(
    ("weights_at", "loss", "asked", "value"),
    [
        ("optimizer_step", "gmc_surrogate", ["compute_log_prob"], -2.0),
        (
            "old_policy",
            "vanilla",
            [
                "save_model_to_cpu",
                "restore_model_from_cpu",
                "compute_log_prob",
                "restore_model_from_cpu",
                "clear_cpu_model",
            ],
            -1.0,
        ),
    ],
)
def test_old_log_probs_are_of_the_policy_that_weights_at_names(queue, tmp_path, weights_at, loss, asked, value):
    changes = [f"trainer.gmc.weights_at={weights_at}", f"actor_rollout_ref.actor.policy_loss.loss_mode={loss}"]
    trainer = v1_trainer(tmp_path, *changes)
    trainer.actor_rollout_wg, trainer.local_trigger_step = (
        Workers(queue, 0),
        2,
    )  # the third step after a sync
    made = rows()
    batch = trainer._compute_old_log_prob(put(queue, made), {})
    assert trainer.actor_rollout_wg.asked == asked
    data = queue.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["old_log_probs"])
    assert all((row == value).all() for row in data["old_log_probs"])
    queue.kv_clear(keys=batch.keys, partition_id="train")


def recipe_trainer(tmp_path, *changes):
    config = compose("verl_fully_async", tmp_path, *changes)
    return verl_fully_async.GMCFullyAsyncTrainer(
        config=config, tokenizer=None, role_worker_mapping={}, resource_pool_manager=None
    )


def test_the_advantage_stage_of_the_recipe_adds_the_same_weights(tmp_path):
    trainer, made = recipe_trainer(tmp_path), rows()
    names = ("response_mask", "old_log_probs", "rollout_log_probs", "rm_scores")
    padded = {name: torch.nn.utils.rnn.pad_sequence([row[name] for row in made], batch_first=True) for name in names}
    uid = np.array([row["uid"] for row in made], dtype=object)
    batch = DataProto.from_dict(tensors=dict(padded), non_tensors={"uid": uid})
    trainer.reward_tensor = batch.batch["rm_scores"]
    batch = trainer._fit_compute_advantage(batch)
    weight, _ = expected(made)
    torch.testing.assert_close(batch.batch["rollout_is_weights"], weight.unsqueeze(-1) * padded["response_mask"])
    assert trainer.metrics["estimator/excluded_rollouts"] == 1
    again, _ = rollout_weights(
        make_estimator("gmc"), *(batch.batch[name] for name in (*names[1:3], names[0], "advantages")), uid
    )
    torch.testing.assert_close(batch.batch["rollout_is_weights"], again)


@pytest.mark.parametrize(("weights_at", "restored"), [("optimizer_step", False), ("old_policy", True)])
def test_the_recipe_s_old_log_probs_are_of_the_policy_that_weights_at_names(
    tmp_path, monkeypatch, weights_at, restored
):
    loss = "gmc_surrogate" if weights_at == "optimizer_step" else "vanilla"
    changes = [f"trainer.gmc.weights_at={weights_at}", f"actor_rollout_ref.actor.policy_loss.loss_mode={loss}"]
    trainer = recipe_trainer(tmp_path, *changes)
    trainer.actor_rollout_wg, trainer.local_trigger_step = Workers(None, 1), 3
    seen = []
    base = verl_fully_async.SeparateRayPPOTrainer.__mro__[1]
    monkeypatch.setattr(
        base, "_compute_old_log_prob", lambda self, batch: seen.append(self.actor_rollout_wg.restored) or (batch, 0.0)
    )
    assert trainer._compute_old_log_prob("batch") == ("batch", 0.0) and seen == [restored]


def test_the_recipe_s_command_builds_this_trainer(monkeypatch, tmp_path):
    recipe, made = verl_fully_async.recipe, []

    class Remote:
        def __init__(self, kind):
            self.kind = kind
            self.init_workers = SimpleNamespace(remote=lambda: None)

        def remote(self, **options):
            made.append((self.kind, sorted(options)))
            return self

    monkeypatch.setattr(verl_fully_async.ray, "remote", lambda **options: Remote)
    monkeypatch.setattr(recipe.ray, "get", lambda value: value)
    monkeypatch.setattr(recipe, "create_resource_pool_manager", lambda config, roles: None)
    monkeypatch.setattr(recipe, "main", lambda: made.append(recipe.FullyAsyncTaskRunner.kind))
    monkeypatch.setattr(sys, "argv", ["command"])
    verl_fully_async.main()
    assert made == [verl_fully_async.TaskRunner] and recipe.FullyAsyncTaskRunner is not Remote
    runner = verl_fully_async.TaskRunner()
    runner.components = {"tokenizer": None, "role_worker_mapping": {}, "ray_worker_group_cls": None}
    runner._create_trainer(compose("verl_fully_async", tmp_path))
    assert made[1][0] is verl_fully_async.GMCFullyAsyncTrainer and "role_worker_mapping" in made[1][1]


def test_the_private_interfaces_are_there():
    for name in verl_trainers.PRIVATE_METHODS:
        assert callable(getattr(PPOTrainer, name))
    for name in verl_fully_async.PRIVATE_METHODS:
        assert callable(getattr(verl_fully_async.FullyAsyncTrainer, name))
    for name in verl_fully_async.PRIVATE_OF_THE_RUNNER:
        assert callable(getattr(verl_fully_async.FullyAsyncTaskRunner, name))
