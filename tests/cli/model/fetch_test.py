"""`tandem fetch` and names of models, against huggingface_hub itself: a stand-in for the Hub serves both programs, and each reads
what the other wrote. Then the faults of servers, networks and disks."""
import fcntl
import hashlib
import json
import os
import pathlib
import pty
import signal
import subprocess
import sys
import threading

import pytest

from forked_tandem import forked_tandem
from waiting import wait_until

TANDEM = os.path.join(os.environ["TANDEM_BIN"], "tandem")
TOKENIZER = pathlib.Path(os.environ["TANDEM_SOURCE"]) / "tests" / "testdata" / "smollm2-tokenizer"
CONFIG = json.dumps({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 49152, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu",
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True})
WEIGHTS = bytes(range(256)) * 2000  # 512 kB, which the stand-in keeps as LFS
NAME = "org/tiny"


def files(**more):
    return {"config.json": CONFIG, "tokenizer.json": (TOKENIZER / "tokenizer.json").read_bytes(),
            "tokenizer_config.json": (TOKENIZER / "tokenizer_config.json").read_bytes(), "model.safetensors": WEIGHTS,
            "README.md": "# tiny\n", ".gitattributes": "*.safetensors filter=lfs\n", **more}


def fetch(*arguments, code=0, **environment):
    """(stdout, stderr) of `tandem fetch`."""
    done = forked_tandem("fetch", *arguments, env={**os.environ, **environment})
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


def hf(code, check=True, **environment):
    """What a Python program with huggingface_hub as `h` prints."""
    done = subprocess.run([sys.executable, "-c", f"import huggingface_hub as h\n{code}"], capture_output=True, text=True,
                          timeout=120, check=False, env={**os.environ, **environment})
    assert not check or done.returncode == 0, done.stderr
    return done.stdout.strip()


