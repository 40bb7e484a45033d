"""Alerts, dashboards and their page are consistent. Needs promtool: deploy/setup/install.sh --observability."""
import json
import os
import pathlib
import re
import subprocess
import sys

SOURCE = pathlib.Path(os.environ["TANDEM_SOURCE"])
SHIPPED = SOURCE / "deploy" / "observability"
PROMTOOL = os.environ["TANDEM_PROMTOOL"]
RULES = SHIPPED / "prometheus" / "tandem.rules.yaml"


def promtool(*arguments):
    return subprocess.run([PROMTOOL, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)


def alerts():
    return re.findall(r"^ +- alert: (\w+)$", RULES.read_text(), re.MULTILINE)


def test_the_rules_are_well_formed_and_do_what_their_unit_tests_say():
    for arguments in (("check", "rules", RULES), ("check", "config", SHIPPED / "prometheus" / "prometheus.yaml"),
                      ("test", "rules", SHIPPED / "prometheus" / "tandem.rules_test.yaml")):
        done = promtool(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_both_ways():
    tests = (SHIPPED / "prometheus" / "tandem.rules_test.yaml").read_text()
    for alert in alerts():
        assert f"name: {alert} fires" in tests and f"name: {alert} is quiet" in tests, alert


def test_the_threshold_of_drift_is_the_trainers_own():
    """The number is in trainer/metrics/alerts.h, and docs/configuration.md is printed by the program."""
    threshold = re.search(r"^\| `trainer\.alerts\.drift_guard` \| number \| `([\d.]+)`",
                          (SOURCE / "docs" / "configuration.md").read_text(), re.MULTILINE)[1]
    rule = re.search(r"alert: TandemDriftHigh\n +expr: (\w+) > ([\d.]+)$", RULES.read_text(), re.MULTILINE)
    assert rule.groups() == ("tandem_trainer_drift_mean_abs_delta", threshold)
    assert f"more than {threshold} nats" in (SOURCE / "docs" / "observability.md").read_text()


def test_every_alert_has_a_section_of_the_page_and_names_it():
    page = (SOURCE / "docs" / "observability.md").read_text()
    rules = RULES.read_text()
    assert len(alerts()) >= 15
    for alert in alerts():
        assert f"runbook_url: docs/observability.md#{alert.lower()}" in rules, alert
        section = re.search(rf"^### {alert}\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
        assert section, f"docs/observability.md has no section {alert}"
        for part in ("**Means.**", "**First look.**", "**Do.**"):
            assert part in section.group(1), f"{alert}: no {part}"
    assert set(re.findall(r"^### (Tandem\w+)$", page, re.MULTILINE)) == set(alerts())


def test_the_dashboards_are_what_their_script_writes(tmp_path):
    subprocess.run([sys.executable, str(SHIPPED / "grafana" / "make_dashboards.py"), str(tmp_path)], check=True,
                   timeout=240)
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["drift.json", "overview.json", "servers.json", "trainer.json"]
    for name in written:
        assert (SHIPPED / "grafana" / name).read_text() == (tmp_path / name).read_text(), name


def test_a_dashboard_asks_for_its_data_source_and_shows_ten_numbers_first():
    for path in SHIPPED.glob("grafana/*.json"):
        board = json.loads(path.read_text())
        assert [v["name"] for v in board["templating"]["list"]] == ["datasource", "trainer", "server"]
        assert all(panel["datasource"]["uid"] == "${datasource}" for panel in board["panels"])
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    overview = json.loads((SHIPPED / "grafana" / "overview.json").read_text())
    assert [panel["title"] for panel in overview["panels"]][:10] == [
        "Reward, mean", "Trained tokens", "Sampled tokens", "Staleness of trained tokens", "Drift: mean |delta|",
        "Weights at the cap", "Clipped ratios", "Gradient norm", "Weight push", "KV use"]
