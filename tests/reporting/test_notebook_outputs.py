"""Renewed outputs carry results and counts and nothing of the machine; a failure leaves the notebook as it was."""

import nbformat

from gmc_core.reporting.notebook_outputs import main, renew


def write(path, source):
    v4 = nbformat.v4
    notebook = v4.new_notebook(metadata={"kernelspec": {"name": "venv", "display_name": "mine"}, "widgets": {}})
    notebook.cells = [
        v4.new_markdown_cell("# T", id="title"),
        v4.new_code_cell('profile = "cpu"', id="parameters", metadata={"tags": ["parameters"]}),
        v4.new_code_cell(source, id="result", metadata={"collapsed": True}, execution_count=9),
    ]
    nbformat.write(notebook, path)
    return path


def test_renewed_notebook(tmp_path):
    path = write(tmp_path / "01_a.ipynb", "print(profile)")
    renew(path, tmp_path / "out")
    notebook = nbformat.read(path, as_version=4)
    assert [cell.id for cell in notebook.cells] == ["title", "parameters", "result"]
    assert [cell.execution_count for cell in notebook.cells[1:]] == [1, 2]
    assert [cell.metadata for cell in notebook.cells] == [{}, {"tags": ["parameters"]}, {}]
    assert notebook.cells[2].outputs[0].text == "cpu\n"
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert (notebook.metadata.kernelspec.name, notebook.metadata.language_info) == ("python3", {"name": "python"})
    before = path.read_bytes()
    renew(path, tmp_path / "out")
    assert path.read_bytes() == before


def test_a_failing_notebook_stays_as_it_was(tmp_path, capsys):
    path = write(tmp_path / "01_a.ipynb", "1 / 0")
    before = path.read_bytes()
    folders = ["--folder", str(tmp_path), "--output-dir", str(tmp_path / "out")]
    assert main(["01", *folders]) == 1
    assert "01_a.ipynb, cell [2] (`1 / 0`): ZeroDivisionError: division by zero" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert main(["02", *folders]) == 2
