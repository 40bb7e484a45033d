"""The notebook of python/examples runs in a kernel of its own and shows three plots."""
import sys

import nbclient
import nbformat
from conftest import ROOT


def test_the_notebook_reads_a_capture_and_draws_three_plots(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "python"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    notebook = nbformat.read(ROOT / "python/examples/read_a_capture.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.outputs for cell in notebook.cells if cell.cell_type == "code"), "commit it without outputs"
    client = nbclient.NotebookClient(notebook, timeout=100, resources={"metadata": {"path": str(ROOT / "python/examples")}})
    client.km = client.create_kernel_manager()
    client.km.kernel_spec.argv[0] = sys.executable
    client.execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    said = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    assert "24 rows, " in said and "mean |delta| " in said
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3


def test_the_example_is_what_its_program_writes(tmp_path, monkeypatch):
    examples = ROOT / "python/examples"
    program = (examples / "make_example.py").read_text()
    exec(compile(program, str(tmp_path / "make_example.py"), "exec"),
         {"__name__": "__main__", "__file__": str(tmp_path / "make_example.py")})
    assert (tmp_path / "example.jsonl").read_text() == (examples / "example.jsonl").read_text()
