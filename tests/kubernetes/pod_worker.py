"""A thread that manages one pod as a kubelet does: it starts the sandbox and the containers, runs probes, restarts containers
by restartPolicy with growing delays, terminates with preStop, SIGTERM and the grace period, and reports the status."""
import http.client
import json
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time

import pod_probes
from api_client import STRATEGIC_MERGE_PATCH, ApiError
from pod_spec import ConfigError, PodReader, hostname_of, unknown_fields
from pod_status import ContainerState, StatusBuilder, now, phase_of
from pod_volumes import PodVolumes

SANDBOX = pathlib.Path(__file__).with_name("pod_sandbox.py")
TICK_SECONDS = 0.05
RETRY_SECONDS = 1.0
SHM_BYTES = 64 << 20  # as container runtimes do
MIN_GRACE_AFTER_PRE_STOP = 2
BACKOFF_RESET_SECONDS = 600
LOG_TAIL = 2048


class Container:
    """The process and the probes of one container. `state` is the state that is reported."""

    def __init__(self, spec):
        self.spec, self.name = spec, spec["name"]
        self.state = ContainerState(self.name, spec["image"])
        self.probes, self.pid, self.identity = {}, None, None
        self.start_at, self.started_at, self.backoff = 0.0, 0.0, 0.0
        self.exited = threading.Event()
        self.stopping = False


