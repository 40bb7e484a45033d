"""Runs in real stores of MLflow, a database and a folder, read back with its client."""
import json
import signal

import mlflow
import pytest

from forked_tracker import call, import_beforehand, start
from tandem_rl.trackers.mlflow_service import MlflowOptions, MlflowService, key_of
from tandem_rl.trackers.run_files import RunFiles
from tandem_rl.trackers.sent_steps import Begun, Row
from tandem_rl.trackers.service import SentRow, ServiceError
from waiting import wait_until
from written_run import environment, metrics_of

STARTED_MS = 1795840458141
import_beforehand("mlflow")


@pytest.fixture(params=["database", "folder"])
def store(request, tmp_path, monkeypatch):
    """An empty store: its URI. MLflow asks for a variable before it writes to a folder."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)  # where a database's artifacts go
    if request.param == "folder":
        return f"file://{tmp_path}/store"
    return request.getfixturevalue("database")


def runs_of(store, experiment="tandem"):
    client = mlflow.MlflowClient(store)
    return client, client.search_runs([client.get_experiment_by_name(experiment).experiment_id])


def only_run(store):
    client, (found,) = runs_of(store)
    return client, found


def history_of(client, found, names=None):
    """name -> [(step, value)] in the order of time, of everything that was sent, or of some names."""
    histories = {name: client.get_metric_history(found.info.run_id, name) for name in names or found.data.metrics}
    return {name: [(metric.step, metric.value) for metric in sorted(history, key=lambda metric: metric.timestamp)]
            for name, history in histories.items()}


def expected(metrics):
    """The same, of metrics.jsonl: each step once."""
    return {name: [(step, values[name]) for step, values in metrics.items() if name in values]
            for name in {name for values in metrics.values() for name in values}}


def follow(run, store, *more, **others):
    return call("mlflow", run.path, "--tracking-uri", store, *more, **others)


def test_a_run_has_the_values_of_every_step_once(run, store):
    run.steps(*range(1, 8), reward=0.123456789)
    run.steps(8, **{"eval/greedy": 1})
    run.finish()
    code, said = follow(run, store, "--name", "n", "--tag", "team=red", "--report")
    assert code == 0 and "8 lines of metrics were sent" in said, said
    client, found = only_run(store)
    assert history_of(client, found) == expected(run.metrics())
    assert (found.info.status, found.info.run_name, found.info.start_time) == ("FINISHED", "n", STARTED_MS)
    (first, *_) = client.get_metric_history(found.info.run_id, "reward/mean")
    assert first.timestamp == STARTED_MS + 10500


def test_config_events_and_report_are_sent_and_no_secret(run, store):
    run.steps(1)
    run.event("alert", 1, value=3)
    run.finish("run_failed", exit_code=8)
    assert follow(run, store, "--report", "--tag", "a=b")[0] == 0
    client, found = only_run(store)
    assert found.data.params["trainer.sampling.temperature"] == "1" and found.data.params["trainer.steps"] == "5"
    tags = found.data.tags
    assert tags["run.servers.0.address"] == "127.0.0.1:1" and tags["events.alert"] == "1" and tags["a"] == "b"
    assert (found.info.status, tags["tandem.state"]) == ("FAILED", "failed")
    assert {item.path for item in client.list_artifacts(found.info.run_id)} == {"events.json", "report.html"}
    table = mlflow.artifacts.load_dict(f"{found.info.artifact_uri}/events.json")
    assert [1, 1.5, "alert", "of alert", '{"value": 3}'] in table["data"] and "kind" in table["columns"]
    assert "of-nobody" not in json.dumps(found.data.params | tags)


def test_a_tracker_that_is_killed_and_started_again_doubles_and_loses_nothing(run, store):
    """Killed after each of several stretches, some rows are sent and not noted."""
    journal = run.path.parent / ".trackers/written/mlflow.jsonl"
    for last in (10, 20, 30):
        run.steps(*range(last - 9, last + 1))
        with start("mlflow", run.path, "--tracking-uri", store, "--poll-seconds", 0.05) as tracker:
            wait_until(lambda wanted=f'"step": {last}': journal.is_file() and wanted in journal.read_text(), "they were sent", 60)
            tracker.kill()
        lines = journal.read_text().splitlines(keepends=True)
        journal.write_text("".join(lines[:-3]) + lines[-3][:9])
    run.finish()
    assert follow(run, store)[0] == 0
    client, found = only_run(store)
    assert history_of(client, found) == expected(run.metrics()) and len(run.metrics()) == 30


def test_the_rest_of_a_row_that_was_cut_short_is_sent(run, store, monkeypatch):
    """A folder takes the metrics of a row one after the other, and a kill can come between two."""
    run.steps(1, 2)
    service = MlflowService(MlflowOptions("tandem", tracking_uri=store))
    facts = RunFiles(run.path).read()
    begun = service.begin(facts, Begun(facts.run_id, "", 0, facts.started_ms))
    whole = mlflow.MlflowClient.log_batch

    def cut_short(self, run_id, metrics):
        whole(self, run_id, metrics=metrics[:2])
        raise OSError("killed")
    row = Row(1, "", 1, STARTED_MS + 10500)
    with monkeypatch.context() as patch, pytest.raises(ServiceError, match="killed"):
        patch.setattr(mlflow.MlflowClient, "log_batch", cut_short)
        service.send([SentRow(row, run.metrics()[1])])
    service.begin(facts, begun)
    assert not service.has(row)
    run.finish()
    assert follow(run, store)[0] == 0
    client, found = only_run(store)
    assert found.info.run_id == begun.service_run, "it is found without a journal"
    assert history_of(client, found) == expected(run.metrics())


def test_sigterm_sends_what_is_there_and_leaves_the_run_running(run, store):
    run.steps(1, 2)
    with start("mlflow", run.path, "--tracking-uri", store) as tracker:
        assert any("goes to" in line for line in iter(tracker.stderr.readline, ""))
        run.steps(3)
        tracker.send_signal(signal.SIGTERM)
        assert "3 lines of metrics were sent" in tracker.stderr.read() and tracker.wait(60) == 143
    client, found = only_run(store)
    assert found.info.status == "RUNNING" and history_of(client, found) == expected(run.metrics())


def test_steps_that_are_made_again_have_the_later_values(run, store):
    run.steps(1, 2, 3)
    follow(run, store, "--once")
    run.cut_after(1)
    run.write("config.yaml", "trainer: {steps: 9, sampling: {temperature: 1}, more: 1}\n")
    run.steps(2, 3, reward=0.75)
    follow(run, store, "--once")
    client, found = only_run(store)
    history = history_of(client, found)
    assert [step for step, _ in history["reward/mean"]] == [1, 2, 3, 2, 3]
    assert dict(history["reward/mean"]) == {step: values["reward/mean"] for step, values in metrics_of(run.path).items()}
    assert found.data.metrics["reward/mean"] == 0.75
    assert found.data.params["trainer.steps"] == "5" and found.data.tags["changed.trainer.steps"] == "9"
    assert found.data.params["trainer.more"] == "1"


def test_with_new_run_the_last_run_has_each_step_once(run, store):
    run.steps(1, 2, 3)
    follow(run, store, "--once", "--after-cut", "new-run")
    run.cut_after(1)
    run.steps(2, 3, 4, reward=0.75)
    run.finish()
    follow(run, store, "--after-cut", "new-run")
    client, found = runs_of(store)
    last, first = sorted(found, key=lambda one: one.data.tags["tandem.attempt"], reverse=True)
    assert history_of(client, last) == expected(run.metrics())
    assert (first.info.status, last.info.status) == ("KILLED", "FINISHED")


def test_rows_of_many_numbers_are_sent_in_several_calls(run, store):
    facts = RunFiles(run.path).read()
    service = MlflowService(MlflowOptions("tandem", tracking_uri=store))
    service.begin(facts, Begun(facts.run_id, "", 0, facts.started_ms))
    rows = [SentRow(Row(step, "", step, STARTED_MS + step), {"step": step, **{f"m{i}": i for i in range(600)}}) for step in (1, 2, 3)]
    service.send(rows)
    service.send([SentRow(Row(4, "", 4, STARTED_MS + 4), {"step": 4, **{f"m{i}": i for i in range(1500)}})])
    history = history_of(*only_run(store), names=["step", "m599", "m1499"])
    assert history["step"] == [(step, step) for step in (1, 2, 3, 4)] and history["m599"] == [(step, 599) for step in (1, 2, 3, 4)]
    assert history["m1499"] == [(4, 1499)]


def test_names_that_mlflow_does_not_take_are_changed():
    assert key_of("reward/part/a.b-c_d e") == "reward/part/a.b-c_d e" and key_of("reward/logged/größe[%]") == "reward/logged/größe___"


def test_a_server_that_is_not_there_is_told_once_and_the_steps_are_kept(run, tmp_path):
    run.steps(1, 2)
    run.finish()
    code, said = follow(run, "http://127.0.0.1:9", "--once", env=environment(MLFLOW_HTTP_REQUEST_MAX_RETRIES="0"))
    assert code == 4 and said.count("MLflow does not take the run") == 1 and "Traceback" not in said, said
    store = f"sqlite:///{tmp_path}/mlflow.db"
    assert follow(run, store, cwd=tmp_path)[0] == 0
    assert history_of(*only_run(store)) == expected(run.metrics())


def test_errors_of_mlflow_are_errors_of_the_service(run, tmp_path):
    service = MlflowService(MlflowOptions("tandem", tracking_uri=f"sqlite:///{tmp_path}/nowhere/mlflow.db"))
    facts = RunFiles(run.path).read()
    (tmp_path / "nowhere").touch()
    with pytest.raises(ServiceError, match="MLflow does not take the run"):
        service.begin(facts, Begun(facts.run_id, "", 0, facts.started_ms))