def tree(root):
    """{path: contents, or the target of a link}, without locks, and without the mode of files."""
    found = {}
    for path in sorted(pathlib.Path(root).rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = "-> " + os.readlink(path)
        elif path.is_file() and not name.startswith(".locks"):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def snapshot_of(hub, kind, name):
    return hub.cache / f"{kind}--{name.replace('/', '--')}"


# The same cache as huggingface_hub.

def test_fetches_the_same_tree_as_snapshot_download(fake_hub, tmp_path):
    fake_hub.add("models", NAME, files(**{"sub/folder/a.txt": "a", "sub/b.json": "{}", "ünï cöde+%.txt": "x"}), "v1", "refs/pr/1")
    out, _ = fetch(NAME, "--include", "*")
    directory = hf(f"print(h.snapshot_download('{NAME}'))", HF_HOME=str(tmp_path / "other"))
    assert tree(fake_hub.cache) == tree(tmp_path / "other" / "hub")
    assert pathlib.Path(out.strip()).relative_to(fake_hub.cache) == pathlib.Path(directory).relative_to(tmp_path / "other" / "hub")
    # Locks too, by which two clients of either kind exclude each other.
    locks = [sorted(path.name for path in (home / ".locks").rglob("*.lock")) for home in (fake_hub.cache, tmp_path / "other" / "hub")]
    assert locks[0] == locks[1]


@pytest.mark.parametrize("revision", ["v1", "refs/pr/1", "SHA", "SHORT"])
def test_fetches_a_revision_as_snapshot_download_does(fake_hub, tmp_path, revision):
    sha = fake_hub.add("models", NAME, files(), "v1", "refs/pr/1")
    fake_hub.add("models", NAME, files(**{"README.md": "# newer\n"}))
    revision = {"SHA": sha, "SHORT": sha[:8]}.get(revision, revision)
    out, _ = fetch(f"{NAME}@{revision}", "--include", "*")
    assert out.strip().endswith("/snapshots/" + sha)
    hf(f"h.snapshot_download('{NAME}', revision='{revision}')", HF_HOME=str(tmp_path / "other"))
    assert tree(fake_hub.cache) == tree(tmp_path / "other" / "hub")


def test_fetches_a_data_set_as_snapshot_download_does(fake_hub, tmp_path):
    fake_hub.add("datasets", "openai/gsm8k", {"README.md": "---\n---\n", "main/train-00000-of-00001.parquet": b"PAR1" * 9999,
                                              "main/test.jsonl": "{}\n", "loader.py": "raise SystemExit"})
    out, err = fetch("--dataset", "openai/gsm8k")
    assert "3 of 4 files" in err and not (pathlib.Path(out.strip()) / "loader.py").exists()
    fetch("--dataset", "openai/gsm8k", "--include", "*")
    hf("h.snapshot_download('openai/gsm8k', repo_type='dataset')", HF_HOME=str(tmp_path / "other"))
    assert tree(fake_hub.cache) == tree(tmp_path / "other" / "hub")


def test_huggingface_hub_reads_what_it_fetched(fake_hub):
    sha = fake_hub.add("models", NAME, files())
    out, _ = fetch(NAME)
    fake_hub.requests.clear()
    said = hf(f"print(h.snapshot_download('{NAME}', local_files_only=True))\n"
              f"print(h.try_to_load_from_cache('{NAME}', 'config.json'))\n"
              f"print(h.try_to_load_from_cache('{NAME}', 'README.md'))\n"
              f"print(h.scan_cache_dir().repos.__len__(), len(h.scan_cache_dir().warnings))").splitlines()
    assert said == [out.strip(), out.strip() + "/config.json", "None", "1 0"]
    assert fake_hub.requests == [] and sha in out
    # transformers finds it by its name, offline.
    code = f"import transformers\nprint(transformers.AutoConfig.from_pretrained('{NAME}').hidden_size)"
    assert hf(code, HF_HUB_OFFLINE="1") == "64"


def test_takes_by_name_what_huggingface_hub_downloaded(fake_hub):
    fake_hub.add("models", NAME, files(), "v1")
    hf(f"h.snapshot_download('{NAME}', revision='v1')")
    line = json.dumps({"text": "One and one"})
    answers = [subprocess.run([TANDEM, "tokenize", "--model", model], input=line, capture_output=True, text=True, timeout=60,
                              check=True).stdout for model in (f"{NAME}@v1", str(TOKENIZER))]
    assert answers[0] == answers[1] and json.loads(answers[0])["ids"]
    fake_hub.requests.clear()
    _, err = fetch(f"{NAME}@v1")
    assert "0 bytes to fetch" in err
    assert [path for _, method, path, _ in fake_hub.requests if method in ("HEAD", "GET") and "/resolve/" in path] == []


def test_goes_on_with_what_an_older_huggingface_hub_left(fake_hub):
    # Releases before 1.0 resumed blobs/ETAG.incomplete, as this client does; later ones start again.
    fake_hub.add("models", NAME, files())
    blobs = snapshot_of(fake_hub, "models", NAME) / "blobs"
    blobs.mkdir(parents=True)
    (blobs / (hashlib.sha256(WEIGHTS).hexdigest() + ".incomplete")).write_bytes(WEIGHTS[:200_000])
    _, err = fetch(NAME)
    assert "model.safetensors: goes on after 200000 bytes that are there" in err
    assert [headers["range"] for _, headers in fake_hub.seen("cdn", part="model.safetensors")] == ["bytes=200000-"]
    assert pathlib.Path(hf(f"print(h.snapshot_download('{NAME}'))"), "model.safetensors").read_bytes() == WEIGHTS


def test_huggingface_hub_finishes_what_was_interrupted(fake_hub):
    fake_hub.add("models", NAME, files())
    fake_hub.cuts.extend([("model.safetensors", 100_000)] * 9)
    fake_hub.no_range = True  # every attempt starts from the first byte and gets no further
    fetch(NAME, code=4)
    fake_hub.cuts.clear()
    directory = hf(f"print(h.snapshot_download('{NAME}'))")
    assert pathlib.Path(directory, "model.safetensors").read_bytes() == WEIGHTS


# What is fetched.

def test_fetches_what_tandem_reads_and_never_pickle(fake_hub):
    fake_hub.add("models", NAME, files(**{"pytorch_model.bin": b"\x80\x04", "onnx/model.onnx": b"x", "original/params.json": "{}",
                                          "consolidated.safetensors": b"y" * 9, "chat_template.jinja": "{{ messages }}"}))
    out, err = fetch(NAME)
    assert sorted(os.listdir(out.strip())) == ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json",
                                               "tokenizer_config.json"]
    assert "not fetched, since Tandem never reads pickle: pytorch_model.bin" in err
    fetch(NAME, "--include", "*.md", "--include", "original/*")
    assert os.path.exists(out.strip() + "/README.md") and os.path.exists(out.strip() + "/original/params.json")
    fetch(NAME, "--include", "*", "--exclude", "onnx/*")
    assert os.path.exists(out.strip() + "/consolidated.safetensors")
    assert not os.path.exists(out.strip() + "/pytorch_model.bin") and not os.path.exists(out.strip() + "/onnx")


