"""The harness of the Kubernetes tests behaves like a cluster, according to the API server and JobSet: admission, restarts,
policies, eviction, names. Pods are small programs here, and not trainer and server."""
import pathlib
import re
import sys

import pytest

from control_plane import ApiError, Cluster, Image

# Prints a line, waits for SIGTERM, prints it, waits `linger` seconds and ends with `code`.
SERVER = """
import signal, sys, threading
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
print("serving", flush=True)
stop.wait()
print("asked to stop", flush=True)
threading.Event().wait(float(sys.argv[1]))
print("stopped", flush=True)
sys.exit(int(sys.argv[2]))
"""
IGNORE_DISRUPTION = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("kubernetes"), images={"local": Image(programs={}, environment={"LANG": "C.UTF-8"})},
                 restart_backoff_seconds=1.0) as one:
        yield one


def python(code, *arguments):
    return ["python3", "-c", code, *map(str, arguments)]


def pod_template(command, **spec):
    container = {"name": "main", "image": "local:test", "command": command, **spec.pop("container", {})}
    return {"metadata": {"labels": spec.pop("labels", {})},
            "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [container], **spec}}


def replicated_job(name, command, replicas=1, completions=1, policy=(), backoff_limit=6, **spec):
    job = {"completions": completions, "parallelism": completions, "backoffLimit": backoff_limit,
           "template": pod_template(command, **spec)}
    if policy:
        job["podFailurePolicy"] = {"rules": list(policy)}
    return {"name": name, "replicas": replicas, "template": {"spec": job}}


def job_set(name, *jobs, **spec):
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name},
            "spec": {"replicatedJobs": list(jobs), **spec}}


def pod(name, command, **spec):
    return {"apiVersion": "v1", "kind": "Pod", **pod_template(command, **spec),
            "metadata": {"name": name, "labels": {"app": name}}}


def uids(pods):
    return {one["metadata"]["uid"] for one in pods}


def pods_of(cluster, name, job):
    return [one for one in cluster.pods(f"{name}-{job}-")]


def test_success_of_the_trainer_ends_the_set_and_the_pods_of_the_other_job(cluster):
    wait = "import os, pathlib\nwhile not pathlib.Path('/go/now').exists(): pass\nprint(os.environ['JOB_COMPLETION_INDEX'])"
    mount = {"volumeMounts": [{"name": "go", "mountPath": "/go"}]}
    volumes = [{"name": "go", "hostPath": {"path": str(cluster.folder / "go"), "type": "DirectoryOrCreate"}}]
    cluster.apply(job_set("ends", replicated_job("trainer", python(wait), container=mount, volumes=volumes),
                          replicated_job("rollout", python(SERVER, 0, 143), replicas=2, backoff_limit=1000),
                          successPolicy={"operator": "All", "targetReplicatedJobs": ["trainer"]}))
    cluster.wait_for(lambda: all(one["status"].get("phase") == "Running" for one in cluster.pods("ends"))
                     and len(cluster.pods("ends")) == 3, "three pods run")
    rollouts, trainer = pods_of(cluster, "ends", "rollout"), cluster.pod("ends-trainer-")
    assert sorted(one["spec"]["hostname"] for one in rollouts) == ["ends-rollout-0-0", "ends-rollout-1-0"]
    (cluster.folder / "go" / "now").touch()
    cluster.wait_for(lambda: cluster.finished("ends") == "Completed", "the set completes")
    cluster.wait_for(lambda: not cluster.pods("ends-rollout", live=False), "the rollouts' pods are gone")
    assert cluster.log(trainer) == "0\n"
    assert [cluster.log(one) for one in rollouts] == ["serving\nasked to stop\nstopped\n"] * 2


