"""The trainer takes rollouts from a server of another engine: a fake vLLM that serves the same model through `transformers`, and so
loads for real the directories that the trainer writes."""
import json
import multiprocessing
import os
import subprocess
import threading
import urllib.error
import urllib.request

import pytest

import small_run
from free_ports import free_port
from waiting import wait_until

FORKS = multiprocessing.get_context("forkserver")  # of a process that has imported what each fake vLLM needs: it takes seconds
FORKS.set_forkserver_preload(["torch", "transformers.models.auto.modeling_auto", "transformers.models.llama.modeling_llama",
                              "transformers.models.auto.tokenization_auto"])
TRAINER = small_run.TANDEM.parent / "trainer"


def serve(arguments):
    import fake_vllm
    fake_vllm.main(arguments)


class FakeVllm:
    """The server as a process that can be killed and started again on its port."""

    def __init__(self, model, folder, *arguments):
        self.port, self.log = free_port(), folder / "vllm.jsonl"
        self.arguments = ["--model", str(model), "--port", str(self.port), "--log", str(self.log), *arguments]
        self.process = None

    @property
    def entry(self):
        return f"vllm://127.0.0.1:{self.port}"

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()

    def start(self):
        self.process = FORKS.Process(target=serve, args=(self.arguments,), daemon=True)
        self.process.start()
        wait_until(self.answers, "the fake vLLM does not answer", 120)

    def kill(self):
        self.process.kill()
        self.process.join()

    def answers(self):
        assert self.process.is_alive(), "the fake vLLM ended"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                return True
        except (urllib.error.URLError, ConnectionError):
            return False

    def calls(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def loaded(self):
        return [call["kwargs"]["weights_path"] for call in self.calls() if call["call"] == "/collective_rpc"]


def train(folder, model, server, *arguments, **trainer):
    path = small_run.write_config(folder, model, servers=[server.entry], **trainer)
    done = subprocess.run([str(TRAINER), "--config", str(path), *arguments], capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout + done.stderr


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_trains_on_what_a_foreign_server_samples_and_pushes_weights_into_it(model, tmp_path):
    with FakeVllm(model, tmp_path) as server:
        code, output = train(tmp_path, model, server, "--set", "trainer.capture.every=3",
                             "--set", "trainer.probe.every=1", "--set", "trainer.split.every=0")
        assert code == 0, output
        run = tmp_path / "runs" / "small"
        # Both sides compute in float32: the log-probs that vLLM recorded are the trainer's, and stay so as weights move.
        for line in small_run.steps(tmp_path):
            assert 0 < line["drift/mean_abs_delta"] < 1e-4
            assert line["loss/num_tokens"] > 0
            # What the server does not say is not known, and not zero.
            assert line["drift/calibration_z"] is None
        last = small_run.steps(tmp_path)[-1]
        assert last["drift/probe/k3"] < 1e-6 and last["drift/delivery/behind"] == 0
        deliveries = small_run.events(tmp_path, "foreign_delivery")
        assert [event["version"] for event in deliveries] == [0, 1, 2, 3]
        assert deliveries[0]["probe_moved"] == 0, "the server had the trainer's starting weights"
        assert all(event["probe_moved"] > 10 and event["mean_abs_change"] > 1e-5 for event in deliveries[1:])
        # transformers keeps every tensor as it is in the file.
        assert all(event["proven"] == event["parameters"] > 20 for event in deliveries)
        weights = run / "foreign_weights"
        assert server.loaded() == [str(weights / f"version_{version}") for version in range(4)]
        assert sorted(path.name for path in weights.iterdir()) == ["version_2", "version_3"], "the last two are kept"
        group = lines(run / "rollouts" / "step_1.jsonl")[0]
        assert group["server"] == server.entry
        assert group["completions"][0]["entropies"] == []
        card = json.loads((run / "run.json").read_text())
        assert card["servers"][0]["numerics"] == "foreign" and card["servers"][0]["dtype"] == "fp32"
        assert (run / "captures" / "step_3" / "manifest.json").exists()


def test_a_server_that_was_started_anew_gets_the_weights_again(model, tmp_path):
    with FakeVllm(model, tmp_path) as server:
        result = []
        runs = threading.Thread(target=lambda: result.append(train(tmp_path, model, server, steps=6)))
        runs.start()
        metrics = tmp_path / "runs" / "small" / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and len(small_run.steps(tmp_path)) >= 2, "the run makes no steps")
        server.kill()
        before = len(server.loaded())
        server.start()
        runs.join()
        code, output = result[0]
        assert code == 0, output
        steps = small_run.steps(tmp_path)
        assert [line["step"] for line in steps] == list(range(1, 7))
        assert len(server.loaded()) > before
        # Groups of the weights that it came back with would differ by as much as the steps moved them.
        assert max(line["drift/mean_abs_delta"] for line in steps) < 1e-4
        kinds = [event["kind"] for event in lines(tmp_path / "runs" / "small" / "events.jsonl")]
        assert "server_lost" in kinds and "server_back" in kinds


@pytest.mark.parametrize("arguments, temperature, message", [
    (["--no-dev-mode"], 1, "VLLM_SERVER_DEV_MODE=1"),
    (["--logprobs-mode", "raw_logprobs"], 0.7, "--logprobs-mode processed_logprobs")])
def test_a_server_that_cannot_be_trained_on_is_refused_with_what_to_set(model, tmp_path, arguments, temperature, message):
    with FakeVllm(model, tmp_path, *arguments) as server:
        code, output = train(tmp_path, model, server, sampling={"temperature": temperature, "max_new_tokens": 12})
    assert code == 2 and message in output, output
    assert server.entry in output


def test_another_tokenizer_is_refused(model, tmp_path):
    other = small_run.make_model(tmp_path / "other", "--vocab-size", "300")
    with FakeVllm(other, tmp_path) as server:
        code, output = train(tmp_path, model, server)
    assert code == 2 and "another tokenizer" in output, output


def test_filters_are_refused_before_anything_is_called(model, tmp_path):
    server = FakeVllm(model, tmp_path)
    code, output = train(tmp_path, model, server, sampling={"top_k": 20, "max_new_tokens": 12})
    assert code == 2 and "top_k 0" in output and server.entry in output, output
