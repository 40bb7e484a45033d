"""Runs in the real package wandb: offline, read back from its files, and online, with a server of this machine."""
import json
import signal
import subprocess
import sys

import pytest
from wandb.proto import wandb_internal_pb2

from fake_wandb import KEY, FakeWandb
from forked_tracker import call, import_beforehand, start
from tandem_rl.trackers.wandb_files import records
from waiting import wait_until
from written_run import environment, metrics_of

import_beforehand("wandb")


def files_of(run):
    return sorted((run.path.parent / ".trackers" / run.path.name / "wandb").glob("offline-run-*/*.wandb"))


def messages(path):
    for data in records(path.read_bytes()):
        message = wandb_internal_pb2.Record()
        message.ParseFromString(data)
        yield message


def rows_of(path):
    """The rows of one offline run as wandb wrote them: (its own step, values)."""
    rows = []
    for message in messages(path):
        if message.WhichOneof("record_type") == "history":
            values = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in message.history.item}
            rows.append((message.history.step.num, {name: value for name, value in values.items() if name[0] != "_"}))
    return rows


def values_by_step(rows):
    return {values["step"]: values for _, values in rows}


def offline(run, *more, **others):
    return call("wandb", run.path, "--mode", "offline", *more, **others)


def test_an_offline_run_has_the_values_of_every_step(run):
    run.steps(*range(1, 6), reward=0.1234567891)
    run.finish()
    code, said = offline(run, "--name", "n", "--project", "p", "--group", "g", "--tag", "a", "--tag", "b", "--report")
    assert code == 0 and "wandb sync " in said, said
    (file,) = files_of(run)
    rows = rows_of(file)
    assert [step for step, _ in rows] == [1, 2, 3, 4, 5], "W&B's own step is the train step"
    assert values_by_step(rows) == run.metrics()
    begun = next(message.run for message in messages(file) if message.WhichOneof("record_type") == "run")
    assert (begun.run_id, begun.project, begun.display_name, begun.run_group) == ("written-1", "p", "n", "g")
    assert list(begun.tags) == ["a", "b"]
    axes = [(message.metric.glob_name, message.metric.step_metric) for message in messages(file)
            if message.WhichOneof("record_type") == "metric"]
    assert ("*", "step") in axes


