"""The schema checks find what the API server would refuse, and accept published objects that it accepts."""
import copy

import pytest
import yaml

import schemas

JOB_SET = yaml.safe_load("""
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: tandem, labels: {kueue.x-k8s.io/queue-name: research}}
spec:
  successPolicy: {operator: All, targetReplicatedJobs: [trainer]}
  failurePolicy: {maxRestarts: 0, rules: [{name: fatal, action: FailJobSet, onJobFailureReasons: [PodFailurePolicy]}]}
  replicatedJobs:
  - name: trainer
    replicas: 1
    template:
      spec:
        completions: 2
        podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: DisruptionTarget, status: "True"}]}]}
        template:
          spec:
            restartPolicy: Never
            containers:
            - name: trainer
              image: tandem
              ports: [{name: observe, containerPort: 9401}]
              livenessProbe: {httpGet: {path: /livez, port: observe}}
              resources: {limits: {cpu: 4, memory: 8Gi, nvidia.com/gpu: "8"}}
            volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 1Gi}}]
""")
OTHERS = list(yaml.safe_load_all("""
apiVersion: v1
kind: Service
metadata: {name: rollout}
spec: {clusterIP: None, ports: [{port: 9400, targetPort: observe}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: rollout}
spec: {maxUnavailable: 10%, selector: {matchLabels: {app: rollout}}}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {name: research}
spec: {clusterQueue: gpus}
---
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: rollout}
spec: {replicas: 2, leaderWorkerTemplate: {size: 2, workerTemplate: {spec: {containers: [{name: a, image: b}]}}}}
---
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata: {name: tandem}
spec: {selector: {matchLabels: {app: tandem}}, podMetricsEndpoints: [{port: observe, interval: 15s}]}
---
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: tandem}
spec: {groups: [{name: a, rules: [{alert: Late, expr: up == 0, for: 5m}]}]}
"""))


def changed(thing, path, value):
    thing = copy.deepcopy(thing)
    *parents, last = path
    place = thing
    for step in parents:
        place = place[step]
    place[last] = value
    return thing


def test_what_the_api_server_takes_has_no_problems():
    assert schemas.problems_of([JOB_SET, *OTHERS]) == []


POD = ("spec", "replicatedJobs", 0, "template", "spec", "template", "spec")


@pytest.mark.parametrize("path, value, problem", [
    ((*POD, "containers", 0, "livenesProbe"), {}, "'livenesProbe' was unexpected"),
    ((*POD, "containers", 0, "livenessProbe", "httpGet", "pth"), "/", "'pth' was unexpected"),
    ((*POD, "containers", 0, "ports", 0, "containerPort"), "9401", "'9401' is not of type 'integer'"),
    ((*POD, "volumes", 0, "emptyDir", "sizeLimit"), "1 GiB", "does not match"),
    ((*POD, "containers"), None, "None is not of type 'array'"),
    (("spec", "successPolicy", "operator"), "all", "'all' is not one of ['All', 'Any']"),
    (("spec", "failurePolicy", "rules", 0, "action"), "RestartJob", "'RestartJob' is not one of"),
    (("spec", "ttlSecondsAfterFinished"), -1, "-1 is less than the minimum of 0"),
    (("metadata", "lables"), {}, "'lables' was unexpected"),
])
def test_a_mistake_in_a_custom_resource_is_seen_down_to_its_pods(path, value, problem):
    found = schemas.problems_of([changed(JOB_SET, path, value)])
    assert len(found) == 1 and problem in found[0], found


@pytest.mark.parametrize("number, path, value, problem", [
    (0, ("spec", "ports", 0, "targetport"), 1, "'targetport' was unexpected"),
    (0, ("spec", "ports", 0, "port"), 2**40, "greater than the maximum"),
    (1, ("spec", "maxUnavailable"), [], "[] is not of type"),
    (2, ("spec", "clusterQueues"), "a", "'clusterQueues' was unexpected"),
    (3, ("spec", "leaderWorkerTemplate", "restartPolicy"), "Sometimes", "'Sometimes' is not one of"),
    (4, ("spec", "podMetricsEndpoints", 0, "interval"), "often", "does not match"),
    (5, ("spec", "groups", 0, "rules", 0, "expression"), "up", "'expression' was unexpected"),
    (0, ("kind",), "Servic", "no schema of v1 Servic"),
])
def test_a_mistake_in_any_other_object_is_seen(number, path, value, problem):
    found = schemas.problems_of([changed(OTHERS[number], path, value)])
    assert len(found) == 1 and problem in found[0], found
