"""The calls of the Kubernetes API that the control plane and the node agent of the tests need: JSON over HTTPS with a bearer
token, and `Watched`, a local copy of all objects of one kind that a watch keeps up to date. Standard library only.
Thread-safe: every thread has its own connection."""
import http.client
import json
import ssl
import threading
import time
import urllib.parse

# Longer than any answer takes on a busy machine. The server ends watches before that.
TIMEOUT_SECONDS = 60
IDLE_SECONDS = 20  # the server closes connections that are idle for longer than a minute
WATCH_SECONDS = 40

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"


class ApiError(Exception):
    """A refused request: `code` is the HTTP status, and `reason` the machine-readable reason in its Status."""

    def __init__(self, method, path, code, body):
        self.code = code
        try:
            status = json.loads(body)
        except ValueError:
            status = {}
        self.reason = status.get("reason", "")
        self.message = status.get("message", body.decode(errors="replace"))
        super().__init__(f"{method} {path}: {code} {self.reason}: {self.message}")


class ApiClient:
    def __init__(self, port, token, ca_file):
        self.port, self.token = port, token
        self.context = ssl.create_default_context(cafile=str(ca_file))
        self.local = threading.local()

    def _connection(self, fresh=False):
        idle = time.monotonic() - getattr(self.local, "used", 0)
        if fresh or idle > IDLE_SECONDS or getattr(self.local, "connection", None) is None:
            self.local.connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=TIMEOUT_SECONDS,
                                                                context=self.context)
        self.local.used = time.monotonic()
        return self.local.connection

    def _send(self, connection, method, path, body, content_type):
        headers = {"Authorization": f"Bearer {self.token}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type
        connection.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
        return connection.getresponse()

    def call(self, method, path, body=None, content_type="application/json"):
        """The decoded answer. A request that was broken off is repeated, except a POST, which may have been executed."""
        try:
            response = self._send(self._connection(), method, path, body, content_type)
            data = response.read()
        except (http.client.HTTPException, OSError):
            self.local.connection = None
            if method == "POST":
                raise
            response = self._send(self._connection(fresh=True), method, path, body, content_type)
            data = response.read()
        if response.status >= 300:
            raise ApiError(method, path, response.status, data)
        try:
            return json.loads(data)
        except ValueError:
            return data.decode(errors="replace")

    def get(self, path):
        return self.call("GET", path)

    def create(self, path, body):
        return self.call("POST", path, body)

    def patch(self, path, body, content_type=MERGE_PATCH):
        return self.call("PATCH", path, body, content_type)

    def delete(self, path, **options):
        return self.call("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", **options})

    def watch(self, path, version):
        """Yields (type, object) from `version` on until the server ends the watch, which it does after WATCH_SECONDS."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=TIMEOUT_SECONDS, context=self.context)
        query = urllib.parse.urlencode({"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true",
                                        "timeoutSeconds": WATCH_SECONDS})
        try:
            response = self._send(connection, "GET", f"{path}?{query}", None, None)
            if response.status >= 300:
                raise ApiError("WATCH", path, response.status, response.read())
            for line in response:
                event = json.loads(line)
                yield event["type"], event["object"]
        finally:
            connection.close()


def key_of(thing):
    """namespace/name, or the name of an object without a namespace."""
    meta = thing["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if "namespace" in meta else meta["name"]


class Watched(threading.Thread):
    """All objects of one kind: `all()` is a snapshot by namespace/name, `changed(thing or None)` is called from the watch's
    thread after each change (None: the list was made anew). `ready` is set after the first list."""

    def __init__(self, client, path, changed=lambda thing: None):
        super().__init__(daemon=True, name=f"watch {path}")
        self.client, self.path, self.changed = client, path, changed
        self.lock = threading.Lock()
        self.things = {}
        self.ready = threading.Event()
        self.stopped = threading.Event()
        self.start()

    def all(self):
        with self.lock:
            return dict(self.things)

    def get(self, key):
        with self.lock:
            return self.things.get(key)

    def stop(self):
        self.stopped.set()

    def run(self):
        version = None
        while not self.stopped.is_set():
            try:
                version = self._list() if version is None else self._follow(version)
            except (ApiError, OSError, http.client.HTTPException, ValueError):
                version = None  # the version is too old, or the server is gone: start with a list again
                self.stopped.wait(0.5)

    def _list(self):
        answer = self.client.get(self.path)
        with self.lock:
            self.things = {key_of(item): item for item in answer.get("items") or []}
        self.ready.set()
        self.changed(None)
        return answer["metadata"]["resourceVersion"]

    def _follow(self, version):
        for kind, thing in self.client.watch(self.path, version):
            if self.stopped.is_set():
                break
            if kind == "ERROR":
                return None
            version = thing["metadata"]["resourceVersion"]
            if kind == "BOOKMARK":
                continue
            with self.lock:
                if kind == "DELETED":
                    self.things.pop(key_of(thing), None)
                else:
                    self.things[key_of(thing)] = thing
            self.changed(thing)
        return version