class PodWorker:
    """`agent` is the NodeAgent, with its client, folders, images, network, thread pool and copies of objects."""

    def __init__(self, agent, pod):
        self.agent, self.client = agent, agent.client
        self.meta, self.spec = pod["metadata"], pod["spec"]
        self.pod = pod
        self.folder = agent.folder / self.meta["namespace"] / f"{self.meta['name']}-{self.meta['uid'][:8]}"
        self.containers = [Container(spec) for spec in self.spec["containers"]]
        self.latest = queue.SimpleQueue()  # newer versions of the object, from the agent's watch
        self.events = queue.SimpleQueue()  # of the sandbox
        self.wake = threading.Event()
        self.builder, self.sent = StatusBuilder(), None
        self.sandbox, self.addresses, self.failure = None, None, None
        self.terminating, self.grace_deadline, self.gone = False, None, False
        self.names = self.refreshed = None
        self.began = time.monotonic()
        self.saying = threading.Lock()
        self.thread = threading.Thread(target=self._run, daemon=True, name=f"pod {self.meta['name']}")
        self.thread.start()

    # -- calls of the agent --------------------------------------------------------------------------------------------

    def update(self, pod):
        self.latest.put(pod)
        self.wake.set()

    def forget(self):
        """The object is gone, so the pod stops at once."""
        self.latest.put(None)
        self.wake.set()

    def program(self, container=None):
        """The process id on this machine of a container's program (by default of the only one), or None if it does not run."""
        chosen = [one for one in self.containers if container in (None, one.name)]
        assert len(chosen) == 1, f"{self.meta['name']} has containers {[one.name for one in self.containers]}"
        return chosen[0].pid if chosen[0].state.running else None

    def log(self, container=None):
        chosen = [one for one in self.containers if container in (None, one.name)]
        paths = sorted((path for one in chosen for path in self.folder.glob(f"{one.name}-*.log")), key=lambda p: p.stat().st_mtime)
        return "".join(path.read_text(errors="replace") for path in paths)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self):
        try:
            self._check_supported()
            while not self.gone:
                self._step()
                self.wake.wait(TICK_SECONDS)
                self.wake.clear()
        except Exception as error:  # noqa: BLE001: an error of the node must fail the pod instead of stopping it silently
            self.agent.complain(f"pod {self.meta['namespace']}/{self.meta['name']}: {type(error).__name__}: {error}")
            raise
        finally:
            self._close_sandbox()

    def _check_supported(self):
        cannot, not_enforced = unknown_fields(self.pod)
        self.agent.not_enforced |= not_enforced
        if cannot:
            self.failure = ("NotSupportedByTheFakeNode", "the fake node cannot do " + ", ".join(cannot))
            self.agent.event(self.pod, "Warning", *self.failure)

    def _step(self):
        self._take_in()
        if self.gone:
            return
        deadline = self.spec.get("activeDeadlineSeconds")
        if deadline is not None and self.failure is None and time.monotonic() > self.began + deadline:
            self.failure = ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
            self._terminate(self.spec.get("terminationGracePeriodSeconds", 30))
        if self.failure is None and not self.terminating:
            self._bring_up()
        self._run_probes()
        if self.grace_deadline is not None and time.monotonic() > self.grace_deadline:
            for container in self.containers:
                self._signal(container, signal.SIGKILL)
        self._refresh()
        try:
            self._report()
            self._finish()
        except (OSError, http.client.HTTPException) as error:
            self.agent.complain(f"{self.meta['name']}: no answer of the API server: {error}")
            self.agent.stopped.wait(RETRY_SECONDS)

    def _take_in(self):
        while not self.latest.empty():
            pod = self.latest.get()
            if pod is None:
                self.gone = True
                return
            self.pod = pod
            if "deletionTimestamp" in pod["metadata"]:
                self._terminate(pod["metadata"].get("deletionGracePeriodSeconds", 30))
        while not self.events.empty():
            event = self.events.get()
            container = next(one for one in self.containers if one.name == (event.get("exited") or event.get("started")
                                                                            or event.get("failed")))
            if "exited" in event:
                self._exited(container, event["code"])
            elif "failed" in event:
                reason = "StartError" if event["where"] == "start" else "CreateContainerError"
                self._exited(container, 128, reason, event["message"])
            else:
                self._started(container, event["pid"])

    def _containers_done(self):
        return all(one.pid is None for one in self.containers)

    def _terminal(self):
        return self.terminating or self.failure is not None

    # -- starting ------------------------------------------------------------------------------------------------------

    def _bring_up(self):
        phase = phase_of([one.state for one in self.containers], self.spec["restartPolicy"], False)
        if phase in ("Succeeded", "Failed"):
            return
        for container in self.containers:
            if container.pid is None and not container.exited.is_set() and time.monotonic() >= container.start_at:
                try:
                    self._ensure_sandbox()
                    self._start(container)
                except ConfigError as error:
                    self._waits(container, error.reason, str(error))
                    container.start_at = time.monotonic() + RETRY_SECONDS

    def _ensure_sandbox(self):
        if self.sandbox is None:
            for name in ("names", "shm", "volumes"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            reader = PodReader(self.pod, self._lookup, None, self.agent.host_ip)
            self.volumes = PodVolumes(reader, self.folder / "volumes", self._lookup, self.client)
            self.volumes.prepare()
            self._open_sandbox()
            self.reader = PodReader(self.pod, self._lookup, self.addresses[0], self.agent.host_ip)
            self.volumes.reader = self.reader
            self._write_names()

    def _open_sandbox(self):
        self.sandbox = subprocess.Popen([sys.executable, "-S", "-E", str(SANDBOX)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=(self.folder / "sandbox.log").open("ab"))
        self._say({"hostname": hostname_of(self.pod), "folder": str(self.folder), "shm_bytes": SHM_BYTES,
                   "memory_volumes": self.volumes.memory_volumes()})
        line = self.sandbox.stdout.readline()
        if not line:
            raise RuntimeError("the sandbox did not come up: " + (self.folder / "sandbox.log").read_text()[-1000:])
        self.addresses = (self.agent.network.attach(json.loads(line)["ready"]), self.agent.host_ip)
        threading.Thread(target=self._listen, args=(self.sandbox,), daemon=True).start()

    def _listen(self, sandbox):
        for line in sandbox.stdout:
            self.events.put(json.loads(line))
            self.wake.set()

    def _say(self, command):
        with self.saying:
            try:
                self.sandbox.stdin.write(json.dumps(command).encode() + b"\n")
                self.sandbox.stdin.flush()
            except (BrokenPipeError, ValueError, AttributeError):
                pass  # it has ended with its containers

    def _lookup(self, kind, name):
        return self.agent.lookup(kind, self.meta["namespace"], name)

    def _start(self, container):
        image = self.agent.image(container.spec["image"])
        environment = self.reader.environment(container.spec, image)
        container.identity = self.reader.identity(container.spec, image)
        context = container.spec.get("securityContext") or {}
        message_file = self.folder / f"{container.name}-termination"
        message_file.write_text("")
        message_file.chmod(0o666)
        mounts = self.volumes.mounts(container.spec)
        mounts.append({"source": str(message_file), "read_only": False,
                       "target": container.spec.get("terminationMessagePath", "/dev/termination-log")})
        argv = self.reader.command(container.spec, image, environment)
        container.state.restarts += bool(container.state.run_id)
        container.log = self.folder / f"{container.name}-{container.state.restarts}.log"
        container.state.run_id = f"tests://{self.meta['uid']}/{container.name}/{container.state.restarts}"
        container.exited.clear()
        container.pid = 0  # requested
        self._say({"start": container.name, "argv": argv, "environment": environment,
                   "cwd": container.spec.get("workingDir") or image.workdir, "mounts": mounts,
                   "read_only_root": context.get("readOnlyRootFilesystem", False), "programs": image.programs,
                   "read_only_trees": list(image.read_only_trees), "log": str(container.log), **container.identity})

    def _waits(self, container, reason, message):
        container.state.state = {"waiting": {"reason": reason, "message": message}}

    def _started(self, container, pid):
        container.pid, container.started_at = pid, time.monotonic()
        container.state.state = {"running": {"startedAt": now()}}
        container.probes = {kind: pod_probes.Probe(kind, container.spec[field], container.started_at)
                            for kind, field in pod_probes.KINDS.items() if field in container.spec}
        container.state.started = "startup" not in container.probes
        container.state.ready = container.state.started and "readiness" not in container.probes
        if self.terminating:  # requested before the pod was deleted
            self._stop(container, max(0, self.grace_deadline - time.monotonic()))

    def _exited(self, container, code, reason=None, message=None):
        ran = time.monotonic() - container.started_at
        started_at = container.state.state.get("running", {}).get("startedAt", now())
        terminated = {"exitCode": code, "reason": reason or ("Completed" if code == 0 else "Error"), "startedAt": started_at,
                      "finishedAt": now(), "containerID": container.state.run_id}
        if message is None:
            message = (self.folder / f"{container.name}-termination").read_text(errors="replace")
            if not message and code != 0 and container.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
                message = container.log.read_text(errors="replace")[-LOG_TAIL:]
        if message:
            terminated["message"] = message
        container.pid, container.probes, container.stopping = None, {}, False
        container.state.ready = container.state.started = False
        container.state.state = {"terminated": terminated}
        container.exited.set()
        policy = self.spec["restartPolicy"]
        if self._terminal() or policy == "Never" or (policy == "OnFailure" and code == 0):
            return
        # The first restart is immediate. Later ones wait longer and longer, until the container has run for a while.
        container.backoff = 0.0 if ran > BACKOFF_RESET_SECONDS else container.backoff
        container.start_at = time.monotonic() + container.backoff
        if container.backoff:
            self._waits(container, "CrashLoopBackOff", f"back-off {container.backoff:g}s restarting failed container")
        container.backoff = min(max(2 * container.backoff, self.agent.restart_backoff_seconds), 300)
        container.state.last_state = {"terminated": terminated}
        container.exited.clear()

    # -- probes --------------------------------------------------------------------------------------------------------

    def _run_probes(self):
        for container in self.containers:
            if not container.state.running or container.stopping:
                continue
            order = ["startup"] if not container.state.started else ["readiness", "liveness"]
            for kind in order:
                if kind in container.probes and container.probes[kind].step(
                        lambda spec, one=container: self.agent.pool.submit(pod_probes.check, spec, one.spec, self.addresses[0],
                                                                           one.pid, one.identity)):
                    self._probed(container, kind)

    def _probed(self, container, kind):
        probe = container.probes[kind]
        if probe.failed_for_good:
            self.agent.event(self.pod, "Warning", "Unhealthy", f"{kind} probe failed: {probe.message}")
            self.agent.event(self.pod, "Normal", "Killing", f"Container {container.name} failed {kind} probe")
            grace = probe.spec.get("terminationGracePeriodSeconds", self.spec.get("terminationGracePeriodSeconds", 30))
            self._stop(container, grace)
        elif kind == "startup":
            container.state.started = True
            container.state.ready = "readiness" not in container.probes
        elif kind == "readiness":
            container.state.ready = probe.passed
            if not probe.passed:
                self.agent.event(self.pod, "Warning", "Unhealthy", f"readiness probe failed: {probe.message}")

    # -- ending --------------------------------------------------------------------------------------------------------

    def _terminate(self, grace):
        """A later delete can only shorten the grace period."""
        deadline = time.monotonic() + grace
        self.grace_deadline = deadline if self.grace_deadline is None else min(self.grace_deadline, deadline)
        if self.terminating:
            return
        self.terminating = True
        for container in self.containers:
            if container.state.running:
                self._stop(container, grace)

    def _stop(self, container, grace):
        if not container.stopping:
            container.stopping = True
            threading.Thread(target=self._stop_now, args=(container, grace), daemon=True).start()

    def _stop_now(self, container, grace):
        deadline = time.monotonic() + grace
        hook = (container.spec.get("lifecycle") or {}).get("preStop")
        if grace > 0:
            if hook:
                self._pre_stop(container, hook, grace)
            self._signal(container, signal.SIGTERM)
            left = max(deadline - time.monotonic(), MIN_GRACE_AFTER_PRE_STOP)
            if self.grace_deadline is not None and hook:
                self.grace_deadline = max(self.grace_deadline, time.monotonic() + left)
            if container.exited.wait(left):
                return
        self._signal(container, signal.SIGKILL)

    def _pre_stop(self, container, hook, grace):
        if "sleep" in hook:
            container.exited.wait(min(hook["sleep"]["seconds"], grace))
            return
        success, what = pod_probes.check({**hook, "timeoutSeconds": grace}, container.spec, self.addresses[0], container.pid,
                                         container.identity)
        if not success:
            self.agent.event(self.pod, "Warning", "FailedPreStopHook", what)

    def _signal(self, container, number):
        if self.sandbox is not None and container.pid:
            self._say({"signal": container.name, "number": int(number)})

    # -- reporting -----------------------------------------------------------------------------------------------------

    def _refresh(self):
        if self.sandbox is None:
            return
        if self.names != self.agent.names_generation:
            self._write_names()
        if self.refreshed != self.agent.data_generation:
            self.refreshed = self.agent.data_generation
            self.volumes.refresh()

    def _write_names(self):
        self.names = self.agent.names_generation
        text = self.agent.hosts_of(self.pod, self.addresses[0])
        fresh = self.folder / "names" / "hosts-next"
        fresh.write_text(text)
        fresh.rename(self.folder / "names" / "hosts")

    def _report(self):
        phase = ("Failed" if self.failure is not None and self._containers_done()
                 else phase_of([one.state for one in self.containers], self.spec["restartPolicy"], self._terminal()))
        if self.terminating and self._containers_done() and phase == "Pending":
            phase = "Failed"  # deleted before a container ran; a kubelet sets the same phase
        status = self.builder.build(phase, [one.state for one in self.containers], self.addresses, self.failure)
        if status == self.sent:
            return
        path = f"/api/v1/namespaces/{self.meta['namespace']}/pods/{self.meta['name']}/status"
        try:
            self.client.patch(path, {"metadata": {"uid": self.meta["uid"]}, "status": status}, STRATEGIC_MERGE_PATCH)
            self.sent = json.loads(json.dumps(status))
        except ApiError as error:
            if error.code == 404 or error.reason == "Conflict":
                self.gone = True  # deleted by force, and perhaps created again with the same name
            else:
                self.agent.complain(f"status of {self.meta['name']}: {error}")

    def _finish(self):
        """Frees the namespaces of a pod that ended, and deletes the object of one that was deleted."""
        done = self._containers_done() and (self._terminal() or (self.sent or {}).get("phase") in ("Succeeded", "Failed"))
        if not done:
            return
        self._close_sandbox()
        if "deletionTimestamp" in self.pod["metadata"]:
            path = f"/api/v1/namespaces/{self.meta['namespace']}/pods/{self.meta['name']}"
            try:
                self.client.delete(path, gracePeriodSeconds=0, preconditions={"uid": self.meta["uid"]})
            except ApiError as error:
                if error.code not in (404, 409):
                    raise
            self.gone = True

    def _close_sandbox(self):
        sandbox, self.sandbox = self.sandbox, None
        if sandbox is None:
            return
        sandbox.stdin.close()
        try:
            sandbox.wait(timeout=10)
        except subprocess.TimeoutExpired:
            sandbox.kill()
            sandbox.wait()
        self.agent.network.release(self.addresses[0])
        shutil.rmtree(self.folder / "volumes", ignore_errors=True)
