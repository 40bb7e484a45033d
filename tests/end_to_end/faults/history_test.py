"""check_history.py (tests/support/python) finds a fault of each kind, in histories that were written by hand and in those of real
processes with an injected fault."""
import copy
import json

import pytest

import small_run

import check_history

SERVER = "127.0.0.1:5001"


def server_events():
    """A server that samples groups 0 and 1 from version 0, and 2 and 3 from version 1."""
    def drawn(group, spans, **more):
        return {"event": "drawn", "run_id": "r", "group_id": group, "index": 0,
                "tokens": sum(count for _, count in spans), "spans": spans, "stopped_early": False, **more}

    return [{"event": "opened", "schema": 1, "role": "rollout_server", "unix_ns": 1},
            {"event": "started", "in_flight": "keep", "version": 0, "digest": "d0"},
            {"event": "listens", "address": SERVER},
            {"event": "epoch", "run_id": "r", "epoch": 1},
            drawn(0, [[0, 5]]), drawn(1, [[0, 5]]),
            {"event": "installed", "version": 1},
            {"event": "committed", "epoch": 1, "version": 1, "digest": "d1"},
            drawn(2, [[0, 2], [1, 3]]),
            drawn(3, [[1, 5]], found_kv={"of_install": 1, "at_install": 1}),
            {"event": "installed", "version": 2},
            {"event": "committed", "epoch": 1, "version": 2, "digest": "d2"}]


def trainer_events():
    """Two steps of two groups of one completion: groups 0 and 1, then group 2; group 3 is dropped."""
    def received(group, spans):
        return {"event": "received", "group_id": group, "server": SERVER,
                "completions": [{"index": 0, "tokens": sum(count for _, count in spans), "spans": spans}]}

    def pushed(version, form="delta"):
        return {"event": "push_committed", "step": version, "message": "", "version": version, "epoch": 1,
                "server": SERVER, "digest": f"d{version}", "form": form}

    return [{"event": "opened", "schema": 1, "role": "trainer", "unix_ns": 2},
            {"event": "began", "run_id": "r", "resumed": False, "version": 0, "first_group": 0, "groups_per_step": 2,
             "max_staleness": 1, "refills": False},
            pushed(0, "none"),
            *({"event": "asked", "group_id": group, "min_version": 0, "completions": 1} for group in range(4)),
            received(0, [[0, 5]]), received(1, [[0, 5]]),
            {"event": "trained", "step": 1, "group_ids": [0, 1]},
            pushed(1),
            received(2, [[0, 2], [1, 3]]), received(3, [[1, 5]]),
            {"event": "group_dropped", "step": 2, "message": "", "group_id": 3, "reason": "zero_variance"},
            {"event": "trained", "step": 2, "group_ids": [2]},
            {"event": "checkpoint_saved", "step": 2, "message": "step 2"},
            pushed(2)]


def findings(folder, *histories):
    folder.mkdir(exist_ok=True)
    for number, events in enumerate(histories):
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return {(violation.guarantee, violation.text) for violation in check_history.check([folder]).violations}


def only(events, kind, number=0):
    return [event for event in events if event["event"] == kind][number]


def test_a_run_without_faults_has_none(tmp_path):
    report_of = tmp_path / "healthy"
    assert findings(report_of, server_events(), trainer_events()) == set()
    report = check_history.check([report_of])
    assert (report.processes, report.completions, report.trained, report.pushes) == (2, 4, 3, 3)
    assert check_history.main([str(report_of)]) == 0


def test_half_a_line_at_the_end_is_that_of_a_process_that_was_killed(tmp_path):
    assert findings(tmp_path / "killed", server_events(), trainer_events()) == set()
    with open(tmp_path / "killed" / "0.jsonl", "a", encoding="utf-8") as file:
        file.write('{"event": "dra')
    assert check_history.check([tmp_path / "killed"]).violations == []


@pytest.mark.parametrize("text", [None, "", '{"schema":1,"step":3}\n', "3\n", "no json\n"],
                         ids=["missing", "empty", "other_records", "a_number", "no_json"])
