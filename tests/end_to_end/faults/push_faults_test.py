"""Weight pushes from a real publisher to real servers, where either side is killed at each step of a push, or is killed or
stopped at a random moment. The servers that are left have the previous or the new version, never a mixture, and the next push
arrives. Seeds are printed."""
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import threading
import time

import pytest

import small_run

from rollout_client import Server, load_stubs
from waiting import wait_until
from weight_pusher import tensor_bytes

_, _, weights_pb, weights_grpc = load_stubs()
WORKER = pathlib.Path(os.environ["TANDEM_TESTS"]) / "push_worker"
WAYS = [("stream", "dense"), ("stream", "delta"), ("collective", "dense"), ("collective", "delta"),
        ("stream", "adapter"), ("collective", "adapter"),  # adapters of servers that quantise what they make
        ("stream", "beside")]                              # of servers that apply them beside quantised weights
STREAM, GROUP = WAYS[1], WAYS[3]
ADAPTER, BESIDE = WAYS[4], WAYS[6]
DEADLINE = 15  # seconds allowed for an operation
SECRET = "the secret of run 'run', in every process that goes on with it"
BOUND = 180    # seconds within which a push that lost a process has ended


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """27 million parameters, so that a push takes long enough to be interrupted."""
    folder = tmp_path_factory.mktemp("model")
    text = folder / "text.txt"
    text.write_text("".join(chr(97 + i % 26) + (" " if i % 5 == 0 else "") for i in range(4000)), encoding="utf-8")
    subprocess.run([str(small_run.TANDEM), "init", "--out", str(folder / "big"), "--text", str(text), "--hidden", "512",
                    "--layers", "8", "--heads", "8", "--intermediate", "1536"], check=True, timeout=120,
                   capture_output=True)
    return folder / "big"


class Worker:
    """The program push_worker. `ask` waits for the answer, and `tell` does not."""

    def __init__(self, model, way, servers, env=None):
        self.process = subprocess.Popen(
            [str(WORKER), str(model), way[0], way[1].replace("beside", "adapter"), str(DEADLINE), SECRET,
             *[server.address for server in servers]],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, **(env or {})})
        assert self.process.stdout.readline() == "ready\n"

    def tell(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def ask(self, what):
        self.tell(what)
        return self.answer()

    def claim(self, server):
        # A channel that lost its server fails calls at once until it has connected again.
        answers = []

        def claimed():
            answers.append(self.ask(f"claim {server}"))
            return answers[-1] == "OK"

        wait_until(claimed, answers)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def serve(model, way, port=0, env=None):
    flags = ["--set", "server.engine.weights=int8", "--set", "server.engine.kv=int8"] if way[1] in ("adapter", "beside") else []
    flags += ["--set", "server.engine.lora=unmerged"] if way[1] == "beside" else []
    return Server(model, "--dtype", "bf16", *flags, port=port, env=env)


def after(seconds, action):
    """Runs `action` in a thread after this many seconds, without waiting for anything else."""
    timer = threading.Timer(seconds, action)
    timer.start()
    return timer


def live(server):
    stub = weights_grpc.WeightServiceStub(server.channel)
    info = stub.GetWeightInfo(weights_pb.GetWeightInfoRequest(), timeout=120)
    digests = [*info.live_digests, *info.merged_digests, *info.served_digests]
    return info.live_version, [(digest.name, digest.xxh3_128) for digest in digests]


def delivered(answer, servers):
    assert answer is not None and set(answer) == {str(i) for i in servers}
    assert all(push["status"] == "OK" for push in answer.values()), answer


def duration_of(worker, version):
    """The duration of a push without a fault, in seconds."""
    start = time.monotonic()
    answer = worker.ask(f"push {version}")
    assert all(push["status"] == "OK" for push in answer.values()), answer
    return time.monotonic() - start


@pytest.mark.parametrize("way", WAYS, ids="_".join)
def test_a_server_killed_in_a_push_does_not_keep_the_others_from_it_and_comes_back(model, way):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(serve(model, way)) for _ in range(2)]
        worker = stack.enter_context(Worker(model, way, servers))
        for i in range(2):
            worker.claim(i)
        delivered(worker.ask("push 1"), [0, 1])
        usual = duration_of(worker, 2)
        version = 2
        for _ in range(2):
            victim = draw.randrange(2)
            timer = after(draw.uniform(0, usual), servers[victim].process.kill)
            version += 1
            start = time.monotonic()
            answer = worker.ask(f"push {version}")
            timer.join()
            assert time.monotonic() - start < BOUND
            other = str(1 - victim)
            assert answer[other]["status"] == "OK", answer
            # The process that was killed may have answered before.
            port = int(servers[victim].address.split(":")[1])
            servers[victim] = stack.enter_context(serve(model, way, port))
            if answer[str(victim)]["status"] == "OK":  # the proof of delivery finds it, as before a train step
                assert "UNAVAILABLE" in worker.ask("verify")[str(victim)]
            worker.claim(victim)
            assert worker.ask("verify")[other] == "OK"
            version += 1
            answer = worker.ask(f"push {version}")
            assert all(push["status"] == "OK" for push in answer.values()), answer
            assert all(status == "OK" for status in worker.ask("verify").values())
            assert live(servers[0]) == live(servers[1])


