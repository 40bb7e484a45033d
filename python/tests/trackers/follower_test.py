"""What the tracker takes for new in files that another process writes, and what it takes for sent."""
import json

import pytest

from tandem_rl.trackers.line_follower import LineFollower
from tandem_rl.trackers.run_events import RunEvents, State, has_ended
from tandem_rl.trackers.run_files import LEFT_OUT, NoRun, RunFiles, flattened, scalars, without_secrets
from tandem_rl.trackers.sent_steps import Begun, Journal, JournalInUse, SentSteps


@pytest.fixture
def file(tmp_path):
    return tmp_path / "metrics.jsonl"


# LineFollower.

def test_half_a_line_is_not_seen_until_its_end_is_there(file):
    follower = LineFollower(file)
    assert follower.poll().lines == () and not follower.poll().rewritten, "the file is not there"
    file.write_bytes(b'{"step":1}\n{"st')
    assert follower.poll().lines == (b'{"step":1}',)
    assert follower.poll().lines == ()
    file.write_bytes(b'{"step":1}\n{"step":2}\n')
    news = follower.poll()
    assert (news.lines, news.rewritten, news.at_end) == ((b'{"step":2}',), False, True)


def test_many_lines_come_in_parts(file):
    file.write_bytes(b"".join(b"%d\n" % number for number in range(5)))
    follower = LineFollower(file)
    parts = [follower.poll(limit=2) for _ in range(3)]
    assert [part.lines for part in parts] == [(b"0", b"1"), (b"2", b"3"), (b"4",)]
    assert [part.at_end for part in parts] == [False, False, True]


@pytest.mark.parametrize("after, lines", [
    (b"1\n", (b"1",)),                      # cut
    (b"1\n2b\n3\n", (b"1", b"2b", b"3")),   # cut, and made again with other numbers
    (b"1\n2b\n", (b"1", b"2b")),            # of the same size as before, or nearly
    (b"", ()),
])
def test_a_file_that_was_rewritten_is_read_from_its_beginning(file, after, lines):
    follower = LineFollower(file)
    file.write_bytes(b"1\n2a\n")
    follower.poll()
    file.write_bytes(after)
    news = follower.poll()
    assert news.rewritten and news.lines == lines
    assert not follower.poll().rewritten


def test_the_same_contents_in_another_file_are_no_news(file, tmp_path):
    follower = LineFollower(file)
    file.write_bytes(b"1\n2\n")
    follower.poll()
    (tmp_path / "other").write_bytes(b"1\n2\n3\n")
    (tmp_path / "other").replace(file)
    news = follower.poll()
    assert not news.rewritten and news.lines == (b"3",)


def test_a_file_that_is_gone_for_a_while_has_no_news(file):
    follower = LineFollower(file)
    file.write_bytes(b"1\n")
    follower.poll()
    file.unlink()
    assert follower.poll().lines == ()
    file.write_bytes(b"9\n")
    assert follower.poll().lines == (b"9",)


# SentSteps and its journal.

def add(sent, step, line=b"", time_ms=None):
    row = sent.next_row(line or b"%d" % step, step, 1000 * step if time_ms is None else time_ms, None)
    sent.add(row)
    return row


def test_numbers_are_steps_until_the_run_is_cut_and_rise_ever_after():
    sent = SentSteps()
    assert [add(sent, step).number for step in (0, 1, 2, 5, 6)] == [0, 1, 2, 5, 6]
    sent.take_back(3)
    again = add(sent, 5, b"again", time_ms=4000)
    assert (again.step, again.number, again.time_ms) == (5, 7, 6001), "behind all that the service has"
    assert add(sent, 8).number == 8


def test_a_row_that_the_service_never_had_is_made_the_same_again():
    sent = SentSteps()
    rows = [add(sent, step) for step in (1, 2, 3)]
    sent.take_back(1)
    late = add(sent, 2, b"late")
    sent.forget(1)
    assert add(sent, 2, b"late") == late and late.number > rows[-1].number


def test_a_journal_is_read_back_as_it_was_and_half_a_line_is_dropped(tmp_path):
    journal = Journal(tmp_path / "state" / "wandb.jsonl")
    begun = Begun("run-1", "abc", 0, 1700)
    journal.begin(begun)
    rows = [journal.sent.next_row(b"1", 1, 5, None)]
    journal.add(rows)
    journal.add([journal.sent.next_row(b"2", 2, 6, None), journal.sent.next_row(b"2", 2, 6, None)])
    journal.take_back(1)
    with open(journal.path, "a") as file:
        file.write('{"step": 2, "dig')
    with pytest.raises(JournalInUse, match="another tracker follows this run already"):
        Journal(journal.path)
    journal.close()
    again = Journal(journal.path)
    assert (again.begun, again.sent.rows) == (begun, rows)
    again.add([again.sent.next_row(b"x", 2, 0, None)])
    again.close()
    assert Journal(journal.path).sent.rows == again.sent.rows and again.sent.rows[-1].number == 3


