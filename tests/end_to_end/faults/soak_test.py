"""Soak test: one rollout server gets random groups, cancels, aborts, deadlines, malformed requests and pushes, with each policy
for groups in flight; then with quantised weights and KV, pushes of adapters, and requests that choose among adapters. Nothing may
leak, have a wrong version, or fail with an unexpected code.

    TANDEM_SOAK_SECONDS=450 TANDEM_SOAK_SEED=7 ...   seconds per policy (5), seed (default: from the clock; printed)
"""
import collections
import contextlib
import json
import os
import random
import threading
import time

import grpc
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rollout_client import Server, load_stubs
from waiting import wait_until
from weight_pusher import AdapterPusher, WeightPusher, tensor_bytes

rollout, rollout_grpc, weights, weights_grpc = load_stubs()
SECONDS = float(os.environ.get("TANDEM_SOAK_SECONDS", "5"))
SEED = int(os.environ.get("TANDEM_SOAK_SEED", str(int(time.time()))))
NUM_CALLERS = 10
NUM_WEIGHTS = 3  # version v has the weights v mod 3
TOLERANCE = 5e-4
LEAK_BYTES = 24 << 20

CODE = grpc.StatusCode
EXPECTED = {
    "plain": {CODE.OK, CODE.RESOURCE_EXHAUSTED},
    "cancel": {CODE.OK, CODE.CANCELLED, CODE.RESOURCE_EXHAUSTED},
    "deadline": {CODE.OK, CODE.DEADLINE_EXCEEDED, CODE.RESOURCE_EXHAUSTED},
    "abort": {CODE.OK, CODE.ABORTED, CODE.RESOURCE_EXHAUSTED},
    "finish_early": {CODE.OK, CODE.ABORTED, CODE.RESOURCE_EXHAUSTED},
    "nonsense": {CODE.INVALID_ARGUMENT},
    "future": {CODE.FAILED_PRECONDITION, CODE.UNAVAILABLE},
}


