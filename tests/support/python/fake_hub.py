"""A server that answers as the Hugging Face Hub does to its clients, on this machine: huggingface_hub, transformers, datasets
and `tandem fetch` take it for the Hub when HF_ENDPOINT names it.

    python fake_hub.py --model Qwen/Qwen2.5-0.5B-Instruct=DIR --dataset openai/gsm8k=DIR [--port PORT]
                       [--gated ORG/NAME] [--private ORG/NAME] [--token hf_TOKEN]

It prints `export HF_ENDPOINT=http://127.0.0.1:PORT` and serves until it is killed. A directory is the commit `main`.

Large files (*.safetensors, *.parquet, *.arrow and what has more than 100 kB) are in LFS: the hub redirects to a second server
of another port, which stands for the content delivery network and must never see a token. Other files are redirected within
the hub, as the Hub does. Tests make repositories with add(), and faults by the attributes of FakeHub.
"""
import argparse
import collections
import hashlib
import http.server
import json
import pathlib
import threading
import time
import urllib.parse

LFS_ENDS = (".safetensors", ".parquet", ".arrow", ".bin")
LFS_BYTES = 100_000


def git_sha1(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def is_lfs(path, content):
    return path.endswith(LFS_ENDS) or len(content) > LFS_BYTES


class Repo:
    def __init__(self, kind, name, gated=False, private=False):
        self.kind, self.name, self.gated, self.private = kind, name, gated, private
        self.commits, self.refs = {}, {}

    def commit(self, files, *refs):
        """Adds a commit of {path: bytes}, at which the branches or tags stand then. Returns its hash."""
        files = {path: content if isinstance(content, bytes) else content.encode() for path, content in files.items()}
        listing = "".join(f"{path} {git_sha1(files[path])}\n" for path in sorted(files))
        sha = hashlib.sha1(listing.encode()).hexdigest()
        self.commits[sha] = files
        for ref in refs:
            self.refs[ref] = sha
        return sha

    def find(self, revision):
        """The full commit of a branch, a tag, a full commit or a short one; None."""
        if revision in self.refs:
            return self.refs[revision]
        found = [sha for sha in self.commits if len(revision) >= 5 and sha.startswith(revision)]
        return found[0] if len(found) == 1 else None


class FakeHub:
    """Both servers, in threads. Use with `with`."""

    def __init__(self, port=0, tokens=()):
        self.tokens = set(tokens)    # that are valid and see everything
        self.limited_tokens = set()  # that are valid and have no access to what is gated
        self.repos, self.renamed = {}, {}
        self.requests = []           # (server, method, path, headers in lower case)
        # Faults, each until it is used up or taken away.
        self.failures = collections.deque()  # (part of the path, status, headers): answers of the hub
        self.cuts = collections.deque()      # (part of the path, bytes): the connection ends after them
        self.no_range = False                # the CDN ignores Range
        self.damage = {}                     # path: bytes that come in place of the file's
        self.seconds_per_piece = 0           # between pieces of 64 kB of the CDN
        self.gate = None                     # a threading.Event that the CDN waits for after the first piece
        self.lock = threading.Lock()
        self.hub = http.server.ThreadingHTTPServer(("127.0.0.1", port), self._handler("hub"))
        self.cdn = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler("cdn"))

    @property
    def url(self):
        return f"http://127.0.0.1:{self.hub.server_port}"

    def add(self, kind, name, files, *refs, **facts):
        """Adds a commit, at `main` and the refs, to a repository of kind "models" or "datasets", and makes that if needed."""
        repo = self.repos.setdefault((kind, name), Repo(kind, name, **facts))
        return repo.commit(files, "main", *refs)

    def add_directory(self, kind, name, directory, **facts):
        root = pathlib.Path(directory)
        files = {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
        return self.add(kind, name, files, **facts)

    def seen(self, server, method="GET", part=""):
        """The requests of one server: (path, headers)."""
        with self.lock:
            return [(path, headers) for at, how, path, headers in self.requests
                    if (at, how) == (server, method) and part in path]

    def __enter__(self):
        for server in (self.hub, self.cdn):
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_):
        for server in (self.hub, self.cdn):
            server.shutdown()
            server.server_close()

    def _handler(self, server):
        fake = self

        class Handler(_Handler):
            hub, name = fake, server
        return Handler


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        headers = {name.lower(): value for name, value in self.headers.items()}
        with self.hub.lock:
            self.hub.requests.append((self.name, self.command, self.path, headers))
        path, _, query = self.path.partition("?")
        try:
            if self.name == "cdn":
                self.send_stored(path)
            elif not self.fail_on_purpose():
                self.answer_hub(urllib.parse.unquote(path), path, urllib.parse.parse_qs(query))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def fail_on_purpose(self):
        with self.hub.lock:
            for failure in self.hub.failures:
                part, status, headers = failure
                if part in self.path:
                    self.hub.failures.remove(failure)
                    break
            else:
                return False
        self.send_all(status, b'{"error":"on purpose"}', headers)
        return True

    def send_all(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        if "Content-Length" not in dict(headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error_code(self, status, code, message, **headers):
        body = json.dumps({"error": message}).encode()
        self.send_all(status, body, {"X-Error-Code": code, "X-Error-Message": message, **headers})

    def token(self):
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def answer_hub(self, path, raw, query):
        words = path.strip("/").split("/")
        if words[:2] == ["api", "resolve-cache"]:  # where /resolve/ of a small file leads
            return self.send_cached(words[2:])
        is_api = words[0] == "api"
        words = words[1:] if is_api else words
        kind = "models"
        if words[0] in ("models", "datasets"):
            kind = words.pop(0)
        for length in (2, 1):  # gpt2 has no organisation
            name = "/".join(words[:length])
            if (kind, name) in self.hub.renamed and self.hub.renamed[kind, name]:
                target = self.path.replace(f"/{name}", f"/{self.hub.renamed[kind, name]}", 1)
                return self.send_all(307, headers={"Location": target})
            repo, rest = self.hub.repos.get((kind, name)), words[length:]
            if repo:
                break
        token = self.token()
        known = self.hub.tokens | self.hub.limited_tokens
        if token and token not in known:
            return self.send_all(401, b"", {"X-Error-Message": "Invalid credentials in Authorization header"})
        if repo is None or (repo.private and token not in self.hub.tokens):
            return self.send_error_code(404 if token else 401, "RepoNotFound", "Repository not found")
        if is_api:
            return self.answer_api(repo, rest, query)
        return self.answer_resolve(repo, rest, raw)

    def answer_api(self, repo, rest, query):
        # A branch may have slashes, and clients escape them: the path has been unescaped here.
        revision = "/".join(rest[1:]) if rest else "main"
        sha = repo.find(revision)
        if sha is None:
            return self.send_error_code(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        files = repo.commits[sha]
        if rest[:1] == ["tree"]:
            return self.send_json([self.tree_entry(path, files[path]) for path in sorted(files)])
        blobs = "blobs" in query
        return self.send_json({"id": repo.name, "modelId": repo.name, "sha": sha, "private": repo.private,
                               "gated": "auto" if repo.gated else False, "disabled": False, "downloads": 0, "likes": 0,
                               "tags": [], "siblings": [self.sibling(path, files[path], blobs) for path in sorted(files)]})

    def send_json(self, value):
        self.send_all(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    @staticmethod
    def sibling(path, content, blobs):
        entry = {"rfilename": path}
        if blobs:
            entry |= {"size": len(content), "blobId": git_sha1(content)}
            if is_lfs(path, content):
                entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        return entry

    @staticmethod
    def tree_entry(path, content):
        entry = {"type": "file", "path": path, "size": len(content), "oid": git_sha1(content)}
        if is_lfs(path, content):
            entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        return entry

    def answer_resolve(self, repo, rest, raw):
        # /resolve/REVISION/PATH, where the revision is escaped and so one word of the raw path.
        revision, _, path = raw.partition("/resolve/")[2].partition("/")
        sha, path = repo.find(urllib.parse.unquote(revision)), urllib.parse.unquote(path)
        if rest[:1] != ["resolve"] or sha is None:
            return self.send_error_code(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if repo.gated and self.token() not in self.hub.tokens:
            return self.send_error_code(403 if self.token() else 401, "GatedRepo",
                                        f"Access to model {repo.name} is restricted.")
        content = repo.commits[sha].get(path)
        if content is None:
            return self.send_error_code(404, "EntryNotFound", "Entry not found", **{"X-Repo-Commit": sha})
        facts = {"X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
        place = f"{repo.kind}/{repo.name}/{sha}/{urllib.parse.quote(path)}"
        if is_lfs(path, content):
            digest = hashlib.sha256(content).hexdigest()
            facts |= {"X-Linked-ETag": f'"{digest}"', "X-Linked-Size": str(len(content)), "ETag": f'"{digest[:32]}"'}
            location = f"http://127.0.0.1:{self.hub.cdn.server_port}/{place}?signature=secret"
            return self.send_all(302, headers=facts | {"Location": location})
        facts |= {"X-Linked-ETag": f'"{git_sha1(content)}"', "X-Linked-Size": str(len(content))}
        return self.send_all(307, headers=facts | {"Location": f"/api/resolve-cache/{place}"})

    def send_cached(self, words):
        kind, sha, path = words[0], None, None
        for length in (2, 1):
            repo = self.hub.repos.get((kind, "/".join(words[1:1 + length])))
            if repo:
                sha, path = words[1 + length], "/".join(words[2 + length:])
                break
        content = repo.commits[sha][path]
        self.send_content(content, path, {"X-Repo-Commit": sha, "ETag": f'"{git_sha1(content)}"'})

    def send_stored(self, path):
        words = urllib.parse.unquote(path).strip("/").split("/")
        for length in (2, 1):
            repo = self.hub.repos.get((words[0], "/".join(words[1:1 + length])))
            if repo:
                content = repo.commits[words[1 + length]]["/".join(words[2 + length:])]
                return self.send_content(content, "/".join(words[2 + length:]), {"ETag": '"of-the-cdn"'})
        return self.send_all(403, b"no such file")

    def send_content(self, content, path, headers):
        content = self.hub.damage.get(path, content)
        begin, status = 0, 200
        asked = self.headers.get("Range", "")
        if asked.startswith("bytes=") and not self.hub.no_range:
            begin, status = int(asked.removeprefix("bytes=").rstrip("-")), 206
            if begin >= len(content):
                return self.send_all(416, headers={"Content-Range": f"bytes */{len(content)}"})
            headers = headers | {"Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"}
        rest = content[begin:]
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(rest))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return None
        return self.send_pieces(rest, path)

    def send_pieces(self, rest, path):
        stop = len(rest)
        with self.hub.lock:
            for cut in self.hub.cuts:
                if cut[0] in path and self.name == "cdn":
                    self.hub.cuts.remove(cut)
                    stop = cut[1]
                    break
        for at in range(0, stop, 65536):
            self.wfile.write(rest[at:min(stop, at + 65536)])
            if self.name == "cdn" and self.hub.gate is not None:
                self.wfile.flush()
                self.hub.gate.wait(60)
            if self.name == "cdn" and self.hub.seconds_per_piece:
                time.sleep(self.hub.seconds_per_piece)
        if stop < len(rest):
            self.wfile.flush()
            self.close_connection = True
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", action="append", default=[], metavar="NAME=DIR")
    parser.add_argument("--dataset", action="append", default=[], metavar="NAME=DIR")
    parser.add_argument("--gated", action="append", default=[], metavar="NAME")
    parser.add_argument("--private", action="append", default=[], metavar="NAME")
    parser.add_argument("--token", action="append", default=[], help="that sees what is gated and private")
    arguments = parser.parse_args()
    with FakeHub(arguments.port, arguments.token) as hub:
        for kind, given in (("models", arguments.model), ("datasets", arguments.dataset)):
            for entry in given:
                name, _, directory = entry.partition("=")
                hub.add_directory(kind, name, directory, gated=name in arguments.gated, private=name in arguments.private)
        print(f"export HF_ENDPOINT={hub.url}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
