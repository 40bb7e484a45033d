"""The notebooks of python/examples run in kernels of their own and show their plots."""
import subprocess
import sys

import nbclient
import nbformat
import pytest
from conftest import ROOT

sys.path.append(str(ROOT / "tests" / "end_to_end"))

EXAMPLES = ROOT / "python/examples"


@pytest.fixture
def executed(monkeypatch, tmp_path):
    """Runs a notebook; returns what it printed and the number of its plots."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "python"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def execute(name):
        notebook = nbformat.read(EXAMPLES / name, as_version=4)
        nbformat.validate(notebook)
        assert not any(cell.outputs for cell in notebook.cells if cell.cell_type == "code"), "commit it without outputs"
        client = nbclient.NotebookClient(notebook, timeout=100, resources={"metadata": {"path": str(EXAMPLES)}})
        client.km = client.create_kernel_manager()
        client.km.kernel_spec.argv[0] = sys.executable
        client.execute()
        outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
        said = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
        return said, sum("image/png" in output.get("data", {}) for output in outputs)
    return execute


def test_the_notebook_reads_a_capture_and_draws_three_plots(executed):
    said, plots = executed("read_a_capture.ipynb")
    assert "24 rows, " in said and "mean |delta| " in said and plots == 3


def test_the_notebook_reads_a_made_up_run_and_shows_its_worst_tokens(executed):
    said, plots = executed("read_a_run.ipynb")
    assert "31 lines, " in said and "step_30: 24 completions, " in said and plots == 3
    assert " 0.30" in said and "[ " in said, "the tokens that were made to be far off"


def test_the_notebook_reads_a_real_run(executed, monkeypatch, tmp_path):
    import small_run
    model = small_run.make_model(tmp_path / "model")
    config = small_run.write_config(tmp_path, model, steps=6, capture={"every": 3}, eval={"every": 2})
    subprocess.run([small_run.TANDEM, "run", config], check=True, timeout=240, capture_output=True)
    monkeypatch.setenv("TANDEM_RUN", str(tmp_path / "runs" / "small"))
    said, plots = executed("read_a_run.ipynb")
    assert "6 lines, " in said and "step_6: 16 completions, 192 sampled tokens" in said and plots == 3
    assert sum("[" in line for line in said.splitlines()) == 10, said


def test_the_example_is_what_its_program_writes(tmp_path, monkeypatch):
    program = (EXAMPLES / "make_example.py").read_text()
    exec(compile(program, str(tmp_path / "make_example.py"), "exec"),
         {"__name__": "__main__", "__file__": str(tmp_path / "make_example.py")})
    assert (tmp_path / "example.jsonl").read_text() == (EXAMPLES / "example.jsonl").read_text()