class Soak:
    def __init__(self, server, model, policy, seed, adapters=None):
        """`adapters`: the names of those that the server has, where pushes are of adapters too."""
        self.server, self.policy, self.seed, self.adapters = server, policy, seed, adapters
        self.stub = rollout_grpc.RolloutServiceStub(server.channel)
        noise = np.random.default_rng(seed)
        service = weights_grpc.WeightServiceStub(server.channel)
        if adapters is None:
            original = tensor_bytes(model)
            self.weights = [original] + [{
                name: (np.frombuffer(content, np.float32) + noise.normal(0, 0.02, len(content) // 4)).astype(
                    np.float32).tobytes() for name, content in original.items()} for _ in range(NUM_WEIGHTS - 1)]
            self.pusher = WeightPusher(service, weights, original)
        else:
            self.pusher = AdapterPusher(service, weights, rank=2)
            # The first adapter changes nothing (its B are zeros): version 0, which no push made, is the base without an adapter.
            self.weights = [{tensor.name: noise.normal(0, 0.1 if number or ".lora_A." in tensor.name else 0, tuple(tensor.shape)).astype(
                np.float32).tobytes() for tensor in self.pusher.info.tensors} for number in range(NUM_WEIGHTS)]
            self.pusher.set_data(self.weights[0])
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.problems = []
        self.outcomes = collections.Counter()
        self.kept = collections.defaultdict(list)  # weights -> [(prompt, completion)] whose tokens all have one version
        self.committed = 0      # the last version that is known to be live
        self.committing = 0     # a version that may be live
        self.rss = []

    def problem(self, text):
        with self.lock:
            self.problems.append(text)
        self.stop.set()

    def request(self, dice, group_id):
        sampling = dict(temperature=dice.choice([0.0, 0.7, 1.0]), max_new_tokens=dice.randint(1, 250), seed=group_id,
                        ignore_eos=dice.random() < 0.7)
        if dice.random() < 0.2:
            sampling.update(top_p=0.9, return_support=True)
        if dice.random() < 0.2:
            sampling.update(stop_strings=["e", "zz"])
        if dice.random() < 0.1:
            sampling.update(top_logprobs=3)
        # A few prompts are repeated, so that the prefix index finds them.
        start, length = dice.randint(0, 5), dice.choice([1, 15, 16, 33, 100, 250])
        return rollout.GenerateGroupRequest(
            run_id="run", group_id=group_id, prompt_token_ids=[3 + (start * 50 + i * 7) % 300 for i in range(length)],
            adapter=dice.choice(["", *(self.adapters or [])]), num_completions=dice.randint(1, 8), priority=dice.randint(-1, 1), delivery=dice.choice([0, 1, 2]),
            sampling=rollout.SamplingParams(**sampling))

    def check(self, request, floor, completions, done, early):
        ceiling = self.committing
        if len(completions) != request.num_completions or (done.incomplete and not early):
            self.problem(f"group {request.group_id}: {len(completions)} of {request.num_completions} completions")
        for c in completions:
            size = len(c.token_ids)
            arrays = (c.behaviour_logprobs, c.raw_logprobs, c.entropies, c.logprob_second_moments,
                      c.decode_batch_sizes, c.prefix_cached, c.kept_mass)
            versions = [span.weight_version for span in c.version_spans]
            if not 1 <= size <= request.sampling.max_new_tokens or any(len(a) != size for a in arrays):
                self.problem(f"group {request.group_id}: arrays of {[len(a) for a in arrays]} for {size} tokens")
            if sum(span.num_tokens for span in c.version_spans) != size or versions != sorted(set(versions)):
                self.problem(f"group {request.group_id}: spans {c.version_spans} for {size} tokens")
            if versions[0] < floor or versions[-1] > ceiling:
                self.problem(f"group {request.group_id}: versions {versions}, live were {floor} to {ceiling}")
            if self.policy in ("abort", "drain") and len(versions) > 1:
                self.problem(f"group {request.group_id}: versions {versions} under {self.policy}")
            if len(versions) == 1:
                with self.lock:
                    kept = self.kept[versions[0] % NUM_WEIGHTS]
                    kept.append((request, c))
                    del kept[:-40]

    def call_once(self, dice, group_id):
        kind = dice.choice(["plain"] * 4 + ["cancel", "deadline", "abort", "finish_early", "nonsense", "future"])
        request = self.request(dice, group_id)
        if kind == "nonsense":
            request.prompt_token_ids.append(1 << 29)
        if kind == "future":
            request.min_weight_version = 1 << 40
        floor = self.committed
        call = self.stub.GenerateGroup(request, timeout=dice.uniform(0.001, 0.1) if kind == "deadline" else 120)
        timer = None
        if kind in ("cancel", "abort", "finish_early"):
            def act():
                if kind == "cancel":
                    call.cancel()
                else:
                    self.stub.AbortGroup(rollout.AbortGroupRequest(
                        run_id="run", group_id=group_id, finish_early=kind == "finish_early"), timeout=240)
            timer = threading.Timer(dice.uniform(0, 0.08), act)
            timer.start()
        completions, done = [], None
        try:
            for answer in call:
                if answer.HasField("completion"):
                    completions.append(answer.completion)
                else:
                    done = answer.done
            code = CODE.OK
        except grpc.RpcError as error:
            code = error.code()
            expected = EXPECTED[kind] | ({CODE.ABORTED} if self.policy == "abort" else set())
            if code not in expected:
                self.problem(f"group {group_id} ({kind}): {code} {error.details()}")
        if timer is not None:
            timer.join()
        if code == CODE.OK:
            if kind in ("nonsense", "future"):
                self.problem(f"group {group_id} ({kind}) was served")
            elif done is None:
                self.problem(f"group {group_id}: ended without GroupDone")
            else:
                self.check(request, floor, completions, done, early=kind == "finish_early")
        with self.lock:
            self.outcomes[f"{kind} {code.name}"] += 1

    def caller(self, number):
        dice = random.Random(f"{self.seed} {number}")
        count = 0
        while not self.stop.is_set():
            count += 1
            try:
                self.call_once(dice, group_id=number + NUM_CALLERS * count)
            except Exception as error:  # noqa: BLE001: a failure of a thread is a failure of the test
                self.problem(f"caller {number}: {error!r}")

    def push(self, version, flip=None):
        """Returns True if it became live. Before its commit, a version may be live; afterwards, it is."""
        self.pusher.set_data(self.weights[version % NUM_WEIGHTS])
        self.pusher.stage(version, flip)
        self.committing = version
        try:
            self.pusher.commit(version)
        except grpc.RpcError as error:
            if flip is None or error.code() != CODE.DATA_LOSS:
                self.problem(f"push {version}: {error.code()} {error.details()}")
            return False
        if flip is not None:
            self.problem(f"push {version} went live with a wrong bit in {flip}")
        self.committed = version
        return True

    def pushes(self):
        dice = random.Random(f"{self.seed} pushes")
        version = 0
        while not self.stop.wait(dice.uniform(0.02, 0.4)):
            version += 1
            names = sorted(self.weights[0])
            try:
                kind = dice.random()
                if kind < 0.15:
                    self.push(version, flip=dice.choice(names))
                elif kind < 0.3:
                    self.pusher.stage(version)
                    self.pusher.abort(version)
                else:
                    self.push(version)
            except Exception as error:  # noqa: BLE001
                self.problem(f"push {version}: {error!r}")
            with self.lock:
                self.outcomes["pushes"] += 1

    def measure(self):
        with open(f"/proc/{self.server.process.pid}/status", encoding="ascii") as file:
            self.rss.append(next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS")))

    def has_enough(self):
        with self.lock:
            kept = sum(map(len, self.kept.values()))
            return kept >= 10 and self.outcomes["plain OK"] >= 10 and self.outcomes["pushes"] >= 3

    def run(self, seconds):
        threads = [threading.Thread(target=self.caller, args=(i,)) for i in range(NUM_CALLERS)]
        threads.append(threading.Thread(target=self.pushes))
        for thread in threads:
            thread.start()
        # On a busy machine, it takes longer until there are results to check.
        slices, most = 20, 20 * 24
        for done in range(most):
            if self.stop.wait(seconds / slices) or (done >= slices and self.has_enough()):
                break
            self.measure()
        self.stop.set()
        for thread in threads:
            thread.join()


def largest_gap(soak, request, completion):
    sequence = rollout.ScoreSequence(token_ids=[*request.prompt_token_ids, *completion.token_ids])
    answer = soak.stub.Score(rollout.ScoreRequest(run_id="run", sequences=[sequence], adapter=request.adapter), timeout=120)
    live = np.array(answer.scores[0].logprobs[len(request.prompt_token_ids):])
    return np.abs(live - np.array(completion.raw_logprobs)).max()


def soak_of(model, policy, engine=(), adapters=None):
    print(f"policy {policy}, seed {SEED}, {SECONDS} s")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Server(
            model, "--dtype", "fp32", "--set", f"server.engine.in_flight={policy}",
            "--set", "server.engine.kv_capacity_tokens=4096", "--set", "server.max_queued_groups=8",
            "--set", "server.remembered_groups=16", *(word for setting in engine for word in ("--set", f"server.engine.{setting}"))))
        soak = Soak(server, model, policy, SEED, adapters)
        soak.run(SECONDS)
        assert not soak.problems, (f"seed {SEED}", soak.problems[:5])
        print(dict(soak.outcomes), f"RSS {soak.rss[0] >> 20} to {soak.rss[-1] >> 20} MiB")

        # Completions with a single version are those that its weights give.
        version = soak.committing
        assert soak.has_enough(), dict(soak.outcomes)
        for number in range(NUM_WEIGHTS):
            version += 1
            while version % NUM_WEIGHTS != number:
                version += 1
            assert soak.push(version)
            for request, completion in soak.kept[number]:
                assert largest_gap(soak, request, completion) < TOLERANCE, f"seed {SEED}"

        def info_of():
            return soak.stub.GetInfo(rollout.GetInfoRequest(), timeout=120)

        wait_until(lambda: info_of().num_groups_running == 0, "groups run that nobody waits for", 30)
        info = info_of()
        assert (info.num_groups_queued, info.kv_used_tokens) == (0, 0), "blocks are held by nobody"
        assert info.live_weight_version == version
        settled = soak.rss[len(soak.rss) // 2]
        assert soak.rss[-1] - settled < LEAK_BYTES, f"RSS {[size >> 20 for size in soak.rss]} MiB, seed {SEED}"


@pytest.mark.parametrize("policy", ["keep", "recompute", "abort", "drain"])
def test_a_server_under_random_load_leaks_nothing_and_labels_everything(model, policy):
    soak_of(model, policy)


@pytest.fixture(scope="module")
def peft_directory(model, tmp_path_factory):
    """An adapter of rank 3 in PEFT's layout."""
    folder = tmp_path_factory.mktemp("adapter")
    noise, tensors, targets = np.random.default_rng(1), {}, set()
    shapes = {name: tensor.shape for name, tensor in load_file(model / "model.safetensors").items() if "_proj." in name}
    for name, (out, width) in shapes.items():
        layer = name.removesuffix(".weight")
        targets.add(layer.rsplit(".", 1)[1])
        for part, shape in (("lora_A", (3, width)), ("lora_B", (out, 3))):
            tensors[f"base_model.model.{layer}.{part}.weight"] = noise.normal(0, 0.1, shape).astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": 3, "lora_alpha": 3, "target_modules": sorted(targets), "base_model_name_or_path": str(model)}))
    return folder


@pytest.mark.parametrize("policy, lora", [("keep", "merged"), ("recompute", "unmerged")])
def test_so_does_one_with_quantised_weights_and_kv_that_takes_adapters_and_has_some(model, peft_directory, policy, lora):
    engine = ["weights=int8", "kv=int8", f"lora={lora}", f"lora_modules={{first: {peft_directory}}}"]
    soak_of(model, policy, engine, adapters=["first"])