def test_says_what_a_repository_of_pickle_lacks(fake_hub):
    fake_hub.add("models", NAME, {"pytorch_model.bin": b"\x80\x04"})
    _, err = fetch(NAME, code=3)
    assert "no file to fetch but pickle (pytorch_model.bin)" in err and "safetensors" in err


def test_says_the_architecture_before_the_large_files(fake_hub):
    fake_hub.add("models", NAME, files())
    _, err = fetch(NAME)
    assert err.index("architecture: llama, 3.2 million parameters: supported") < err.index("model.safetensors: 512.0 kB")
    mamba = {**json.loads(CONFIG), "architectures": ["MambaForCausalLM"], "model_type": "mamba"}
    fake_hub.add("models", "org/mamba", files(**{"config.json": json.dumps(mamba)}))
    _, err = fetch("org/mamba", code=3)
    assert "Tandem cannot run it" in err and "mamba" in err and "--any-architecture" in err
    assert fake_hub.seen("cdn", part="org/mamba") == []
    fetch("org/mamba", "--any-architecture")
    assert len(fake_hub.seen("cdn", part="org/mamba")) >= 1


def test_prints_one_json_object(fake_hub):
    sha = fake_hub.add("models", NAME, files(), "v1")
    out, _ = fetch(NAME + "@v1", "--json")
    result = json.loads(out)
    assert (result["name"], result["revision"], result["commit"], result["architecture"]) == (NAME, "v1", sha, "llama")
    assert {f["path"]: (f["bytes"], f["fetched"]) for f in result["files"]}["model.safetensors"] == (len(WEIGHTS), True)
    assert {f["fetched"] for f in json.loads(fetch(NAME, "--json")[0])["files"]} == {False}


def test_a_moved_branch_leaves_the_name_at_the_old_commit_until_the_new_one_is_whole(fake_hub):
    old = fake_hub.add("models", NAME, files())
    fetch(NAME)
    new = fake_hub.add("models", NAME, files(**{"model.safetensors": WEIGHTS[::-1]}))
    fake_hub.damage["model.safetensors"] = b"wrong" * 1000
    _, err = fetch(NAME, code=3)
    assert "has 5000 bytes and should have 512000: what came was removed" in err
    ref = snapshot_of(fake_hub, "models", NAME) / "refs" / "main"
    assert ref.read_text() == old
    fake_hub.damage.clear()
    fetch(NAME)
    assert ref.read_text() == new


