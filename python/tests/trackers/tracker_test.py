"""The tracker with a service in memory: what it sends after cuts, losses, failures and restarts, and when it ends."""
import contextlib
import dataclasses
import json
import shutil

import pytest

from memory_service import MemoryService
from tandem_rl.trackers.run_files import NoRun, RunFiles
from tandem_rl.trackers.sent_steps import Journal
from tandem_rl.trackers.tracker import Tracker, TrackerOptions
from written_run import WrittenRun


class Following:
    """Runs the tracker over a script: what the run writes between two looks at it, one function per look."""

    def __init__(self, run, service=None, script=(), **options):
        self.service = service or MemoryService()
        self.said, self.waits, self.script = [], [], list(script)
        self.stopped = False
        with contextlib.closing(Journal(run.path.parent / ".trackers" / "memory.jsonl")) as journal:
            self.result = Tracker(RunFiles(run.path), self.service, journal, TrackerOptions(**options), self.wait,
                                  self.said.append).follow()

    def wait(self, seconds):
        if seconds and not self.stopped:
            self.waits.append(seconds)
            if self.script:
                self.script.pop(0)()
            else:
                self.stopped = True
        return self.stopped


def test_it_sends_each_step_once_while_the_run_writes_and_ends_with_it(run):
    half = run.line(3) + "\n"
    following = Following(run, script=[
        lambda: run.steps(1, 2), lambda: run.append("metrics.jsonl", half[:20]), lambda: run.append("metrics.jsonl", half[20:]),
        run.finish])
    assert following.result and not following.stopped, "it ended by itself"
    assert following.service.steps() == [1, 2, 3]
    sent = following.service.runs["written-1/0"][2]
    assert sent.values == {"step": 3, "time_s": 31.5, "reward/mean": 0.375, "time/capture": 2}
    assert sent.row.time_ms == 1795840458141 + 31500
    assert following.service.counts == {"run_started": 1, "run_finished": 1}
    assert following.service.ended == {"written-1/0": ("finished", None)}


def test_it_sends_the_report_when_it_is_asked_to(run):
    run.steps(1)
    run.finish()
    assert Following(run, sends_report=True).service.ended == {"written-1/0": ("finished", "report.html")}


def test_a_stop_sends_what_is_there_and_leaves_the_run_running(run):
    run.steps(1, 2)
    following = Following(run)
    assert following.result and following.service.steps() == [1, 2]
    assert following.service.ended == {"written-1/0": ("running", None)}


def test_started_again_it_goes_on_where_it_was(run):
    run.steps(1, 2)
    service = Following(run, once=True).service
    run.steps(3)
    again = Following(run, service, once=True)
    assert service.steps() == [1, 2, 3] and list(service.runs) == ["written-1/0"]
    assert "3 lines of metrics were sent, the last of step 3" in again.said[-1]


