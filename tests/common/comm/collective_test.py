"""Collectives between real processes, over Gloo, or NCCL with TEST_BACKEND=nccl: values, who is named when one dies, hangs or lags, groups of
survivors, and who may join at all. The ranks run collective_worker."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from free_ports import free_port

BACKEND = os.environ.get("TEST_BACKEND", "gloo")
# The conformance suite: these tests run over every backend, as many ranks as there are devices. ctest picks
# them by these words (CMakeLists.txt).
WORLDS = [pytest.param(world, id=name) for world, name in [(1, "one_rank"), (2, "two_ranks"), (4, "four_ranks")]]
WORKER = pathlib.Path(os.environ["TANDEM_TESTS"]) / "collective_worker"


def environment(rank, world, port, **extra):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "OMPI", "PET_"))}
    return {**clean, "RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world),
            "OMP_NUM_THREADS": "1", "TEST_SECONDS": "20", "TEST_BACKEND": BACKEND, **extra}


class Rank:
    def __init__(self, commands, variables):
        self.process = subprocess.Popen([str(WORKER), *commands], env=variables, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.lines = []

    def until(self, start):
        """Reads on to the line that starts so."""
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith(start):
                return
        raise AssertionError(f"no line '{start}' in {self.lines}")

    def end(self):
        """All lines, as {command: outcome}; the last of equal commands. Whoever waits for input goes on."""
        self.process.stdin.close()
        self.lines += self.process.stdout.read().splitlines()  # not communicate(): until() may have read ahead
        self.process.wait(timeout=60)
        return dict(line.split(": ", 1) for line in self.lines if ": " in line)


@pytest.fixture
def ranks():
    """Starts ranks; whatever is left of them ends with the test."""
    started = []

    def start(*commands, port=None, world=None, first=0, **extra):
        port = port or free_port()
        group = [Rank(list(words), environment(first + i, world or len(commands), port, **extra))
                 for i, words in enumerate(commands)]
        started.extend(group)
        return group

    yield start
    for rank in started:
        if rank.process.poll() is None:
            rank.process.kill()
        rank.process.stdin.close()
        rank.process.stdout.close()
        rank.process.wait()


@pytest.mark.parametrize("world", WORLDS)
def test_every_operation_gives_the_values_of_its_definition_at_every_rank(ranks, world):
    words = ["all_reduce", "all_reduce_max", f"broadcast:{world - 1}", f"bytes:{world - 1}", f"device_bytes:{world - 1}", "all_gather", "reduce_scatter", "barrier",
             "start:5", "large:2"]
    outcomes = [rank.end() for rank in ranks(*[words] * world)]
    total, last = sum(range(world)), world - 1
    for r, found in enumerate(outcomes):
        assert found["joined"] == f"{r} of {world}"
        assert found["all_reduce"] == f"{total} {total + world} {total + 2 * world}"
        assert found["all_reduce_max"] == f"{last} {last + 1} {last + 2}"
        assert found[f"broadcast:{last}"] == f"{last} {last + 1} {last + 2}"
        assert found[f"bytes:{last}"] == " ".join([str(10 + last)] * 3)
        on_device = found[f"device_bytes:{last}"]
        if BACKEND == "nccl":
            assert on_device == " ".join([str(10 + last)] * 3)
        else:
            assert on_device == "INVALID_ARGUMENT: a group over Gloo cannot broadcast memory of a device: take NCCL"
        gathered = [value for rank in range(world) for value in (rank, rank + 1, rank + 2)]
        assert found["all_gather"] == " ".join(map(str, gathered[:8]))
        assert found["reduce_scatter"] == f"{2 * r * world} {(2 * r + 1) * world}"
        assert found["barrier"] == "OK"
        assert found["start:5"] == " ".join(str(world * (i + 1)) for i in range(5))
        assert found["large:2"].split() == [str(world)] * 8


def test_a_rank_that_died_is_named_soon_by_all_others_and_the_group_stays_broken(ranks):
    start = time.monotonic()
    group = ranks(["all_reduce", "all_reduce", "barrier"], ["all_reduce", "all_reduce", "barrier"],
                  ["all_reduce", "die"], TEST_SECONDS="240")
    names = {}
    for r in (0, 1):
        found = group[r].end()
        message = found["all_reduce"]
        assert message.startswith("UNAVAILABLE: all_reduce 2 of group first (0.0 MB, 3 ranks) failed after"), message
        names[r] = re.search(r"rank 2 \(\S+:(\d+)\) is silent: dead, stopped or cut off", message)
        assert names[r] and int(names[r][1]) == group[2].process.pid, message
        assert found["barrier"] == message, "the first failure is what every later call says"
    assert time.monotonic() - start < 120, "long before the deadline of 240 s"


def test_a_rank_that_hangs_is_named_when_the_deadline_has_passed(ranks):
    group = ranks(["all_reduce", "all_reduce"], ["all_reduce", "all_reduce"],
                  ["all_reduce", "mark", "wait"], TEST_SECONDS="10")
    group[2].until("mark")
    group[2].process.send_signal(signal.SIGSTOP)
    for r in (0, 1):
        message = group[r].end()["all_reduce"]
        assert "all_reduce 2" in message and re.search(r"rank 2 \(\S+\) is silent", message), message


def test_a_rank_that_lags_is_named_and_is_not_called_dead(ranks):
    group = ranks(["all_reduce", "all_reduce"], ["all_reduce", "all_reduce"],
                  ["all_reduce", "wait", "all_reduce"], TEST_SECONDS="10")
    group[1].end()
    message = group[0].end()["all_reduce"]
    assert re.search(r"rank 2 \(\S+\) lags: it is between collectives 1 and 2", message), message
    assert "silent" not in message
    assert "UNAVAILABLE" in group[2].end()["all_reduce"], "it comes too late, and is told so"


def test_a_straggler_is_named_while_the_others_go_on_waiting_and_nothing_ends(ranks):
    group = ranks(["all_reduce", "all_reduce"], ["all_reduce", "mark", "wait", "all_reduce"], TEST_SECONDS="60",
                  TEST_LAG="1")
    group[0].until("lag")
    assert re.search(r"in collective 2 for \d+ s: rank 1 \(\S+\) lags: it is between collectives 1 and 2",
                     group[0].lines[-1]), group[0].lines
    outcome = group[1].end()  # goes on
    assert "UNAVAILABLE" not in outcome["all_reduce"] and "lag" not in outcome
    assert group[0].end()["all_reduce"] == outcome["all_reduce"]


def test_a_holder_of_the_store_that_hangs_is_named_in_bounded_time(ranks):
    group = ranks(["mark", "wait"], ["mark", "all_reduce"], TEST_SECONDS="10")
    group[0].until("mark")
    group[0].process.send_signal(signal.SIGSTOP)
    start = time.monotonic()
    message = group[1].end()["all_reduce"]
    assert re.search(r"rank 0 \(\S+\), which holds the store, does not answer", message), message
    assert time.monotonic() - start < 100, "bounded by a deadline of 10 s"


def test_the_survivors_of_a_death_go_on_in_a_group_of_their_own(ranks):
    # The first all_reduce, at which all are there: a rank that died while others still connect would end the group's making.
    survivor = ["all_reduce", "all_reduce", "group:second:0,2", "all_reduce_max"]
    group = ranks(survivor, ["all_reduce", "die"], survivor)
    first, third = group[0].end(), group[2].end()
    assert "rank 1" in first["all_reduce"] and "rank 1" in third["all_reduce"]
    assert first["group:second:0,2"] == "0 of 2" and third["group:second:0,2"] == "1 of 2"
    assert first["all_reduce_max"] == third["all_reduce_max"] == "1 2 3"


@pytest.mark.parametrize("world", WORLDS[:2])
def test_an_aborted_group_says_so_at_once_and_blames_nobody(ranks, world):
    group = ranks(["barrier", "abort", "all_reduce"], *[["barrier"]] * (world - 1))
    assert group[0].end()["all_reduce"] == "ABORTED: group first was aborted: the test says so"


@pytest.mark.parametrize("world", WORLDS[:2])
def test_the_flight_record_has_the_operations_with_sizes_and_states(ranks, world):
    group = ranks(["all_reduce", "barrier", "record"], *[["all_reduce", "barrier"]] * (world - 1))
    group[0].until("barrier")
    record = json.loads(group[0].end()["record"])
    names = [entry["profiling_name"] for entry in record["entries"]]
    assert any("all_reduce" in name for name in names), names
    assert record["entries"][0]["input_sizes"] == [[3]]


def test_without_a_device_nccl_is_refused_with_what_is_missing(ranks):
    (rank,) = ranks([], TEST_BACKEND="nccl", CUDA_VISIBLE_DEVICES="")
    rank.end()
    assert rank.process.returncode == 5
    wanted = {"ON": "FAILED_PRECONDITION: group first: this machine has no CUDA device",
              "OFF": "UNIMPLEMENTED: this build has no NCCL: build the cuda preset"}
    assert rank.lines[-1] == "joined: " + wanted[os.environ["TANDEM_CUDA"]]


def test_ranks_that_do_not_come_are_named_to_everyone_after_growing_warnings(ranks):
    port = free_port()
    first, third = ranks([], port=port, world=4, TEST_MEET_SECONDS="7") + \
        ranks([], port=port, world=4, first=2, TEST_MEET_SECONDS="7")
    for rank in (first, third):
        rank.end()
        assert rank.process.returncode == 4
        assert rank.lines[-1].startswith("DEADLINE_EXCEEDED: ranks 1 and 3 of 4 did not come to 127.0.0.1:"), rank.lines
    assert re.fullmatch(r"warning: waiting for ranks 1 and 3 of 4 since 5 s, for up to 7 s", first.lines[0]), first.lines


def test_without_rank_0_the_place_where_nobody_listens_is_named(ranks):
    (second,) = ranks([], world=2, first=1, TEST_MEET_SECONDS="2")
    second.end()
    assert second.process.returncode == 4
    assert "rank 0 did not come to 127.0.0.1:" in second.lines[-1], second.lines


def test_a_process_of_an_older_launch_is_refused_and_the_others_do_not_notice(ranks):
    port = free_port()
    launch = {"TORCHELASTIC_RUN_ID": "job", "port": port}
    (first,) = ranks(["all_reduce"], world=2, TORCHELASTIC_RESTART_COUNT="1", **launch)
    (stale,) = ranks([], world=2, first=1, TORCHELASTIC_RESTART_COUNT="0", **launch)
    stale.end()
    assert stale.process.returncode == 4
    assert "rank 1 is a process of an older launch" in stale.lines[-1], stale.lines
    (second,) = ranks(["all_reduce"], world=2, first=1, TORCHELASTIC_RESTART_COUNT="1", **launch)
    assert second.end()["all_reduce"] == first.end()["all_reduce"] == "1 3 5"


def test_two_runs_on_one_port_do_not_mix(ranks):
    port = free_port()
    (first,) = ranks(["barrier"], world=2, port=port, TEST_JOB="red", TEST_MEET_SECONDS="8")
    (other,) = ranks([], world=2, port=port, first=1, TEST_JOB="blue", TEST_MEET_SECONDS="2")
    other.end()
    assert "FAILED_PRECONDITION" in other.lines[-1] and "red/none/0, this is blue/none/0" in other.lines[-1]
    (second,) = ranks(["barrier"], world=2, port=port, first=1, TEST_JOB="red")
    assert second.end()["barrier"] == first.end()["barrier"] == "OK"


def test_a_rank_that_was_started_alone_again_does_not_join(ranks):
    port = free_port()
    group = ranks(["wait"], ["wait"], port=port)
    for rank in group:
        rank.until("joined")
    (again,) = ranks([], world=2, port=port, first=1, TEST_MEET_SECONDS="2")
    again.end()
    assert "FAILED_PRECONDITION" in again.lines[-1] and "rank 1 of this launch is" in again.lines[-1], again.lines


def test_ranks_that_are_started_again_one_by_one_meet_once_all_are(ranks):
    port = free_port()
    first, second = ranks(["wait"], ["wait"], port=port)
    for rank in (first, second):
        rank.until("joined")
    second.process.kill()
    (second_again,) = ranks(["all_reduce"], world=2, port=port, first=1)  # while the first rank 0 is still there
    second_again.until("warning: waiting for rank 0")
    first.process.kill()
    first.process.wait()
    (first_again,) = ranks(["all_reduce"], world=2, port=port)
    assert second_again.end()["all_reduce"] == first_again.end()["all_reduce"] == "1 3 5"


def test_a_taken_port_is_named_with_the_variable_that_sets_another(ranks):
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))
        listener.listen()
        port = listener.getsockname()[1]
        (rank,) = ranks([], port=port)
        rank.end()
    assert f"cannot listen on port {port}" in rank.lines[-1] and "MASTER_PORT" in rank.lines[-1]


def test_torchrun_starts_the_ranks_as_it_would_start_any_program():
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node=2", "--rdzv-backend=c10d",
         "--rdzv-endpoint=127.0.0.1:0", str(WORKER), "all_reduce"],
        env={**environment(0, 1, 1), "TEST_MEET_SECONDS": "60"}, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all_reduce: 1 3 5") == 2, done.stdout + done.stderr
