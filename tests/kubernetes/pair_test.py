"""Trainer and servers on a real Kubernetes control plane, with the manifests of `tandem render k8s`: the run ends, only what
failed is restarted, failures that would repeat end the run, and an evicted trainer saves. The nodes are simulated
(node_agent.py); JobSet, jobs, scheduling and evictions are real."""
import json
import os
import pathlib
import signal
import subprocess

import pytest

from control_plane import Cluster, tandem_image
import small_run

BIN = pathlib.Path(os.environ["TANDEM_BIN"])
LONG = 100000  # steps; more than a test waits for


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_run.make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def cluster(tmp_path):
    tmp_path.chmod(0o755)
    with Cluster(tmp_path, images={"tandem": tandem_image()}) as cluster:
        yield cluster


class Run:
    """A run of the small model on the cluster. Its volume has the files that the run file names."""

    def __init__(self, cluster, model, folder, *, steps, overlay="jobset", **launch):
        self.cluster = cluster
        source = folder / "source"
        source.mkdir()
        config = json.loads(small_run.write_config(source, model, steps=steps).read_text())
        config["launch"] = {"num_servers": 2, **launch, "kubernetes": {
            "overlay": overlay, "server_cpus": 0.5, "trainer_cpus": 0.5, "server_memory_gib": 0.5,
            "trainer_memory_gib": 0.5, "shm_gib": 0.0625, "step_seconds": 20, "checkpoint_seconds": 10,
            **launch.get("kubernetes", {})}}
        config["server"].update(model="models/small", drain_seconds=5)
        config["trainer"].update(model="models/small", client={"start_patience_seconds": 120, "server_patience_seconds": 60})
        config["trainer"]["run"]["out"] = "runs"
        config["trainer"]["data"]["train"] = "data/train.jsonl"
        self.config = folder / "run.yaml"
        self.config.write_text(json.dumps(config))
        cluster.kubectl("apply", "-f", str(small_run.SOURCE / "deploy" / "kubernetes" / "base" / "workspace.yaml"))
        volume = pathlib.Path(cluster.claim_folder("tandem-workspace"))
        for name, origin in (("models/small", model), ("data", source)):
            (volume / name).parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-r", str(origin), str(volume / name)], check=True)
        (volume / "runs").mkdir()
        subprocess.run(["chown", "-R", "65532:65532", str(volume)], check=True)
        self.folder = volume / "runs" / "small"
        self.rendered = folder / "rendered"

    def apply(self, *words):
        done = subprocess.run([str(BIN / "tandem"), "render", "k8s", str(self.config), "--out", str(self.rendered), *words],
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        self.cluster.apply_kustomization(self.rendered)
        return self

    def steps(self):
        """The complete lines of metrics.jsonl of train steps."""
        path = self.folder / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [line for line in map(json.loads, text[:text.rfind("\n") + 1].splitlines()) if "loss/total" in line]

    def events(self, kind):
        path = self.folder / "events.jsonl"
        text = path.read_text() if path.exists() else ""
        return [line for line in map(json.loads, text[:text.rfind("\n") + 1].splitlines()) if line["kind"] == kind]

    def wait_for_steps(self, count, seconds=240):
        self.cluster.wait_for(lambda: len(self.steps()) >= count, f"{count} steps", seconds=seconds)

    def pids(self, role):
        """{pod: process id} of the pods that run."""
        return {pod["metadata"]["name"]: self.cluster.process_of(pod) for pod in self.cluster.pods(role)
                if pod["status"].get("phase") == "Running"}


def test_the_pair_trains_to_its_end_and_the_servers_end_with_it(cluster, model, tmp_path):
    run = Run(cluster, model, tmp_path, steps=3).apply()
    cluster.wait_for(lambda: cluster.finished("small-tandem") == "Completed", "the set completes", seconds=240)
    assert [step["step"] for step in run.steps()] == [1, 2, 3]
    cluster.wait_for(lambda: not cluster.pods("rollout"), "the servers are gone")
    assert (run.folder / "checkpoints" / "LATEST").read_text() == "step_3\n"


def test_a_killed_server_comes_back_alone_and_the_run_goes_on(cluster, model, tmp_path):
    run = Run(cluster, model, tmp_path, steps=LONG).apply()
    run.wait_for_steps(2)
    trainer, servers = run.pids("trainer"), run.pids("rollout")
    lost, (other, other_pid) = sorted(servers.items())
    os.kill(lost[1], signal.SIGKILL)
    cluster.wait_for(lambda: len(run.pids("rollout")) == 2 and lost[0] not in run.pids("rollout"), "a new server", seconds=240)
    cluster.wait_for(lambda: run.events("server_back"), "the trainer uses it again", seconds=240)
    assert run.pids("trainer") == trainer and run.pids("rollout")[other] == other_pid
    before = len(run.steps())
    run.wait_for_steps(before + 2)


@pytest.mark.parametrize("ranks", [1, 2], ids=["one rank", "two pods"])
def test_a_killed_trainer_goes_on_from_its_checkpoint_and_servers_keep_their_processes(cluster, model, tmp_path, ranks):
    run = Run(cluster, model, tmp_path, steps=LONG, num_ranks=ranks, ranks_per_node=1)
    run.apply("--set", "trainer.checkpoint.every=2")
    run.wait_for_steps(3)
    servers, trainers = run.pids("rollout"), run.pids("trainer")
    assert len(trainers) == ranks
    os.kill(sorted(trainers.items())[-1][1], signal.SIGKILL)
    cluster.wait_for(lambda: run.events("resumed"), "the run resumes", seconds=240)
    assert int(run.events("resumed")[0]["message"].rsplit(" ", 1)[1]) >= 2
    after = run.steps()[-1]["step"]
    run.wait_for_steps(after + 2)
    assert run.pids("rollout") == servers, "warm servers were left alone"
    assert not set(run.pids("trainer").values()) & set(trainers.values())


def test_an_exit_code_that_says_do_not_try_again_ends_the_set(cluster, model, tmp_path):
    run = Run(cluster, model, tmp_path, steps=LONG)
    os.remove(pathlib.Path(cluster.claim_folder("tandem-workspace")) / "data" / "train.jsonl")
    run.apply()
    cluster.wait_for(lambda: cluster.finished("small-tandem") == "Failed", "the set fails", seconds=240)
    trainers = cluster.pods("trainer", live=False)
    assert len(trainers) == 1, "it was tried once"
    assert "train.jsonl" in cluster.log(trainers[0])
    cluster.wait_for(lambda: not cluster.pods("rollout"), "the servers are gone")


def test_an_evicted_trainer_saves_within_its_grace_and_goes_on_elsewhere_without_being_counted(cluster, model, tmp_path):
    run = Run(cluster, model, tmp_path, steps=LONG, kubernetes={"max_restarts": 0}).apply()
    run.wait_for_steps(2)
    servers = run.pids("rollout")
    (trainer,) = cluster.pods("trainer")
    cluster.evict(trainer)
    cluster.wait_for(lambda: run.events("run_stopped"), "the trainer stops and saves")
    stopped = run.events("run_stopped")[0]["step"]
    assert (run.folder / "checkpoints" / "LATEST").read_text() == f"step_{stopped}\n"
    cluster.wait_for(lambda: run.events("resumed"), "the run resumes", seconds=240)
    run.wait_for_steps(stopped + 1)
    assert run.pids("rollout") == servers
    assert not cluster.finished("small-tandem"), "with no restart allowed, an eviction is none"


def test_an_evicted_server_drains_and_is_replaced(cluster, model, tmp_path):
    run = Run(cluster, model, tmp_path, steps=LONG).apply()
    run.wait_for_steps(2)
    server = cluster.pods("rollout")[0]
    cluster.evict(server)
    name = server["metadata"]["name"]
    cluster.wait_for(lambda: len(run.pids("rollout")) == 2 and name not in run.pids("rollout"), "a new server", seconds=240)
    assert "draining" in cluster.log(server)
    run.wait_for_steps(len(run.steps()) + 2)
    assert not run.events("group_dropped")


def test_what_ran_on_a_lost_node_goes_on_elsewhere_once_the_node_is_deleted(cluster, model, tmp_path):
    run = Run(cluster, model, tmp_path, steps=LONG, kubernetes={"max_restarts": 0})
    run.apply("--set", "trainer.checkpoint.every=2")
    run.wait_for_steps(3)
    node = cluster.pods("trainer")[0]["spec"]["nodeName"]
    cluster.agent.lose_node(node)
    cluster.kubectl("delete", "node", node)
    cluster.wait_for(lambda: run.events("resumed"), "the run resumes", seconds=240)
    run.wait_for_steps(run.steps()[-1]["step"] + 2)
    assert {pod["spec"]["nodeName"] for pod in cluster.pods("trainer")} != {node}
    assert not cluster.finished("small-tandem"), "with no restart allowed, a lost node is none"


@pytest.mark.parametrize("overlay", ["elastic", "plain"])
def test_servers_of_a_deployment_join_and_leave_a_running_trainer(cluster, model, tmp_path, overlay):
    run = Run(cluster, model, tmp_path, steps=LONG, overlay=overlay, num_servers=1).apply()
    run.wait_for_steps(2)
    cluster.kubectl("scale", "deployment/small-tandem-rollout", "--replicas=2")
    cluster.wait_for(lambda: len(run.events("server_ready")) >= 2, "the second server gets weights", seconds=240)
    before = len(run.steps())
    run.wait_for_steps(before + 2)
    cluster.kubectl("scale", "deployment/small-tandem-rollout", "--replicas=1")
    cluster.wait_for(lambda: run.events("server_retired"), "one of them leaves", seconds=240)
    before = len(run.steps())
    run.wait_for_steps(before + 2)
    assert not run.events("group_dropped")


def test_the_autoscaler_follows_what_the_trainer_says_of_its_waits(cluster, model, tmp_path):
    cluster.serve_metrics()
    run = Run(cluster, model, tmp_path, steps=LONG, overlay="elastic", num_servers=1, kubernetes={"max_servers": 2}).apply()

    def aim(target):
        at_once = {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 2, "periodSeconds": 15}]}
        cluster.kubectl("patch", "hpa/small-tandem-rollout", "--type=json", "-p", json.dumps([
            {"op": "replace", "path": "/spec/metrics/0/external/target/value", "value": target},
            {"op": "replace", "path": "/spec/behavior", "value": {"scaleUp": at_once, "scaleDown": at_once}}]))
    aim("1m")  # any wait is above the target
    run.wait_for_steps(2)
    cluster.wait_for(lambda: len(run.pids("rollout")) == 2, "a second server", seconds=240)
    cluster.wait_for(lambda: len(run.events("server_ready")) >= 2, "the second server gets weights", seconds=240)
    aim("10")  # a ratio is never above the target
    cluster.wait_for(lambda: len(run.pids("rollout")) == 1, "one server is enough", seconds=240)
    run.wait_for_steps(len(run.steps()) + 2)


