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
SHORT_DEADLINE = 8  # where the model is small and a test waits until it has passed
HISTORY = "TANDEM_TEST_HISTORY"
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


@pytest.fixture(scope="module")
def pairs(model):
    yield from pairs_of(model)


class Worker:
    """The program push_worker. `ask` waits for the answer, and `tell` does not."""

    def __init__(self, model, way, servers, env=None, deadline=DEADLINE):
        self.process = subprocess.Popen(
            [str(WORKER), str(model), way[0], way[1].replace("beside", "adapter"), str(deadline), SECRET,
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


def kind_of(way):
    """What the servers have to be for this way: whole weights come to any server, by either transport."""
    return way[1] if way[1] in ("adapter", "beside") else "plain"


def serve(model, kind, port=0, env=None):
    flags = [] if kind == "plain" else ["--set", "server.engine.weights=int8", "--set", "server.engine.kv=int8"]
    flags += ["--set", "server.engine.lora=unmerged"] if kind == "beside" else []
    return Server(model, "--dtype", "bf16", *flags, port=port, env=env)


class Pair:
    """Two servers that several tests push to, one trainer of the same run after another. `version` is the last that was
    pushed."""

    def __init__(self, model, kind):
        self.model, self.kind, self.version = model, kind, 0
        self.history = os.environ[HISTORY]  # that of the module, for a server that a test starts again, too
        self.started = contextlib.ExitStack()
        self.servers = [self.started.enter_context(serve(model, kind)) for _ in range(2)]

    def restart(self, index):
        """Starts the server, which was killed, again at its address."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(HISTORY, self.history)
            port = int(self.servers[index].address.split(":")[1])
            self.servers[index] = self.started.enter_context(serve(self.model, self.kind, port))

    def next(self):
        self.version += 1
        return self.version


def pairs_of(model):
    """A function from a way to its Pair. Servers without a push use no processor, so that all may wait for their next test."""
    held = {}

    def get(way):
        kind = kind_of(way)
        if kind not in held:
            held[kind] = Pair(model, kind)
        return held[kind]

    yield get
    for pair in held.values():
        pair.started.close()


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
def test_a_server_killed_in_a_push_does_not_keep_the_others_from_it_and_comes_back(pairs, model, way):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)
    pair = pairs(way)
    servers = pair.servers
    with Worker(model, way, servers) as worker:
        for i in range(2):
            worker.claim(i)
        delivered(worker.ask(f"push {pair.next()}"), [0, 1])
        usual = duration_of(worker, pair.next())
        for _ in range(2):
            victim = draw.randrange(2)
            timer = after(draw.uniform(0, usual), servers[victim].process.kill)
            start = time.monotonic()
            answer = worker.ask(f"push {pair.next()}")
            timer.join()
            assert time.monotonic() - start < BOUND
            other = str(1 - victim)
            assert answer[other]["status"] == "OK", answer
            # The process that was killed may have answered before.
            pair.restart(victim)
            if answer[str(victim)]["status"] == "OK":  # the proof of delivery finds it, as before a train step
                assert "UNAVAILABLE" in worker.ask("verify")[str(victim)]
            worker.claim(victim)
            assert worker.ask("verify")[other] == "OK"
            answer = worker.ask(f"push {pair.next()}")
            assert all(push["status"] == "OK" for push in answer.values()), answer
            assert all(status == "OK" for status in worker.ask("verify").values())
            assert live(servers[0]) == live(servers[1])


@pytest.mark.parametrize("way", WAYS, ids="_".join)
def test_a_trainer_killed_in_a_push_leaves_its_version_or_the_one_before_and_the_next_trainer_pushes(pairs, model, way):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)
    pair = pairs(way)
    servers = pair.servers
    known = {}  # version -> digests
    for _ in range(2):
        with Worker(model, way, servers) as worker:
            for i in range(2):
                worker.claim(i)
            usual = 0
            for _ in range(2):
                version = pair.next()
                usual = duration_of(worker, version)
                known[version] = live(servers[0])[1]
                assert live(servers[1]) == (version, known[version])
            timer = after(draw.uniform(0, usual), worker.process.kill)
            worker.tell(f"push {pair.next()}")
            timer.join()
            worker.process.wait()
        for server in servers:
            number, digests = live(server)
            assert number in (version, version + 1)
            if number == version:
                assert digests == known[version]


# The tests from here on do not need a push that takes long.
@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    return small_run.make_model(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def small_pairs(small_model):
    yield from pairs_of(small_model)


@pytest.mark.parametrize("way", [WAYS[0], GROUP, ADAPTER], ids="_".join)
def test_a_server_that_hangs_is_out_at_the_deadline_and_the_others_have_the_version(small_pairs, small_model, way):
    pair = small_pairs(way)
    servers = pair.servers
    with Worker(small_model, way, servers, deadline=SHORT_DEADLINE) as worker:
        for i in range(2):
            worker.claim(i)
        delivered(worker.ask(f"push {pair.next()}"), [0, 1])
        before = live(servers[1])
        servers[1].process.send_signal(signal.SIGSTOP)
        try:
            start = time.monotonic()
            answer = worker.ask(f"push {pair.next()}")
            assert time.monotonic() - start < 3 * BOUND
        finally:
            servers[1].process.send_signal(signal.SIGCONT)
        assert answer["0"]["status"] == "OK" and answer["1"]["status"] != "OK", answer
        assert worker.ask("verify") == {"0": "OK"}
        assert live(servers[0])[0] == pair.version
        assert live(servers[1]) == before
        # After another claim, it gets the next version with the others.
        worker.claim(1)
        delivered(worker.ask(f"push {pair.next()}"), [0, 1])
        assert live(servers[0]) == live(servers[1])


# Faults at each step of a push, with a fail point (common/base/fail_point.h). "NAME:N" is the N-th time that a process passes
# it. After pushes without a fault, the next one passes the point. "middle" is half of its chunks; each tensor has one chunk.
def fail_at(step, model, way, pushes_before, num_servers=1):
    """The variables with which a process dies at `step` of the push that comes after so many. `step` is a side and a name, and
    either "middle", or how often a push passes the point and at which of these times it is to die."""
    name, *times = step
    if times == ["middle"]:
        names = tensor_bytes(model)
        sent = 2 * sum("_proj." in name for name in names) if way[1] in ("adapter", "beside") else len(names)
        times = (num_servers * sent, num_servers * sent // 2)
    each, which = times
    return {"TANDEM_FAIL_POINT": f"{name}:{each * pushes_before + which}"}


RECEIVER_STEPS = [("receiver: begun", 1, 1), ("receiver: chunk", "middle"), ("receiver: verified", 1, 1),
                  ("receiver: packed", 1, 1), ("receiver: installed", 1, 1), ("receiver: committed", 1, 1)]


@pytest.mark.parametrize("way", [STREAM, GROUP, ADAPTER, BESIDE], ids="_".join)
def test_a_server_killed_at_each_step_of_a_push_comes_back_and_the_next_push_arrives(small_pairs, small_model, way):
    """The server that comes back from one death dies at the next step of its second push."""
    pair = small_pairs(way)
    other = pair.servers[1]
    deaths = [fail_at(step, small_model, way, pushes_before=1) for step in RECEIVER_STEPS]
    with contextlib.ExitStack() as stack:
        victim = stack.enter_context(serve(small_model, pair.kind, env=deaths[0]))
        worker = stack.enter_context(Worker(small_model, way, [victim, other]))
        for i in range(2):
            worker.claim(i)
        delivered(worker.ask(f"push {pair.next()}"), [0, 1])
        for death, next_death in zip(deaths, [*deaths[1:], None]):
            answer = worker.ask(f"push {pair.next()}")
            assert victim.process.wait(timeout=240) == -signal.SIGKILL, f"it never came to '{death}'"
            assert answer["0"]["status"] != "OK" and answer["1"]["status"] == "OK", (death, answer)
            assert live(other)[0] == pair.version, death
            victim = stack.enter_context(serve(small_model, pair.kind, int(victim.address.split(":")[1]), env=next_death))
            worker.claim(0)
            delivered(worker.ask(f"push {pair.next()}"), [0, 1])
            assert live(victim) == live(other) and live(other)[0] == pair.version, death


# A push over streams begins for each server, and one over a group once. After a death in which a server had committed, the next
# trainer need not commit there, so one without a death comes before the next count. None is a trainer that is not killed.
STREAM_STEPS = [("publisher: begun", 2, 1), ("publisher: chunk", "middle"), ("publisher: sent", 2, 1),
                ("publisher: committed", 2, 1), None, ("publisher: committed", 2, 2), None]
GROUP_STEPS = [("publisher: begun", 1, 1), *STREAM_STEPS[2:]]


@pytest.mark.parametrize("way, steps", [(STREAM, STREAM_STEPS), (GROUP, GROUP_STEPS), (ADAPTER, STREAM_STEPS)],
                         ids=["_".join(way) for way in (STREAM, GROUP, ADAPTER)])
def test_a_trainer_killed_at_each_step_of_a_push_leaves_whole_versions_and_the_next_trainer_pushes(
        small_pairs, small_model, way, steps):
    """The trainer that comes after one that was killed pushes that version and another, and is killed at the next step of its
    third push."""
    pair = small_pairs(way)
    servers = pair.servers
    known, left = {}, []  # version -> digests, and what each server had when the trainer was dead
    version = pair.next()
    for step in steps:
        death = fail_at(step, small_model, way, pushes_before=2, num_servers=2) if step else None
        with Worker(small_model, way, servers, env=death) as worker:
            for i in range(2):
                worker.claim(i)
            for pushed in (version, pair.next()):
                delivered(worker.ask(f"push {pushed}"), [0, 1])
                known[pushed] = live(servers[0])[1]
                assert live(servers[1]) == (pushed, known[pushed]), death
            assert all(digests == known[number] for number, digests in left), "the killed trainer left a part of a version"
            version = pair.next()
            if step:
                worker.tell(f"push {version}")
                assert worker.answer() is None and worker.process.wait(timeout=240) == -signal.SIGKILL, death
                left = [live(server) for server in servers]
                assert all(number in (version - 1, version) for number, _ in left), death
    assert live(servers[0]) == live(servers[1]) and live(servers[0])[0] == version - 1