def test_what_is_no_history_is_no_run_without_faults(tmp_path, capsys, text):
    folder = tmp_path / "other"
    if text is not None:
        folder.mkdir()
        (folder / "metrics.jsonl").write_text(text)
    assert check_history.main([str(folder)]) == 2
    assert str(folder) in capsys.readouterr().err


def test_a_last_step_that_is_not_in_the_record_is_found(tmp_path):
    finished = {"event": "run_finished", "step": 2, "message": "after 2 train steps"}
    assert findings(tmp_path / "whole", server_events(), trainer_events() + [finished]) == set()
    events = [event for event in trainer_events() + [finished] if event.get("step") != 2 or event == finished]
    assert findings(tmp_path / "planted", server_events(), events) == {
        ("G1", "the run finished at step 2; the last step of its record is 1")}


def resumed(first_group, version):
    return [{"event": "opened", "schema": 1, "role": "trainer", "unix_ns": 3},
            {**only(trainer_events(), "began"), "resumed": True, "version": version, "first_group": first_group}]


def test_a_resume_takes_back_what_its_checkpoint_does_not_have(tmp_path):
    server, before = server_events(), trainer_events()
    again = copy.deepcopy(only(server, "drawn", 2))  # it is asked for again and has the version of the last push
    again["spans"] = [[1, 5]]
    server.insert(-2, again)
    group_2 = copy.deepcopy(only(before, "received", 2))
    group_2["completions"][0]["spans"] = [[1, 5]]
    after = [*resumed(2, 1), only(before, "asked", 2), only(before, "asked", 3), only(before, "push_committed", 1),
             group_2, only(before, "received", 3), only(before, "group_dropped"), only(before, "trained", 1)]
    assert findings(tmp_path / "resumed", server, before, after) == set()


# Each function puts one fault into copies of the two histories.
def trained_twice(server, trainer):
    only(trainer, "trained", 1)["group_ids"] = [2, 1]


def trained_before_it_came(server, trainer):
    trainer.remove(only(trainer, "received", 2))


def asked_twice(server, trainer):
    trainer.insert(5, only(trainer, "asked"))


def forgotten(server, trainer):
    trainer.remove(only(trainer, "group_dropped"))


def dropped_without_a_reason(server, trainer):
    only(trainer, "group_dropped")["reason"] = ""


def dropped_and_trained(server, trainer):
    only(trainer, "trained", 1)["group_ids"] = [2, 3]


def a_member_is_missing(server, trainer):
    only(trainer, "asked")["completions"] = 2


def labelled_with_a_version_never_installed(server, trainer):
    only(server, "drawn", 2)["spans"] = [[0, 2], [7, 3]]
    only(trainer, "received", 2)["completions"][0]["spans"] = [[0, 2], [7, 3]]


def labelled_with_the_version_before(server, trainer):
    only(server, "drawn", 3)["spans"] = [[0, 5]]
    only(trainer, "received", 3)["completions"][0]["spans"] = [[0, 5]]


def labels_fall(server, trainer):
    only(server, "drawn", 2)["spans"] = [[1, 2], [0, 3]]
    only(trainer, "received", 2)["completions"][0]["spans"] = [[1, 2], [0, 3]]


def labels_do_not_add_up(server, trainer):
    only(server, "drawn", 2)["tokens"] = 6
    only(trainer, "received", 2)["completions"][0]["tokens"] = 6


def labels_change_on_the_wire(server, trainer):
    only(trainer, "received", 2)["completions"][0]["spans"] = [[1, 5]]


def older_than_asked_for(server, trainer):
    only(trainer, "asked", 2)["min_version"] = 1


def versions_fall(server, trainer):
    only(server, "installed", 1)["version"] = only(server, "committed", 1)["version"] = 1


def an_epoch_of_another_run_comes_again(server, trainer):
    server.insert(-2, {"event": "epoch", "run_id": "other", "epoch": 1})


def versions_fall_after_a_lease_that_ended(server, trainer):
    server.insert(-2, only(server, "epoch"))
    versions_fall(server, trainer)


def delivered_without_being_sent(server, trainer):
    del server[-2:]


def delivered_with_other_bytes(server, trainer):
    only(server, "committed", 1)["digest"] = "flipped"


def stale_cached_prefix(server, trainer):
    only(server, "drawn", 3)["found_kv"] = {"of_install": 0, "at_install": 1}


