"""The command line of `tandem`: its messages about mistakes, and the results of its commands."""
import json
import os
import pathlib
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from forked_tandem import forked_tandem
from waiting import wait_until

TANDEM = os.path.join(os.environ["TANDEM_BIN"], "tandem")
SOURCE = pathlib.Path(os.environ["TANDEM_SOURCE"])
TOKENIZER = SOURCE / "tests/testdata/smollm2-tokenizer"


def tandem(*arguments, text=None, cwd=None):
    return subprocess.run([TANDEM, *map(str, arguments)], input=text, capture_output=True,
                          text=True, timeout=120, check=False, cwd=cwd)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    text = folder / "text.txt"
    text.write_text("what is 1 + 2? 3. what is 4 + 5? 9.\n" * 40)
    done = tandem("init", "--out", folder / "model", "--text", text, "--hidden", 32, "--layers", 1,
                  "--heads", 2, "--kv-heads", 1, "--intermediate", 48, "--vocab", 280,
                  "--context", 64)
    assert done.returncode == 0, done.stderr
    return folder / "model"


def test_the_rollout_server_starts_without_libtorch():
    """Only what a push group needs has it, in a library that is loaded when a trainer makes one."""
    def needed(name):
        done = subprocess.run(["ldd", os.path.join(os.environ["TANDEM_BIN"], name)], capture_output=True, text=True,
                              check=True)
        return "libtorch" in done.stdout or "libc10" in done.stdout
    assert not needed("rollout_server")
    assert needed("libtandem_push_member.so") and needed("trainer")


def test_a_wrong_flag_is_named_with_the_nearest_one():
    done = tandem("generate", "--model", "x", "--temprature", "1")
    assert done.returncode == 2
    assert "unknown flag --temprature; did you mean --temperature?" in done.stderr


def test_a_wrong_command_is_named_with_the_nearest_one():
    done = tandem("tokenise")
    assert done.returncode == 2
    assert "unknown command tokenise; did you mean tokenize?" in done.stderr


@pytest.mark.parametrize("words, said", [
    (["attribute"], "unknown command attribute; did you mean tandem drift attribute?"),
    (["drift", "attribut"], "tandem drift: unknown command attribut; did you mean attribute?"),
    (["generate", "--tokens", "3"], "did you mean --max-new-tokens?"),
    (["xyzzy"], "tandem: unknown command xyzzy\n"),
    (["generate", "--xyzzy"], "tandem generate: unknown flag --xyzzy\n"),
    (["run", "examples/demo.yaml", "--set", "steps=3"], "unknown key 'steps'; the nearest valid name is 'trainer.steps'"),
    (["run", "examples/demo.yaml", "--set", "xyzzy=3"], "no valid name is near: --help-config lists them all"),
])
def test_the_nearest_name_is_offered_where_one_is_near(words, said):
    done = tandem(*words, cwd=SOURCE)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_command_that_groups_others_prints_its_help():
    for words in ([], ["drift"], ["bench"], ["render"]):
        done = tandem(*words)
        assert done.returncode == 0, done.stderr
        assert done.stdout == tandem(*words, "--help").stdout
    assert tandem("help").stdout == tandem().stdout
    assert tandem("help", "drift", "attribute").stdout == tandem("drift", "attribute", "--help").stdout
    assert "tandem drift attribute [OPTIONS]" in tandem("help", "drift", "attribute").stdout
    assert tandem("help", "nothing").returncode == 2


@pytest.mark.parametrize("command, program", [("serve", "rollout_server"), ("train", "trainer")])
def test_the_other_programs_are_subcommands(command, program):
    own = subprocess.run([os.path.join(os.environ["TANDEM_BIN"], program), "--help"], capture_output=True, text=True,
                         check=True).stdout
    assert f"Example:\n  {program} " in own
    assert tandem(command, "--help").stdout == own
    assert tandem("help", command).stdout == own
    done = tandem(command, "--no-such-flag", "--set", "a=1")
    assert done.returncode == 2 and f"{program}: unknown flag --no-such-flag" in done.stderr


