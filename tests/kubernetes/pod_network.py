"""A network for the pods of one cluster: a bridge on this machine with its own subnet, on which the network namespace of every
pod has one address. Needs root. The machine reaches the pods, and the pods reach each other and the machine (at the address
of the bridge) and nothing else. NetworkPolicies are not enforced, and Services have no addresses (see `node_agent.py`)."""
import fcntl
import itertools
import pathlib
import subprocess
import threading


def ip(*words, namespace_of=None):
    prefix = [] if namespace_of is None else ["nsenter", "--target", str(namespace_of), "--net"]
    done = subprocess.run([*prefix, "ip", *words], capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class PodNetwork:
    """Thread-safe. `close` removes the bridge. The interfaces of pods are removed with their namespaces."""

    def __init__(self):
        self.lock = threading.Lock()
        number = self._take_number()
        self.bridge, self.prefix = f"tandem-test{number}", f"10.213.{number}"
        if pathlib.Path("/sys/class/net", self.bridge).exists():
            ip("link", "delete", self.bridge)  # left by a test that was killed; no other test has its number
        ip("link", "add", self.bridge, "type", "bridge")
        self.gateway = f"{self.prefix}.1"
        self.hosts = itertools.cycle(range(2, 254))
        self.used = set()
        ip("address", "add", f"{self.gateway}/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")

    def _take_number(self):
        """Picks a number that no other cluster on this machine has, and locks it until this process ends."""
        for number in range(1, 250):
            self.taken = open(f"/run/lock/tandem-test{number}", "w", encoding="utf-8")  # noqa: SIM115: held open
            try:
                fcntl.flock(self.taken, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return number
            except BlockingIOError:
                self.taken.close()
        raise OSError("249 test clusters at once: no bridge is left")

    def attach(self, pid):
        """Gives the network namespace of process `pid` an address and returns the address."""
        with self.lock:
            host = next(host for host in self.hosts if host not in self.used)
            self.used.add(host)
        address, outer = f"{self.prefix}.{host}", f"{self.bridge[7:]}p{host}"
        ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        ip("link", "set", outer, "master", self.bridge, "up")
        ip("address", "add", f"{address}/24", "dev", "eth0", namespace_of=pid)
        ip("link", "set", "eth0", "up", namespace_of=pid)
        ip("route", "add", "default", "via", self.gateway, namespace_of=pid)
        return address

    def release(self, address):
        host = int(address.rsplit(".", 1)[1])
        try:
            ip("link", "delete", f"{self.bridge[7:]}p{host}")
        except OSError:
            pass  # the namespace is gone, and the link with it
        with self.lock:
            self.used.discard(host)

    def close(self):
        ip("link", "delete", self.bridge)
        self.taken.close()
