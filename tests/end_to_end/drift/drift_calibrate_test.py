"""`tandem drift calibrate` on a reduced grid: correct causes and strengths, abstention, resume, and refused input."""
import json
import subprocess

import small_run


def calibrate(out, *arguments):
    done = subprocess.run([str(small_run.TANDEM), "drift", "calibrate", "--out", str(out), "--threads", "2", *arguments],
                          capture_output=True, text=True, timeout=500)
    return done.returncode, done.stdout + done.stderr


GRID = ("--captures", "8", "--nulls", "4", "--faults",
        "none,temperature,top_p,kv_bits,shift,logit_noise,tensor,temperature+top_p,rotary_base,rounded_record")


def test_a_reduced_grid_names_what_was_injected_and_nothing_else(tmp_path):
    code, output = calibrate(tmp_path, *GRID)
    assert code == 0, output
    tables = json.loads((tmp_path / "calibration.json").read_text())
    assert all(count == {"successes": 0, "trials": 4} for count in tables["false_names"].values()), tables
    for name in ("temperature", "top_p", "kv_bits", "shift", "logit_noise", "tensor"):
        row = tables["injectors"][name]
        assert row["top"] == {"successes": 2, "trials": 2}, (name, row)
        assert row["slope"] > 0.5 if name == "shift" else 0.9 < row["slope"] < 1.1, (name, row)
        if row["kind"] == "identified":
            assert row["largest_error"] < 0.02, (name, row)
    assert tables["pairs"]["temperature+top_p"]["both"] == {"successes": 1, "trials": 1}
    for name in ("rotary_base", "rounded_record"):
        assert tables["unmodelled"][name] == {"successes": 2, "trials": 2}
    page = (tmp_path / "calibration.md").read_text()
    assert "tandem drift calibrate --out DIR --captures 8 --nulls 4 --seed 1 --faults none,temperature" in page

    # The file is cut in the middle of a line, so that trial is repeated and the others are not.
    store = tmp_path / "trials.jsonl"
    lines = store.read_text().splitlines(keepends=True)
    store.write_text("".join(lines[:-1]) + lines[-1][:20])
    code, output = calibrate(tmp_path, *GRID)
    assert code == 0 and "1/1" in output, output
    again = json.loads((tmp_path / "calibration.json").read_text())
    assert again == tables


def test_trials_of_another_study_and_unknown_faults_are_refused(tmp_path):
    (tmp_path / "trials.jsonl").write_text('{"format":"something else"}\n')
    code, output = calibrate(tmp_path)
    assert code == 3 and "trials of another study" in output
    code, output = calibrate(tmp_path, "--faults", "gremlins")
    assert code == 2 and "there are none, logit_noise" in output
