"""The observe ports of the real programs: the answers of the probes over time, and following the log."""
import http.server
import os
import signal
import subprocess
import threading

import small_run

from free_ports import free_address
from observe import get, scrape
from rollout_client import BIN, Server, load_stubs
from stopped_thread import StoppedThread
from waiting import wait_until

rollout, rollout_grpc, weights, weights_grpc = load_stubs()


def observing(address, *more):
    return ("--dtype", "fp32", "--set", f"server.observe_listen={address}", *more)


def sample(server, tokens, completions=32, seed=1):
    request = rollout.GenerateGroupRequest(
        group_id=seed, prompt_token_ids=[5, 6, 7], num_completions=completions,
        sampling=rollout.SamplingParams(temperature=1, max_new_tokens=tokens, seed=seed, ignore_eos=True))
    return rollout_grpc.RolloutServiceStub(server.channel).GenerateGroup(request, timeout=120)


def claim(server, run_id, epoch):
    weights_grpc.WeightServiceStub(server.channel).InitTransfer(
        weights.InitTransferRequest(run_id=run_id, epoch=epoch), timeout=120)


def test_a_server_answers_probes_while_its_model_is_being_loaded(model, tmp_path):
    slow = tmp_path / "slow"
    slow.mkdir()
    for file in model.iterdir():
        if file.name != "config.json":
            (slow / file.name).symlink_to(file)
    os.mkfifo(slow / "config.json")  # a reader waits for a writer
    address = free_address()
    with subprocess.Popen([str(BIN / "rollout_server"), "--model", str(slow), "--listen", "127.0.0.1:0",
                           *observing(address)], stdout=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: get(address, "/livez") == (200, "starting\n"), "the port did not come up")
            assert get(address, "/startupz") == (503, "starting\n")
            assert get(address, "/readyz")[0] == 503
            assert scrape(address)["process_open_fds"] > 0
            with open(slow / "config.json", "wb") as pipe:  # it reads from the file again
                (slow / "whole").symlink_to(model / "config.json")
                (slow / "whole").replace(slow / "config.json")
                pipe.write((model / "config.json").read_bytes())
            assert process.stdout.readline().startswith("listening on ")
            wait_until(lambda: get(address, "/startupz") == (200, "the model is loaded\n"), "never started")
            assert get(address, "/readyz") == (200, "version 0; no run owns this server\n")
        finally:
            process.kill()


def test_a_server_is_not_ready_for_the_run_that_claimed_it_before_its_first_commit(model):
    address = free_address()
    with Server(model, *observing(address)) as server:
        assert get(address, "/readyz")[0] == 200
        claim(server, "run-1", 1)
        code, why = get(address, "/readyz")
        assert (code, "run 'run-1' owns this server and has committed no weights" in why) == (503, True)
        assert scrape(address)["tandem_ready"] == 0
        assert scrape(address)["tandem_owned"] == 1
        assert get(address, "/livez")[0] == 200


def test_an_engine_thread_that_hangs_fails_liveness_until_it_moves_again(model):
    address = free_address()
    with Server(model, *observing(address, "--set", "server.liveness_seconds=1")) as server:
        calls = [sample(server, tokens=400, seed=seed) for seed in range(1, 200)]
        wait_until(lambda: scrape(address)["tandem_groups_running"] > 0, "no group runs")
        with StoppedThread(server.process.pid, "tandem-engine"):
            wait_until(lambda: get(address, "/livez")[0] == 503, "a hang went unseen")
            assert "the engine has work and did not move for " in get(address, "/livez")[1]
            assert scrape(address)["tandem_engine_silent_seconds"] > 1
        wait_until(lambda: get(address, "/livez") == (200, "the engine moves\n"), "did not recover")
        for call in calls:
            call.cancel()


def test_a_process_that_is_stopped_as_a_whole_answers_no_probe(model):
    address = free_address()
    with Server(model, *observing(address)) as server:
        assert get(address, "/livez")[0] == 200
        server.process.send_signal(signal.SIGSTOP)
        try:
            # Like a probe of a kubelet, which times out.
            wait_until(lambda: get(address, "/livez", timeout=1)[0] == 0, "a stopped process answered")
        finally:
            server.process.send_signal(signal.SIGCONT)
        wait_until(lambda: get(address, "/livez")[0] == 200, "did not go on")


def test_a_draining_server_says_so(model):
    address = free_address()
    with Server(model, *observing(address)) as server:
        running = [sample(server, tokens=400, seed=seed) for seed in range(1, 40)]
        wait_until(lambda: scrape(address)["tandem_groups_running"] > 0, "no group runs")
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: get(address, "/readyz") == (503, "draining\n"), "still ready")
        assert get(address, "/livez")[0] == 200
        assert scrape(address)["tandem_draining"] == 1
        for call in running:
            call.cancel()
        assert server.process.wait(timeout=120) == 0