def over_an_install_though_groups_abort(server, trainer):
    only(server, "started")["in_flight"] = "abort"


def over_the_staleness_bound(server, trainer):
    only(trainer, "began")["max_staleness"] = 0


PLANTS = {"G1": [trained_twice, trained_before_it_came, asked_twice, forgotten, dropped_without_a_reason,
                 dropped_and_trained, a_member_is_missing],
          "G2": [labelled_with_a_version_never_installed, labelled_with_the_version_before, labels_fall,
                 labels_do_not_add_up, labels_change_on_the_wire, older_than_asked_for, versions_fall,
                 an_epoch_of_another_run_comes_again, versions_fall_after_a_lease_that_ended,
                 delivered_without_being_sent, delivered_with_other_bytes],
          "G3": [stale_cached_prefix, over_an_install_though_groups_abort],
          "G4": [over_the_staleness_bound]}


@pytest.mark.parametrize("guarantee, plant", [(g, plant) for g, plants in PLANTS.items() for plant in plants],
                         ids=lambda value: getattr(value, "__name__", value))
def test_a_planted_fault_is_found(tmp_path, guarantee, plant):
    server, trainer = copy.deepcopy(server_events()), copy.deepcopy(trainer_events())
    plant(server, trainer)
    found = findings(tmp_path / "planted", server, trainer)
    assert {kind for kind, _ in found} == {guarantee}, found
    assert check_history.main([str(tmp_path / "planted")]) == 1


@pytest.mark.parametrize("first_group, version, text", [
    (0, 1, "group 0 was trained in step 1, and the checkpoint of step 1 asks for it again"),
    (4, 1, "group 2 was trained in step 2, which the checkpoint of step 1 does not have, and is not asked for again")])
def test_a_checkpoint_whose_weights_and_frontier_are_of_two_steps_is_found(tmp_path, first_group, version, text):
    found = findings(tmp_path / "planted", server_events(), trainer_events(), resumed(first_group, version))
    assert ("G1", text) in found and {kind for kind, _ in found} == {"G1"}


# Group 3 is taken by step 2 in the place of group 2, which was dropped.
def refilled():
    events = trainer_events()
    only(events, "began").update(refills=True, groups_per_step=1)
    only(events, "trained")["group_ids"] = [0]
    events.insert(events.index(only(events, "push_committed", 1)),
                  {"event": "trained", "step": 2, "group_ids": [1]})
    only(events, "push_committed", 2)["version"] = 2
    dropped, trained = only(events, "group_dropped"), only(events, "trained", 2)
    dropped.update(group_id=2, step=3)
    trained.update(group_ids=[3], step=3)
    return events


def test_a_step_that_refills_takes_as_many_groups_as_it_needs_and_leaves_none_out(tmp_path):
    events = [event for event in refilled() if not event["event"].startswith("push_") or event["version"] < 2]
    assert {kind for kind, _ in findings(tmp_path / "healthy", server_events(), events)} == set()
    events.remove(only(events, "group_dropped"))
    found = findings(tmp_path / "planted", server_events(), events)
    assert ("G1", "step 3 ends and nothing became of the groups [2]") in found


@pytest.mark.breaks("G3")
def test_stale_prefixes_of_a_real_engine_are_found(model, tmp_path):
    path = small_run.write_config(tmp_path, model)
    config = json.loads(path.read_text())
    config["drift"] = {"inject": {"stale_prefix_fraction": 1}}
    path.write_text(json.dumps(config))
    code, output = small_run.run(path)
    assert code == 0, output


@pytest.mark.breaks("G2")
def test_a_push_that_a_real_trainer_only_claims_is_found(model, tmp_path):
    code, output = small_run.run(small_run.write_config(tmp_path, model, push={"debug_skip_push_at_step": 2}))
    assert code == 6, output


def test_a_run_over_many_installs_and_found_prefixes_has_nothing_wrong(model, tmp_path, checked_history):
    code, output = small_run.run(small_run.write_config(tmp_path, model, max_staleness=1, steps=4))
    assert code == 0, output
    report = check_history.check([checked_history])
    assert report.trained == 16 and report.completions >= 64 and report.pushes >= 5
