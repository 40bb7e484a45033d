"""A small node agent ("kubelet") for tests. It registers nodes with the API server, keeps them Ready, and runs the pods that are
bound to them as processes on this machine (pod_worker.py, pod_sandbox.py). Needs root.

It behaves like a kubelet in: environment (values, ConfigMaps, Secrets, fieldRef, resourceFieldRef), volumes (configMap, secret,
downwardAPI, projected, emptyDir, memory too, persistentVolumeClaim, hostPath), identity, capabilities, read-only roots,
probes, restarts, deletion and eviction with preStop, SIGTERM and grace, statuses, termination messages.
A pod with an unknown field fails with the name of the field. The few fields that cannot matter here are collected in
`not_enforced` (resource limits, seccomp; see pod_spec.py). NetworkPolicies are not enforced. Every pod has an /etc/hosts with
the names that DNS would have, which is replaced atomically when they change. The name of a Service with an address gives the
addresses of its ready pods instead, so the ports of the Service must be those of the pods."""
import concurrent.futures
import http.client
import pathlib
import platform
import threading

from api_client import MERGE_PATCH, ApiError, Watched
from pod_network import PodNetwork
from pod_spec import ConfigError
from pod_status import now
from pod_worker import PodWorker

HEARTBEAT_SECONDS = 5
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
DEFAULT_CAPACITY = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "100Gi"}
WATCHED = {"Pod": "/api/v1/pods", "ConfigMap": "/api/v1/configmaps", "Secret": "/api/v1/secrets", "Service": "/api/v1/services",
           "EndpointSlice": "/apis/discovery.k8s.io/v1/endpointslices",
           "PersistentVolumeClaim": "/api/v1/persistentvolumeclaims", "PersistentVolume": "/api/v1/persistentvolumes"}


def micro_time():
    return now()[:-1] + ".000000Z"