@pytest.mark.parametrize("way", WAYS, ids="_".join)
def test_a_trainer_killed_in_a_push_leaves_its_version_or_the_one_before_and_the_next_trainer_pushes(model, way):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(serve(model, way)) for _ in range(2)]
        known = {}  # version -> digests
        version = 0
        for _ in range(2):
            with Worker(model, way, servers) as worker:
                for i in range(2):
                    worker.claim(i)
                usual = 0
                for _ in range(2):
                    version += 1
                    usual = duration_of(worker, version)
                    known[version] = live(servers[0])[1]
                    assert live(servers[1]) == (version, known[version])
                timer = after(draw.uniform(0, usual), worker.process.kill)
                worker.tell(f"push {version + 1}")
                timer.join()
                worker.process.wait()
            for server in servers:
                number, digests = live(server)
                assert number in (version, version + 1)
                if number == version:
                    assert digests == known[version]
            version += 1


@pytest.mark.parametrize("way", [WAYS[0], GROUP, ADAPTER], ids="_".join)
def test_a_server_that_hangs_is_out_at_the_deadline_and_the_others_have_the_version(model, way):
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(serve(model, way)) for _ in range(2)]
        worker = stack.enter_context(Worker(model, way, servers))
        for i in range(2):
            worker.claim(i)
        delivered(worker.ask("push 1"), [0, 1])
        before = live(servers[1])
        servers[1].process.send_signal(signal.SIGSTOP)
        try:
            start = time.monotonic()
            answer = worker.ask("push 2")
            assert time.monotonic() - start < 3 * BOUND
        finally:
            servers[1].process.send_signal(signal.SIGCONT)
        assert answer["0"]["status"] == "OK" and answer["1"]["status"] != "OK", answer
        assert worker.ask("verify") == {"0": "OK"}
        assert live(servers[0])[0] == 2
        assert live(servers[1]) == before
        # After another claim, it gets the next version with the others.
        worker.claim(1)
        delivered(worker.ask("push 3"), [0, 1])
        assert live(servers[0]) == live(servers[1])


# Faults at each step of a push, with a fail point (common/base/fail_point.h). "NAME:N" is the N-th time that it is passed.
# Version 1 is pushed without a fault, and version 2 passes the point. "middle" is half of the chunks of version 2; each tensor
# has one chunk.
@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    return small_run.make_model(tmp_path_factory.mktemp("small"))


def fail_at(point, model, way, num_servers=1):
    names = tensor_bytes(model)
    sent = 2 * sum("_proj." in name for name in names) if way[1] in ("adapter", "beside") else len(names)
    chunks = num_servers * sent
    return {"TANDEM_FAIL_POINT": point.replace("middle", str(chunks + chunks // 2))}


@pytest.mark.parametrize("point", ["receiver: begun:2", "receiver: chunk:middle", "receiver: verified:2", "receiver: packed:2",
                                   "receiver: installed:2", "receiver: committed:2"])
@pytest.mark.parametrize("way", [STREAM, GROUP, ADAPTER, BESIDE], ids="_".join)
def test_a_server_killed_at_each_step_of_a_push_comes_back_and_the_next_push_arrives(small_model, way, point):
    with contextlib.ExitStack() as stack:
        victim = stack.enter_context(serve(small_model, way, env=fail_at(point, small_model, way)))
        other = stack.enter_context(serve(small_model, way))
        worker = stack.enter_context(Worker(small_model, way, [victim, other]))
        for i in range(2):
            worker.claim(i)
        delivered(worker.ask("push 1"), [0, 1])
        answer = worker.ask("push 2")
        assert victim.process.wait(timeout=240) == -signal.SIGKILL, f"it never came to '{point}'"
        assert answer["0"]["status"] != "OK" and answer["1"]["status"] == "OK", answer
        assert live(other)[0] == 2
        again = stack.enter_context(serve(small_model, way, int(victim.address.split(":")[1])))
        worker.claim(0)
        delivered(worker.ask("push 3"), [0, 1])
        assert live(again) == live(other) and live(other)[0] == 3


@pytest.mark.parametrize("way, point", [
    *((way, f"publisher: {step}") for way in (STREAM, ADAPTER)
      for step in ("begun:3", "chunk:middle", "sent:3", "committed:3", "committed:4")),
    *((GROUP, f"publisher: {step}") for step in ("begun:2", "sent:3", "committed:3", "committed:4"))],
    ids=lambda value: value if isinstance(value, str) else "_".join(value))
def test_a_trainer_killed_at_each_step_of_a_push_leaves_whole_versions_and_the_next_trainer_pushes(small_model, way, point):
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(serve(small_model, way)) for _ in range(2)]
        known = {}
        with Worker(small_model, way, servers, env=fail_at(point, small_model, way, num_servers=2)) as worker:
            for i in range(2):
                worker.claim(i)
            delivered(worker.ask("push 1"), [0, 1])
            known[1] = live(servers[0])[1]
            worker.tell("push 2")
            assert worker.answer() is None and worker.process.wait(timeout=240) == -signal.SIGKILL, point
        left = [live(server) for server in servers]
        assert all(version in (1, 2) for version, _ in left)
        assert all(digests == known[1] for version, digests in left if version == 1)
        with Worker(small_model, way, servers) as worker:
            for i in range(2):
                worker.claim(i)
            delivered(worker.ask("push 2"), [0, 1])
            known[2] = live(servers[0])[1]
            assert all(digests == known[2] for version, digests in left if version == 2)
            delivered(worker.ask("push 3"), [0, 1])
        assert live(servers[0]) == live(servers[1]) and live(servers[0])[0] == 3
