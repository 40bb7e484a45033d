"""A real Prometheus scrapes a run: its answers are the numbers of metrics.jsonl, promtool accepts names and help texts, and
every metric of a dashboard, a rule or docs/metrics.md exists.
Needs prometheus and promtool: deploy/setup/install.sh --observability."""
import json
import os
import re
import subprocess
import urllib.parse

import pytest

import small_run

from free_ports import free_address, free_ports
from observe import families, get, parse
from waiting import wait_until

PROMETHEUS = os.environ["TANDEM_PROMETHEUS"]
PROMTOOL = os.environ["TANDEM_PROMTOOL"]
SHIPPED = small_run.SOURCE / "deploy" / "observability"
STEPS = 40
# These exist only on a device, with a reference model, with TLS, or after an alert of the run.
SOMETIMES = {"tandem_server_certificate_expiry_timestamp_seconds",
             "tandem_trainer_device_memory_peak_bytes", "tandem_trainer_reference_kl_nats",
             "tandem_trainer_alerts_total", "tandem_rejections_total"}


class Prometheus:
    """A Prometheus that scrapes `targets` ({job: [address]}) every tenth of a second."""

    def __init__(self, folder, targets):
        self.address = free_address()
        self.num_targets = sum(map(len, targets.values()))
        config = {"global": {"scrape_interval": "100ms", "scrape_timeout": "100ms"},
                  "scrape_configs": [{"job_name": job, "static_configs": [{"targets": addresses}]}
                                     for job, addresses in targets.items()]}
        (folder / "prometheus.yaml").write_text(json.dumps(config))
        self.log = open(folder / "prometheus.log", "w", encoding="utf-8")
        self.process = subprocess.Popen(
            [PROMETHEUS, f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address={self.address}"], stdout=self.log, stderr=self.log)

    def __enter__(self):
        wait_until(lambda: get(self.address, "/-/ready")[0] == 200, "Prometheus did not come up")
        # It starts with its targets after five seconds, when a short run could be over.
        wait_until(lambda: len(self.query("up")) == self.num_targets, "Prometheus does not scrape its targets")
        return self

    def __exit__(self, *exc):
        self.process.terminate()
        self.process.wait(timeout=120)
        self.log.close()

    def query(self, expression):
        code, body = get(self.address, "/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        answer = json.loads(body)
        assert code == 200 and answer["status"] == "success", body
        return answer["data"]["result"]

    def samples(self, selector):
        """[(time, value)] of the one series that the selector finds."""
        series = self.query(f"{selector}[1h]")
        assert len(series) == 1, (selector, series)
        return [(when, float(value)) for when, value in series[0]["values"]]


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """(folder, Prometheus after the run, last pages of trainer and servers)."""
    folder = tmp_path_factory.mktemp("watched")
    model = small_run.make_model(folder / "model")
    trainer, first, second = (f"127.0.0.1:{port}" for port in free_ports(3))
    servers = [first, second]
    config = small_run.write_config(
        folder, model, steps=STEPS, max_staleness=1, observe_listen=trainer,
        completions_per_prompt=8, sampling={"temperature": 1, "max_new_tokens": 32},
        checkpoint={"every": 10}, probe={"every": 10}, eval={"every": 20})
    text = json.loads(config.read_text())
    text["trainer"]["data"]["eval"] = str(small_run.write_prompts(folder / "eval.jsonl", 4))
    text["launch"]["num_servers"] = 2
    text["server"]["observe_listen"] = first
    config.write_text(json.dumps(text))
    pages = {}
    with Prometheus(folder, {"tandem-trainer": [trainer], "tandem-rollout": servers}) as prometheus:
        with subprocess.Popen([str(small_run.TANDEM), "run", str(config)], stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True) as process:
            while process.poll() is None:
                for address in (trainer, *servers):
                    code, page = get(address, "/metrics")
                    if code == 200:
                        pages[address] = page
                try:
                    process.wait(timeout=0.05)
                except subprocess.TimeoutExpired:
                    pass
            assert process.returncode == 0, process.stderr.read()
        yield folder, prometheus, pages[trainer], [pages[address] for address in servers]


def test_every_target_was_up(watched):
    _, prometheus, _, _ = watched
    up = {(series["metric"]["job"], series["metric"]["instance"]) for series in
          prometheus.query("max_over_time(up[1h]) == 1")}
    assert [job for job, _ in sorted(up)] == ["tandem-rollout", "tandem-rollout", "tandem-trainer"]


@pytest.mark.parametrize("series, key", [
    ("tandem_trainer_reward_mean", "reward/mean"), ("tandem_trainer_loss", "loss/total"),
    ("tandem_trainer_drift_mean_abs_delta", "drift/mean_abs_delta"),
    ("tandem_trainer_gradient_norm", "optimizer/grad_norm"), ("tandem_trainer_push_seconds", "push/seconds")])
def test_prometheus_has_the_numbers_of_metrics_jsonl_in_the_order_of_the_steps(watched, series, key):
    folder, prometheus, _, _ = watched
    wanted = [line[key] for line in small_run.steps(folder)]
    assert len(wanted) == STEPS
    samples, place = prometheus.samples(series), 0
    for _, value in samples:
        place = next((i for i in range(place, STEPS) if wanted[i] == pytest.approx(value, rel=1e-6, abs=1e-12)), None)
        assert place is not None, f"{series} was {value}, which no step from there on has"
    assert len(samples) >= 5, samples
    if len(set(wanted)) == STEPS:  # a reward may stay at 1
        assert len({value for _, value in samples}) >= 5, samples


def test_counters_add_up_to_the_sums_of_metrics_jsonl(watched):
    folder, prometheus, _, _ = watched
    steps = small_run.steps(folder)
    for series, key in (("tandem_trainer_trained_tokens_total", "loss/num_tokens"),
                        ('tandem_trainer_step_duration_seconds_sum{phase="rollout"}', "time/rollout")):
        sums = [0]
        for line in steps:
            sums.append(sums[-1] + line[key])
        for _, value in prometheus.samples(series):
            assert any(value == pytest.approx(total, rel=1e-4, abs=1e-6) for total in sums), (series, value)
        assert prometheus.samples(series)[-1][1] > 0
    # The last page, which may lack the last steps: staleness of each token, and the tokens that servers sampled.
    histogram = {}
    for line in steps:
        for age, tokens in line["staleness/histogram"].items():
            histogram[int(age)] = histogram.get(int(age), 0) + tokens
    assert set(histogram) <= {0, 1}
    counted = prometheus.samples('tandem_trainer_staleness_versions_bucket{le="1"}')[-1][1]
    assert 0 < counted <= sum(histogram.values())


def test_shares_of_time_are_shares(watched):
    _, prometheus, _, _ = watched
    for series in ("tandem_trainer_rollout_wait_ratio", "tandem_trainer_admission_blocked_ratio"):
        values = [value for _, value in prometheus.samples(series)]
        assert all(0 <= value <= 1 for value in values)
    waited = prometheus.samples("tandem_trainer_wait_for_rollouts_seconds_total")
    assert [value for _, value in waited] == sorted(value for _, value in waited)


def test_promtool_finds_nothing_to_say_about_the_pages(watched):
    _, _, trainer, servers = watched
    for page in (trainer, *servers):
        done = subprocess.run([PROMTOOL, "check", "metrics"], input=page, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout + done.stderr) == (0, ""), done.stdout + done.stderr


def test_no_label_names_a_version_a_request_or_a_prompt(watched):
    _, _, trainer, servers = watched
    labels = {label for page in (trainer, *servers) for label in re.findall(r'[{,](\w+)="', page)}
    assert labels <= {"le", "phase", "cause", "kind", "reason", "outcome", "state", "name", "role", "commit", "version"}
    for page in (trainer, *servers):
        named = [series for series in parse(page) if 'version="' in series]
        assert [series.split("{")[0] for series in named] == ["tandem_build_info"], "of the program, not of weights"


def names_in(text):
    """Metric names without the suffixes of histograms."""
    found = set(re.findall(r"\b(?:tandem|process)_[a-z0-9_]+", text))
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}


def exported(watched):
    _, _, trainer, servers = watched
    return set(families(trainer)) | set().union(*(families(page) for page in servers))


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("grafana/*.json")), ids=lambda path: path.stem)
def test_every_metric_of_a_dashboard_is_on_a_real_page(watched, path):
    queries = [target["expr"] for panel in json.loads(path.read_text())["panels"] for target in panel["targets"]]
    assert len(queries) >= 10
    missing = names_in("\n".join(queries)) - exported(watched)
    assert not missing, missing


