"""Interfaces for operators, read with external programs: health, reflection, /metrics and TensorBoard files; and the section
`server` of a run file."""
import json
import signal
import subprocess

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import small_run

from free_ports import free_address
from observe import scrape
from rollout_client import Server, load_stubs
from waiting import wait_until

rollout, rollout_grpc, _, _ = load_stubs()
SERVICES = ["tandem.rollout.v1.RolloutService", "tandem.weights.v1.WeightService"]


def sample(server, seed=1, tokens=24, completions=2):
    request = rollout.GenerateGroupRequest(
        group_id=seed, prompt_token_ids=[5, 6, 7], num_completions=completions,
        sampling=rollout.SamplingParams(temperature=1, max_new_tokens=tokens, seed=seed, ignore_eos=True))
    return rollout_grpc.RolloutServiceStub(server.channel).GenerateGroup(request, timeout=240)


def health(server, service=""):
    stub = health_pb2_grpc.HealthStub(server.channel)
    return stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=120).status


def test_a_server_is_healthy_while_it_serves_and_not_while_it_drains(model):
    with Server(model, "--dtype", "fp32", "--set", "server.stopped_exit_code=143") as server:
        assert health(server) == health_pb2.HealthCheckResponse.SERVING
        running = [sample(server, seed=seed, tokens=400, completions=32) for seed in range(1, 30)]
        info = rollout_grpc.RolloutServiceStub(server.channel)
        wait_until(lambda: info.GetInfo(rollout.GetInfoRequest()).num_groups_running > 0, "no group runs")
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: health(server) == health_pb2.HealthCheckResponse.NOT_SERVING,
                   "still healthy after SIGTERM")
        for call in running:
            call.cancel()
        assert server.process.wait(timeout=120) == 143


def test_reflection_lists_the_services_when_it_is_asked_for(model):
    with Server(model, "--dtype", "fp32", "--reflection") as server:
        assert set(SERVICES) <= set(ProtoReflectionDescriptorDatabase(server.channel).get_services())
    with Server(model, "--dtype", "fp32") as server, pytest.raises(grpc.RpcError) as refused:
        ProtoReflectionDescriptorDatabase(server.channel).get_services()
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_server_counts_what_it_samples_on_its_metrics_page(model):
    address = free_address()
    with Server(model, "--dtype", "fp32", "--set", f"server.observe_listen={address}") as server:
        list(sample(server))
        wait_until(lambda: scrape(address).get("tandem_sampled_tokens_total") == 48, "not counted")
        page = scrape(address)
        assert page["tandem_prompt_tokens_total"] == 3, "the prompt of a group is computed once"
        assert page["tandem_live_weight_version"] == 0
        assert page["tandem_kv_capacity_tokens"] == 32768
        # The work of the steps, and the limits of the machine to compare it with.
        assert 0 < page["tandem_step_bytes_total"] / page["tandem_step_seconds_total"]
        assert page["tandem_limit_read_bytes_per_second"] > 1e8
        assert page["tandem_limit_flops_per_second"] > 1e8


def test_a_server_reads_its_section_of_a_run_file_and_flags_come_after(model, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(json.dumps({
        "server": {"engine": {"dtype": "fp32", "kv_capacity_tokens": 2048}, "reflection": True},
        "trainer": {"seed": 3}}), encoding="utf-8")
    with Server(model, "--config", str(config), "--set", "server.engine.kv_capacity_tokens=1024") as server:
        info = rollout_grpc.RolloutServiceStub(server.channel).GetInfo(rollout.GetInfoRequest(), timeout=120)
        assert (info.dtype, info.kv_capacity_tokens) == ("fp32", 1024)
        assert SERVICES[0] in ProtoReflectionDescriptorDatabase(server.channel).get_services()


def test_tensorboard_and_prometheus_show_the_numbers_of_metrics_jsonl(model, tmp_path):
    address = free_address()
    config = small_run.write_config(tmp_path, model, observe_listen=address, steps=4)
    seen = {}
    with subprocess.Popen([str(small_run.TANDEM), "run", str(config)], stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            seen.update(scrape(address))
            try:
                process.wait(timeout=0.05)
            except subprocess.TimeoutExpired:
                pass
        assert process.returncode == 0, process.stderr.read()
    steps = small_run.steps(tmp_path)
    events = EventAccumulator(str(tmp_path / "runs" / "small" / "tensorboard"))
    events.Reload()
    for key in ("reward/mean", "drift/mean_abs_delta", "optimizer/grad_norm", "push/arrived_share"):
        shown = [(event.step, event.value) for event in events.Scalars(key)]
        assert shown == [(line["step"], pytest.approx(line[key], rel=1e-6, abs=1e-12)) for line in steps]
    assert seen["tandem_trainer_loss"] in [
        pytest.approx(line["loss/total"], rel=1e-6) for line in steps], seen


@pytest.mark.parametrize("loop", [["--concurrency", "3"], ["--rate", "200"]])
def test_load_on_a_server_is_measured_as_its_callers_see_it(model, loop):
    with Server(model, "--dtype", "fp32") as server:
        done = subprocess.run(
            [str(small_run.TANDEM), "bench", "serve", server.address, "--groups", "9", "--group-size", "4",
             "--prompt-tokens", "6", "--max-new-tokens", "10", "--json", *loop],
            capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert result["groups"] == {"OK": 9}
        assert result["tokens_per_second"] == pytest.approx(9 * 4 * 10 / result["seconds"])
        for name in ("first_token_ms", "between_tokens_ms", "longest_gap_ms", "group_ms"):
            assert 0 < result[name]["p50"] <= result[name]["p99"] <= result[name]["largest"]
        assert result["between_tokens_ms"]["p50"] <= result["longest_gap_ms"]["p50"]
        refused = subprocess.run(
            [str(small_run.TANDEM), "bench", "serve", server.address, "--max-new-tokens", "100000"],
            capture_output=True, text=True, timeout=120, check=False)
        assert refused.returncode == 2
        assert "context" in refused.stderr