def test_a_trainer_has_started_once_it_reached_its_servers(model, tmp_path):
    observe = free_address()
    config = small_run.write_config(tmp_path, model, steps=400, observe_listen=observe)
    server_address = free_address()
    with subprocess.Popen([str(BIN / "trainer"), "--config", str(config), "--servers", server_address],
                          stderr=subprocess.PIPE, text=True) as trainer:
        try:
            wait_until(lambda: get(observe, "/livez") == (200, "the loop moves\n"), "the port did not come up")
            assert get(observe, "/startupz")[0] == 503
            assert get(observe, "/readyz")[0] == 503
            with Server(model, "--dtype", "fp32", port=int(server_address.split(":")[1])):
                wait_until(lambda: get(observe, "/startupz")[0] == 200, "never started")
                assert "reached its servers" in get(observe, "/startupz")[1]
                assert get(observe, "/readyz")[0] == 200
                wait_until(lambda: scrape(observe).get("tandem_trainer_step", 0) >= 2, "no step")
                status = subprocess.run([str(small_run.TANDEM), "status", "--observe", observe],
                                        capture_output=True, text=True, timeout=120, check=True).stdout
                assert status.startswith(f"trainer  {observe}  step "), status
                assert " of 400, the last " in status
                assert "servers 1 of 1 ready  ready: run small-" in status
                logs = subprocess.run([str(small_run.TANDEM), "logs", "-n", "5", observe],
                                      capture_output=True, text=True, timeout=120, check=True).stdout
                assert len(logs.splitlines()) == 5
                assert "INFO trainer: " in logs
                trainer.send_signal(signal.SIGTERM)
                assert trainer.wait(timeout=120) == 143
        finally:
            trainer.kill()


def test_only_the_first_rank_of_a_host_takes_the_port(model, tmp_path):
    observe = free_address()
    config = small_run.write_config(tmp_path, model, steps=2, observe_listen=observe)
    code, output = small_run.run(config, "--set", "launch.num_ranks=2")
    assert code == 0, output
    assert output.count("observe port") == 0  # its output goes to the log files
    logs = "".join(path.read_text() for path in (tmp_path / "runs/small/logs").glob("trainer*.log"))
    assert logs.count("observe port") == 1


def test_the_logs_of_a_run_are_read_by_its_directory_and_by_port(model, tmp_path):
    observe = free_address()
    config = small_run.write_config(tmp_path, model, steps=2)
    code, output = small_run.run(config)
    assert code == 0, output
    run = str(tmp_path / "runs/small")
    shown = subprocess.run([str(small_run.TANDEM), "logs", "-n", "3", run], capture_output=True, text=True,
                           timeout=240, check=True).stdout.splitlines()
    assert [line.split("|")[0].strip() for line in shown] == ["rollout_server_0"] * 3 + ["trainer"] * 3
    whole = (tmp_path / "runs/small/logs/trainer.log").read_text().splitlines()
    assert [line.split("| ", 1)[1] for line in shown[3:]] == whole[-3:]
    with Server(model, *observing(observe)):
        followed = subprocess.Popen([str(small_run.TANDEM), "logs", "-f", "-n", "1", observe],
                                    stdout=subprocess.PIPE, text=True)
        first = followed.stdout.readline()
        assert "rollout_server: " in first and "|" not in first, "one source needs no name"
        with Server(model, "--dtype", "fp32"):
            followed.send_signal(signal.SIGINT)
        assert followed.wait(timeout=120) == 130  # SIGINT
    gone = subprocess.run([str(small_run.TANDEM), "logs", observe], capture_output=True, text=True, timeout=120)
    assert gone.returncode == 4
    assert f"{observe}: Connection refused" in gone.stderr
    none = subprocess.run([str(small_run.TANDEM), "logs", str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert "holds no log" in none.stderr and none.returncode != 0


def test_what_tandem_prints_of_other_processes_acts_on_no_terminal(tmp_path):
    hostile = "1 m\x1b[2J\x07 \x9b31m\u202e\n".encode("utf-8") + b"2 raw \x9b31m\n"

    class Hostile(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(hostile)

        def log_message(self, *_):
            pass

    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "trainer.log").write_bytes(hostile)
    with http.server.HTTPServer(("127.0.0.1", 0), Hostile) as port:
        threading.Thread(target=port.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{port.server_address[1]}"
        for command in (("logs", address), ("logs", str(tmp_path)), ("status", "--observe", address)):
            done = subprocess.run([str(small_run.TANDEM), *command], capture_output=True, timeout=30)
            assert done.returncode == 0, done.stderr
            printed = done.stdout.decode("utf-8")
            assert "m\\u001b[2J\\u0007 \\u009b31m\\u202e" in printed, printed
            assert not any(ord(c) < 32 and c != "\n" or 0x7f <= ord(c) < 0xa0 for c in printed), printed
        port.shutdown()