def test_draws_a_bar_on_a_terminal_and_plain_lines_elsewhere(fake_hub):
    fake_hub.add("models", NAME, files(**{"model.safetensors": os.urandom(1_500_000)}))
    fake_hub.seconds_per_piece = 0.02
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm"
        os.execv(TANDEM, [TANDEM, "fetch", NAME])
    shown = b""
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        shown += piece
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert b"\r\x1b[K[#" in shown and b" of 1.5 MB  model.safetensors  " in shown
    fake_hub.add("models", "org/other", files())
    _, err = fetch("org/other")
    assert "\x1b" not in err and "model.safetensors: 512.0 kB in " in err


# Tokens and refusals.

def test_a_token_goes_to_the_hub_and_never_to_the_cdn(fake_hub):
    fake_hub.tokens.add("hf_secret")
    fake_hub.add("models", NAME, files(), gated=True)
    _, err = fetch(NAME, code=3)
    assert f"model {NAME} is gated: ask for access at {fake_hub.url}/{NAME}, then set HF_TOKEN" in err
    fake_hub.limited_tokens.add("hf_limited")
    _, err = fetch(NAME, code=3, HF_TOKEN="hf_limited")
    assert "is gated" in err and "(token of HF_TOKEN)" in err and "hf_limited" not in err
    fake_hub.requests.clear()
    fetch(NAME, HF_TOKEN="hf_secret")
    assert {headers.get("authorization") for _, headers in fake_hub.seen("hub")} == {"Bearer hf_secret"}
    sent = fake_hub.seen("cdn")
    assert sent and all("authorization" not in headers for _, headers in sent)


def test_reads_the_token_that_hf_auth_login_wrote(fake_hub, tmp_path):
    fake_hub.tokens.add("hf_secret")
    fake_hub.add("models", NAME, files(), private=True)
    _, err = fetch(NAME, code=3)
    assert f"no model {NAME} at {fake_hub.url}, or it is private" in err
    token = tmp_path / "huggingface" / "token"
    token.parent.mkdir(exist_ok=True)
    token.write_text("hf_secret\n")
    fetch(NAME, code=3, HF_HUB_DISABLE_IMPLICIT_TOKEN="1")
    fetch(NAME)
    _, err = fetch(NAME, code=3, HF_TOKEN="hf_wrong")
    assert "does not take the token of HF_TOKEN" in err and "hf_wrong" not in err


@pytest.mark.parametrize("name,message", [
    ("org/nothing", "no model org/nothing at "), (f"{NAME}@nothing", "has no revision 'nothing'")])
def test_says_which_part_of_a_name_is_unknown(fake_hub, name, message):
    fake_hub.add("models", NAME, files())
    _, err = fetch(name, code=3)
    assert message in err


@pytest.mark.parametrize("name", ["a/b/c", "org/x--y", "org/", "org/name@../x", "", "org/na me"])
def test_refuses_what_is_no_name(fake_hub, name):
    _, err = fetch(name, code=2)
    assert "is no name on the Hugging Face Hub" in err or "is no revision" in err
    assert fake_hub.requests == []


def test_asks_nobody_when_it_is_offline(fake_hub):
    _, err = fetch(NAME, code=2, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) is set" in err and fake_hub.requests == []


def test_follows_a_renamed_repository(fake_hub):
    fake_hub.add("models", "neworg/tiny", files())
    fake_hub.renamed["models", NAME] = "neworg/tiny"
    out, _ = fetch(NAME)
    assert "models--org--tiny" in out


# Faults of the server and of the network.

def test_waits_as_long_as_a_busy_server_asks_for(fake_hub):
    fake_hub.add("models", NAME, files())
    fake_hub.failures.extend([("/revision/", 429, {"Retry-After": "0.2"}), ("/revision/", 503, {}),
                              ("resolve", 500, {}), ("resolve", 429, {"Retry-After": "0.1"})])
    _, err = fetch(NAME)
    assert "answered 429" in err and "again in 0.2 s" in err and "answered 503" in err
    fake_hub.failures.append(("/revision/", 429, {"Retry-After": "7200"}))
    _, err = fetch(NAME, code=4)
    assert "it asks to wait 7200 s" in err


