"""Checks the manifests of deploy/kubernetes and `tandem render k8s` without a cluster: every overlay builds with every component,
is valid for the schemas of Kubernetes and of the custom resources, follows the usual rules of reviews, and uses only flags
that the programs have."""
import copy
import itertools
import json
import os
import pathlib
import re
import subprocess

import pytest
import yaml

from schemas import KUBECTL, SOURCE, kustomize, problems_of

BIN = pathlib.Path(os.environ["TANDEM_BIN"])
TREE = SOURCE / "deploy" / "kubernetes"
OVERLAYS = ["jobset", "elastic", "plain"]
COMPONENTS = ["gpu", "kueue", "mutual-tls", "network-policy", "pod-monitor", "rdma"]
FATAL = {"trainer": [2, 3, 5, 6, 8], "rollout": [2, 3]}
ROLES = ["trainer", "rollout"]


def build(tmp_path, overlay, components=()):
    """The objects of an overlay with components, as a kustomization of a user would make them."""
    link = tmp_path / "kubernetes"
    if not link.exists():
        subprocess.run(["cp", "-r", str(TREE), str(link)], check=True)
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [f"kubernetes/overlays/{overlay}"],
        "components": [f"kubernetes/components/{name}" for name in components]}))
    return kustomize(tmp_path)


def of_kind(objects, *kinds):
    return [thing for thing in objects if thing["kind"] in kinds]


def workloads(objects):
    """{role: (spec of its job or deployment, pod template)}. Each role occurs once."""
    found = {}
    for thing in objects:
        if thing["kind"] == "JobSet":
            for job in thing["spec"]["replicatedJobs"]:
                assert job["name"] not in found
                found[job["name"]] = (job["template"]["spec"], job["template"]["spec"]["template"])
        elif thing["kind"] == "LeaderWorkerSet":
            found["rollout"] = (thing["spec"], thing["spec"]["leaderWorkerTemplate"]["workerTemplate"])
        elif thing["kind"] in ("Job", "Deployment"):
            role = thing["metadata"]["name"].rsplit("-", 1)[1]
            assert role not in found
            found[role] = (thing["spec"], thing["spec"]["template"])
    assert sorted(found) == sorted(ROLES)
    return found


def container(template):
    (only,) = template["spec"]["containers"]
    return only