def certificates(folder, *words):
    done = subprocess.run([str(BIN / "tandem"), "certs", "--out", str(folder), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def put_secrets(cluster, folder):
    """Creates the Secrets as docs/kubernetes.md does, or updates them with renewed files."""
    for role in ("trainer", "rollout"):
        made = cluster.kubectl("create", "secret", "generic", f"tandem-{role}-tls", f"--from-file={folder / role}",
                               "--dry-run=client", "-o", "yaml")
        cluster.apply(made)


def tandem(*words):
    return subprocess.run([str(BIN / "tandem"), *map(str, words)], capture_output=True, text=True, timeout=60, check=False)


def test_under_mutual_tls_the_pair_trains_and_takes_renewed_secrets_and_no_one_else_gets_in(cluster, model, tmp_path):
    certs = tmp_path / "certs"
    certificates(certs)
    put_secrets(cluster, certs)
    run = Run(cluster, model, tmp_path, steps=LONG, num_servers=1, kubernetes={"mutual_tls": True}).apply()
    run.wait_for_steps(2)
    (server,), pids = cluster.pods("rollout"), (run.pids("rollout"), run.pids("trainer"))
    address = f"{cluster.address_of(server)}:50051"
    seen = tandem("status", "--servers", address, "--tls", certs / "viewer")
    assert seen.returncode == 0 and address in seen.stdout, seen.stdout + seen.stderr
    assert tandem("status", "--servers", address).returncode != 0, "without a certificate nobody is answered"
    refused = tandem("bench", "serve", address, "--groups", 1, "--max-new-tokens", 4, "--tls", certs / "viewer")
    assert refused.returncode != 0 and "role viewer may not call this method" in refused.stdout + refused.stderr
    inside = cluster.run_in(cluster.pods("trainer")[0], "tandem", "status", "runs/small", "--tls", "/etc/tandem-tls")
    assert inside.returncode == 0 and "small-tandem-rollout-0-0.small-tandem:50051" in inside.stdout, inside.stdout + inside.stderr

    certificates(certs, "--renew")
    put_secrets(cluster, certs)
    for pod in (server, *cluster.pods("trainer")):
        cluster.wait_for(lambda pod=pod: "TLS certificates changed" in cluster.log(pod), "the new files are taken")
    run.wait_for_steps(len(run.steps()) + 2)
    assert (run.pids("rollout"), run.pids("trainer")) == pids, "nothing was restarted"


def test_status_and_logs_ask_the_observe_ports_of_pods(cluster, model, tmp_path):
    run = Run(cluster, model, tmp_path, steps=LONG).apply()
    run.wait_for_steps(2)
    trainer, servers = cluster.address_of(cluster.pods("trainer")[0]), [cluster.address_of(pod) for pod in cluster.pods("rollout")]
    ports = [f"{trainer}:9401", *(f"{server}:9400" for server in servers)]
    status = tandem("status", "--observe", ",".join(ports))
    assert status.returncode == 0 and all(port in status.stdout for port in ports), status.stdout + status.stderr
    logs = tandem("logs", "-n", 20, *ports)
    assert logs.returncode == 0 and "step" in logs.stdout and "weight" in logs.stdout, logs.stdout + logs.stderr


def test_weights_go_to_servers_in_broadcasts_between_pods(cluster, model, tmp_path):
    run = Run(cluster, model, tmp_path, steps=3).apply("--set", "trainer.push.transport=collective")
    cluster.wait_for(lambda: cluster.finished("small-tandem") == "Completed", "the set completes", seconds=240)
    ways = [event["transport"] for event in run.events("push_committed") if event["form"] != "none"]
    assert ways.count("collective") >= 2 * 2 and "stream" not in ways, ways
