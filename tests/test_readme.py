"""README keeps its word: generated tables are current, the code in it runs, names and files it mentions exist."""

import ast
import re
import subprocess

import pytest
import torch

import gmc_core
from gmc_core import paths
from gmc_core.reporting import readme_tables

TEXT = (paths.ROOT / "README.md").read_text(encoding="utf-8")


def test_generated_tables_are_current():
    assert readme_tables.render(TEXT) == TEXT, "README.md is behind its sources: run `make readme`"


def test_the_table_of_the_data_card_is_current():
    text = readme_tables.DATA_CARD.read_text(encoding="utf-8")
    assert readme_tables.render(text, readme_tables.DATA_CARD_TABLES) == text, "data/README.md is behind: `make readme`"


def test_a_missing_or_unknown_table_is_named():
    with pytest.raises(ValueError, match=r"places for the tables \['notes'\]; the generated ones are \['claims', "):
        readme_tables.render("<!-- notes:start -->\n<!-- notes:end -->")


def test_the_five_lines_give_the_gradient_of_gmc():
    code, *_ = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    assert len(ast.parse(code).body) == 5
    generator = torch.Generator().manual_seed(0)
    current = -torch.rand(3, 4, 5, generator=generator)
    current.requires_grad_()
    names = {
        "logp_current_PGT": current,
        "logp_behavior_PGT": current.detach() + 0.4 * torch.randn(3, 4, 5, generator=generator),
        "mask_PGT": torch.rand(3, 4, 5, generator=generator) < 0.8,
        "reward_PG": torch.rand(3, 4, generator=generator),
    }
    exec(code, names)
    names["loss"].backward()

    mask = names["mask_PGT"]
    ratio = ((current - names["logp_behavior_PGT"]) * mask).sum(-1).exp().detach()
    weight = ratio * (1.2 / ratio.mean(-1, keepdim=True)).clamp_max(1)
    assert (ratio.mean(-1) > 1.2).any() and (ratio.mean(-1) < 1.2).any()
    advantage = names["reward_PG"] - names["reward_PG"].mean(-1, keepdim=True)
    torch.testing.assert_close(current.grad, -(weight * advantage).unsqueeze(-1) * mask / 12)


def test_code_names_of_the_notation_table_exist():
    (table,) = re.findall(r"\| symbol \| meaning \| in the code \|\n(.*?)\n\n", TEXT, flags=re.DOTALL)
    names = re.findall(r"`(\w+)\(", table)
    assert len(names) >= 5
    assert [name for name in names if not hasattr(gmc_core, name)] == []


def test_files_that_readme_links_to_exist():
    links = re.findall(r"\]\((?!https?:)([^)#]+)", TEXT)
    assert len(links) >= 3
    assert [link for link in links if not (paths.ROOT / link).exists()] == []


def test_make_targets_that_readme_names_exist():
    named = set(re.findall(r"make ([a-z-]+)", TEXT))
    assert {"figures", "test"} <= named
    for target in named:
        done = subprocess.run(["make", "-n", target], cwd=paths.ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"make {target}: {done.stderr}"


def test_the_run_of_the_readme_can_be_made(tmp_path, monkeypatch):
    _, code, _ = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    assert "RunConfig(" in code
    monkeypatch.setattr("gmc_core.paths.BUILD_RUNS", tmp_path)
    names: dict = {}
    exec(code.replace("seed=0)", "seed=0, updates=2, evaluation_prompts=8)"), names)
    assert names["record"].summary["final_accuracy"] >= 0.0
    assert [row["staleness"] for row in names["record"].metrics] == [0, 1]


def test_the_live_run_of_the_readme_can_be_made(tmp_path, monkeypatch):
    *_, code = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    monkeypatch.setattr("gmc_core.paths.BUILD_RUNS", tmp_path)
    small = "updates=3, evaluation_prompts=8, prompts_per_update=2, group_size=4, verifier_processes=0)\n)"
    assert 'workers="process", engine="vllm"' in code and re.search(r"\n    \)\n\)", code)
    code = code.replace('workers="process", engine="vllm"', 'workers="inline", engine="transformers"')
    names = {"RunConfig": gmc_core.RunConfig, "train": gmc_core.train}
    exec(re.sub(r"\n    \)\n\)", lambda _: f"\n{small}", code), names)
    record = names["record"]
    assert max(row["staleness_max"] for row in record.metrics) <= 4
    assert {"events.jsonl", "ledger.json"} <= {path.name for path in record.path.iterdir()}
