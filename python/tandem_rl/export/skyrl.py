"""SkyRL's dumped_data/global_step_N_training_input.pkl (trainer.dump_data_batch=true) to records.

    python -m tandem_rl.export.skyrl dumped_data/global_step_7_training_input.pkl records.jsonl   # where SkyRL is installed

action_log_probs are of the training forward before the step, rollout_logprobs of the inference engine. An end token that
SkyRL appended itself has 0.0 as rollout_logprobs, which `tandem drift check` finds."""
from __future__ import annotations

import pathlib
import pickle
import re
from collections.abc import Iterator
from typing import Any

from tandem_rl.export.padded_rows import header_for, lines_of, member, padded_row, run

COLUMNS = {"behaviour_logprobs": "rollout_logprobs", "proximal_logprobs": "action_log_probs",
           "reference_logprobs": "base_action_log_probs", "advantages": "advantages"}


def rows_of(path: str) -> Iterator[dict[str, Any]]:
    batch = pickle.loads(pathlib.Path(path).read_bytes())
    step = re.search(r"global_step_(\d+)", pathlib.Path(path).name)
    given = lines_of(batch, ("sequences", "attention_mask", "loss_mask"), COLUMNS.values())
    count = len(given["sequences"]) - (member(batch, "metadata", None) or {}).get("pad_size", 0)  # rows that fill the batch
    for i in range(count):
        yield padded_row(given["sequences"][i], given["attention_mask"][i], given["loss_mask"][i],
                         step=int(step[1]) if step else None,
                         **{name: given[field][i] for name, field in COLUMNS.items() if field in given})


if __name__ == "__main__":
    run(rows_of, header_for("skyrl", COLUMNS, {}, {"engine": "skyrl"}), "dumped_data/*.pkl of SkyRL")
