"""The notebook runner on tiny notebooks: what it refuses, what it keeps, what it leaves behind when a cell fails."""

import json
import os
import sys
from pathlib import Path

import nbformat
import pytest

from gmc_core import paths
from gmc_core.reporting import figure_log, run_notebooks
from gmc_core.reporting.notebook_cache import (
    Record,
    hash_files,
    hash_sources,
    notebook_parts,
    read_record,
    shared_parts,
    why_run,
)
from gmc_core.reporting.notebook_execution import NotebookFailed, execute
from gmc_core.reporting.notebook_files import NotebookError, check_parameters, header, parameters, select
from gmc_core.reporting.run_notebooks import Result, main, parse_parameters, summary_table

DEFAULTS = 'profile = "cpu"\nseeds = 2\nstep = 0.5\n'


def make(
    folder: Path, name: str, *cells: str, defaults: str = DEFAULTS, tags: tuple[str, ...] = ("parameters",)
) -> Path:
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    notebook.metadata["language_info"] = {"name": "python"}
    first = nbformat.v4.new_code_cell(defaults, metadata={"tags": list(tags)})
    notebook.cells = [nbformat.v4.new_markdown_cell("# Title"), first, *map(nbformat.v4.new_code_cell, cells)]
    path = folder / name
    nbformat.write(notebook, path)
    return path


def run(folder: Path, **options):
    options.setdefault("profile", "smoke")
    lines: list[str] = []
    results = run_notebooks.run_notebooks(folder=folder, output_dir=folder / "out", report=lines.append, **options)
    return results, lines


@pytest.fixture(autouse=True)
def _package_as_it_is(monkeypatch):
    """The checkout may be edited while its tests run; what changes here is what a test changes."""
    monkeypatch.setattr(run_notebooks.cache, "shared_parts", lambda: {"gmc_core": "1", "data": "2", "lock": "3"})


def printed(path: Path) -> str:
    notebook = nbformat.read(path, as_version=4)
    return "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))


# --- before anything runs ---------------------------------------------------------------------------------------------


def test_unknown_profile_names_the_known_ones(tmp_path):
    make(tmp_path, "01_a.ipynb")
    with pytest.raises(ValueError, match="unknown profile 'fast'; choose one of smoke, cpu, gpu"):
        run(tmp_path, profile="fast")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sedes": 4}, "no parameter 'sedes'; it knows: profile, seeds, step"),
        ({"step": "1e-6"}, r"'1e-6' \(str\); its default 0.5 is float"),
        ({"seeds": True}, r"True \(bool\); its default 2 is int"),
        ({"profile": "gpu"}, "use --profile"),
    ],
)
def test_bad_parameters_are_refused_before_the_first_notebook_runs(tmp_path, given, message):
    make(tmp_path, "01_a.ipynb", "raise SystemExit(3)")
    with pytest.raises(NotebookError, match=message):
        run(tmp_path, parameters=given)
    assert not (tmp_path / "out").exists()


def test_a_parameter_that_a_later_notebook_lacks_stops_everything(tmp_path):
    make(tmp_path, "01_a.ipynb")
    make(tmp_path, "02_b.ipynb", defaults='profile = "cpu"')
    with pytest.raises(NotebookError, match=r"02_b\.ipynb has no parameter 'seeds'; it knows: profile"):
        run(tmp_path, parameters={"seeds": 3})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("tags", "defaults", "message"),
    [
        ((), DEFAULTS, "0 cells tagged 'parameters'"),
        (("parameters",), "seeds = 2\nsteps = 10 * seeds", "holds 'steps = 10 \\* seeds'; only `name = literal`"),
        (("parameters",), "import os\nseeds = 2", "holds 'import os'"),
        (("parameters",), "seeds: int", "holds 'seeds: int'"),
        (("parameters",), "seeds =", "not valid Python"),
        (("parameters",), "# nothing", "is empty"),
    ],
)
def test_the_parameters_cell_holds_literals_only(tmp_path, tags, defaults, message):
    make(tmp_path, "01_a.ipynb", defaults=defaults, tags=tags)
    with pytest.raises(NotebookError, match=message):
        run(tmp_path)


