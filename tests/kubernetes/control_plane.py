"""A Kubernetes control plane on this machine for tests: real etcd, kube-apiserver, kube-controller-manager, kube-scheduler and
JobSet controller with its webhooks, and nodes on which pods are processes (node_agent.py). Needs root and the programs that
`deploy/setup/install.sh --kubernetes` builds into .deps/kubernetes. Ready in a few seconds. Everything ends with the test.

    with Cluster(tmp_path, images={"tandem": tandem_image()}) as cluster:
        cluster.apply_kustomization("deploy/kubernetes/overlays/jobset")     # or cluster.apply(yaml text, dict or list)
        pod = cluster.wait_for_pod("trainer", "Running")                     # see `pods` for what names a pod
        pid = cluster.process_of(pod)                                        # on this machine: os.kill(pid, 9) kills it
        cluster.evict(pod)                                                   # or delete_pod(pod, grace_seconds=...)
        cluster.wait_finished("tandem", "Completed", seconds=300)
        cluster.serve_metrics()                                              # then autoscalers scale by the pods' /metrics
        print(cluster.log(pod), cluster.claim_folder("runs"), cluster.kubectl("get", "events"))

When `wait_for` fails, its message has the cluster's events, pods and their last lines. After a failed test, `with` writes the
same to `report.txt` in its folder. Images are found by their name without registry and tag. Pods have addresses that this
machine reaches (`address_of`), and the names that DNS has in a cluster. node_agent.py says how, and what is missing:
NetworkPolicies, limits, kubectl exec, logs and port-forward (`run_in` replaces exec)."""
import json
import os
import pathlib
import subprocess
import time
import urllib.request

import yaml

from api_client import ApiClient, ApiError
from free_ports import free_ports
from local_storage import LocalStorage
from metrics_api import MetricsApi
from node_agent import NodeAgent
from pod_spec import Image  # noqa: F401: for users of this module
from waiting import wait_until

SOURCE = pathlib.Path(__file__).resolve().parents[2]
KUBERNETES = SOURCE / ".deps" / "kubernetes"
START_SECONDS = 90
TOKEN = "tests-only"
RESOURCES = {
    "pods": "/api/v1/namespaces/{}/pods", "services": "/api/v1/namespaces/{}/services", "events": "/api/v1/namespaces/{}/events",
    "configmaps": "/api/v1/namespaces/{}/configmaps", "secrets": "/api/v1/namespaces/{}/secrets",
    "persistentvolumeclaims": "/api/v1/namespaces/{}/persistentvolumeclaims",
    "jobs": "/apis/batch/v1/namespaces/{}/jobs", "deployments": "/apis/apps/v1/namespaces/{}/deployments",
    "replicasets": "/apis/apps/v1/namespaces/{}/replicasets",
    "horizontalpodautoscalers": "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers",
    "poddisruptionbudgets": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "jobsets": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets",
}
POD_LABELS = ("jobset.sigs.k8s.io/replicatedjob-name", "app.kubernetes.io/component", "batch.kubernetes.io/job-name", "app")


class Daemon:
    """A program of the control plane with its output in `folder/name.log`. It is killed with the thread that started it."""

    def __init__(self, folder, name, *command, environment=None):
        self.name, self.log = name, pathlib.Path(folder) / f"{name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *map(str, command)], stdout=log, stderr=log,
                                            stdin=subprocess.DEVNULL, env={**os.environ, **(environment or {})})

    def last_lines(self, count=15):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])

    def wait_ready(self, ready, seconds=START_SECONDS):
        deadline = time.monotonic() + seconds

        def up_or_ended():
            return self.process.poll() is not None or _quietly(ready)
        try:
            wait_until(up_or_ended, "", max(1, deadline - time.monotonic()))
        except AssertionError:
            raise RuntimeError(f"{self.name} was not ready within {seconds} s:\n{self.last_lines()}") from None
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.name} ended with {self.process.returncode}:\n{self.last_lines()}")

    def stop(self):
        """Kills it at once, because there is nothing to save."""
        self.process.kill()
        self.process.wait()


def _quietly(question):
    try:
        return question()
    except (OSError, ApiError):
        return False


def _answers(url):
    with urllib.request.urlopen(url, timeout=2) as response:
        return response.status == 200


def binary(name):
    path = KUBERNETES / "bin" / name
    if not path.exists():
        raise RuntimeError(f"no {path}: deploy/setup/install.sh --kubernetes builds it")
    return path