@pytest.mark.parametrize("is_live", [True, False])
def test_steps_that_a_resumed_run_makes_again_come_behind_those_before(run, is_live):
    run.steps(1, 2, 3, 4)

    def resume():
        run.cut_after(2)
        run.steps(3, 4, 5, reward=9)
    if is_live:
        service = Following(run, script=[lambda: None, resume, run.finish]).service
    else:
        service = Following(run, once=True).service
        resume()
        Following(run, service, once=True)
    assert service.steps() == [1, 2, 3, 4, 3, 4, 5]
    rows = [sent.row for sent in service.runs["written-1/0"]]
    assert [row.number for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    assert all(one.time_ms < two.time_ms for one, two in zip(rows, rows[1:])), "the later value of a step is its last"
    last = {sent.row.step: sent.values["reward/mean"] for sent in service.runs["written-1/0"]}
    assert last == {step: numbers["reward/mean"] for step, numbers in run.metrics().items()}


def test_events_of_steps_that_are_made_again_are_counted_once(run):
    def resume():
        run.cut_after(2)
        run.steps(3)
        run.event("alert", 3)
    run.steps(1, 2, 3)
    run.event("alert", 3)
    following = Following(run, script=[lambda: None, resume, run.finish])
    assert following.service.counts == {"run_started": 1, "resumed": 1, "alert": 1, "run_finished": 1}


def test_a_resume_that_made_no_step_yet_takes_back_and_sends_nothing(run):
    run.steps(1, 2, 3)
    following = Following(run, script=[lambda: None, lambda: run.cut_after(1), lambda: run.steps(2), run.finish])
    assert following.service.steps() == [1, 2, 3, 2]
    assert any("went back to step 1: 2 lines" in said for said in following.said)


def test_a_resume_that_made_the_same_lines_again_sends_none_of_them_twice(run):
    run.steps(1, 2, 3)

    def resume():
        run.cut_after(1)
        run.steps(2, 3, 4)
    assert Following(run, script=[lambda: None, resume, run.finish]).service.steps() == [1, 2, 3, 4]


def test_with_new_run_each_run_of_the_service_has_each_step_once(run):
    run.steps(1, 2, 3)

    def resume():
        run.cut_after(2)
        run.steps(3, 4, reward=9)
    following = Following(run, script=[lambda: None, resume, run.finish], new_run_after_cut=True)
    assert following.service.steps("written-1/0") == [1, 2, 3]
    assert following.service.steps("written-1/1") == [1, 2, 3, 4]
    assert following.service.ended == {"written-1/0": ("stopped", None), "written-1/1": ("finished", None)}
    run.steps(5)
    Following(run, following.service, once=True, new_run_after_cut=True)
    assert following.service.steps("written-1/1") == [1, 2, 3, 4, 5]


def test_a_failure_is_told_once_tried_again_later_and_later_and_loses_nothing(run):
    service = MemoryService()
    service.fails = 4
    following = Following(run, service, script=[lambda: run.steps(1, 2, 3), *[lambda: None] * 4, run.finish])
    assert following.result and service.steps() == [1, 2, 3] and service.began == 5
    assert sum("the network is down" in said for said in following.said) == 1
    assert [wait for wait in following.waits if wait != 2] == [1, 4, 8], "and 2"


def test_with_once_a_service_that_fails_is_given_up(run):
    run.steps(1)
    service = MemoryService()
    service.fails = 100
    following = Following(run, service, script=[lambda: None] * 9, once=True)
    assert not following.result and service.began == 3


def test_a_stop_ends_the_tries(run):
    run.steps(1)
    service = MemoryService()
    service.fails = 100
    assert not Following(run, service).result


def test_rows_that_did_not_arrive_are_sent_again(run):
    run.steps(1, 2, 3, 4)
    service = Following(run, once=True).service
    rows = list(service.runs["written-1/0"])
    service.loses = 2
    following = Following(run, service, once=True)
    assert service.runs["written-1/0"] == rows, "the same rows"
    assert any("2 lines of metrics had not arrived" in said for said in following.said)


def test_rows_that_arrived_and_were_not_noted_are_not_sent_again(run):
    """The tracker died between the two."""
    run.steps(1, 2, 3)
    service = Following(run, once=True).service
    journal = run.path.parent / ".trackers/memory.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:-2]))
    run.steps(4)
    Following(run, service, once=True)
    assert service.steps() == [1, 2, 3, 4]
    assert journal.read_text().splitlines(keepends=True)[:-1] == lines
    journal.unlink()
    Following(run, service, once=True)
    assert service.steps() == [1, 2, 3, 4], "not even without the journal"


def test_a_run_that_is_cleaned_makes_place_for_another(run):
    run.steps(1, 2)

    def clean():
        for path in run.path.iterdir():
            path.unlink()
        run.append("metrics.jsonl", "")

    def begin():
        run.run_id = "written-2"
        run.begin()
        run.steps(1)
    following = Following(run, script=[lambda: None, clean, begin, lambda: None, run.finish])
    assert following.service.steps("written-1/0") == [1, 2] and following.service.steps("written-2/0") == [1]
    assert following.service.ended == {"written-1/0": ("stopped", None), "written-2/0": ("finished", None)}


def test_a_clean_between_two_reads_is_not_taken_for_a_cut(run, monkeypatch):
    run.steps(1, 2)
    seen = []
    ask = RunFiles.run_id
    monkeypatch.setattr(RunFiles, "run_id", lambda self: seen.pop() if seen else ask(self))

    def begin():
        (run.path / "metrics.jsonl").unlink()
        run.run_id = "written-2"
        run.begin()
        run.steps(5)
        seen.append("written-1")  # what run.json said a moment before
    following = Following(run, script=[lambda: None, begin, lambda: None, run.finish])
    assert following.service.steps("written-1/0") == [1, 2] and following.service.steps("written-2/0") == [5]
    assert not any("went back" in said for said in following.said)


def test_a_run_that_failed_and_is_started_again_goes_on(run):
    run.steps(1, 2)

    def restart():
        run.cut_after(2)
        run.steps(3)
    following = Following(run, script=[lambda: run.event("run_failed", exit_code=1), lambda: None, restart, run.finish])
    assert following.service.steps() == [1, 2, 3] and not following.stopped


def test_a_run_that_failed_for_good_ends_it(run):
    run.steps(1)
    run.finish("run_failed", exit_code=2)
    following = Following(run)
    assert following.waits == [] and following.service.ended == {"written-1/0": ("failed", None)}


def test_it_waits_for_a_run_to_begin(run, tmp_path):
    shutil.rmtree(run.path)
    following = Following(run, script=[lambda: run.path.mkdir(), run.begin, lambda: run.steps(1), run.finish])
    assert following.result and following.service.steps() == [1]
    assert f"waiting for a run to begin in {run.path}" in following.said


def test_it_does_not_wait_with_once_nor_for_ever(run):
    (run.path / "run.json").unlink()
    with pytest.raises(NoRun, match="no run has begun there"):
        Following(run, once=True)
    with pytest.raises(NoRun, match="no run has begun there"):
        Following(run, script=[lambda: None] * 9, wait_seconds=1e-9)


def test_the_options_that_are_sent_at_the_end_are_the_whole_ones(run):
    """`tandem run` writes the sections launch and server when the trainer has ended."""
    service = MemoryService()
    ends = []
    service.end = lambda facts, *rest: ends.append(facts.config)
    Following(run, service, script=[lambda: run.write("config.yaml", "trainer: {steps: 5}\nserver: {x: 1}\n"), run.finish])
    assert "server" not in service.facts.config and ends == [{"trainer": {"steps": 5}, "server": {"x": 1}}]


def test_a_line_that_a_crash_cut_short_is_passed_over(run):
    run.steps(1)
    run.append("metrics.jsonl", '{"step": 2, "tim\n')
    run.steps(2)
    service = Following(run, once=True).service
    run.steps(3)
    again = Following(run, service, once=True)
    assert service.steps() == [1, 2, 3] and not any("went back" in said for said in again.said)


def test_a_long_run_is_sent_in_order(tmp_path):
    run = WrittenRun(tmp_path / "long")
    run.steps(*range(1, 1204))
    service = Following(run, once=True).service
    assert service.steps() == list(range(1, 1204))
    rows = [sent.row for sent in service.runs["written-1/0"]]
    journal = (tmp_path / ".trackers/memory.jsonl").read_text().splitlines()[1:]
    assert [json.loads(line) for line in journal] == [dataclasses.asdict(row) for row in rows]