def test_gives_up_on_a_server_that_is_not_there(fake_hub):
    _, err = fetch(NAME, code=4, HF_ENDPOINT="http://127.0.0.1:1")
    assert "127.0.0.1:1" in err and "(5 attempts)" in err


def test_says_that_what_answers_is_no_hub(fake_hub):
    fake_hub.failures.append(("/revision/", 200, {}))
    _, err = fetch(NAME, code=4)
    assert "no Hugging Face Hub: check HF_ENDPOINT" in err


def test_takes_up_a_broken_connection_where_it_broke(fake_hub):
    fake_hub.add("models", NAME, files())
    fake_hub.cuts.extend([("model.safetensors", 131_072), ("model.safetensors", 65_536), ("model.safetensors", 1)])
    out, _ = fetch(NAME)
    ranges = [headers.get("range") for _, headers in fake_hub.seen("cdn", part="model.safetensors")]
    assert ranges == [None, "bytes=131072-", "bytes=196608-", "bytes=196609-"]
    assert pathlib.Path(out.strip(), "model.safetensors").read_bytes() == WEIGHTS


def test_starts_again_where_the_server_has_no_ranges(fake_hub):
    fake_hub.add("models", NAME, files())
    fake_hub.no_range = True
    fake_hub.cuts.extend([("model.safetensors", 131_072)] * 3)
    out, _ = fetch(NAME)
    assert pathlib.Path(out.strip(), "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("path,damage,message", [
    ("model.safetensors", WEIGHTS[:-1] + b"\0", "has the SHA-256 "),
    ("config.json", CONFIG[:-1].encode() + b"]", "has the git SHA-1 ")])
def test_removes_what_has_another_digest(fake_hub, path, damage, message):
    fake_hub.add("models", NAME, files())
    fake_hub.damage[path] = damage
    _, err = fetch(NAME, code=3)
    assert message in err and "what came was removed" in err
    repo = snapshot_of(fake_hub, "models", NAME)
    assert not list((repo / "blobs").glob("*.incomplete")) and not list(repo.glob(f"snapshots/*/{path}"))
    assert not (repo / "refs").exists()
    fake_hub.damage.clear()
    fetch(NAME)


def test_fetches_once_more_where_a_part_that_was_there_is_wrong(fake_hub):
    fake_hub.add("models", NAME, files())
    blobs = snapshot_of(fake_hub, "models", NAME) / "blobs"
    blobs.mkdir(parents=True)
    (blobs / (hashlib.sha256(WEIGHTS).hexdigest() + ".incomplete")).write_bytes(b"!" * 1000)
    out, _ = fetch(NAME)
    assert pathlib.Path(out.strip(), "model.safetensors").read_bytes() == WEIGHTS


# Interruptions, two at once, and the disk.