def test_what_is_misspelt_or_makes_no_sense_is_refused(cluster):
    job = replicated_job("trainer", ["true"])
    done = cluster.apply(job_set("bad", job, sucessPolicy={"operator": "All"}), check=False)
    assert done.returncode != 0 and 'unknown field "spec.sucessPolicy"' in done.stderr, done.stderr
    done = cluster.apply(job_set("bad", job, failurePolicy={"rules": [{"name": "a", "action": "RestartJob"}]}), check=False)
    assert done.returncode != 0 and 'Unsupported value: "RestartJob"' in done.stderr, done.stderr  # by the definition
    done = cluster.apply(job_set("bad", job, successPolicy={"operator": "All", "targetReplicatedJobs": ["rollout"]}), check=False)
    assert done.returncode != 0 and "invalid replicatedJob name 'rollout'" in done.stderr, done.stderr  # by the webhook
    assert cluster.get("jobsets", "bad") is None
    cluster.apply(job_set("defaults", replicated_job("a", ["true"])))  # the other webhook fills in
    assert cluster.get("jobsets", "defaults")["spec"]["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}


def test_a_killed_pod_comes_back_alone(cluster):
    cluster.apply(job_set("back", replicated_job("trainer", python(SERVER, 0, 143)),
                          replicated_job("rollout", python(SERVER, 0, 143), replicas=2)))
    cluster.wait_for(lambda: sum(one["status"].get("phase") == "Running" for one in cluster.pods("back")) == 3, "three pods run")
    victim = cluster.pod("back-rollout-1-")
    others = uids(cluster.pods("back")) - uids([victim])
    import os
    import signal
    os.kill(cluster.process_of(victim), signal.SIGKILL)
    cluster.wait_for(lambda: cluster.exit_code(victim) == 137, "the pod's status says how it ended")
    again = cluster.wait_for_pod("back-rollout-1-")
    assert again["metadata"]["uid"] != victim["metadata"]["uid"] and others < uids(cluster.pods("back"))
    assert again["spec"]["hostname"] == victim["spec"]["hostname"]
    assert cluster.get("jobsets", "back")["status"].get("restarts", 0) == 0
    cluster.kubectl("delete", "jobset", "back", "--wait=false")


def test_an_exit_code_that_cannot_be_retried_fails_the_set(cluster):
    policy = [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}, IGNORE_DISRUPTION]
    cluster.apply(job_set("fails", replicated_job("trainer", ["sh", "-c", "exit 3"], policy=policy),
                          replicated_job("rollout", python(SERVER, 0, 143)),
                          failurePolicy={"maxRestarts": 3, "rules": [{"name": "fatal", "action": "FailJobSet",
                                                                      "onJobFailureReasons": ["PodFailurePolicy"]}]}))
    cluster.wait_for(lambda: cluster.finished("fails") == "Failed", "the set fails")
    condition = cluster.condition(cluster.get("jobsets", "fails"), "Failed")
    assert condition["reason"] == "FailJobSetFailurePolicyAction" and "fails-trainer-0" in condition["message"], condition
    cluster.wait_for(lambda: not cluster.pods("fails-rollout", live=False), "the rollouts' pods are gone")


def test_eviction_asks_first_waits_for_the_grace_and_is_not_counted(cluster):
    cluster.apply(job_set("evicted", replicated_job("slow", python(SERVER, 0.5, 143), policy=[IGNORE_DISRUPTION], backoff_limit=0),
                          replicated_job("stubborn", python(SERVER, 60, 143), policy=[IGNORE_DISRUPTION], backoff_limit=0,
                                         terminationGracePeriodSeconds=1)))
    first = {name: cluster.wait_for_pod(f"evicted-{name}-") for name in ("slow", "stubborn")}
    for name, one in first.items():
        cluster.wait_for(lambda one=one: "serving" in cluster.log(one), f"{name} serves")
        cluster.evict(one)
        cluster.wait_for(lambda one=one: cluster.fresh(one) is None, f"{name} ends")
    assert cluster.log(first["slow"]) == "serving\nasked to stop\nstopped\n"
    assert cluster.log(first["stubborn"]) == "serving\nasked to stop\n"  # and then SIGKILL
    for name in first:
        again = cluster.wait_for_pod(f"evicted-{name}-")
        assert again["metadata"]["uid"] != first[name]["metadata"]["uid"]
        job = cluster.get("jobs", f"evicted-{name}-0")
        assert job["status"].get("failed", 0) == 0, job["status"]
    cluster.kubectl("delete", "jobset", "evicted", "--wait=false")


