"""A metrics adapter for HorizontalPodAutoscalers: the APIs custom.metrics.k8s.io/v1beta2 (of pods) and
external.metrics.k8s.io/v1beta1 (sums over the pods of a namespace). It scrapes the pods' /metrics for each request. The real
controller manager does the scaling. Labels of a sample can be selected with `name=value`, joined by commas."""
import http.client
import http.server
import json
import re
import ssl
import threading
import urllib.parse

from api_client import ApiError
from pod_status import now

CUSTOM, EXTERNAL = ("custom.metrics.k8s.io", "v1beta2"), ("external.metrics.k8s.io", "v1beta1")
SAMPLE = re.compile(r'^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def target_labels(pod):
    """Adds labels of a pod to its samples, as podTargetLabels of a PodMonitor does."""
    return {re.sub(r"\W", "_", name): value for name, value in pod["metadata"].get("labels", {}).items()}


def samples_of(text, metric, wanted, target=None):
    """The values in a scrape of the samples of `metric` whose labels, with those of the target, include `wanted`."""
    found = []
    for line in text.splitlines():
        match = SAMPLE.match(line)
        if match and match.group(1) == metric:
            labels = {**(target or {}), **dict(LABEL.findall(match.group(2) or ""))}
            if all(labels.get(name) == value for name, value in wanted.items()):
                found.append(float(match.group(3)))
    return found


def selector_of(text):
    pairs = [part.split("=", 1) for part in (text or "").split(",") if part]
    return {name: value.lstrip("=") for name, value in pairs}


class MetricsApi:
    """Serves on `address` (not a loopback address, which Endpoints must not have) with the certificate in `folder`, and registers
    with the API server. `port_name`: the port of the containers that is scraped."""

    def __init__(self, client, folder, address, port_name="observe"):
        self.client, self.port_name = client, port_name
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                owner.answer(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer((address, 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self._register(address, self.server.server_address[1])

    def _register(self, address, port):
        place = "/api/v1/namespaces/kube-system"
        self.client.create(f"{place}/services", {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics-api"},
                                                 "spec": {"ports": [{"port": 443, "targetPort": port}]}})
        self.client.create(f"{place}/endpoints", {
            "apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "metrics-api"},
            "subsets": [{"addresses": [{"ip": address}], "ports": [{"port": port}]}]})
        for group, version in (CUSTOM, EXTERNAL):
            self.client.create("/apis/apiregistration.k8s.io/v1/apiservices", {
                "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": f"{version}.{group}"},
                "spec": {"group": group, "version": version, "insecureSkipTLSVerify": True, "groupPriorityMinimum": 100,
                         "versionPriority": 100, "service": {"namespace": "kube-system", "name": "metrics-api", "port": 443}}})

    def available(self):
        for group, version in (CUSTOM, EXTERNAL):
            service = self.client.get(f"/apis/apiregistration.k8s.io/v1/apiservices/{version}.{group}")
            if not any(one["type"] == "Available" and one["status"] == "True"
                       for one in service.get("status", {}).get("conditions") or []):
                return False
        return True

    def answer(self, request):
        url = urllib.parse.urlsplit(request.path)
        query = {name: values[0] for name, values in urllib.parse.parse_qs(url.query).items()}
        try:
            body, code = self._answer([urllib.parse.unquote(part) for part in url.path.split("/") if part], query), 200
        except (ApiError, LookupError, ValueError) as error:
            body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound", "message": str(error)}
            code = 404
        data = json.dumps(body).encode()
        request.send_response(code)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def _answer(self, path, query):
        group_version = f"{path[1]}/{path[2]}"
        if len(path) == 3:
            name, kind = ("pods/*", "MetricValueList") if path[1] == CUSTOM[0] else ("*", "ExternalMetricValueList")
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version,
                    "resources": [{"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get"]}]}
        namespace = path[4]
        if path[1] == CUSTOM[0]:
            _, name, metric = path[5:]
            selector = urllib.parse.urlencode({"labelSelector": query.get("labelSelector", "")})
            pods = [pod for pod in self._pods(namespace, selector) if name in ("*", pod["metadata"]["name"])]
            values = {pod["metadata"]["name"]: self._scrape(pod, metric, selector_of(query.get("metricLabelSelector"))) for pod in pods}
            items = [{"describedObject": {"kind": "Pod", "namespace": namespace, "name": name, "apiVersion": "/v1"},
                      "metric": {"name": metric}, "timestamp": now(), "value": f"{round(sum(found) * 1000)}m"}
                     for name, found in values.items() if found]
            return {"kind": "MetricValueList", "apiVersion": group_version, "metadata": {}, "items": items}
        wanted = selector_of(query.get("labelSelector"))
        found = sum((self._scrape(pod, path[5], wanted) for pod in self._pods(namespace, "")), [])
        if not found:
            raise LookupError(f"no pod of {namespace} has a metric {path[5]} with {wanted}")
        return {"kind": "ExternalMetricValueList", "apiVersion": group_version, "metadata": {}, "items": [
            {"metricName": path[5], "metricLabels": wanted, "timestamp": now(), "value": f"{round(sum(found) * 1000)}m"}]}

    def _pods(self, namespace, selector):
        return [pod for pod in self.client.get(f"/api/v1/namespaces/{namespace}/pods?{selector}").get("items") or []
                if pod["status"].get("phase") == "Running"]

    def _scrape(self, pod, metric, wanted):
        ports = [port["containerPort"] for container in pod["spec"]["containers"] for port in container.get("ports", [])
                 if port.get("name") == self.port_name]
        if not ports:
            return []
        connection = http.client.HTTPConnection(pod["status"]["podIP"], ports[0], timeout=2)
        try:
            connection.request("GET", "/metrics")
            return samples_of(connection.getresponse().read().decode(), metric, wanted, target_labels(pod))
        except (OSError, http.client.HTTPException):
            return []
        finally:
            connection.close()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