def test_a_journal_of_another_program_is_refused(tmp_path):
    (tmp_path / "wandb.jsonl").write_text('{"schema": 9}\n')
    with pytest.raises(ValueError, match="not a journal of this program"):
        Journal(tmp_path / "wandb.jsonl")


# What is read of the rest of the directory.

def test_scalars_keep_their_names_and_nothing_else_is_sent():
    line = {"step": 3, "reward/mean": 0.5, "loss/kl_stopped": True, "drift/chi2": None, "hist": [1], "by": {"a": 1}, "text": "x"}
    assert scalars(line) == {"step": 3, "reward/mean": 0.5, "loss/kl_stopped": 1}
    assert scalars(json.loads('{"x": Infinity, "y": NaN}')) == {}


def test_secrets_of_a_configuration_are_left_out():
    config = {"trainer": {"reward": {"http": {"headers": ["Authorization: Bearer abc", "X: y"], "url": "https://me:pass@host/x"},
                                     "judge": {"api_key": "abc", "api_key_file": "key.txt", "token": ""}},
                          "tokens": "abc", "token_file": "t", "password": "abc"}}
    clean = without_secrets(config)
    assert "Bearer abc" not in str(clean) and "pass@" not in str(clean)
    assert clean["trainer"]["reward"] == {
        "http": {"headers": [f"Authorization: {LEFT_OUT}", f"X: {LEFT_OUT}"], "url": "https://host/x"},
        "judge": {"api_key": LEFT_OUT, "api_key_file": "key.txt", "token": ""}}
    assert clean["trainer"]["tokens"] == "abc" and clean["trainer"]["password"] == LEFT_OUT


def test_names_are_dotted():
    assert dict(flattened({"a": {"b": 1, "c": ["x", 2]}, "d": [{"e": None}, {"e": 3}]})) == {
        "a.b": 1, "a.c": '["x", 2]', "d.0.e": None, "d.1.e": 3}


def test_the_secret_of_the_run_is_not_read(run):
    (run.path / "owner").unlink()
    (run.path / "owner").mkdir()  # opening it would raise
    facts = RunFiles(run.path).read()
    assert facts.run_id == "written-1" and "of-nobody" not in str(facts)
    assert facts.started_ms == 1795840458141


def test_a_directory_that_holds_something_else_is_no_run(tmp_path):
    with pytest.raises(NoRun, match="is no directory"):
        RunFiles(tmp_path / "nothing").check()
    for name in ("logs", "rollouts", "checkpoints"):
        (tmp_path / name).mkdir()
        RunFiles(tmp_path).check()  # made before the first event
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(NoRun, match="is no run directory"):
        RunFiles(tmp_path).check()


# Events and the end of a run.

def state_after(*kinds):
    events = RunEvents()
    for kind in kinds:
        events.add(json.dumps({"step": 1, "time_s": 0.5, "kind": kind, "message": "m", "server": "a"}).encode())
    return events


def test_events_are_counted_and_listed_and_half_a_line_is_none():
    events = state_after("run_started", "alert", "alert")
    events.add(b'{"kind": "al')
    events.add(b"[]")
    assert events.counts == {"run_started": 1, "alert": 2}
    assert events.rows[1] == (1, 0.5, "alert", "m", '{"server": "a"}')


@pytest.mark.parametrize("kinds, state", [
    (("run_started",), State.RUNNING), (("run_started", "run_failed"), State.FAILED),
    (("run_started", "run_failed", "resumed", "run_started"), State.RUNNING),
    (("run_stopped", "alert"), State.STOPPED), (("run_finished",), State.FINISHED)])
def test_the_state_is_that_of_the_last_event_about_it(kinds, state):
    assert state_after(*kinds).state is state


@pytest.mark.parametrize("state, seconds, report, ended", [
    (State.RUNNING, 1e9, True, False), (State.FINISHED, 0, True, True), (State.FINISHED, 9, False, False),
    (State.FINISHED, 10, False, True), (State.FAILED, 0, True, True), (State.FAILED, 89, False, False),
    (State.FAILED, 90, False, True), (State.STOPPED, 89, False, False)])
def test_an_end_is_believed_when_the_report_is_there_or_nothing_came_for_a_while(state, seconds, report, ended):
    assert has_ended(state, seconds, report, patience_seconds=90) is ended