def test_two_parameters_cells_are_one_too_many(tmp_path):
    path = make(tmp_path, "01_a.ipynb", "seeds = 9")
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[2].metadata["tags"] = ["parameters"]
    with pytest.raises(NotebookError, match="2 cells tagged"):
        parameters(notebook, path.name)


def test_literals_of_every_kind_are_read(tmp_path):
    path = make(tmp_path, "01_a.ipynb", defaults='a: int = -1\nb = [1, 2.5]\nc = {"x": None}\nd = (True, "s")')
    read = parameters(nbformat.read(path, as_version=4), path.name)
    assert read == {"a": -1, "b": [1, 2.5], "c": {"x": None}, "d": (True, "s")}


def test_numbers_and_names_pick_notebooks_in_order(tmp_path):
    notebooks = [tmp_path / name for name in ("01_a.ipynb", "02_b.ipynb", "10_c.ipynb")]
    assert select(notebooks, []) == notebooks
    assert select(notebooks, ["10", "1", "02_b"]) == notebooks
    assert select(notebooks, ["02_b.ipynb"]) == notebooks[1:2]
    with pytest.raises(NotebookError, match="no notebook answers to '07'; give a number or name of: 01_a, 02_b, 10_c"):
        select(notebooks, ["01", "07"])


def test_no_notebook_an_unreadable_one_and_a_number_taken_twice(tmp_path):
    with pytest.raises(NotebookError, match=r"no notebook called NN_name\.ipynb"):
        run(tmp_path)
    (tmp_path / "01_a.ipynb").write_text('{"cells": [')
    with pytest.raises(NotebookError, match=r"01_a.ipynb is not a readable notebook"):
        run(tmp_path)
    make(tmp_path, "01_b.ipynb")
    with pytest.raises(NotebookError, match="number 01 is taken twice"):
        run(tmp_path)


def test_text_of_the_command_line_becomes_python_values():
    assert parse_parameters(["step=1e-6", "seeds=4", "name=tiny", "delays=[0, 32]", "note=a=b"]) == {
        "step": 1e-6, "seeds": 4, "name": "tiny", "delays": [0, 32], "note": "a=b",
    }  # fmt: skip
    assert check_parameters({"step": 1}, {"step": 0.5}, "n") == {"step": 1.0}
    with pytest.raises(NotebookError, match="'seeds' is not name=value"):
        parse_parameters(["seeds"])
    with pytest.raises(NotebookError, match="given twice"):
        parse_parameters(["seeds=1", "seeds=2"])


def test_header_of_the_first_cell():
    text = "# 01 · Why?\n\n**Question.** Does it\nmatter? **Time:** 2 min · **Hardware**: two CPU cores\n\nProse."
    read = header(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)]), "n")
    assert (read.title, read.question) == ("01 · Why?", "Does it matter?")
    assert (read.time, read.hardware) == ("2 min", "two CPU cores")
    with pytest.raises(NotebookError, match=r"n: the first cell lacks a `# title` and \*\*Question\*\*"):
        header(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("**Time** 1\n\n**Hardware** 2")]), "n")


# --- running ----------------------------------------------------------------------------------------------------------


