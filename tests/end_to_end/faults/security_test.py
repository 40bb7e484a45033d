"""Server and trainer with mutual TLS, with the real programs: `tandem certs`, a run with tokens, refused callers, open ports,
and secrets that are never written."""
import concurrent.futures
import json
import re
import stat
import subprocess
import sys

import grpc
import pytest

import small_run

from free_ports import free_ports
from listening_ports import listening
from rollout_client import BIN, Server, load_stubs, tls_credentials
from waiting import wait_until

rollout, rollout_grpc, weights, weights_grpc = load_stubs()
ROLES = ["rollout", "trainer", "client", "viewer"]
TOKEN = "the-token-of-this-test-0123456789"


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    out = tmp_path_factory.mktemp("identities") / "certs"
    assert tandem("certs", "--out", out).returncode == 0
    return out


def tandem(*arguments, timeout=240):
    return subprocess.run([str(small_run.TANDEM), *map(str, arguments)], capture_output=True, text=True,
                          timeout=timeout, check=False)


def rollout_server(*arguments):
    return subprocess.run([str(BIN / "rollout_server"), *map(str, arguments)], capture_output=True, text=True,
                          timeout=240, check=False)


def facts(certificate):
    return subprocess.run(["openssl", "x509", "-in", str(certificate), "-noout", "-text"], capture_output=True,
                          text=True, check=True).stdout


def secrets_of(certs):
    """The lines of all private keys, and the token."""
    lines = [line for path in certs.rglob("*.key") for line in path.read_text().splitlines() if len(line) > 40]
    assert len(lines) >= 5
    return [*lines, TOKEN]


def write_token(path):
    path.write_text(TOKEN + "\n", encoding="ascii")
    return path


def write_tls_config(folder, model, certs, **trainer):
    """A run file for server and trainer with mutual TLS and a token."""
    token = str(write_token(folder / "token"))
    path = small_run.write_config(folder, model, tls=str(certs / "trainer"), token_file=token, **trainer)
    config = json.loads(path.read_text())
    config["server"].update(tls=str(certs / "rollout"), token_file=token)
    path.write_text(json.dumps(config))
    return path


# --- tandem certs


def test_certs_makes_an_authority_and_an_identity_per_role(tmp_path):
    out = tmp_path / "certs"
    done = tandem("certs", "--out", out, "--days", 3, "--dns", "rollout.example", "--ip", "192.0.2.7", "--domain", "lab.example")
    assert done.returncode == 0, done.stderr
    assert "FOR DEVELOPMENT" in done.stdout and "server.tls" in done.stdout
    for key in out.rglob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600, key
    for role in ROLES:
        assert sorted(path.name for path in (out / role).iterdir()) == ["ca.crt", "tls.crt", "tls.key"]
        verified = subprocess.run(["openssl", "verify", "-CAfile", str(out / role / "ca.crt"),
                                   str(out / role / "tls.crt")], capture_output=True, text=True, check=False)
        assert verified.returncode == 0, verified.stderr
        text = facts(out / role / "tls.crt")
        assert f"URI:spiffe://lab.example/tandem/{role}" in text
        assert ("TLS Web Server Authentication" in text) == (role == "rollout")
        assert ("TLS Web Client Authentication" in text) == (role != "rollout")
        assert ("DNS:localhost, DNS:rollout.example" in text) == (role == "rollout")
        assert "CA:FALSE" in text
    assert "IP Address:192.0.2.7" in facts(out / "rollout" / "tls.crt")
    soon = ["openssl", "x509", "-in", str(out / "rollout" / "tls.crt"), "-noout", "-checkend"]
    assert subprocess.run([*soon, str(2 * 86400)], check=False, stdout=subprocess.DEVNULL).returncode == 0
    assert subprocess.run([*soon, str(4 * 86400)], check=False, stdout=subprocess.DEVNULL).returncode == 1


def test_certs_overwrites_nothing_unless_it_is_asked_to_renew(tmp_path):
    out = tmp_path / "certs"
    assert tandem("certs", "--out", out).returncode == 0

    def contents():
        return {path: path.read_text() for path in out.rglob("*") if path.is_file()}

    first = contents()
    again = tandem("certs", "--out", out)
    assert again.returncode == 2 and "--renew" in again.stderr
    assert contents() == first
    assert tandem("certs", "--out", out, "--renew").returncode == 0
    renewed = contents()
    changed = {path.relative_to(out).as_posix() for path in first if first[path] != renewed[path]}
    assert changed == {f"{role}/tls.{end}" for role in ROLES for end in ("crt", "key")}