def test_a_server_that_drains_with_exit_code_0_has_completed_its_job(cluster):
    """Shows why programs of a Job must not end with 0 when they are told to stop."""
    cluster.apply(job_set("drains", replicated_job("rollout", python(SERVER, 0, 0), policy=[IGNORE_DISRUPTION])))
    one = cluster.wait_for_pod("drains-rollout-")
    cluster.wait_for(lambda: "serving" in cluster.log(one), "it serves")
    cluster.evict(one)
    cluster.wait_for(lambda: cluster.finished("drains") == "Completed", "the set counts it as done")


def test_pods_find_each_other_by_name_before_they_are_ready(cluster):
    # Both continue to run after they have found each other, because names have no addresses of pods that are done.
    look = ("import socket, sys\nname = sys.argv[1]\nfound = set()\nwhile len(found) < int(sys.argv[2]):\n"
            "  try: found |= {one[4][0] for one in socket.getaddrinfo(name, 80, socket.AF_INET)}\n"
            "  except socket.gaierror: pass\nprint(*sorted(found), flush=True)\n"
            + SERVER.replace("sys.argv[1]", "'0'").replace("sys.argv[2]", "143"))
    never = {"readinessProbe": {"exec": {"command": ["false"]}, "periodSeconds": 1}}
    cluster.apply(job_set("names", replicated_job("one", python(look, "names-two-0-0.names", 1), container=never),
                          replicated_job("two", python(look, "names.default.svc.cluster.local", 2), container=never)))
    cluster.wait_for(lambda: len(cluster.pods("names", live=False)) == 2, "two pods")
    one, two = cluster.pods("names-one", live=False)[0], cluster.pods("names-two", live=False)[0]
    cluster.wait_for(lambda: all("serving" in cluster.log(each) for each in (one, two)), "both found the other")
    addresses = [cluster.address_of(one), cluster.address_of(two)]
    assert cluster.log(one).splitlines()[0] == addresses[1]
    assert cluster.log(two).splitlines()[0].split() == sorted(addresses)
    cluster.kubectl("delete", "jobset", "names", "--wait=false")


HEALTH = """
import http.server, pathlib
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if pathlib.Path("/state" + self.path).exists() else 503)
        self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("", 8080), Health).serve_forever()
"""


def test_probes_gate_readiness_and_the_dead_are_restarted(cluster):
    state = cluster.folder / "state"
    state.mkdir()
    (state / "live").touch()
    probe = {"periodSeconds": 1, "failureThreshold": 1}
    container = {"ports": [{"name": "observe", "containerPort": 8080}], "volumeMounts": [{"name": "state", "mountPath": "/state"}],
                 "startupProbe": {**probe, "httpGet": {"path": "/started", "port": "observe"}, "failureThreshold": 100},
                 "readinessProbe": {**probe, "httpGet": {"path": "/ready", "port": "observe"}},
                 "livenessProbe": {**probe, "httpGet": {"path": "/live", "port": 8080}, "failureThreshold": 2}}
    cluster.apply([pod("probed", python(HEALTH), container=container, restartPolicy="Always", terminationGracePeriodSeconds=1,
                       volumes=[{"name": "state", "hostPath": {"path": str(state)}}]),
                   {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "probed"},
                    "spec": {"clusterIP": "None", "selector": {"app": "probed"}, "ports": [{"port": 8080}]}}])
    one = cluster.wait_for_pod("probed")

    def container_status(field):
        return cluster.fresh(one)["status"]["containerStatuses"][0][field]

    def named():
        return cluster.address_of(one) in cluster.kubectl("get", "endpoints", "probed", "-o", "jsonpath={.subsets[*].addresses[*].ip}")
    assert not container_status("started") and not cluster.is_ready(one) and not named()
    (state / "started").touch()
    cluster.wait_for(lambda: container_status("started"), "it has started")
    assert not cluster.is_ready(one)
    (state / "ready").touch()
    cluster.wait_for(lambda: cluster.is_ready(one) and named(), "it is ready, and the Service has it")
    (state / "ready").unlink()
    cluster.wait_for(lambda: not cluster.is_ready(one) and not named(), "it is ready no more, and the Service has it no more")
    assert container_status("restartCount") == 0
    (state / "live").unlink()
    cluster.wait_for(lambda: container_status("restartCount") == 1, "what is not alive is restarted")
    assert cluster.exit_code(one) == 137  # Python as process 1 ignores SIGTERM
    cluster.delete_pod(one, grace_seconds=0)