def test_keeps_what_came_when_it_is_interrupted(fake_hub):
    fake_hub.add("models", NAME, files())
    fake_hub.gate = threading.Event()
    child = subprocess.Popen([TANDEM, "fetch", NAME], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    repo = snapshot_of(fake_hub, "models", NAME)
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    part = repo / "blobs" / f"{digest}.incomplete"
    wait_until(lambda: part.exists() and part.stat().st_size > 0, "the first bytes")
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 130 and "the same command goes on with what is there" in err, err
    assert 0 < part.stat().st_size < len(WEIGHTS) and not (repo / "refs").exists()
    done = subprocess.run([TANDEM, "tokenize", "--model", NAME], input="", capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3 and f"tandem fetch {NAME}" in done.stderr
    fake_hub.gate.set()
    fetch(NAME)
    assert fake_hub.seen("cdn", part="model.safetensors")[-1][1]["range"].startswith("bytes=")


def test_two_fetches_at_once_download_each_file_once(fake_hub):
    fake_hub.add("models", NAME, files())
    fake_hub.gate = threading.Event()
    first = subprocess.Popen([TANDEM, "fetch", NAME], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: fake_hub.seen("cdn", part="model.safetensors"), "the first request")
    second = subprocess.Popen([TANDEM, "fetch", NAME], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while "another process fetches it; waiting" not in second.stderr.readline():
        assert second.poll() is None
    fake_hub.gate.set()
    outs = [child.communicate(timeout=60)[0] for child in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0) and outs[0] == outs[1]
    assert len(fake_hub.seen("cdn", part="model.safetensors")) == 1


def test_waits_for_a_lock_that_huggingface_hub_holds(fake_hub):
    fake_hub.add("models", NAME, files())
    lock = fake_hub.cache / ".locks" / "models--org--tiny" / f"{hashlib.sha256(WEIGHTS).hexdigest()}.lock"
    lock.parent.mkdir(parents=True)
    with open(lock, "w", encoding="utf-8") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        child = subprocess.Popen([TANDEM, "fetch", NAME], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while "model.safetensors: another process fetches it; waiting" not in child.stderr.readline():
            assert child.poll() is None
    child.communicate(timeout=60)
    assert child.returncode == 0


def test_says_that_the_disk_is_full_and_goes_on_later(fake_hub):
    fake_hub.add("models", NAME, files())
    _, err = fetch(NAME, code=7, TANDEM_FAIL_WRITE=f"{hashlib.sha256(WEIGHTS).hexdigest()}:ENOSPC:65536")
    assert "No space left on device" in err
    part = snapshot_of(fake_hub, "models", NAME) / "blobs" / f"{hashlib.sha256(WEIGHTS).hexdigest()}.incomplete"
    assert part.stat().st_size == 65536
    fetch(NAME)


def test_says_beforehand_that_there_is_no_room(fake_hub, monkeypatch):
    fake_hub.add("models", NAME, files())
    handler = fake_hub.hub.RequestHandlerClass
    entry = handler.sibling
    # The listing says more bytes than any disk has.
    monkeypatch.setattr(handler, "sibling", staticmethod(
        lambda path, content, blobs: entry(path, content, blobs) | ({"size": 10 ** 18} if path == "model.safetensors" else {})))
    _, err = fetch(NAME, code=7)
    assert "needs 1000000000.00 GB more" in err and fake_hub.seen("cdn", part="model.safetensors") == []


def test_a_cache_that_cannot_be_written_is_named(fake_hub, tmp_path):
    fake_hub.add("models", NAME, files())
    (tmp_path / "file").write_text("")
    _, err = fetch(NAME, code=7, HF_HUB_CACHE=str(tmp_path / "file"))
    assert str(tmp_path / "file") in err


def test_a_snapshot_without_its_blob_is_reported_and_mended(fake_hub):
    fake_hub.add("models", NAME, files())
    out, _ = fetch(NAME)
    blob = pathlib.Path(out.strip(), "model.safetensors").resolve()
    blob.unlink()
    done = subprocess.run([TANDEM, "score", "--model", NAME], input="", capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert f"is not complete: model.safetensors is missing; finish it: tandem fetch {NAME}" in done.stderr
    fetch(NAME)
    assert blob.read_bytes() == WEIGHTS
    blob.write_bytes(WEIGHTS[:1000])  # as a copy of the cache that was cut short
    _, err = fetch(NAME)
    assert "model.safetensors: 512.0 kB in" in err and blob.read_bytes() == WEIGHTS


def test_works_without_symlinks(fake_hub):
    fake_hub.add("models", NAME, files())
    out, _ = fetch(NAME, HF_HUB_DISABLE_SYMLINKS="1")
    weights = pathlib.Path(out.strip(), "model.safetensors")
    assert not weights.is_symlink() and weights.read_bytes() == WEIGHTS
    assert hf(f"print(h.try_to_load_from_cache('{NAME}', 'model.safetensors'))") == str(weights)