def test_every_query_of_a_dashboard_gives_an_answer(watched):
    _, prometheus, _, _ = watched
    empty = []
    for path in sorted(SHIPPED.glob("grafana/*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                query = target["expr"].replace("$__rate_interval", "1h")
                query = query.replace("$trainer", ".+").replace("$server", ".+")
                # At the time of the end of the run, because a stopped target has no value now.
                if not prometheus.query(f"last_over_time(({query})[1h:100ms])"):
                    empty.append(f"{path.stem}: {panel['title']}: {query}")
    assert not empty, "\n".join(empty)


def test_every_metric_of_a_rule_is_on_a_real_page(watched):
    text = (SHIPPED / "prometheus" / "tandem.rules.yaml").read_text()
    expressions = "\n".join(re.findall(r"^ +expr: (.*)$", text, re.MULTILINE))
    missing = names_in(expressions) - exported(watched)
    assert not missing, missing


def test_the_reference_names_what_is_on_the_pages_and_nothing_else(watched):
    text = (small_run.SOURCE / "docs" / "metrics.md").read_text()
    documented = {name for name in re.findall(r"`((?:tandem|process)_[a-z0-9_]+)", text)}
    shown = exported(watched)
    assert shown - documented == set(), "not in docs/metrics.md"
    assert documented - shown <= SOMETIMES, documented - shown - SOMETIMES
