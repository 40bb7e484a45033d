"""The programs that `make install` copies run without the checkout. Needs patchelf: deploy/setup/install.sh --install."""
import json
import os
import pathlib
import subprocess

BIN = pathlib.Path(os.environ["TANDEM_BIN"])
SOURCE = pathlib.Path(os.environ["TANDEM_SOURCE"])


def test_what_is_installed_runs_without_the_checkout(tmp_path):
    prefix = tmp_path / "a prefix"
    subprocess.run([SOURCE / "deploy/setup/copy_programs.sh", BIN, prefix], check=True)
    moved = tmp_path / "moved"
    prefix.rename(moved)
    programs = ["tandem", "rollout_server", "trainer", "libtandem_push_member.so"]
    linked = subprocess.run(["ldd", *[moved / "bin" / name for name in programs]], capture_output=True, text=True,
                            check=True).stdout
    assert str(SOURCE) not in linked and "not found" not in linked
    assert f"{moved}/bin/../lib/tandem/torch/lib/libtorch_cpu.so" in linked

    def tandem(*arguments, text=""):
        done = subprocess.run([moved / "bin/tandem", *map(str, arguments)], input=text, capture_output=True, text=True,
                              check=False, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"})
        assert done.returncode == 0, done.stderr
        return done.stdout
    assert tandem("serve", "--version").startswith("rollout_server ")
    (tmp_path / "text.txt").write_text("one and one is two.\n" * 40)
    tandem("init", "--out", "model", "--text", "text.txt", "--hidden", 32, "--layers", 1, "--heads", 2, "--kv-heads", 1,
           "--intermediate", 48, "--vocab", 280, "--context", 128)
    score = tandem("score", "--model", "model", "--engine", "trainer", text='{"ids":[5,6,7]}\n')
    assert len(json.loads(score)["logprobs"]) == 3
    plan = subprocess.run([moved / "bin/tandem", "demo", "--dry-run", "--model", "model"], capture_output=True, text=True,
                          check=False, cwd=tmp_path)
    assert plan.returncode == 0, plan.stderr
    assert f"# start: {moved}/bin/rollout_server" in plan.stdout