def test_a_run_then_a_kept_copy_then_what_makes_it_run_again(tmp_path):
    figure = tmp_path / "figure.png"
    drawing = (
        "from pathlib import Path\nfrom gmc_core.reporting.figure_log import log_figures\n"
        f"figure = Path({str(figure)!r})\nfigure.write_bytes(b'')\nlog_figures([figure])\nprint(profile, seeds, step)"
    )
    source = make(tmp_path, "01_a.ipynb", drawing)
    committed = source.read_bytes()

    (first,), lines = run(tmp_path, parameters={"seeds": 3, "step": 1e-6})
    assert (first.status, first.figures) == ("run", [str(figure)])
    assert lines[0] == "[1/1] 01_a: running (no earlier run)"
    assert printed(tmp_path / "out/01_a.ipynb") == "smoke 3 1e-06\n"
    assert source.read_bytes() == committed

    (kept,), lines = run(tmp_path, parameters={"seeds": 3, "step": 1e-6})
    assert lines == ["[1/1] 01_a: cached"]
    assert (kept.status, kept.figures, kept.seconds) == ("cached", first.figures, first.seconds)

    notebook = nbformat.read(source, as_version=4)
    record = read_record(tmp_path / "out/01_a.json")
    parts = dict(record.parts)
    executed = tmp_path / "out/01_a.ipynb"
    assert why_run(record, parts, executed) == ""
    assert why_run(record, {**parts, "data": "other"}, executed) == "changed: data"
    notebook.cells[0].source += " and more prose"
    assert why_run(record, {**parts, "notebook": hash_sources(notebook)}, executed) == "changed: notebook"
    other = notebook_parts(nbformat.read(source, as_version=4), {"profile": "smoke", "seeds": 4, "step": 1e-6}, parts)
    assert why_run(record, other, executed) == "changed: parameters"
    figure.unlink()
    assert why_run(record, parts, executed) == f"figure missing: {figure}"
    (tmp_path / "out/01_a.json").write_text("{half a rec")
    assert why_run(read_record(tmp_path / "out/01_a.json"), parts, executed) == "no earlier run"


def test_outputs_do_not_enter_the_key_but_sources_and_tags_do(tmp_path):
    notebook = nbformat.read(make(tmp_path, "01_a.ipynb", "1 + 1"), as_version=4)
    before = hash_sources(notebook)
    notebook.cells[2].outputs = [nbformat.v4.new_output("stream", text="2")]
    notebook.cells[2].execution_count = 7
    assert hash_sources(notebook) == before
    notebook.cells[1].metadata["tags"] = []
    assert hash_sources(notebook) != before


def test_file_hash_sees_contents_and_names(tmp_path):
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text("a")
    two.write_text("b")
    before = hash_files([one, two], tmp_path)
    assert hash_files([two, one], tmp_path) == before
    two.write_text("c")
    assert hash_files([one, two], tmp_path) != before
    two.write_text("b")
    assert hash_files([one, two.rename(tmp_path / "three.py")], tmp_path) != before


def test_package_data_and_lock_enter_the_key_but_prose_and_caches_do_not(tmp_path):
    def write(name: str, text: str) -> dict[str, str]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return shared_parts(tmp_path)

    before = write("gmc_core/estimators/weights.py", "w = 1")
    for name, part in [
        ("gmc_core/estimators/weights.py", "gmc_core"),
        ("data/runs/grid/runs.csv", "data"),
        ("requirements-lock.txt", "lock"),
    ]:
        after = write(name, "changed")
        assert {key for key in before if before[key] != after[key]} == {part}
        before = after
    assert write("data/README.md", "a card") == before
    assert write("gmc_core/__pycache__/weights.pyc", "") == before