def test_a_pod_knows_itself(cluster):
    def named(name, path):
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    container = {"env": [named("IP", "status.podIP"), named("NODE", "spec.nodeName"), named("APP", "metadata.labels['app']"),
                         {"name": "MIB", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}}],
                 "resources": {"limits": {"memory": "1.5Gi"}}, "volumeMounts": [{"name": "self", "mountPath": "/self"}]}
    volumes = [{"name": "self", "projected": {"sources": [{"downwardAPI": {"items": [
        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}}]
    cluster.apply(pod("itself", ["sh", "-c", "echo $IP $NODE $APP $MIB $(cat /self/name) $(hostname)"], container=container,
                      volumes=volumes))
    cluster.wait_for(lambda: cluster.get("pods", "itself")["status"]["phase"] == "Succeeded", "it has said it")
    one = cluster.get("pods", "itself")
    assert cluster.log(one).split() == [one["status"]["podIP"], one["spec"]["nodeName"], "itself", "1536", "itself", "itself"]


def test_a_hook_goes_before_the_signal_and_within_the_grace(cluster):
    listen = "import socket\nkept = socket.create_server(('', 8080))\n"
    container = {"readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
                 "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "echo hook >>/proc/1/fd/1"]}}}}
    cluster.apply([pod("hooked", python(listen + SERVER, 0, 0), container=container),
                   pod("hooked-long", python(listen + SERVER, 0, 0), terminationGracePeriodSeconds=1,
                       container={**container, "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}})])
    both = cluster.wait_for_pod("hooked", "Ready", count=2)
    for one in both:
        cluster.delete_pod(one)
    cluster.wait_for(lambda: not any(cluster.fresh(one) for one in both), "both end")
    logs = {one["metadata"]["name"]: cluster.log(one) for one in both}
    assert logs == {"hooked": "serving\nhook\nasked to stop\nstopped\n", "hooked-long": "serving\nasked to stop\nstopped\n"}


def test_a_deployment_scales_and_its_budget_stops_an_eviction_too_many(cluster):
    cluster.apply([{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "serve"},
                    "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "serve"}},
                             "template": pod_template(python(SERVER, 0, 0), labels={"app": "serve"}, restartPolicy="Always")}},
                   {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "serve"},
                    "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "serve"}}}}])
    cluster.wait_for_pod("serve", "Ready")
    cluster.kubectl("scale", "deployment", "serve", "--replicas=3")
    pods = cluster.wait_for_pod("serve", "Ready", count=3)
    cluster.wait_for(lambda: cluster.get("poddisruptionbudgets", "serve")["status"].get("disruptionsAllowed") == 1,
                     "the budget allows one")
    cluster.evict(pods[0])
    with pytest.raises(ApiError, match="violate the pod's disruption budget"):
        cluster.evict(pods[1])
    cluster.wait_for(lambda: len(uids(cluster.wait_for_pod("serve", "Ready", count=3)) - uids(pods)) == 1, "one is replaced")
    cluster.kubectl("delete", "deployment/serve", "pdb/serve")


QUEUE = """
import http.server, pathlib
class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        waiting = pathlib.Path("/queue/waiting").read_text()
        self.wfile.write(b"# TYPE waiting gauge\\nwaiting{kind=\\"a\\"} %d\\nwaiting{kind=\\"b\\"} 1\\n" % int(waiting))
    def log_message(self, *_): pass
http.server.HTTPServer(("", 9400), Metrics).serve_forever()
"""


def test_an_autoscaler_follows_the_metrics_of_the_pods(cluster):
    queue = cluster.folder / "queue"
    queue.mkdir()
    (queue / "waiting").write_text("3")
    container = {"ports": [{"name": "observe", "containerPort": 9400}], "volumeMounts": [{"name": "queue", "mountPath": "/queue"}]}
    metric = {"name": "waiting", "selector": {"matchLabels": {"kind": "a"}}}
    none = {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 4, "periodSeconds": 1}]}
    cluster.serve_metrics()
    cluster.apply([{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "scaled"},
                    "spec": {"selector": {"matchLabels": {"app": "scaled"}},
                             "template": pod_template(python(QUEUE), labels={"app": "scaled"}, restartPolicy="Always",
                                                      terminationGracePeriodSeconds=0, container=container,
                                                      volumes=[{"name": "queue", "hostPath": {"path": str(queue)}}])}},
                   {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "scaled"},
                    "spec": {"minReplicas": 1, "maxReplicas": 3, "behavior": {"scaleUp": none, "scaleDown": none},
                             "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "scaled"},
                             "metrics": [{"type": "Pods", "pods": {"metric": metric,
                                                                   "target": {"type": "AverageValue", "averageValue": "1"}}}]}}])
    cluster.wait_for_pod("scaled", "Ready", count=3)  # three groups wait at each server, and the target is one
    (queue / "waiting").write_text("0")
    cluster.wait_for_pod("scaled", "Ready", count=1)
    cluster.kubectl("delete", "hpa/scaled", "deployment/scaled")


def test_a_container_is_as_locked_up_as_it_asks_to_be(cluster):
    look = ("id -u; id -g; id -G; touch /etc/x || echo no; touch /scratch/x && echo yes; touch /tmp/x || echo no; "
            "grep -E 'NoNewPrivs|CapBnd' /proc/self/status; cat /etc/settings/a /etc/secret/b; touch /etc/settings/a || echo no; "
            "touch /runs/x && echo yes; head -c 3000000 /dev/zero >/dev/shm/x || echo full; echo $WORD-$INDEX $FROM_SECRET $0; "
            "ls /home/* 2>&1; echo gone >/dev/termination-log")
    security = {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"}}
    container = {
        "args": ["-c", look, "$(WORD)!"], "command": ["sh"],
        "env": [{"name": "WORD", "value": "word"}, {"name": "INDEX", "value": "$(WORD)7"}],
        "envFrom": [{"prefix": "FROM_", "secretRef": {"name": "locked"}}],
        "securityContext": {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in (
            ("scratch", "/scratch"), ("settings", "/etc/settings"), ("secret", "/etc/secret"), ("shm", "/dev/shm"),
            ("runs", "/runs"))]}
    volumes = [{"name": "scratch", "emptyDir": {}}, {"name": "settings", "configMap": {"name": "locked"}},
               {"name": "secret", "secret": {"secretName": "locked", "items": [{"key": "SECRET", "path": "b"}]}},
               {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
               {"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}]
    cluster.apply([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "locked"}, "data": {"a": "one\n"}},
                   {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "locked"}, "stringData": {"SECRET": "two\n"}},
                   {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "runs"},
                    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}},
                   pod("locked", [], container=container, volumes=volumes, securityContext=security)])
    cluster.wait_for(lambda: cluster.get("pods", "locked")["status"]["phase"] == "Succeeded", "it is done")
    one = cluster.get("pods", "locked")
    lines = [line for line in cluster.log(one).splitlines() if not line.startswith(("touch:", "head:", "ls:"))]
    assert lines[:6] == ["65532", "65532", "65532", "no", "yes", "no"], lines
    assert [re.sub(r"\s+", " ", line) for line in lines[6:8]] == ["CapBnd: 0000000000000000", "NoNewPrivs: 1"]
    assert lines[8:] == ["one", "two", "no", "yes", "full", "word-word7 two word!"], lines
    assert (cluster.claim_folder("runs") / "x").exists()
    assert one["status"]["containerStatuses"][0]["state"]["terminated"]["message"] == "gone\n"


def test_a_changed_secret_reaches_the_files_of_a_running_pod(cluster):
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "rotated"}, "stringData": {"tls.crt": "first"}}
    follow = ("import pathlib\nseen = ''\nwhile seen != 'second':\n  now = pathlib.Path('/tls/tls.crt').read_text()\n"
              "  if now != seen: print(now, flush=True)\n  seen = now\n")
    cluster.apply([secret, pod("follows", python(follow), volumes=[{"name": "tls", "secret": {"secretName": "rotated"}}],
                               container={"volumeMounts": [{"name": "tls", "mountPath": "/tls"}]})])
    one = cluster.wait_for_pod("follows")
    cluster.wait_for(lambda: cluster.log(one) == "first\n", "it sees the first")
    cluster.apply({**secret, "stringData": {"tls.crt": "second"}})
    cluster.wait_for(lambda: cluster.exit_code(one) == 0, "it sees the second")
    assert cluster.log(one) == "first\nsecond\n"


def test_what_keeps_failing_is_restarted_in_place_ever_later(cluster):
    cluster.apply(pod("crashes", ["sh", "-c", "echo run; exit 7"], restartPolicy="OnFailure"))

    def status():
        return (cluster.get("pods", "crashes")["status"].get("containerStatuses") or [{}])[0]
    cluster.wait_for(lambda: status().get("restartCount") == 2 and "CrashLoopBackOff" in str(status()["state"]), "two restarts")
    assert status()["lastState"]["terminated"]["exitCode"] == 7 and cluster.get("pods", "crashes")["status"]["phase"] == "Running"
    one = cluster.get("pods", "crashes")
    cluster.delete_pod(one)
    cluster.wait_for(lambda: cluster.fresh(one) is None, "it goes")
    assert cluster.log(one) == "run\n" * 3


def test_what_the_fake_node_cannot_do_fails_the_pod_by_name(cluster):
    cluster.apply(pod("cannot", ["true"], hostNetwork=True, container={"lifecycle": {"postStart": {"exec": {"command": ["a"]}}}}))
    cluster.wait_for(lambda: cluster.get("pods", "cannot")["status"]["phase"] == "Failed", "it fails")
    message = cluster.get("pods", "cannot")["status"]["message"]
    assert message == "the fake node cannot do spec.hostNetwork, spec.containers[main].lifecycle.postStart"
    cluster.apply(pod("unknown", ["true"], container={"image": "registry.example/other:v1"}))
    cluster.wait_for(lambda: "no image registry.example/other:v1" in str(cluster.get("pods", "unknown")["status"]), "no such image")
    cluster.delete_pod(cluster.get("pods", "unknown"))
    cluster.wait_for(lambda: cluster.get("pods", "unknown") is None, "a pod that never ran goes at once")


def test_gpus_are_counted_by_the_scheduler(cluster):
    cluster.agent.add_node("gpu-node", {"nvidia.com/gpu": "8"})
    gpus = {"container": {"resources": {"limits": {"nvidia.com/gpu": 8}}}}
    cluster.apply([pod("first", python(SERVER, 0, 0), **gpus), pod("second", python(SERVER, 0, 0), **gpus)])
    cluster.wait_for(lambda: sorted(one["status"].get("phase") for one in cluster.pods() if one["metadata"]["name"] in (
        "first", "second")) == ["Pending", "Running"], "one has them all")
    running = next(one for one in (cluster.pod("first"), cluster.pod("second")) if one["status"]["phase"] == "Running")
    assert running["spec"]["nodeName"] == "gpu-node"
    cluster.delete_pod(running, grace_seconds=1)
    cluster.wait_for(lambda: [one["status"]["phase"] for name in ("first", "second") for one in cluster.pods(name)] == ["Running"],
                     "then the other")