def test_config_events_and_report_are_sent_and_no_secret(run):
    run.steps(1)
    run.event("alert", 1, value=3)
    run.finish()
    assert offline(run, "--report")[0] == 0
    (file,) = files_of(run)
    config, summary, artifacts = {}, {}, []
    for message in messages(file):
        kind = message.WhichOneof("record_type")
        if kind == "config":
            config.update({item.key: json.loads(item.value_json) for item in message.config.update})
        elif kind == "summary":
            summary.update({"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in message.summary.update})
        elif kind == "artifact":
            artifacts.append(message.artifact.type)
    assert config["trainer"]["sampling"] == {"temperature": 1} and config["run"]["run_id"] == "written-1"
    assert summary["events/alert"] == 1 and summary["run/state"] == "finished" and summary["reward/mean"] == 0.125
    table = json.loads(next(file.parent.glob("files/media/table/events*.json")).read_text())
    assert ["1", "1.5", "alert", "of alert", '{"value": 3}'] in table["data"] and "report" in artifacts
    everything = b"".join(path.read_bytes() for path in run.path.parent.joinpath(".trackers").rglob("*") if path.is_file())
    assert b"of-nobody" not in everything


def test_a_tracker_that_was_killed_goes_on_with_what_its_files_lack(run):
    run.steps(*range(1, 21))
    with start("wandb", run.path, "--mode", "offline", "--poll-seconds", 0.05) as tracker:
        journal = run.path.parent / ".trackers/written/wandb.jsonl"
        wait_until(lambda: journal.is_file() and '"step": 20' in journal.read_text(), "20 steps were sent", 60)
        tracker.kill()  # its rows are with wandb's process, which dies with it
    run.steps(*range(21, 31))
    run.finish()
    code, said = offline(run)
    assert code == 0, said
    rows = [row for file in files_of(run) for row in rows_of(file)]
    assert len(files_of(run)) == 2 and [step for step, _ in rows] == list(range(1, 31))
    assert values_by_step(rows) == run.metrics()


def test_sigterm_sends_what_is_there(run):
    run.steps(1, 2)
    with start("wandb", run.path, "--mode", "offline") as tracker:
        assert "goes to" in tracker.stderr.readline()
        run.steps(3)
        tracker.send_signal(signal.SIGTERM)
        said = tracker.stderr.read()
        assert tracker.wait(60) == 143 and "3 lines of metrics were sent" in said, said
    assert values_by_step(rows_of(files_of(run)[0])) == run.metrics()


def test_steps_that_are_made_again_have_the_later_values(run):
    run.steps(1, 2, 3)
    offline(run, "--once")
    run.cut_after(1)
    run.steps(2, 3, 4, reward=0.75)
    offline(run, "--once")
    rows = [row for file in files_of(run) for row in rows_of(file)]
    assert [step for step, _ in rows] == [1, 2, 3, 4, 5, 6] and [values["step"] for _, values in rows] == [1, 2, 3, 2, 3, 4]
    assert values_by_step(rows) == metrics_of(run.path)


def test_offline_files_that_were_uploaded_and_deleted_are_not_made_again(run):
    run.steps(1, 2)
    offline(run, "--once")
    for file in files_of(run):
        file.unlink()
    run.steps(3)
    offline(run, "--once")
    assert [step for file in files_of(run) for step, _ in rows_of(file)] == [3]


def test_disabled_sends_nothing_and_notes_nothing(run):
    run.steps(1)
    code, said = call("wandb", run.path, "--once", env=environment(WANDB_MODE="disabled"))
    assert code == 0 and "W&B is disabled" in said and not files_of(run)
    offline(run, "--once")
    assert [step for step, _ in rows_of(files_of(run)[0])] == [1]


# Online.

@pytest.fixture
def server(monkeypatch):
    with FakeWandb() as fake:
        yield fake


def online(server, key=KEY):
    return environment(WANDB_BASE_URL=server.url, WANDB_API_KEY=key)


def sent(server, name="written-1"):
    return {row["step"]: {key: value for key, value in row.items() if key[0] != "_"} for row in server.runs[name].rows}


def test_what_is_uploaded_of_offline_runs_is_each_step_once(run, server):
    """wandb's own reader of the files, and what its upload makes of several of one run."""
    for last in (3, 6):
        run.steps(*range(last - 2, last + 1))
        offline(run, "--once")
    run.cut_after(5)
    run.steps(6, 7, reward=9)
    run.finish()
    offline(run)
    folders = [file.parent for file in files_of(run)]
    subprocess.run([sys.executable, "-m", "wandb", "sync", *folders], check=True, timeout=120, env=online(server),
                   capture_output=True, cwd=run.path.parent)  # where it makes its logs
    rows = server.runs["written-1"].rows
    assert [row["_step"] for row in rows] == [1, 2, 3, 4, 5, 6, 7, 8] and rows[5]["step"] == rows[6]["step"] == 6
    assert sent(server) == run.metrics()
    assert server.runs["written-1"].summary["reward/mean"] == 9


def test_an_online_run_arrives_once_although_the_tracker_is_killed_and_started_again(run, server):
    run.steps(*range(1, 6))
    assert call("wandb", run.path, "--once", "--tag", "x", "--report", env=online(server))[0] == 0
    run.steps(6)
    code, said = call("wandb", run.path, "--once", env=online(server))
    assert code == 0 and "had not arrived" not in said, said
    run.steps(*range(7, 11))
    with start("wandb", run.path, "--poll-seconds", 0.05, env=online(server)) as tracker:
        journal = run.path.parent / ".trackers/written/wandb.jsonl"
        wait_until(lambda: '"step": 10' in journal.read_text(), "10 steps were sent", 60)
        tracker.kill()
    run.steps(11)
    run.finish()
    code, said = call("wandb", run.path, "--report", env=online(server))
    assert code == 0 and f"{server.url}/team/tandem/runs/written-1" in said, said
    kept = server.runs["written-1"]
    assert [row["_step"] for row in kept.rows] == list(range(1, 12)) and sent(server) == run.metrics()
    assert (kept.tags, kept.display_name, kept.exit_code) == (["x"], "written", 0)
    assert ("report", "report-written-1") in kept.artifacts and kept.config["trainer"]["value"]["steps"] == 5
    assert kept.summary["events/run_finished"] == 1 and kept.summary["reward/mean"] == 11 / 8
    everything = json.dumps(kept.config) + str(kept.files)
    assert "of-nobody" not in everything


def test_a_wrong_key_is_told_once_and_the_steps_are_kept(run, server):
    run.steps(1, 2)
    run.finish()
    code, said = call("wandb", run.path, "--once", env=online(server, "f" * 40))
    assert code == 4 and said.count("W&B does not take the run") == 1 and "no such key" in said and "Traceback" not in said, said
    assert call("wandb", run.path, "--once", env=online(server))[0] == 0
    assert sent(server) == run.metrics()


def test_a_server_that_cannot_be_reached_is_tried_until_it_can(run, server):
    run.steps(1)
    run.finish()
    server.fails = True
    with start("wandb", run.path, env={**online(server), "WANDB_INIT_TIMEOUT": "3"}) as tracker:
        lines = iter(tracker.stderr.readline, "")
        assert any("W&B does not take the run" in line for line in lines)
        server.fails = False
        assert any("the run is finished; 1 lines" in line for line in lines)
        assert tracker.wait(60) == 0
    assert sent(server) == run.metrics()
