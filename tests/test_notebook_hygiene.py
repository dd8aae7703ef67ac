"""What every committed notebook must be like, and, on bad notebooks made here, that the checks see each fault."""

import copy
import re

import nbformat
import pytest

from gmc_core import paths
from gmc_core.reporting.notebook_files import NotebookError, header, numbered_notebooks, parameters, read_notebook

EXACT = {"01", "02", "03", "04"}  # light and exact: committed with outputs, validated by nbval
LONGEST_CELL = 40
LARGEST_FILE = 1_000_000
WIDGET = "application/vnd.jupyter.widget-view+json"
CLOSING = ("What was seen", "What this does not show")


def problems(notebook: nbformat.NotebookNode, name: str, size: int = 0) -> list[str]:
    """Everything that is wrong with a notebook, in words; empty when it is fit to be committed."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    counts = [cell.execution_count for cell in code]
    found = []
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        found.append("the kernel is not python3")
    if re.search(r"\d+\.\d+\.\d+", notebook.metadata.get("language_info", {}).get("version", "")):
        found.append("language_info pins a patch version of Python")
    if "papermill" in notebook.metadata or any("papermill" in cell.metadata for cell in notebook.cells):
        found.append("an executed copy was committed (papermill metadata)")
    try:
        defaults = parameters(notebook, name)
        if defaults.get("profile") != "cpu":
            found.append('the parameters cell lacks profile = "cpu"')
        header(notebook, name)
    except NotebookError as error:
        found.append(str(error))
    found += [
        f"no closing heading {title!r}"
        for title in CLOSING
        if not re.search(rf"^#+ {title}", prose, flags=re.MULTILINE)
    ]
    if outputs or name[:2] in EXACT:
        if counts != list(range(1, len(code) + 1)):
            found.append(f"execution counts are {counts}, not 1..{len(code)}")
        if not outputs:
            found.append("committed without outputs")
    if any(output.output_type == "error" for output in outputs):
        found.append("an output is an error")
    if any(output.output_type == "stream" and output.name == "stderr" for output in outputs):
        found.append("an output is on stderr")
    if "widgets" in notebook.metadata or any(WIDGET in output.get("data", {}) for output in outputs):
        found.append("widget state was saved")
    if size >= LARGEST_FILE:
        found.append(f"{size} bytes, at most {LARGEST_FILE}")
    found += [
        f"code cell {number} has {len(cell.source.splitlines())} lines, fewer than {LONGEST_CELL} expected"
        for number, cell in enumerate(code, start=1)
        if len(cell.source.splitlines()) >= LONGEST_CELL
    ]
    marked = [cell for cell in code if re.search(r"^# NBVAL_CHECK_OUTPUT$", cell.source, flags=re.MULTILINE)]
    if any(not cell.outputs for cell in marked):
        found.append("a cell marked NBVAL_CHECK_OUTPUT has no output to check")
    asserts = any(
        re.search(r"^\s*assert |assert_close\(|assert_allclose\(", cell.source, re.MULTILINE) for cell in code
    )
    if name[:2] in EXACT and not (marked or asserts):
        found.append("nothing is checked: no NBVAL_CHECK_OUTPUT, no assert")
    return found


def test_the_exact_notebooks_are_there():
    assert {path.name[:2] for path in numbered_notebooks()} >= EXACT


def test_every_notebook_of_the_folder_is_numbered():
    assert [path.name for path in sorted(paths.NOTEBOOKS.glob("*.ipynb"))] == [p.name for p in numbered_notebooks()]


@pytest.mark.parametrize("path", sorted(paths.NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.name)
def test_notebook_is_fit_to_be_committed(path):
    assert problems(read_notebook(path), path.name, path.stat().st_size) == []


# --- the checks themselves --------------------------------------------------------------------------------------------


KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def good() -> nbformat.NotebookNode:
    v4 = nbformat.v4
    first = "# 01 · Title\n\n**Question.** Why?\n\n**Time.** 1 min\n\n**Hardware.** CPU"
    notebook = v4.new_notebook(metadata={"kernelspec": KERNEL, "language_info": {"name": "python"}})
    notebook.cells = [
        v4.new_markdown_cell(first),
        v4.new_code_cell('profile = "cpu"', metadata={"tags": ["parameters"]}, execution_count=1),
        v4.new_code_cell(
            "# NBVAL_CHECK_OUTPUT\nprint(2)", execution_count=2, outputs=[v4.new_output("stream", text="2\n")]
        ),
        v4.new_markdown_cell("## What was seen\n\n2\n\n## What this does not show\n\n3"),
    ]
    return notebook


def spoil(change) -> nbformat.NotebookNode:
    notebook = copy.deepcopy(good())
    change(notebook)
    return notebook


def test_a_good_notebook_has_no_problem():
    assert problems(good(), "01_a.ipynb", 1000) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda n: n.metadata.kernelspec.update(name="venv"), "the kernel is not python3"),
        (lambda n: n.metadata.language_info.update(version="3.11.7"), "language_info pins a patch version"),
        (lambda n: n.metadata.update(papermill={}), "an executed copy was committed"),
        (lambda n: n.metadata.update(widgets={"state": {}}), "widget state was saved"),
        (lambda n: n.cells[1].metadata.update(tags=[]), "01_a.ipynb has 0 cells tagged"),
        (lambda n: n.cells[1].update(source="seeds = 1"), 'the parameters cell lacks profile = "cpu"'),
        (lambda n: n.cells[1].update(source='profile = "smoke"'), 'the parameters cell lacks profile = "cpu"'),
        (lambda n: n.cells[0].update(source="# Title"), "01_a.ipynb: the first cell lacks **Question**"),
        (lambda n: n.cells[3].update(source="## What was seen"), "no closing heading 'What this does not show'"),
        (lambda n: n.cells[2].update(execution_count=5), "execution counts are [1, 5], not 1..2"),
        (lambda n: n.cells[2].update(outputs=[]), "committed without outputs"),
        (lambda n: n.cells[2].outputs[0].update(name="stderr"), "an output is on stderr"),
        (lambda n: n.cells[2].outputs.append(nbformat.v4.new_output("error")), "an output is an error"),
        (
            lambda n: n.cells[2].outputs.append(nbformat.v4.new_output("display_data", data={WIDGET: {}})),
            "widget state was saved",
        ),
        (lambda n: n.cells[2].update(source="x = 1\n" * 40), "code cell 2 has 40 lines"),
        (lambda n: n.cells[2].update(source="print(2)"), "nothing is checked"),
    ],
)
def test_each_fault_is_seen(change, message):
    assert any(problem.startswith(message) for problem in problems(spoil(change), "01_a.ipynb"))


def test_size_and_missing_outputs_of_marked_cells_are_seen():
    assert problems(good(), "01_a.ipynb", LARGEST_FILE) == [f"{LARGEST_FILE} bytes, at most {LARGEST_FILE}"]
    notebook = spoil(lambda n: n.cells[2].update(outputs=[]))
    assert "a cell marked NBVAL_CHECK_OUTPUT has no output to check" in problems(notebook, "06_a.ipynb")


def test_heavy_notebooks_may_be_committed_without_outputs():
    def clear(notebook):
        notebook.cells[1].execution_count = notebook.cells[2].execution_count = None
        notebook.cells[2].update(source="print(2)", outputs=[])

    assert problems(spoil(clear), "06_a.ipynb") == []