def test_an_authority_is_replaced_in_three_steps_that_cannot_be_taken_out_of_order(tmp_path):
    out = tmp_path / "certs"
    missing = tandem("certs", "--out", out, "--renew")
    assert missing.returncode == 2 and "is not there" in missing.stderr
    assert tandem("certs", "--out", out).returncode == 0
    assert tandem("certs", "--out", out, "--new-ca").returncode == 0
    assert (out / "trainer" / "ca.crt").read_text().count("BEGIN CERTIFICATE") == 2
    twice = tandem("certs", "--out", out, "--new-ca")
    assert twice.returncode != 0 and "--drop-old-ca" in twice.stderr
    early = tandem("certs", "--out", out, "--drop-old-ca")
    assert early.returncode != 0 and "--renew first" in early.stderr
    assert tandem("certs", "--out", out, "--renew").returncode == 0
    assert tandem("certs", "--out", out, "--drop-old-ca").returncode == 0
    assert (out / "trainer" / "ca.crt").read_text().count("BEGIN CERTIFICATE") == 1


# --- a run


def test_a_pair_under_mutual_tls_with_a_token_trains_to_its_end_and_writes_no_secret(model, certs, tmp_path):
    config = write_tls_config(tmp_path, model, certs)
    dry = tandem("run", config, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    code, output = small_run.run(config)
    assert code == 0, output
    assert len(small_run.steps(tmp_path)) == 3
    owner = tmp_path / "runs/small/owner"
    assert owner.stat().st_mode & 0o777 == 0o600
    logs = "".join(path.read_text(errors="replace") for path in (tmp_path / "runs").rglob("*")
                   if path.is_file() and path != owner)
    assert "role=rollout" in logs and "role=trainer" in logs, "both sides say that they use TLS"
    for secret in (*secrets_of(certs), owner.read_text().splitlines()[1]):
        for text in (dry.stdout, dry.stderr, output, logs):
            assert secret not in text


def test_a_trainer_that_was_there_before_its_server_takes_it_when_it_comes(model, certs, tmp_path):
    (port,) = free_ports(1)
    config = write_tls_config(tmp_path, model, certs, servers=[f"127.0.0.1:{port}"], client={"start_patience_seconds": 120})
    log = tmp_path / "log"
    with open(log, "w", encoding="utf-8") as out, subprocess.Popen(
            [str(BIN / "trainer"), "--config", str(config)], stdout=out, stderr=out) as trainer:
        try:
            wait_until(lambda: "no rollout server answers" in log.read_text(), "it waits and says so")
            with Server(model, "--dtype", "fp32", "--tls", str(certs / "rollout"), "--token-file", str(tmp_path / "token"),
                        port=port, credentials=tls_credentials(certs / "trainer", TOKEN)):
                assert trainer.wait(timeout=240) == 0, log.read_text()
        finally:
            trainer.kill()
    assert "handshake" not in log.read_text(), "none was given up for want of somebody who looks after it"


def test_a_run_file_with_tls_on_one_side_only_is_refused(model, certs, tmp_path):
    config = small_run.write_config(tmp_path, model)
    for key, value, words in [("server.tls", certs / "rollout", "set both"), ("trainer.tls", certs / "trainer", "set both"),
                              ("server.token_file", "x", "without server.tls"),
                              ("trainer.token_file", "x", "without trainer.tls")]:
        code, output = small_run.run(config, "--set", f"{key}={value}")
        assert code == 2 and words in output, output


def test_status_and_load_work_for_who_has_a_role_and_a_token(model, certs, tmp_path):
    token = write_token(tmp_path / "token")
    arguments = ["--dtype", "fp32", "--tls", str(certs / "rollout"), "--token-file", str(token)]
    with Server(model, *arguments, credentials=tls_credentials(certs / "client", TOKEN)) as server:
        status = ["status", "--servers", server.address, "--timeout", "10"]
        seen = tandem(*status, "--tls", certs / "viewer", "--token-file", token)
        assert seen.returncode == 0 and "llama fp32" in seen.stdout, seen.stdout + seen.stderr
        load = ["bench", "serve", server.address, "--groups", "2", "--group-size", "2", "--max-new-tokens", "4",
                "--prompt-tokens", "4"]
        asked = tandem(*load, "--tls", certs / "client", "--token-file", token)
        assert asked.returncode == 0, asked.stdout + asked.stderr
        for who, words in [(["--tls", certs / "viewer"], "a bearer token"), ([], ""),
                           (["--tls", certs / "rollout", "--token-file", token], "of role rollout"),
                           (["--token-file", token], "--token-file without --tls")]:
            refused = tandem(*status, *who)
            assert refused.returncode in (2, 4) and words in refused.stdout + refused.stderr, (who, refused)
        denied = tandem(*load, "--tls", certs / "viewer", "--token-file", token)
        assert "role viewer may not call this method; trainer, client may" in denied.stdout + denied.stderr, denied
        example = subprocess.run(
            [sys.executable, str(small_run.SOURCE / "examples" / "python_client.py"), server.address, str(model),
             "--tls", str(certs / "client"), "--token-file", str(token)],
            capture_output=True, text=True, timeout=120, check=False)
        assert example.returncode == 0 and example.stdout.count("log-probs") == 4, example.stderr
        assert re.search(r"a call was refused .*reason=", server.output())
        assert all(secret not in server.output() for secret in secrets_of(certs))


def test_a_client_can_sample_and_not_push(model, certs):
    with Server(model, "--dtype", "fp32", "--tls", str(certs / "rollout"),
                credentials=tls_credentials(certs / "client")) as server:
        request = rollout.GenerateGroupRequest(
            group_id=1, num_completions=2, prompt_token_ids=[1, 2, 3],
            sampling=rollout.SamplingParams(temperature=1, max_new_tokens=4, seed=1))
        answers = list(rollout_grpc.RolloutServiceStub(server.channel).GenerateGroup(request, timeout=240))
        assert sum(answer.HasField("completion") for answer in answers) == 2
        with pytest.raises(grpc.RpcError) as refused:
            weights_grpc.WeightServiceStub(server.channel).InitTransfer(
                weights.InitTransferRequest(run_id="mine", epoch=1), timeout=120)
        assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED


# --- refusals at the start


def test_plaintext_beyond_loopback_is_refused_unless_it_is_said_out_loud(model):
    refused = rollout_server("--model", model, "--listen", "0.0.0.0:0")
    assert refused.returncode == 2
    assert "--insecure-plaintext-open-to-the-network" in refused.stderr and "tandem certs" in refused.stderr
    with Server(model, "--dtype", "fp32", "--insecure-plaintext-open-to-the-network", host="0.0.0.0") as server:
        assert "PLAINTEXT gRPC on an address others can reach" in server.output()


def test_a_tls_directory_that_does_not_serve_is_exit_code_2_with_the_file_and_what_to_do(model, certs, tmp_path):
    def copy(name, role="rollout"):
        folder = tmp_path / name
        folder.mkdir()
        for path in (certs / role).iterdir():
            (folder / path.name).write_text(path.read_text())
        return folder

    missing = copy("missing")
    (missing / "tls.key").unlink()
    mixed = copy("mixed")
    (mixed / "tls.key").write_text((certs / "trainer" / "tls.key").read_text())
    expired = copy("expired")
    issuer = ["-CA", str(certs / "authority" / "ca.crt"), "-CAkey", str(certs / "authority" / "ca.key"), "-set_serial", "7"]
    request = tmp_path / "request.pem"
    subprocess.run(["openssl", "req", "-new", "-key", str(expired / "tls.key"), "-subj", "/CN=tandem-rollout", "-out",
                    str(request)], check=True, capture_output=True)
    subprocess.run(["openssl", "x509", "-req", "-in", str(request), *issuer, "-days", "-1", "-out",
                    str(expired / "tls.crt")], check=True, capture_output=True)
    for directory, words in [
            (tmp_path / "nowhere", f"{tmp_path / 'nowhere'}/tls.crt"), (missing, f"{missing}/tls.key"),
            (mixed, f"{mixed}/tls.key: not the key of tls.crt"), (expired, f"{expired}/tls.crt: expired at"),
            (certs / "trainer", "does not allow a server (serverAuth); it is of role trainer")]:
        done = rollout_server("--model", model, "--tls", directory)
        assert done.returncode == 2, done.stderr
        assert words in done.stderr and "server.tls" in done.stderr, done.stderr
    config = small_run.write_config(tmp_path, model)
    done = subprocess.run([str(BIN / "trainer"), "--config", str(config), "--set", f"trainer.tls={certs / 'viewer'}"],
                          capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and "of role viewer, must be of trainer" in done.stderr, done.stderr


def test_a_holder_of_another_certificate_cannot_pose_as_a_server(model, certs, tmp_path):
    """Its certificate is from the same authority, for servers, and has the right names, but another role."""
    poser = tmp_path / "poser"
    poser.mkdir()
    extensions = tmp_path / "extensions"
    extensions.write_text("subjectAltName=URI:spiffe://development.invalid/tandem/client,DNS:localhost,IP:127.0.0.1\n"
                          "extendedKeyUsage=serverAuth,clientAuth\n")
    subprocess.run(["openssl", "req", "-new", "-newkey", "rsa:2048", "-nodes", "-keyout", str(poser / "tls.key"), "-subj",
                    "/CN=tandem-rollout", "-out", str(poser / "request")], check=True, capture_output=True)
    subprocess.run(["openssl", "x509", "-req", "-in", str(poser / "request"), "-CA", str(certs / "authority" / "ca.crt"),
                    "-CAkey", str(certs / "authority" / "ca.key"), "-set_serial", "8", "-days", "1", "-extfile",
                    str(extensions), "-out", str(poser / "tls.crt")], check=True, capture_output=True)

    class Poser(rollout_grpc.RolloutServiceServicer):
        calls = 0

        def GetInfo(self, request, context):
            Poser.calls += 1
            return rollout.GetInfoResponse()


    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    rollout_grpc.add_RolloutServiceServicer_to_server(Poser(), server)
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(
        [((poser / "tls.key").read_bytes(), (poser / "tls.crt").read_bytes())]))
    server.start()
    try:
        # Python's client checks only the host name and accepts it.
        with grpc.secure_channel(f"127.0.0.1:{port}", tls_credentials(certs / "client")) as channel:
            rollout_grpc.RolloutServiceStub(channel).GetInfo(rollout.GetInfoRequest(), timeout=120)
        assert Poser.calls == 1
        config = small_run.write_config(tmp_path, model, tls=str(certs / "trainer"),
                                        client={"server_patience_seconds": 3})
        done = subprocess.run([str(BIN / "trainer"), "--config", str(config), "--servers", f"127.0.0.1:{port}"],
                              capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 4, done.stderr
        assert tandem("status", "--servers", f"127.0.0.1:{port}", "--tls", certs / "viewer").returncode == 4
        assert Poser.calls == 1
    finally:
        server.stop(None)


# --- ports


def ports_of_a_run(config):
    """{(program, address)} of a run that has finished a step, and the gRPC address of the server."""
    folder = config.parent / "runs" / "small"
    with subprocess.Popen([str(small_run.TANDEM), "run", str(config)], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as process:
        try:
            metrics = folder / "metrics.jsonl"
            wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") >= 2, "no step was trained")
            port = int((folder / "logs" / "rollout_server_0.port").read_text())
            ports = listening(process.pid)
        finally:
            process.terminate()
            process.wait(timeout=120)
    assert {name for name, _ in ports} == {"tandem", "rollout_server", "trainer"}
    return sorted((name, address) for name, addresses in ports for address in addresses), f"127.0.0.1:{port}"


def test_a_running_pair_listens_on_its_documented_ports_alone(model, certs, tmp_path):
    """Each server opens one gRPC port, and a trainer with one rank opens none."""
    ports, served = ports_of_a_run(write_tls_config(tmp_path, model, certs, steps=100000))
    assert ports == [("rollout_server", served)]


def test_with_observe_ports_two_ranks_and_broadcasts_the_documented_ports_are_open_on_loopback_and_no_more(model, certs, tmp_path):
    path = write_tls_config(tmp_path, model, certs, steps=100000, push={"transport": "collective"})
    config = json.loads(path.read_text())
    server, trainer, store = (f"127.0.0.1:{port}" for port in free_ports(3))
    config["launch"]["num_ranks"] = 2
    config["server"]["observe_listen"], config["trainer"]["observe_listen"] = server, trainer
    config["trainer"]["push"]["group"] = {"port": int(store.rsplit(":", 1)[1])}
    path.write_text(json.dumps(config))
    ports, served = ports_of_a_run(path)
    of = {program: {address for name, address in ports if name == program} for program in ("rollout_server", "trainer", "tandem")}
    assert of["tandem"] == set()
    assert of["rollout_server"] >= {served, server} and of["trainer"] >= {trainer, store}
    assert len(of["rollout_server"]) == 2 + 1, "its end of the push group"
    assert len(of["trainer"]) == 2 + 1 + 2 + 1, "the ranks' store, each rank, and the push group"
    assert all(address.startswith("127.0.0.1:") for _, address in ports), "a run on one machine opens nothing to the network"