def test_a_former_flag_works_and_says_its_name_of_today(model):
    line = json.dumps({"ids": [5, 6]}) + "\n"
    now = tandem("generate", "--model", model, "--max-new-tokens", 4, "--seed", 3, text=line)
    former = tandem("generate", "--model", model, "--max-tokens", 4, "--seed", 3, text=line)
    assert former.returncode == 0 and former.stdout == now.stdout
    assert "--max-tokens is called --max-new-tokens now" in former.stderr and now.stderr == ""


def test_a_flag_out_of_range_is_refused_before_anything_is_loaded():
    done = tandem("score", "--model", "x", "--dtype", "fp8")
    assert done.returncode == 2
    assert "fp8 not in {fp32,bf16}" in done.stderr


@pytest.mark.parametrize("command", ["help", "demo", "run", "plan", "ranks", "render", "status", "certs", "logs", "report", "init",
                                     "sft", "eval", "export", "tokenize", "score", "sample", "generate", "bench", "drift",
                                     "version"])
def test_every_command_explains_itself(command):
    done = tandem(command, "--help")
    assert done.returncode == 0
    assert f"tandem {command} [OPTIONS]" in done.stdout
    assert f"\n  {command} " in tandem("--help").stdout


def test_version_names_the_libraries():
    done = tandem("version")
    assert done.returncode == 0
    for name in ("commit", "LibTorch  2.", "oneDNN", "gRPC      1.", "NCCL", "compiler  g++"):
        assert name in done.stdout
    assert tandem("--version").stdout == done.stdout.splitlines()[0] + "\n"


def test_a_missing_model_says_what_a_model_is():
    done = tandem("score", "--model", "models/smollm2-nowhere", "--engine", "trainer", text="")
    assert done.returncode == 3
    assert "models/smollm2-nowhere: no such directory" in done.stderr
    assert "config.json, tokenizer.json and model.safetensors" in done.stderr
    assert "`make setup` in a checkout, or python3 -m tandem_rl.demo_model --out DIR" in done.stderr


def test_lines_before_a_malformed_one_are_answered():
    text = '{"text":"Hello, world!"}\n\n{"text":"Hello'
    done = tandem("tokenize", "--model", TOKENIZER, text=text)
    assert done.returncode == 3
    assert done.stdout == '{"ids":[19556,28,905,17]}\n'
    assert "standard input:3: not JSON at byte" in done.stderr


def test_the_file_and_line_of_a_bad_field_are_named(tmp_path):
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"ids":[1,2]}\n{"ids":[1,"2"]}\n')
    done = tandem("tokenize", "--model", TOKENIZER, "--input", lines)
    assert done.returncode == 3
    assert len(done.stdout.splitlines()) == 1
    assert f'{lines}:2: "ids"[1]: want a token id, not "2"' in done.stderr


def test_scores_before_a_bad_line_are_not_lost(model):
    done = tandem("score", "--model", model, "--engine", "trainer",
                  text='{"ids":[5,6,7]}\n{"ids":[5,99999]}\n{"ids":[5,6]}\n')
    assert done.returncode == 3
    assert len(json.loads(done.stdout)["logprobs"]) == 3
    assert "standard input:2: id 99999 at position 1 is outside the vocabulary" in done.stderr


def test_completions_before_a_bad_line_are_not_lost(model):
    done = tandem("generate", "--model", model, "--max-new-tokens", 4, "--ignore-eos",
                  text='{"prompt":"what is"}\n{"prompt":7}\n')
    assert done.returncode == 3
    assert len(json.loads(done.stdout)["completions"][0]["ids"]) == 4
    assert 'standard input:2: "prompt": want a string' in done.stderr


def test_a_prompt_over_the_context_is_refused_with_the_numbers(model):
    done = tandem("generate", "--model", model, "--max-new-tokens", 60,
                  text=json.dumps({"ids": [5] * 10}) + "\n")
    assert done.returncode == 3
    assert "prompt of 10 tokens and --max-new-tokens 60 are over" in done.stderr
    assert "context of 64" in done.stderr