def test_a_failure_is_named_keeps_a_copy_and_stops_nobody_else(tmp_path, capsys):
    make(tmp_path, "01_a.ipynb", "kept = 1", "\nassert kept == 2, 'kept is\\nnot two'", "print('never')")
    make(tmp_path, "02_b.ipynb", "print('fine')")
    out = tmp_path / "out"
    out.mkdir()
    (out / "01_a.ipynb").write_text("the complete copy of an earlier run")
    (out / "01_a.json").write_text(json.dumps({"parts": {}, "seconds": 1.0, "figures": []}))

    assert main(["--profile", "smoke", "--folder", str(tmp_path), "--output-dir", str(out)]) == 1
    said = capsys.readouterr().out
    assert "01_a.ipynb, cell [4] (`assert kept == 2, 'kept is\\nnot two'`): AssertionError: kept is not two" in said
    assert "see 01_a.failed.ipynb" in said
    assert "1 of 2 notebooks complete, profile smoke" in said
    assert (out / "01_a.ipynb").read_text() == "the complete copy of an earlier run"
    assert not (out / "01_a.json").exists()
    assert "AssertionError" in (out / "01_a.failed.ipynb").read_text()
    assert printed(out / "02_b.ipynb") == "fine\n"
    assert sorted(file.name for file in out.iterdir()) == [
        "01_a.failed.ipynb", "01_a.ipynb", "02_b.ipynb", "02_b.json",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("import os; os._exit(1)", r"code cell 3 \(`import os; os._exit\(1\)`\): DeadKernelError"),
        ("import sys; sys.exit(0)", r"the run ended before code cell 4 \(`print\('never'\)`\)"),
    ],
)
def test_a_killed_kernel_and_an_early_exit_are_failures(tmp_path, cell, message):
    path = make(tmp_path, "01_a.ipynb", cell, "print('never')")
    with pytest.raises(NotebookFailed, match=message):
        execute(path, tmp_path / "out/01_a.ipynb", {"profile": "smoke"})
    assert not (tmp_path / "out/01_a.ipynb").exists()
    assert (tmp_path / "out/01_a.failed.ipynb").exists()


def test_the_kernel_is_this_interpreter_in_an_environment_that_shows_figures(tmp_path, monkeypatch):
    """A user's own `python3` kernelspec, MPLBACKEND=Agg of a headless shell, the working directory: none may matter."""
    spec = tmp_path / "data/kernels/python3/kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": ["/nonexistent/python"], "display_name": "elsewhere", "language": "python"}))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    report = (
        "import os, sys, json, gmc_core\nfrom gmc_core import paths\n"
        "names = ['MPLBACKEND', 'OMP_NUM_THREADS', 'TOKENIZERS_PARALLELISM', 'GMC_FIGURE_LOG']\n"
        "print(json.dumps([sys.executable, gmc_core.__file__, str(paths.ROOT), os.getcwd(),"
        " {name: os.environ.get(name) for name in names}]))"
    )
    path = make(tmp_path, "01_a.ipynb", report)
    execute(path, tmp_path / "out/01_a.ipynb", {"profile": "smoke"})
    executable, package, root, cwd, environment = json.loads(printed(tmp_path / "out/01_a.ipynb"))
    assert executable == sys.executable
    assert Path(package) == paths.ROOT / "gmc_core/__init__.py"
    assert Path(root) == paths.ROOT
    assert Path(cwd) == tmp_path
    assert "inline" in environment["MPLBACKEND"]
    assert (environment["OMP_NUM_THREADS"], environment["TOKENIZERS_PARALLELISM"]) == ("1", "false")
    assert os.environ["MPLBACKEND"] == "Agg"  # restored
    assert figure_log.LOG_VARIABLE not in os.environ


def test_wrong_use_of_the_command_exits_with_2(capsys):
    assert main(["--profile", "huge"]) == 2
    assert "unknown profile 'huge'" in capsys.readouterr().err


def test_table_lists_notebook_time_result_and_pictures():
    table = summary_table([
        Result("01_a", "run", 12.34, ["figures/fig1.png", "figures/fig1.pdf", "figures/fig1.json"]),
        Result("02_long_name", "failed", 0.5, error="boom"),
    ])  # fmt: skip
    assert table.splitlines() == [
        "notebook        time  result  figures",
        "--------------------------------------",
        "01_a          12.3 s  run     fig1.png",
        "02_long_name   0.5 s  failed  -",
    ]


def test_record_key_depends_on_every_ingredient():
    record = Record({"a": "1", "b": "2"}, 1.0)
    assert record.key == Record({"b": "2", "a": "1"}, 9.0, ["x"]).key
    assert record.key != Record({"a": "1", "b": "3"}, 1.0).key