class NodeAgent:
    """`image_for(name)` returns the Image for a container image, or None. `restart_backoff_seconds`: the first delay of a
    container that keeps failing (10 in a kubelet)."""

    def __init__(self, client, folder, image_for, restart_backoff_seconds=10.0):
        self.client, self.folder, self.image_for = client, pathlib.Path(folder), image_for
        self.restart_backoff_seconds = restart_backoff_seconds
        self.network = PodNetwork()
        self.host_ip = self.network.gateway
        self.pool = concurrent.futures.ThreadPoolExecutor(max_workers=32)
        self.nodes, self.workers, self.lock = {}, {}, threading.Lock()
        self.not_enforced, self.complaints = set(), []
        self.names_generation = self.data_generation = 0
        self.stopped = threading.Event()
        self.watches = {}
        for kind, path in WATCHED.items():
            self.watches[kind] = Watched(client, path, lambda thing, kind=kind: self._changed(kind, thing))
        for kind, watch in self.watches.items():
            if not watch.ready.wait(30):
                raise RuntimeError(f"no list of {kind} within 30 s")
        self._changed("Pod", None)
        threading.Thread(target=self._beat, daemon=True).start()

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def add_node(self, name, capacity=None, labels=None):
        """Registers a Ready node. `capacity` extends or overrides DEFAULT_CAPACITY, for example {"nvidia.com/gpu": "8"}."""
        amounts = {**DEFAULT_CAPACITY, **(capacity or {})}
        self.client.create("/api/v1/nodes", {
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux",
                                                  "kubernetes.io/arch": ARCHITECTURE, **(labels or {})}}})
        with self.lock:
            self.nodes[name] = amounts
        self._report_node(name, amounts)
        self._changed("Pod", None)

    def lose_node(self, name):
        """Simulates a power failure of the node: its processes die, and the API server is not told."""
        with self.lock:
            del self.nodes[name]
            lost = [uid for uid, worker in self.workers.items() if worker.pod["spec"]["nodeName"] == name]
            for uid in lost:
                self.workers.pop(uid).forget()

    def _report_node(self, name, amounts):
        time = now()
        conditions = [{"type": kind, "status": status, "reason": reason, "message": "", "lastHeartbeatTime": time,
                       "lastTransitionTime": time}
                      for kind, status, reason in (("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                                                   ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                                                   ("PIDPressure", "False", "KubeletHasSufficientPID"),
                                                   ("Ready", "True", "KubeletReady"))]
        status = {"capacity": amounts, "allocatable": amounts, "conditions": conditions,
                  "addresses": [{"type": "InternalIP", "address": self.host_ip}, {"type": "Hostname", "address": name}],
                  "nodeInfo": {"kubeletVersion": "v1.32.2", "operatingSystem": "linux", "architecture": ARCHITECTURE, "machineID": "",
                               "systemUUID": "", "bootID": "", "kernelVersion": "", "osImage": "tests", "kubeProxyVersion": "",
                               "containerRuntimeVersion": "tests://1"}}
        self.client.patch(f"/api/v1/nodes/{name}/status", {"status": status}, MERGE_PATCH)

    def _beat(self):
        leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        while not self.stopped.wait(HEARTBEAT_SECONDS):
            for name in list(self.nodes):
                spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": micro_time()}
                try:
                    self.client.patch(f"{leases}/{name}", {"spec": spec})
                except ApiError as error:
                    if error.code == 404:
                        self._make_lease(leases, name, spec)
                except (OSError, http.client.HTTPException):
                    pass  # the API server is stopping or restarting; the next heartbeat tries again

    def _make_lease(self, leases, name, spec):
        try:
            self.client.create(leases, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
                                        "spec": spec})
        except (ApiError, OSError, http.client.HTTPException) as error:
            self.complain(f"lease of {name}: {error}")

    # -- pods ----------------------------------------------------------------------------------------------------------

    def _changed(self, kind, thing):
        if kind in ("Service", "EndpointSlice"):
            self.names_generation += 1
        elif kind in ("ConfigMap", "Secret"):
            self.data_generation += 1
        elif kind == "Pod" and "Pod" in self.watches:
            self._sort_pods()

    def _sort_pods(self):
        pods = {pod["metadata"]["uid"]: pod for pod in self.watches["Pod"].all().values()
                if pod["spec"].get("nodeName") in self.nodes}
        with self.lock:
            if self.stopped.is_set():
                return
            for uid, pod in pods.items():
                if uid in self.workers:
                    self.workers[uid].update(pod)
                elif pod["status"].get("phase") in ("Pending", None) and "deletionTimestamp" not in pod["metadata"]:
                    self.workers[uid] = PodWorker(self, pod)
            for uid in [uid for uid in self.workers if uid not in pods]:
                self.workers.pop(uid).forget()

    def worker(self, uid):
        with self.lock:
            return self.workers.get(uid)

    def image(self, name):
        image = self.image_for(name)
        if image is None:
            raise ConfigError("ErrImagePull", f"no image {name} in this test cluster")
        return image

    def lookup(self, kind, namespace, name):
        return self.watches[kind].get(name if kind == "PersistentVolume" else f"{namespace}/{name}")

    # -- names ---------------------------------------------------------------------------------------------------------

    def hosts_of(self, pod, address):
        """The /etc/hosts of one pod: its own name, and the names of Services that DNS would have."""
        namespace = pod["metadata"]["namespace"]
        own = pod["spec"].get("hostname") or pod["metadata"]["name"]
        names = [own]
        if pod["spec"].get("subdomain"):
            names.insert(0, f"{own}.{pod['spec']['subdomain']}.{namespace}.svc.cluster.local")
        lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback", f"{address} {' '.join(names)}"]
        services = self.watches["Service"].all()
        for piece in self.watches["EndpointSlice"].all().values():
            meta = piece["metadata"]
            service = services.get(f"{meta['namespace']}/{meta.get('labels', {}).get('kubernetes.io/service-name', '')}")
            if service is None or piece["addressType"] != "IPv4":
                continue
            for endpoint in piece.get("endpoints") or []:
                if endpoint.get("conditions", {}).get("ready", True):
                    lines += self._lines_of(service, endpoint, namespace)
        return "\n".join(lines) + "\n"

    def _lines_of(self, service, endpoint, namespace):
        meta = service["metadata"]
        forwarded = service["spec"].get("clusterIP") != "None" and service["spec"].get("selector")
        for port in service["spec"].get("ports", []):
            if forwarded and port.get("targetPort", port["port"]) != port["port"]:
                self.complain_once(f"Service {meta['name']}: port {port['port']} is not its targetPort, and nothing forwards here")
        hosts = [meta["name"]]
        if endpoint.get("hostname") and service["spec"].get("clusterIP") == "None":
            hosts.append(f"{endpoint['hostname']}.{meta['name']}")
        suffixes = [f".{meta['namespace']}.svc.cluster.local", f".{meta['namespace']}.svc", f".{meta['namespace']}"]
        if meta["namespace"] == namespace:
            suffixes.append("")
        return [f"{address} {' '.join(host + suffix for suffix in suffixes)}" for address in endpoint["addresses"]
                for host in hosts]

    # -- other ---------------------------------------------------------------------------------------------------------

    def event(self, pod, kind, reason, message):
        meta = pod["metadata"]
        body = {"apiVersion": "v1", "kind": "Event", "metadata": {"generateName": f"{meta['name'][:200]}."}, "type": kind,
                "reason": reason, "message": message, "firstTimestamp": now(), "lastTimestamp": now(), "count": 1,
                "source": {"component": "kubelet", "host": pod["spec"]["nodeName"]},
                "involvedObject": {"kind": "Pod", "apiVersion": "v1", "namespace": meta["namespace"], "name": meta["name"],
                                   "uid": meta["uid"]}}
        try:
            self.client.create(f"/api/v1/namespaces/{meta['namespace']}/events", body)
        except (ApiError, OSError, http.client.HTTPException) as error:
            self.complain(f"event {reason}: {error}")

    def complain(self, message):
        """Records a failure of the agent itself, for the end of the test."""
        self.complaints.append(message)

    def complain_once(self, message):
        if message not in self.complaints:
            self.complain(message)

    def stop(self):
        """Kills the processes of all pods and removes the network. The API server is not told."""
        self.stopped.set()
        for watch in self.watches.values():
            watch.stop()
        with self.lock:
            workers = list(self.workers.values())
        for worker in workers:
            worker.forget()
        for worker in workers:
            worker.thread.join(timeout=20)
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.network.close()


