"""The benchmarks run and say what they measured; their times are nobody's verdict."""

import pytest

from benchmarks.__main__ import BENCHMARKS, main


def test_rows_say_what_was_measured(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("benchmarks.weights.CALLS", 20)
    monkeypatch.setattr("gmc_core.paths.BUILD", tmp_path / "build")
    assert main(["weights"]) == 0
    printed = capsys.readouterr().out
    assert "gmc_weights, 512 x 16" in printed and "ms (median)" in printed
    assert (tmp_path / "build" / "bench.json").exists()


def test_unknown_benchmark_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["speed"])
    message = capsys.readouterr().err
    assert "speed" in message and all(name in message for name in BENCHMARKS)


def test_overlap_compares_asynchronous_runs_with_a_synchronous_one(monkeypatch):
    from benchmarks import overlap

    inline = overlap.BASE.replace(workers="inline", verifier_processes=0, updates=7, evaluation_every=7)
    monkeypatch.setattr(overlap, "BASE", inline)
    monkeypatch.setattr(overlap, "SETTINGS", {"transformers": {"prompts_per_update": 2, "group_size": 4}})
    monkeypatch.setattr(overlap, "MODES", dict(list(overlap.MODES.items())[:2]))
    monkeypatch.setattr(overlap, "TURNS", 1)
    first, *rows = overlap.measure()
    assert first["what"] == "transformers, k = 0, 2 prompts x 4 rollouts" and "generates" in first["note"]
    assert [row["what"].split(": ")[1] for row in rows] == ["speed-up", "overlap efficiency", "attained"]
    assert all(row["value"] > 0 for row in rows) and rows[1]["value"] < 1
    assert f"{rows[0]['value']:.2f} to" in rows[0]["note"]