def test_completions_depend_on_the_seed_alone(model):
    lines = "".join(json.dumps({"ids": [5, 6 + i]}) + "\n" for i in range(3))
    flags = ("generate", "--model", model, "--dtype", "fp32", "-n", 2, "--max-new-tokens", 8)
    first = tandem(*flags, "--seed", 1, text=lines)
    assert first.returncode == 0, first.stderr
    assert tandem(*flags, "--seed", 1, text=lines).stdout == first.stdout
    assert tandem(*flags, "--seed", 2, text=lines).stdout != first.stdout
    for line in first.stdout.splitlines():
        for completion in json.loads(line)["completions"]:
            assert len(completion["ids"]) == len(completion["behaviour_logprobs"])
            assert completion["finish_reason"] in ("stop", "length")


def test_init_does_not_overwrite_a_model(model, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("some words\n")
    done = tandem("init", "--out", model, "--text", text)
    assert done.returncode == 2
    assert "holds a model already" in done.stderr


def test_init_refuses_heads_that_do_not_divide(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("some words\n")
    done = tandem("init", "--out", tmp_path / "m", "--text", text, "--hidden", 30, "--heads", 4)
    assert done.returncode == 2
    assert "--hidden 30 does not divide by --heads 4" in done.stderr
    assert not (tmp_path / "m").exists()


def test_export_says_what_it_looked_for(tmp_path):
    done = tandem("export", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 3
    assert "neither a run with checkpoints/LATEST nor a directory with" in done.stderr


def test_export_takes_the_last_checkpoint_of_a_run(model, tmp_path):
    checkpoints = tmp_path / "run/checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "step_2").symlink_to(model)
    (checkpoints / "LATEST").write_text("step_2\n")
    done = tandem("export", tmp_path / "run", "--out", tmp_path / "out", "--dtype", "fp32")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/model.safetensors").stat().st_size > 0
    assert (tmp_path / "out/chat_template.jinja").read_text() == (
        model / "chat_template.jinja").read_text()


def test_status_of_what_is_no_run_says_what_to_name(tmp_path):
    done = tandem("status", tmp_path)
    assert done.returncode == 3
    assert f"{tmp_path} holds no run" in done.stderr and "or HOST:PORT of a process" in done.stderr


def test_status_takes_an_address_as_logs_does():
    done = tandem("status", "127.0.0.1:1", "--timeout", 1)
    assert done.returncode == 4
    assert "(as a rollout server)" in done.stdout and "(as an observe port)" in done.stdout


def test_status_of_a_server_that_is_not_there_is_exit_code_4():
    done = tandem("status", "--servers", "127.0.0.1:1", "--timeout", 1)
    assert done.returncode == 4
    assert "127.0.0.1:1" in done.stdout


@pytest.mark.parametrize("arguments, said", [
    (["rollout", "--model", "x", "--cases", "decode-8,decode-fast"], "'decode-fast', want decode-N"),
    (["rollout", "--model", "x", "--peer", "nobody"], "tests/bench/peers/nobody.py"),
    (["serve", "127.0.0.1:1", "--rate", "2", "--concurrency", "4"], "--concurrency"),
])
def test_a_wrong_benchmark_is_refused_before_anything_is_loaded(arguments, said):
    done = tandem("bench", *arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_load_on_a_server_that_is_not_there_is_exit_code_4():
    done = tandem("bench", "serve", "127.0.0.1:1")
    assert done.returncode == 4
    assert "127.0.0.1:1" in done.stderr


EXAMPLES = sorted(path.name for path in (SOURCE / "examples").glob("*.yaml"))


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_a_valid_run_file(example):
    done = tandem("run", f"examples/{example}", "--dry-run", cwd=SOURCE)
    is_pipeline = example.startswith("pipeline_")
    for line in ("stage 1 of ", "  reads   ", "  writes  ") if is_pipeline else ("launch:", "server:", "trainer:", "# Plan", "# differs from the defaults:", "# run directory: runs/"):
        assert line in done.stdout
    # Models and files that the set-up, the demo or examples/small.sh make may be missing.
    assert done.returncode in (0, 3), done.stderr


def test_a_dry_run_prints_what_a_run_file_can_hold_again(tmp_path):
    first = tandem("run", "examples/demo.yaml", "--dry-run", "--set", "trainer.steps=3", cwd=SOURCE)
    assert "steps: 3" in first.stdout
    again = tmp_path / "again.yaml"
    again.write_text(first.stdout)
    assert tandem("run", again, "--dry-run").stdout.split("# Plan")[0] == (
        first.stdout.split("# Plan")[0])
    assert "#   trainer.steps: 3  (default " in first.stdout.split("# Plan")[1]
    assert "trainer.seed" not in first.stdout.split("# Plan")[1], "it is at its default"


def test_a_dry_run_names_every_model_and_file_that_is_missing(model, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(f"trainer:\n  model: {model}\n  sampling: {{max_new_tokens: 8}}\n"
                      f"  data: {{train: {tmp_path}/none.jsonl, eval: {tmp_path}/empty.jsonl}}\n")
    (tmp_path / "empty.jsonl").write_text("")
    done = tandem("run", config, "--dry-run", "--set", f"server.model={tmp_path}/absent")
    assert done.returncode == 3
    assert f"{tmp_path}/none.jsonl: No such file or directory" in done.stderr
    assert f"model {tmp_path}/absent: no such directory" in done.stderr
    assert "empty.jsonl" not in done.stderr and "# Plan" in done.stdout
    (tmp_path / "none.jsonl").write_text('{"prompt":"one","answer":"1"}\n{"prompt":"two","answer":"2"}\n')
    (tmp_path / "empty.jsonl").write_text('{"prompt":"three","answer":"3"}\n')
    done = tandem("run", config, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "# prompts: 2 to train on, 1 held out\n" in done.stdout
    (model / "model.safetensors").rename(model / "hidden")
    try:
        done = tandem("run", config, "--dry-run")
    finally:
        (model / "hidden").rename(model / "model.safetensors")
    assert done.returncode == 3 and "no model.safetensors" in done.stderr


def test_a_dry_run_reads_the_prompts_as_the_trainer_will(model, tmp_path):
    data, config = tmp_path / "data.jsonl", tmp_path / "run.yaml"
    config.write_text(f"trainer:\n  model: {model}\n  data: {{train: {data}}}\n")
    data.write_text('{"prompt":"one","answer":"1"}\n{"prompt":"two"}\n')
    done = tandem("run", config, "--dry-run")
    assert done.returncode == 3 and f"{data}:2: no \"answer\"" in done.stderr
    data.write_text('{"prompt":"one","answer":"1"}\n')
    done = tandem("run", config, "--dry-run", "--set", "trainer.sampling.max_new_tokens=100000")
    assert done.returncode == 3 and f"{data}:1: " in done.stderr and "exceed the model's context of" in done.stderr


def test_a_dry_run_names_a_device_that_the_trainer_will_not_find(model, tmp_path):
    data, config = tmp_path / "data.jsonl", tmp_path / "run.yaml"
    config.write_text(f"trainer:\n  model: {model}\n  device: cuda\n  data: {{train: {data}}}\n")
    data.write_text('{"prompt":"one","answer":"1"}\n')
    for arguments in (["--dry-run"], []):
        done = tandem("run", config, *arguments, "--set", f"trainer.run.out={tmp_path}/runs", "--set", "launch.num_ranks=99")
        assert done.returncode == 3 and "trainer.device is cuda, and " in done.stderr, done.stderr
    assert not (tmp_path / "runs").exists()


def test_eval_counts_what_does_not_fit_into_the_context(model, tmp_path):
    data = tmp_path / "data.jsonl"
    context = json.loads((model / "config.json").read_text())["max_position_embeddings"]
    data.write_text(f'{{"prompt":"one","answer":"1"}}\n{{"prompt":"{"7 " * context}","answer":"2"}}\n')
    flags = ["eval", "--model", model, "--data", data, "--no-chat", "--reward", "any_number", "--max-new-tokens"]
    done = tandem(*flags, 4)
    assert done.returncode == 0, done.stderr
    scored = json.loads(done.stdout)
    assert (scored["num_prompts"], scored["num_too_long"]) == (1, 1)
    data.write_text(f'{{"prompt":"{"7 " * context}","answer":"2"}}\n')
    done = tandem(*flags, 4)
    assert done.returncode == 3 and "no prompt (1 lines, 1 over length)" in done.stderr
    done = tandem(*flags, context)
    assert done.returncode == 2 and "leaves no room for a prompt" in done.stderr


def test_the_configuration_reference_is_what_the_binary_prints():
    """After a change of options: tandem run --help-config > docs/configuration.md"""
    done = tandem("run", "--help-config")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (pathlib.Path(SOURCE) / "docs" / "configuration.md").read_text()


def test_an_unknown_option_is_named_with_file_line_and_the_nearest_one(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("trainer:\n  model: m\n  stepz: 3\n")
    done = tandem("run", config, "--dry-run")
    assert done.returncode == 2
    assert f"{config}:3: unknown key 'trainer.stepz'" in done.stderr
    assert "'trainer.steps'" in done.stderr


def test_the_demo_says_how_to_get_its_model(tmp_path):
    done = tandem("demo", "--out", tmp_path / "runs", "--model", "models/smollm2-absent",
                  cwd=SOURCE)
    assert done.returncode in (2, 3)
    assert "`make setup` in a checkout" in done.stderr and "python3 -m tandem_rl.demo_model" in done.stderr


def test_demos_of_one_seed_have_the_same_problems(model, tmp_path):
    for out in ("one", "two"):
        assert tandem("demo", "--dry-run", "--seed", 5, "--out", tmp_path / out, "--model", model,
                      "--set", "trainer.sampling.max_new_tokens=4", cwd=SOURCE).returncode == 0
    for part, count in (("train", 61), ("held_out", 20)):
        lines = (tmp_path / f"one/data/multiply-5/{part}.jsonl").read_text()
        assert lines == (tmp_path / f"two/data/multiply-5/{part}.jsonl").read_text()
        assert len(lines.splitlines()) == count


def test_sft_lowers_the_loss_and_leaves_a_model(model, tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"what is {i} + 1?", "answer": str(i + 1)}) + "\n"
                            for i in range(8)))
    done = tandem("sft", "--model", model, "--data", data, "--out", tmp_path / "out",
                  "--epochs", 20, "--batch", 4, "--lr", "0.01", "--warmup", 2)
    assert done.returncode == 0, done.stderr
    losses = [float(line.split("loss ")[1].split()[0]) for line in done.stderr.splitlines()]
    assert losses[-1] < 0.5 * losses[0]
    scored = tandem("eval", "--model", tmp_path / "out", "--data", data, "--max-new-tokens", 4, "-k", 2)
    assert scored.returncode == 0, scored.stderr
    assert json.loads(scored.stdout)["num_prompts"] == 8


def test_sft_names_the_line_it_cannot_learn_from(model, tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt":"a","answer":"b"}\n{"prompt":"a"}\n')
    done = tandem("sft", "--model", model, "--data", data, "--out", tmp_path / "out")
    assert done.returncode == 3
    assert f"{data}:2: " in done.stderr


@pytest.mark.parametrize("arguments, said", [
    (["--model", "8b"], "8b not in {7b,70b}"),
    (["--gpus", "1"], "not in range 2 to 16384"),
    (["--lengths", "normal:3"], "want fixed:N, uniform:LOW-HIGH or lognormal:MEAN:SIGMA:LIMIT"),
    (["--split", "4"], "--split 4: want TRAINER:ROLLOUT"),
    (["--split", "1:1", "--gpus", "8"], "--gpus excludes --split"),
    (["--split", "2:6"], "Qwen2.5-7B on 2 trainer GPUs needs 79 GB of each, of 72"),
    (["--model", "70b", "--split", "60:4"], "a multiple of 8 rollout GPUs"),
    (["--constants", "/no/such.json"], "/no/such.json"),
    (["--check", "/no/such/run"], "/no/such/run/metrics.jsonl"),
    (["--fit", "x"], "--fit goes with --check"),
])
def test_a_simulation_that_makes_no_sense_is_refused(arguments, said):
    done = tandem("bench", "simulate", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_a_simulation_is_the_same_twice_and_says_that_it_is_one():
    flags = ("--gpus", "8,32", "--model", "70b", "--prompts", "16", "--steps", "3")
    done = tandem("bench", "simulate", *flags)
    assert done.returncode == 0, done.stderr
    assert "simulated, nothing of this was run" in done.stdout
    assert "     8  does not fit: no room for a trainer and a server of 8 GPUs" in done.stdout
    answer = tandem("bench", "simulate", *flags, "--json")
    assert answer.stdout == tandem("bench", "simulate", *flags, "--json").stdout
    assert [size["gpus"] for size in json.loads(answer.stdout)["sizes"]] == [8, 32]


def test_a_run_is_held_against_its_simulation(tmp_path):
    done = tandem("bench", "simulate", "--check", SOURCE / "tests/testdata/simulated_run", "--json",
                  "--constants", SOURCE / "tests/testdata/simulated_run/constants.json")
    assert done.returncode == 0, done.stderr
    # 1.5 s of sampling, 3 of training and 0.5 of pushing (tests/cli/simulate/run_check_test.cc);
    # the recorded times are 5 and 6.25 after the first step.
    answer = json.loads(done.stdout)
    assert [step["predicted"]["step"] for step in answer["steps"]] == pytest.approx([5, 5, 5])
    assert answer["error"] == pytest.approx(10 / 11.25 - 1)
    (tmp_path / "constants.json").write_text('{"train_tokens_per_second":{"value":3}}')
    done = tandem("bench", "simulate", "--check", SOURCE / "tests/testdata/simulated_run",
                  "--constants", tmp_path / "constants.json")
    assert done.returncode == 2
    assert 'train_tokens_per_second: no "source"' in done.stderr


def test_a_program_with_libtorch_restarts_once_with_passive_threads_and_keeps_its_arguments_and_environment(tmp_path):
    chosen = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {name: value for name, value in os.environ.items() if name not in chosen} | {"KEPT": "as it is"}
    arguments = ["ui", str(tmp_path), "--listen", "127.0.0.1:0"]
    with subprocess.Popen([TANDEM, *arguments], env=environment, stdout=subprocess.PIPE) as child:
        child.stdout.readline()  # it is up
        there = pathlib.Path(f"/proc/{child.pid}")
        variables = (there / "environ").read_text().rstrip("\0").split("\0")
        words = (there / "cmdline").read_text().rstrip("\0").split("\0")
        child.terminate()
    expected = [f"{name}={value}" for name, value in environment.items()]
    assert variables == [*expected, "OMP_WAIT_POLICY=passive", "GOMP_SPINCOUNT=20000"]
    assert words == [TANDEM, *arguments]


def test_a_forked_command_answers_as_the_program_does_and_one_that_hangs_is_killed(tmp_path):
    own = tandem("score", "--model", "absent", cwd=tmp_path)
    forked = forked_tandem("score", "--model", "absent", cwd=tmp_path)
    assert (forked.returncode, forked.stdout, forked.stderr) == (own.returncode, own.stdout, own.stderr)

    def working_there():
        return [path for path in pathlib.Path("/proc").glob("[0-9]*/cwd") if os.path.exists(path) and path.resolve() == tmp_path]
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(forked_tandem, "ui", ".", "--listen", "127.0.0.1:0", cwd=tmp_path, timeout=2)
        wait_until(working_there, "the command does not start")
        with pytest.raises(TimeoutError):
            hanging.result()
    wait_until(lambda: not working_there(), "the command is still there")
    assert forked_tandem("--version").stdout == tandem("--version").stdout