def settings(objects):
    (launch,) = [thing for thing in of_kind(objects, "ConfigMap") if "tandem-launch" in thing["metadata"]["name"]]
    return launch["data"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_is_valid_with_every_component_and_with_all(overlay, tmp_path):
    for components in [[], *[[name] for name in COMPONENTS], COMPONENTS]:
        objects = build(tmp_path, overlay, components)
        assert problems_of(objects) == [], components
        assert not of_kind(objects, "PodTemplate"), "the descriptions of the pods stay here"


def test_servers_as_a_leader_worker_set_have_the_same_pods_and_their_autoscaler(tmp_path):
    components = ["leader-worker-set", *COMPONENTS]
    objects = build(tmp_path, "elastic", components)
    assert problems_of(objects) == [] and not of_kind(objects, "Deployment")
    (scaler,), (servers,) = of_kind(objects, "HorizontalPodAutoscaler"), of_kind(objects, "LeaderWorkerSet")
    assert scaler["spec"]["scaleTargetRef"] == {"apiVersion": servers["apiVersion"], "kind": "LeaderWorkerSet",
                                                "name": servers["metadata"]["name"]}
    assert servers["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
    as_deployment = workloads(build(tmp_path, "elastic", COMPONENTS))["rollout"][1]
    assert workloads(objects)["rollout"][1] == as_deployment


def test_the_example_of_queues_is_valid_for_kueue():
    objects = list(yaml.safe_load_all((TREE / "examples" / "kueue-queues.yaml").read_text()))
    assert problems_of(objects) == []
    assert [thing["kind"] for thing in objects] == ["ResourceFlavor", "ClusterQueue", "LocalQueue"]


def test_the_job_that_fetches_a_model_puts_it_where_the_pods_of_a_run_look(tmp_path):
    (job,) = yaml.safe_load_all((TREE / "examples" / "fetch-model.yaml").read_text())
    # What kubectl create makes of generateName.
    named = {**job, "metadata": {"name": "fetch-model-x"}}
    assert problems_of([named]) == [] and job["metadata"]["generateName"]
    spec = job["spec"]["template"]["spec"]
    only = container(job["spec"]["template"])
    home = settings(build(tmp_path, "jobset"))["HF_HOME"]
    assert {"name": "HF_HOME", "value": home} in only["env"] and home.startswith("/workspace/")
    (volume,) = spec["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == "tandem-workspace"
    assert spec["securityContext"]["runAsNonRoot"] and only["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    (secret,) = [entry for entry in only["env"] if entry["name"] == "HF_TOKEN"]
    assert secret["valueFrom"]["secretKeyRef"]["optional"] is True, "public models need none"
    flags = subprocess.run([BIN / "tandem", "help", only["args"][0]], capture_output=True, text=True, check=True).stdout
    assert "tandem fetch" in flags


def test_a_misspelt_field_of_a_pod_inside_a_jobset_would_be_found(tmp_path):
    (jobset,) = of_kind(build(tmp_path, "jobset"), "JobSet")
    wrong = copy.deepcopy(jobset)
    pod = wrong["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["containers"][0]["livenesProbe"] = pod["containers"][0].pop("livenessProbe")
    assert any("livenesProbe" in problem for problem in problems_of([wrong]))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_are_locked_down_as_the_restricted_profile_asks(overlay, tmp_path):
    for role, (_, template) in workloads(build(tmp_path, overlay)).items():
        spec, only = template["spec"], container(template)
        assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True and security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert security["runAsUser"] == security["runAsGroup"] == security["fsGroup"] == 65532
        assert only["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                           "capabilities": {"drop": ["ALL"]}}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        mounts = {mount["mountPath"]: mount for mount in only["volumeMounts"]}
        assert mounts["/etc/tandem"]["readOnly"] and mounts["/etc/tandem-tls"]["readOnly"]
        assert mounts["/workspace"].get("readOnly", False) == (role == "rollout"), "servers write nothing"
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        shm = volumes[mounts["/dev/shm"]["name"]]["emptyDir"]
        assert shm["medium"] == "Memory" and shm["sizeLimit"]
        assert set(volumes) == {mount["name"] for mount in only["volumeMounts"]}
        assert not [thing for thing in volumes.values() if "hostPath" in thing]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_requests_are_limits_and_gpus_too(overlay, tmp_path):
    for components in ([], ["gpu"], ["gpu", "rdma"]):
        for _, template in workloads(build(tmp_path, overlay, components)).values():
            resources = container(template)["resources"]
            assert resources["requests"] == resources["limits"] and {"cpu", "memory"} <= set(resources["limits"])
            assert ("nvidia.com/gpu" in resources["limits"]) == ("gpu" in components)
            if "gpu" in components:
                assert template["spec"]["tolerations"][0]["key"] == "nvidia.com/gpu"
            added = container(template)["securityContext"]["capabilities"].get("add", [])
            assert added == (["IPC_LOCK"] if "rdma" in components else [])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_probes_ask_the_observe_port_for_start_life_and_readiness(overlay, tmp_path):
    for _, template in workloads(build(tmp_path, overlay)).values():
        only = container(template)
        ports = {port["name"]: port["containerPort"] for port in only["ports"]}
        for probe, path in [("startupProbe", "/startupz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez")]:
            assert only[probe]["httpGet"] == {"path": path, "port": "observe"}
        startup = only["startupProbe"]
        assert startup["periodSeconds"] * startup["failureThreshold"] == 45 * 60
        listens = [word for word in only["args"] if "observe_listen" in word]
        assert listens and listens[0].endswith(f":{ports['observe']}")
        assert template["metadata"]["annotations"]["prometheus.io/port"] == str(ports["observe"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_jobs_restart_what_failed_and_stop_where_another_try_would_end_the_same(overlay, tmp_path):
    for role, (spec, template) in workloads(build(tmp_path, overlay)).items():
        if "selector" in spec:  # a Deployment restarts its pods itself
            assert "restartPolicy" not in template["spec"]
            continue
        assert template["spec"]["restartPolicy"] == "Never" and spec["podReplacementPolicy"] == "Failed"
        assert spec["completionMode"] == "Indexed"
        ignore, fail = spec["podFailurePolicy"]["rules"]
        assert ignore == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        assert fail["action"] == "FailJob" and fail["onExitCodes"]["values"] == FATAL[role]
        assert fail["onExitCodes"]["containerName"] == container(template)["name"]
        assert spec["backoffLimit"] == (3 if role == "trainer" else 2147483647)


def test_the_jobset_succeeds_with_its_trainer_and_fails_where_a_job_says_so(tmp_path):
    (jobset,) = of_kind(build(tmp_path, "jobset"), "JobSet")
    spec = jobset["spec"]
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["trainer"]}
    assert spec["failurePolicy"]["maxRestarts"] == 0, "a restart of the set would take warm servers down"
    (rule,) = spec["failurePolicy"]["rules"]
    assert rule["action"] == "FailJobSet" and rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    assert spec["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
    assert spec["ttlSecondsAfterFinished"] > 0 and spec["coordinator"]["replicatedJob"] == "trainer"
    replicas = {job["name"]: job["replicas"] for job in spec["replicatedJobs"]}
    assert settings(build(tmp_path, "jobset"))["SERVERS"].split(",") == [
        f"tandem-rollout-{i}-0.tandem:50051" for i in range(replicas["rollout"])]


def test_start_order_is_left_to_the_programs(tmp_path):
    """A gang scheduler waits for all pods, so pods that are created or started after others (dependsOn, init containers) would hang."""
    for overlay in OVERLAYS:
        objects = build(tmp_path, overlay, COMPONENTS)
        assert "dependsOn" not in json.dumps(objects) and "startupPolicy" not in json.dumps(objects)
        for _, template in workloads(objects).values():
            assert "initContainers" not in template["spec"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_find_their_pods_and_ports_have_names_there(overlay, tmp_path):
    objects = build(tmp_path, overlay, COMPONENTS)
    templates = {role: template for role, (_, template) in workloads(objects).items()}

    def chosen(selector):
        return [role for role, template in templates.items()
                if selector.items() <= template["metadata"]["labels"].items()]
    services = {service["metadata"]["name"]: service for service in of_kind(objects, "Service")}
    for name, service in services.items():
        role = "trainer" if "trainer" in name else "rollout"
        assert chosen(service["spec"]["selector"]) == [role] and service["spec"]["clusterIP"] == "None"
        names = {port["name"] for port in container(templates[role])["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= names
    assert "publishNotReadyAddresses" not in services["tandem-rollout"]["spec"], "clients find servers that are ready"
    assert services["tandem-rollout-all"]["spec"]["publishNotReadyAddresses"], "the trainer makes them ready"
    for budget in of_kind(objects, "PodDisruptionBudget"):
        assert chosen(budget["spec"]["selector"]["matchLabels"]) == ["rollout"]
    for deployment in of_kind(objects, "Deployment"):
        assert chosen(deployment["spec"]["selector"]["matchLabels"]) == ["rollout"]
    (monitor,) = of_kind(objects, "PodMonitor")
    assert sorted(chosen(monitor["spec"]["selector"]["matchLabels"])) == sorted(ROLES)
    assert bool(of_kind(objects, "PodDisruptionBudget")) == bool(of_kind(objects, "HorizontalPodAutoscaler")) == (
        overlay == "elastic")


def test_closed_networks_open_what_the_run_needs_and_no_more(tmp_path):
    policies = {policy["metadata"]["name"]: policy["spec"] for policy in
                of_kind(build(tmp_path, "jobset", ["network-policy"]), "NetworkPolicy")}
    deny = policies["tandem-deny"]
    assert sorted(deny["policyTypes"]) == ["Egress", "Ingress"] and "ingress" not in deny
    assert [port["port"] for port in deny["egress"][0]["ports"]] == [53, 53], "names can be looked up"

    def who(rules):
        """{(component or label, ports)} that a list of peers allows."""
        return {(tuple(sorted(peer.get("podSelector", peer.get("namespaceSelector"))["matchLabels"].values())),
                 tuple(port["port"] for port in rule.get("ports", []))) for rule in rules
                for peer in rule.get("from", rule.get("to"))}
    pods = {(("tandem", "trainer"), ()), (("rollout", "tandem"), ())}
    assert who(policies["tandem-trainer"]["ingress"]) == who(policies["tandem-trainer"]["egress"]) == pods
    assert who(policies["tandem-rollout"]["ingress"]) == {(("tandem", "trainer"), ()), (("true",), ("grpc",))}
    assert who(policies["tandem-observe"]["ingress"]) == {(("monitoring",), ("observe",))}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_plaintext_is_said_aloud_and_the_component_mutual_tls_takes_its_place(overlay, tmp_path):
    plain, closed = settings(build(tmp_path, overlay)), settings(build(tmp_path, overlay, ["mutual-tls"]))
    assert plain["ROLLOUT_SECURITY"] == "server.insecure_plaintext_open_to_the_network=true"
    assert closed["ROLLOUT_SECURITY"] == "server.tls=/etc/tandem-tls"
    assert closed["TRAINER_SECURITY"] == "trainer.tls=/etc/tandem-tls"
    for role, (_, template) in workloads(build(tmp_path, overlay)).items():
        (secret,) = [volume["secret"] for volume in template["spec"]["volumes"] if volume["name"] == "tls"]
        assert secret["secretName"] == f"tandem-{role}-tls" and secret["optional"] is True


def expanded(words, values):
    return [re.sub(r"\$\((\w+)\)", lambda match: values[match.group(1)], word) for word in words]


@pytest.mark.parametrize("overlay,components", [*itertools.product(OVERLAYS, [[], ["mutual-tls"]])])
def test_what_a_pod_says_to_its_program_the_program_knows(overlay, components, tmp_path):
    """Flags are in --help, options in --help-config, and variables of the launch on the page about launchers."""
    objects = build(tmp_path, overlay, components)
    for _, template in workloads(objects).values():
        only = container(template)
        program = BIN / pathlib.Path(only["command"][0]).name
        flags = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
        options = subprocess.run([program, "--help-config"], capture_output=True, text=True, check=True).stdout
        options = set(re.findall(r"^\s*([\w.]+)", options, re.M)) | set(re.findall(r"`([\w.]+)`", options))
        for word in expanded(only["args"], settings(objects)):
            flag, _, value = word.partition("=")
            assert flag in flags, f"{program.name} does not know {flag}"
            if flag == "--set":
                assert any(option.endswith(value.partition("=")[0].split(".", 1)[1]) for option in options), value
    known = "".join((SOURCE / "docs" / page).read_text() for page in ("scaling.md", "models.md"))
    for name in set(settings(objects)) - {"SERVERS", "ROLLOUT_SECURITY", "TRAINER_SECURITY"}:
        assert f"`{name}`" in known, name


def test_the_prometheus_rule_has_the_alerts_that_are_tested(tmp_path):
    (rule,) = of_kind(build(tmp_path, "jobset", ["pod-monitor"]), "PrometheusRule")
    tested = yaml.safe_load((SOURCE / "deploy/observability/prometheus/tandem.rules.yaml").read_text())
    assert rule["spec"]["groups"] == tested["groups"]
    (monitor,) = of_kind(build(tmp_path, "jobset", ["pod-monitor"]), "PodMonitor")
    (relabel,) = monitor["spec"]["podMetricsEndpoints"][0]["relabelings"]
    jobs = {relabel["replacement"].replace("$1", role) for role in ROLES}
    assert set(re.findall(r'job="([\w-]+)"', json.dumps(tested).replace('\\"', '"'))) == jobs


def test_the_dashboards_are_one_config_map_for_grafanas_sidecar():
    (dashboards,) = kustomize("deploy/observability")
    assert dashboards["metadata"]["labels"]["grafana_dashboard"] == "1"
    folder = SOURCE / "deploy" / "observability" / "grafana"
    assert {name: json.loads(text) for name, text in dashboards["data"].items()} == {
        path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}


# `tandem render k8s`.

def write_run(tmp_path, **launch):
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps({
        "launch": {"num_servers": 3, **launch},
        "server": {"model": "models/m"},
        "trainer": {"run": {"name": "My_Run"}, "model": "models/m", "data": {"train": "data/train.jsonl"},
                    "sampling": {"max_new_tokens": 4000}}}))
    return path


def render(tmp_path, *words, **launch):
    out = tmp_path / "out"
    done = subprocess.run([str(BIN / "tandem"), "render", "k8s", str(write_run(tmp_path, **launch)), "--out", str(out), *words],
                          capture_output=True, text=True, check=False)
    return done, out


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_run_file_is_rendered_to_valid_objects_with_its_own_numbers(overlay, tmp_path):
    done, out = render(tmp_path, num_ranks=4, ranks_per_node=2, kubernetes={
        "overlay": overlay, "image": "registry.example:5000/ai/tandem:1.2", "claim": "team-data", "queue": "gpu-queue",
        "server_memory_gib": 1.5, "mutual_tls": True, "pod_monitor": True, "max_restarts": 5, "token_seconds": 0.03})
    assert done.returncode == 0, done.stderr
    assert f"kubectl apply -k {out}" in done.stdout and "warning" not in done.stderr
    objects = kustomize(out)
    assert problems_of(objects) == []
    assert not of_kind(objects, "PersistentVolumeClaim"), "the volume outlives runs"
    for thing in objects:
        assert thing["metadata"]["name"].startswith("my-run-")
        assert thing["metadata"]["labels"]["app.kubernetes.io/instance"] == "my-run"
    found = workloads(objects)
    for role, (spec, template) in found.items():
        only = container(template)
        assert only["image"] == "registry.example:5000/ai/tandem:1.2"
        assert template["metadata"]["labels"]["app.kubernetes.io/instance"] == "my-run"
        claims = [volume["persistentVolumeClaim"]["claimName"] for volume in template["spec"]["volumes"]
                  if "persistentVolumeClaim" in volume]
        assert claims == ["team-data"]
    trainer, template = found["trainer"]
    assert (trainer["completions"], trainer["parallelism"], trainer["backoffLimit"]) == (2, 2, 10)
    assert container(template)["command"] == ["/usr/local/bin/tandem", "ranks", "--per-node=2", "--",
                                              "/usr/local/bin/trainer"]
    assert template["spec"]["terminationGracePeriodSeconds"] == 120 + 60 + 30
    server, template = found["rollout"]
    assert container(template)["resources"]["limits"]["memory"] == "1536Mi"
    assert template["spec"]["terminationGracePeriodSeconds"] == 4000 * 0.03 + 30
    (run,) = [thing for thing in of_kind(objects, "ConfigMap") if "run.yaml" in thing["data"]]
    resolved = yaml.safe_load(run["data"]["run.yaml"])
    assert resolved["server"]["drain_seconds"] == 120 and resolved["trainer"]["run"]["name"] == "My_Run"
    values = settings(objects)
    assert values["WORLD_SIZE"] == "2", "of pods: each starts two ranks"
    assert values["ROLLOUT_SECURITY"] == "server.tls=/etc/tandem-tls"
    if overlay == "jobset":
        assert values["SERVERS"].split(",") == [f"my-run-tandem-rollout-{i}-0.my-run-tandem:50051" for i in range(3)]
    else:
        assert values["SERVERS"] == "dns:my-run-tandem-rollout-all:50051"
        assert server["replicas"] == 3
    if overlay == "plain":
        assert values["MASTER_ADDR"] == "my-run-tandem-trainer-0.my-run-tandem-trainer"
        assert found["trainer"][1]["spec"]["subdomain"] == "my-run-tandem-trainer"
    queued = [thing["kind"] for thing in objects
              if thing["metadata"]["labels"].get("kueue.x-k8s.io/queue-name") == "gpu-queue"]
    assert sorted(queued) == sorted({"jobset": ["JobSet"], "elastic": ["JobSet", "Deployment"],
                                     "plain": ["Job", "Deployment"]}[overlay])


def test_two_runs_of_one_namespace_do_not_select_each_others_pods(tmp_path):
    chosen = {}
    for name in ("red", "blue"):
        folder = tmp_path / name
        folder.mkdir()
        done, out = render(folder, kubernetes={"name": name, "overlay": "elastic", "pod_monitor": True})
        assert done.returncode == 0, done.stderr
        chosen[name] = kustomize(out)
    red, blue = chosen["red"], chosen["blue"]
    assert not {(thing["kind"], thing["metadata"]["name"]) for thing in red} & {
        (thing["kind"], thing["metadata"]["name"]) for thing in blue}
    labels = [template["metadata"]["labels"] for _, template in workloads(blue).values()]
    for thing in red:
        spec = thing.get("spec", {})
        for selector in (spec.get("selector"), spec.get("podSelector")):
            wanted = (selector or {}).get("matchLabels", selector)
            if wanted and thing["kind"] != "HorizontalPodAutoscaler":
                assert not [pod for pod in labels if wanted.items() <= pod.items()], thing


def test_gpus_are_asked_for_where_the_run_computes_on_them(tmp_path):
    done, out = render(tmp_path, "--set", "trainer.device=cuda", "--set", "server.engine.device=cuda", num_ranks=8,
                       gpus_per_server=2)
    assert done.returncode == 0, done.stderr
    found = workloads(kustomize(out))
    for role, count in [("trainer", "8"), ("rollout", "2")]:
        resources = container(found[role][1])["resources"]
        assert resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"] == count


@pytest.mark.parametrize("launch,words,complaint", [
    ({"kubernetes": {"name": "Much_too_long_for_the_names"}}, [], "launch.kubernetes.name"),
    ({}, ["--set", "trainer.run.name=a_name_that_is_much_too_long"], "set launch.kubernetes.name"),
    ({}, ["--set", "trainer.data.train=/home/me/train.jsonl"], "trainer.data.train is /home/me/train.jsonl"),
    ({"num_ranks": 5, "ranks_per_node": 2}, [], "not a multiple of launch.ranks_per_node 2"),
    ({"kubernetes": {"overlay": "plain"}}, ["--set", "trainer.deterministic=true"], "use overlay jobset"),
    ({"kubernetes": {"overlay": "helm"}}, [], "jobset"),
    ({"kubernetes": {"imag": "x"}}, [], "launch.kubernetes.image"),
])
def test_what_cannot_be_rendered_is_refused_with_the_option(launch, words, complaint, tmp_path):
    done, out = render(tmp_path, *words, **launch)
    assert done.returncode == 2 and complaint in done.stderr, done.stderr
    assert not out.exists()


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("x")
    done, out = render(tmp_path)
    assert done.returncode == 2 and "holds other things" in done.stderr
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]


def test_plaintext_inside_the_cluster_is_warned_about(tmp_path):
    done, _ = render(tmp_path)
    assert done.returncode == 0 and "plaintext" in done.stderr and KUBECTL.exists()
