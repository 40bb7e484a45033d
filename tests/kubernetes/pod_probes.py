"""The probes of one container, as a kubelet does them: when each is due, and what an answer means. The checks run in threads
of the agent's pool, so that a program that hangs does not delay other pods."""
import http.client
import socket
import ssl
import subprocess
import time

KINDS = {"startup": "startupProbe", "readiness": "readinessProbe", "liveness": "livenessProbe"}


def port_number(port, container):
    if isinstance(port, int) or str(port).isdigit():
        return int(port)
    for declared in container.get("ports", []):
        if declared.get("name") == port:
            return declared["containerPort"]
    raise ValueError(f"container {container['name']} has no port named {port}")


def http_get(action, container, pod_ip, timeout):
    """(whether the answer is a success, the answer)."""
    host, port = action.get("host") or pod_ip, port_number(action["port"], container)
    if action.get("scheme", "HTTP") == "HTTPS":
        context = ssl._create_unverified_context()  # like a kubelet, which does not check certificates  # noqa: SLF001
        connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=timeout)
    headers = {"User-Agent": "kube-probe/1.32", "Accept": "*/*", "Connection": "close"}
    headers.update({header["name"]: header["value"] for header in action.get("httpHeaders", [])})
    try:
        connection.request("GET", action.get("path", "/"), headers=headers)
        response = connection.getresponse()
        body = response.read(10240).decode(errors="replace")
        return 200 <= response.status < 400, f"HTTP {response.status}: {body.strip()[:300]}"
    finally:
        connection.close()


def run_in_container(pid, identity, command, timeout):
    done = subprocess.run(["nsenter", "--target", str(pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd",
                           "--setuid", str(identity["uid"]), "--setgid", str(identity["gid"]), "--", *command],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False)
    return done.returncode == 0, f"exit code {done.returncode}: {(done.stdout + done.stderr).strip()[-300:]}"


def check(spec, container, pod_ip, pid, identity):
    """Runs the handler of a probe: (success, what happened). It does not throw; an error is a failed probe."""
    timeout = spec.get("timeoutSeconds", 1)
    try:
        if "httpGet" in spec:
            return http_get(spec["httpGet"], container, pod_ip, timeout)
        if "tcpSocket" in spec:
            port = port_number(spec["tcpSocket"]["port"], container)
            with socket.create_connection((spec["tcpSocket"].get("host") or pod_ip, port), timeout=timeout):
                return True, f"connected to {port}"
        return run_in_container(pid, identity, spec["exec"]["command"], timeout)
    except (OSError, ValueError, http.client.HTTPException, subprocess.TimeoutExpired) as error:
        return False, f"{type(error).__name__}: {error}"


class Probe:
    """One probe of one run of a container. Use it only from the worker thread of the pod."""

    def __init__(self, kind, spec, started_at):
        self.kind, self.spec = kind, spec
        self.due = started_at + spec.get("initialDelaySeconds", 0)
        self.period = spec.get("periodSeconds", 10)
        self.successes = self.failures = 0
        self.running = None  # the future of the running check
        self.passed = kind == "liveness"  # the result: live until a check fails, and not started or ready until a check succeeds
        self.failed_for_good = False
        self.message = ""

    def step(self, submit):
        """Starts a check when it is due and takes the result of one that is done. Returns True if the result may have changed.
        `submit(spec)` returns a future of `check`."""
        if self.running is not None:
            if not self.running.done():
                return False
            success, self.message = self.running.result()
            self.running = None
            self.due = max(self.due + self.period, time.monotonic())
            return self._count(success)
        if time.monotonic() >= self.due:
            self.running = submit(self.spec)
        return False

    def _count(self, success):
        self.successes, self.failures = (self.successes + 1, 0) if success else (0, self.failures + 1)
        before = self.passed, self.failed_for_good
        if success and self.successes >= self.spec.get("successThreshold", 1):
            self.passed = True
        if not success and self.failures >= self.spec.get("failureThreshold", 3):
            if self.kind == "readiness":
                self.passed = False
            else:
                self.failed_for_good = True
        return before != (self.passed, self.failed_for_good)
