"""A trainer that is killed repeatedly at random moments, also while it writes checkpoints. In the end it has trained on every
group once (G1, G5, fault 14). The seed of the moments is printed."""
import json
import os
import random
import subprocess

import small_run

from rollout_client import BIN, Server
from waiting import wait_until

STEPS, KILLS, PROMPTS = 30, 6, 4


def start(config, server, *arguments):
    log = open(config.parent / "trainer.log", "a", encoding="utf-8")
    return subprocess.Popen([str(BIN / "trainer"), "--config", str(config), "--servers", server.address, *arguments],
                            stdout=log, stderr=subprocess.STDOUT)


def lines(path):
    """The lines of a file that may end in the middle of a line."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]


def test_a_trainer_killed_at_random_moments_has_trained_every_group_once_in_the_end(model, tmp_path):
    seed = int(os.environ.get("TANDEM_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    print("TANDEM_TEST_SEED =", seed)
    draws = random.Random(seed)
    run = tmp_path / "runs" / "small"
    config = small_run.write_config(tmp_path, model, steps=STEPS, checkpoint={"every": 1, "keep": 2},
                                    push={"lease_seconds": 1})
    with Server(model, "--dtype", "fp32") as server:
        arguments = []
        for kill in range(KILLS):
            process = start(config, server, *arguments)
            target = 2 + kill * (STEPS - 4) // KILLS
            wait_until(lambda: any(step.get("step", 0) >= target for step in lines(run / "metrics.jsonl"))
                       or process.poll() is not None, f"no step {target}", seconds=240)
            assert process.poll() is None, (tmp_path / "trainer.log").read_text()[-3000:]
            try:
                process.wait(timeout=draws.uniform(0, 0.4))
            except subprocess.TimeoutExpired:
                pass
            process.kill()
            process.wait()
            arguments = ["--resume"]
        process = start(config, server, *arguments)
        assert process.wait(timeout=400) == 0, (tmp_path / "trainer.log").read_text()[-3000:]
    assert [step["step"] for step in lines(run / "metrics.jsonl") if "loss/total" in step] == list(range(1, STEPS + 1))
    assert (run / "checkpoints" / "LATEST").read_text() == f"step_{STEPS}\n"
    state = json.loads((run / "checkpoints" / f"step_{STEPS}" / "state.json").read_text())
    skipped = [event for event in lines(run / "events.jsonl") if event["kind"] == "step_skipped"]
    assert state["next_group_step"] == STEPS + len(skipped)
    trained = [group["group_id"] for step in range(1, STEPS + 1) for group in lines(run / "rollouts" / f"step_{step}.jsonl")
               if not group["drop_reason"]]
    assert len(trained) == len(set(trained)), "a group was trained twice"
    given_up = {int(event["group_id"]) for event in lines(run / "events.jsonl") if event["kind"] == "group_dropped"}
    skipped_ids = {group for event in skipped for group in event["group_ids"]}
    assert set(trained) | given_up | skipped_ids == set(range(PROMPTS * (STEPS + len(skipped))))
    assert not set(trained) & (given_up | skipped_ids)
