"""A W&B server of this machine, with as much of its API as wandb 0.31 calls for a run: it keeps the rows, summary, config,
files and artifacts of each run, tells a run that is resumed what it has, and refuses a wrong key. It can be made to fail."""
import base64
import gzip
import http.server
import json
import re
import threading

KEY = "0123456789abcdef0123456789abcdef01234567"
OPERATION = re.compile(r"(?:query|mutation)\s+(\w+)")


class Run:
    def __init__(self, name):
        self.name, self.rows, self.files, self.config, self.summary, self.tags = name, [], {}, {}, {}, []
        self.display_name, self.exit_code, self.artifacts = None, None, []

    def take(self, name, offset, lines):
        if name == "wandb-history.jsonl":
            assert offset <= len(self.rows), f"a hole before row {offset}"
            self.rows[offset:] = map(json.loads, lines)
        elif name == "wandb-summary.json":
            self.summary = json.loads(lines[-1])

    def resume_status(self):
        return {"id": self.name, "name": self.name, "displayName": self.display_name, "logLineCount": 0,
                "historyLineCount": len(self.rows), "eventsLineCount": 0, "eventsTail": "[]",
                "historyTail": json.dumps([json.dumps(row) for row in self.rows[-1:]]), "tags": self.tags, "notes": "",
                "summaryMetrics": json.dumps(self.summary), "config": json.dumps(self.config), "wandbConfig": json.dumps({"t": {}} if self.config else {}),
                "entity": {"id": "e", "name": "team"}}


class FakeWandb(http.server.ThreadingHTTPServer):
    """`url` is for WANDB_BASE_URL, KEY for WANDB_API_KEY."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.runs, self.lock, self.fails = {}, threading.RLock(), False
        self.row_came = threading.Condition(self.lock)

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        """A client that is killed in a test leaves its requests."""

    def wait_for_rows(self, run, count, seconds=60):
        with self.row_came:
            return self.row_came.wait_for(lambda: run in self.runs and len(self.runs[run].rows) >= count, seconds)

    def answer(self, operation, given):
        """The `data` of a GraphQL request."""
        project = {"id": "p", "name": given.get("project") or "tandem", "entity": {"id": "e", "name": "team"}}
        if operation == "Viewer":
            return {"viewer": {"id": "u", "entity": "team", "username": "me", "email": "", "flags": "{}", "teams": {"edges": []}}}
        if operation == "RunResumeStatus":
            run = self.runs.get(given["name"])
            return {"model": {**project, "bucket": run.resume_status() if run else None}}
        if operation == "UpsertBucket":
            is_new = given["name"] not in self.runs
            run = self.runs.setdefault(given["name"], Run(given["name"]))
            run.config.update(json.loads(given.get("config") or "{}"))
            run.tags, run.display_name = given.get("tags") or run.tags, given.get("displayName") or run.display_name
            return {"upsertBucket": {"inserted": is_new, "bucket": {**run.resume_status(), "description": "", "sweepName": None,
                                                                    "project": project}}}
        if operation == "CreateRunFiles":
            return {"createRunFiles": {"runID": given["run"], "uploadHeaders": [], "files": [
                {"name": name, "uploadUrl": f"{self.url}/upload/{given['run']}/{name}"} for name in given["files"]]}}
        if operation == "ArtifactType":  # of an artifact that is not there yet
            return {"project": {"artifact": None}}
        if operation == "CreateArtifact":
            artifact = given["input"]
            self.runs[artifact["runName"]].artifacts.append((artifact["artifactTypeName"], artifact["artifactCollectionName"]))
            return {"createArtifact": {"artifact": {"id": "a", "state": "COMMITTED", "artifactSequence": {
                "id": "s", "latestArtifact": {"id": "a", "versionIndex": 0}}}}}
        return {}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self):
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(data) if self.headers.get("Content-Encoding") == "gzip" else data

    def key(self):
        kind, _, value = self.headers.get("Authorization", "").partition(" ")
        return base64.b64decode(value).decode().partition(":")[2] if kind == "Basic" else None

    def do_POST(self):
        body = self.body()
        if self.server.fails:
            return self.reply(503, {"error": "the test says so"})
        if self.path.startswith("/sdk/"):
            return self.reply(200, {})
        if self.key() != KEY:
            return self.reply(401, {"errors": [{"message": "no such key"}]})
        with self.server.lock:
            if self.path == "/graphql":
                request = json.loads(body)
                operation = OPERATION.search(request["query"])[1]
                return self.reply(200, {"data": self.server.answer(operation, request.get("variables") or {})})
            return self.reply(200, self.stream(json.loads(body)))

    def stream(self, request):
        run = self.server.runs[self.path.split("/")[-2]]
        for name, chunk in (request.get("files") or {}).items():
            run.take(name, chunk["offset"], chunk["content"])
        if request.get("complete"):
            run.exit_code = request.get("exitcode")
        self.server.row_came.notify_all()
        return {}

    def do_PUT(self):
        body = self.body()
        _, _, run, name = self.path.split("/", 3)
        with self.server.lock:
            self.server.runs[run].files[name] = body
        self.reply(200, {})

    do_GET = do_POST