def tandem_image(**changes):
    """The project's image, with its programs from TANDEM_BIN and the user of deploy's recipe. It also has the source tree,
    read-only, with the libraries under .deps to which the programs are linked."""
    programs = pathlib.Path(os.environ.get("TANDEM_BIN", SOURCE / "build" / "release" / "bin"))
    return Image(**{"programs": {name: str(programs / name) for name in ("tandem", "rollout_server", "trainer")},
                    "read_only_trees": tuple({str(SOURCE): 0, str(programs): 0}), "user": 65532, "group": 65532,
                    "workdir": "/run/tandem", **changes})


def short_image_name(image):
    return image.rsplit("/", 1)[-1].split("@")[0].split(":")[0]


class Cluster:
    """`images`: {name without registry and tag: Image}; "*" matches any other. `nodes`: {name: capacity}, two by default.
    `storage_classes`: their claims become folders, and the first is the default. `namespace`: the default namespace of all
    methods. `restart_backoff_seconds`: see NodeAgent."""

    def __init__(self, folder, images=None, nodes=None, storage_classes=("standard",), namespace="default",
                 restart_backoff_seconds=10.0):
        if os.geteuid() != 0:
            raise RuntimeError("needs root: pods are processes in namespaces of their own, on a bridge of this machine")
        self.folder = pathlib.Path(folder) / "cluster"
        self.folder.mkdir(parents=True)
        self.images, self.namespace = images or {}, namespace
        self.daemons, self.agent, self.storage, self.metrics = [], None, None, None
        self.started_in = {}
        try:
            self._certificates()
            self._start(storage_classes, nodes or {"node-1": {}, "node-2": {}}, restart_backoff_seconds)
        except BaseException:
            self.stop()
            raise

    # -- start and end -------------------------------------------------------------------------------------------------

    def _certificates(self):
        """Makes an authority for the API server and the webhooks, and the key that signs service account tokens."""
        def openssl(*words):
            subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True, timeout=60)
        names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt", "-days", "2",
                "-subj", "/CN=tests")
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "tls.key", "-out", "tls.csr", "-subj", "/CN=tests-server",
                "-addext", names)
        (self.folder / "names.ext").write_text(names + "\n")
        openssl("x509", "-req", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
                "-extfile", "names.ext", "-out", "tls.crt")
        openssl("genrsa", "-out", "service-accounts.key", "2048")

    def _run(self, name, *command, environment=None):
        daemon = Daemon(self.folder, name, *command, environment=environment)
        self.daemons.append(daemon)
        return daemon

    def _timed(self, name, daemon, ready):
        begin = time.monotonic()
        daemon.wait_ready(ready)
        self.started_in[name] = round(time.monotonic() - begin, 2)

    def _start(self, storage_classes, nodes, restart_backoff_seconds):
        etcd_port, peer_port, api_port, webhook_port, health_port = free_ports(5)
        self.server = f"https://127.0.0.1:{api_port}"
        url = f"http://127.0.0.1:{etcd_port}"
        self._timed("etcd", self._run("etcd", binary("etcd"), "--data-dir", self.folder / "etcd", "--listen-client-urls", url,
                                      "--advertise-client-urls", url, "--listen-peer-urls", f"http://127.0.0.1:{peer_port}",
                                      "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer_port}",
                                      "--initial-cluster", f"default=http://127.0.0.1:{peer_port}"),
                    lambda: _answers(f"{url}/health"))
        self._start_api_server(api_port, url)
        self._write_kubeconfig()
        self._start_controllers()
        self._install_definitions()
        self._start_jobset(webhook_port, health_port)
        wait_until(lambda: _quietly(lambda: self.api.get("/api/v1/namespaces/default/serviceaccounts/default")),
                   "the controller manager makes the default service account", START_SECONDS)
        if self.namespace != "default":
            self.api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})
        self.storage = LocalStorage(self.api, self.folder / "claims", storage_classes)
        self.agent = NodeAgent(self.api, self.folder / "pods", self._image, restart_backoff_seconds)
        for name, capacity in nodes.items():
            self.agent.add_node(name, capacity)

    def _start_api_server(self, port, etcd_url):
        (self.folder / "tokens.csv").write_text(f"{TOKEN},tests,tests,system:masters\n")
        files = self.folder
        server = self._run("kube-apiserver", binary("kube-apiserver"), "--etcd-servers", etcd_url, "--secure-port", port,
                           "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
                           "--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=RBAC",
                           "--enable-aggregator-routing",
                           "--token-auth-file", files / "tokens.csv", "--service-account-issuer=https://tests",
                           "--service-account-key-file", files / "service-accounts.key",
                           "--service-account-signing-key-file", files / "service-accounts.key",
                           "--tls-cert-file", files / "tls.crt", "--tls-private-key-file", files / "tls.key")
        self.api = ApiClient(port, TOKEN, self.folder / "ca.crt")
        self._timed("kube-apiserver", server, lambda: self.api.get("/readyz") == "ok")

    def _write_kubeconfig(self):
        self.kubeconfig = self.folder / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "tests",
            "clusters": [{"name": "tests", "cluster": {"server": self.server,
                                                       "certificate-authority": str(self.folder / "ca.crt")}}],
            "users": [{"name": "tests", "user": {"token": TOKEN}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests", "namespace": self.namespace}}]}))

    def _start_controllers(self):
        self._run("kube-controller-manager", binary("kube-controller-manager"), "--kubeconfig", self.kubeconfig,
                  "--leader-elect=false", "--secure-port=0", "--root-ca-file", self.folder / "ca.crt",
                  "--horizontal-pod-autoscaler-sync-period=2s",
                  "--service-account-private-key-file", self.folder / "service-accounts.key")
        self._run("kube-scheduler", binary("kube-scheduler"), "--kubeconfig", self.kubeconfig, "--leader-elect=false",
                  "--secure-port=0")

    def _install_definitions(self):
        """Creates all definitions in .deps/kubernetes/crds, so that objects of controllers that do not run are also admitted."""
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        names = []
        for path in sorted((KUBERNETES / "crds").glob("*.yaml")):
            for document in yaml.load_all(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
                document["spec"].pop("conversion", None)  # by the webhook of a controller that does not run
                names.append(self.api.create(definitions, document)["metadata"]["name"])

        def established(name):
            conditions = self.api.get(f"{definitions}/{name}").get("status", {}).get("conditions") or []
            return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)
        for name in names:
            wait_until(lambda name=name: established(name), f"the definition {name} is established", START_SECONDS)

    def _start_jobset(self, webhook_port, health_port):
        """Starts the controller with its webhooks as its release does, except that the webhooks have an address of this machine
        and a certificate of the tests, instead of a Service and the controller's own certificate."""
        config = self.folder / "jobset.yaml"
        config.write_text(yaml.safe_dump({
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1", "kind": "Configuration",
            "leaderElection": {"leaderElect": False}, "internalCertManagement": {"enable": False},
            "webhook": {"host": "127.0.0.1", "port": webhook_port, "certDir": str(self.folder)}}))
        controller = self._run("jobset", binary("jobset"), "--config", config, "--metrics-bind-address=0",
                               f"--health-probe-bind-address=127.0.0.1:{health_port}",
                               environment={"KUBECONFIG": str(self.kubeconfig)})
        self._timed("jobset", controller, lambda: _answers(f"http://127.0.0.1:{health_port}/readyz"))
        import base64
        bundle = base64.b64encode((self.folder / "ca.crt").read_bytes()).decode()
        for document in yaml.safe_load_all((KUBERNETES / "jobset_webhooks.yaml").read_text()):
            for webhook in document.get("webhooks", []):
                path = webhook["clientConfig"]["service"]["path"]
                webhook["clientConfig"] = {"url": f"https://127.0.0.1:{webhook_port}{path}", "caBundle": bundle}
            if "webhooks" in document:
                self.api.create(f"/apis/admissionregistration.k8s.io/v1/{document['kind'].lower()}s", document)

    def serve_metrics(self, port_name="observe"):
        """Gives HorizontalPodAutoscalers the metrics of the pods' /metrics (metrics_api.py)."""
        self.metrics = MetricsApi(self.api, self.folder, self.agent.host_ip, port_name)
        self.wait_for(self.metrics.available, "the API server has the metrics APIs")

    def _image(self, name):
        return self.images.get(short_image_name(name), self.images.get("*"))

    def stop(self):
        if self.metrics is not None:
            self.metrics.stop()
        if self.storage is not None:
            self.storage.stop()
        if self.agent is not None:
            self.agent.stop()
        for daemon in reversed(self.daemons):
            daemon.stop()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None:
            (self.folder / "report.txt").write_text(self.report())
        self.stop()
        assert kind is not None or not self.agent.complaints, self.agent.complaints

    # -- requests to the API server ------------------------------------------------------------------------------------

    def kubectl(self, *words, text=None, check=True):
        """The standard output of kubectl. AssertionError with its messages if it fails (or, unchecked, the finished process)."""
        done = subprocess.run([str(binary("kubectl")), "--kubeconfig", str(self.kubeconfig),
                               "--cache-dir", str(self.folder / "kubectl-cache"), *map(str, words)],
                              input=text, capture_output=True, text=True, timeout=120, check=False)
        if not check:
            return done
        assert done.returncode == 0, f"kubectl {' '.join(map(str, words))}: {done.stderr}"
        return done.stdout

    def apply(self, manifest, check=True):
        """`manifest`: YAML text, an object, or a list of them. Unknown fields are errors."""
        if not isinstance(manifest, str):
            manifest = yaml.safe_dump_all(manifest if isinstance(manifest, list) else [manifest])
        return self.kubectl("apply", "--validate=strict", "-f", "-", text=manifest, check=check)

    def apply_kustomization(self, path, check=True):
        """Does what `kubectl apply -k` does. Relative paths start in the repository."""
        built = self.kubectl("kustomize", SOURCE / path)
        return self.apply(built, check=check)

    def path(self, resource, name="", namespace=None):
        base = RESOURCES[resource].format(namespace or self.namespace)
        return f"{base}/{name}" if name else base

    def get(self, resource, name, namespace=None):
        """An object, or None if there is none. `resource` is a key of RESOURCES."""
        try:
            return self.api.get(self.path(resource, name, namespace))
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def list(self, resource, namespace=None):
        return self.api.get(self.path(resource, namespace=namespace)).get("items") or []

    def finished(self, jobset):
        """"Completed" or "Failed" after a JobSet ended, "" before."""
        return (self.get("jobsets", jobset) or {}).get("status", {}).get("terminalState", "")

    def wait_finished(self, jobset, state="Completed", seconds=300):
        """Waits until a JobSet ended. Fails at once if it ended differently."""
        self.wait_for(lambda: self.finished(jobset), f"JobSet {jobset} ends", seconds)
        assert self.finished(jobset) == state, f"JobSet {jobset}: {self.finished(jobset)}\n{self.report()}"

    def condition(self, thing, kind):
        """The condition with that type in the status of an object, or None."""
        return next((one for one in thing.get("status", {}).get("conditions", []) if one["type"] == kind), None)

    # -- pods ----------------------------------------------------------------------------------------------------------

    def pods(self, what=None, live=True):
        """Pods, oldest first. `what`: the name of a replicated job, a component, the name of a job, an `app` label, or the start
        of the pod's name. `live`: only pods that have not ended and are not being deleted."""
        def wanted(pod):
            labels = pod["metadata"].get("labels") or {}
            named = (what is None or any(labels.get(label) == what for label in POD_LABELS)
                     or pod["metadata"]["name"].startswith(what))
            ended = pod["status"].get("phase") in ("Succeeded", "Failed") or "deletionTimestamp" in pod["metadata"]
            return named and not (live and ended)
        return sorted(filter(wanted, self.list("pods")), key=lambda pod: (pod["metadata"]["creationTimestamp"],
                                                                          pod["metadata"]["name"]))

    def pod(self, what):
        """The only live pod of `pods(what)`."""
        found = self.pods(what)
        assert len(found) == 1, f"{len(found)} live pods match {what}: {[one['metadata']['name'] for one in found]}"
        return found[0]

    def fresh(self, pod):
        """The current state of the same pod, or None if it is gone or another has its name."""
        now = self.get("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])
        return now if now is not None and now["metadata"]["uid"] == pod["metadata"]["uid"] else None

    def is_ready(self, pod):
        pod = self.fresh(pod)
        condition = pod and self.condition(pod, "Ready")
        return bool(condition) and condition["status"] == "True"

    def wait_for_pod(self, what, state="Running", count=1, seconds=240):
        """Waits until `count` live pods match and all have the phase `state`, or are "Ready". Returns the pod (or list of pods)."""
        def arrived():
            found = self.pods(what)
            return len(found) == count and all(
                self.is_ready(one) if state == "Ready" else one["status"].get("phase") == state for one in found)
        self.wait_for(arrived, f"{count} pods {what} become {state}", seconds)
        found = self.pods(what)
        return found[0] if count == 1 else found

    def exit_code(self, pod, container=None):
        """The exit code of the last run of a container that has ended, or None during its first run."""
        for status in (self.fresh(pod) or pod)["status"].get("containerStatuses", []):
            if container in (None, status["name"]):
                ended = status["state"].get("terminated") or status.get("lastState", {}).get("terminated")
                return None if ended is None else ended["exitCode"]
        return None

    def _worker(self, pod):
        worker = self.agent.worker(pod["metadata"]["uid"])
        assert worker is not None, f"no node runs {pod['metadata']['name']}"
        return worker

    def process_of(self, pod, container=None):
        """The process id on this machine of a container's program, or None if it does not run."""
        return self._worker(pod).program(container)

    def address_of(self, pod):
        return self.fresh(pod)["status"]["podIP"]

    def log(self, pod, container=None):
        """All output of a pod's containers over restarts, also of pods that are gone."""
        meta = pod["metadata"]
        folder = self.folder / "pods" / meta["namespace"] / f"{meta['name']}-{meta['uid'][:8]}"
        paths = sorted(folder.glob(f"{container or '*'}-*.log"), key=lambda path: (path.stat().st_mtime, path.name))
        return "".join(path.read_text(errors="replace") for path in paths)

    def run_in(self, pod, *command, container=None):
        """Like `kubectl exec`: the finished process of a command in a container, with its user and its environment."""
        pid = str(self.process_of(pod, container))
        variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().rstrip(b"\0").split(b"\0")
        owner = pathlib.Path(f"/proc/{pid}").stat()
        return subprocess.run(["nsenter", "--target", pid, "--mount", "--net", "--ipc", "--uts", "--pid", "--root", "--wd",
                               "--setgid", str(owner.st_gid), "--setuid", str(owner.st_uid), *map(str, command)],
                              env=dict(os.fsdecode(one).split("=", 1) for one in variables), capture_output=True, text=True,
                              timeout=120, check=False)

    def evict(self, pod):
        """Evicts a pod with the Eviction API, as `kubectl drain` does, with budgets (ApiError 429) and DisruptionTarget."""
        meta = pod["metadata"]
        self.api.create(f"{self.path('pods', meta['name'], meta['namespace'])}/eviction",
                        {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": meta["name"]}})

    def delete_pod(self, pod, grace_seconds=None):
        options = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        self.api.delete(self.path("pods", pod["metadata"]["name"], pod["metadata"]["namespace"]), **options)

    def claim_folder(self, claim):
        """The folder with the files of a PersistentVolumeClaim."""
        return self.storage.folder_of(self.namespace, claim)

    # -- waiting -------------------------------------------------------------------------------------------------------

    def wait_for(self, condition, why, seconds=240):
        """Returns when `condition()` is true. AssertionError with `why` and the state of the cluster after `seconds`. It is
        checked every 0.1 s."""
        last = [0.0]

        def asked():
            if time.monotonic() - last[0] < 0.1:
                return False
            last[0] = time.monotonic()
            return condition()
        try:
            wait_until(asked, why, seconds)
        except AssertionError:
            raise AssertionError(f"not within {seconds} s: {why}\n{self.report()}") from None

    def report(self):
        """A text about a failure: pods and their last lines, events, programs of the control plane that ended."""
        lines = []
        try:
            for pod in self.pods(live=False):
                states = [f"{one['name']}: {json.dumps(one['state'])}" for one in pod["status"].get("containerStatuses", [])]
                lines.append(f"pod {pod['metadata']['name']} {pod['status'].get('phase')} on {pod['spec'].get('nodeName')} "
                             f"{pod['status'].get('message', '')} {'; '.join(states)}")
                lines += [f"    | {line}" for line in self.log(pod).splitlines()[-12:]]
            for event in sorted(self.list("events"), key=lambda one: one.get("lastTimestamp") or one.get("eventTime") or "")[-40:]:
                thing = event["involvedObject"]
                lines.append(f"event {thing['kind']} {thing['name']}: {event.get('reason')}: {event.get('message')}")
        except (OSError, ApiError) as error:
            lines.append(f"the API server does not answer: {error}")
        for daemon in self.daemons:
            if daemon.process.poll() is not None:
                lines.append(f"{daemon.name} ended with {daemon.process.returncode}:\n{daemon.last_lines()}")
        if self.agent is not None:
            lines += [f"node agent: {complaint}" for complaint in self.agent.complaints]
            lines.append(f"fields of pods that were met and are not enforced here: {sorted(self.agent.not_enforced)}")
        return "\n".join(lines)


