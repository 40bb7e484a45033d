"""slime's and miles' debug files (--save-debug-rollout-data, --save-debug-train-data) to records.

    python -m tandem_rl.export.slime rollout_3.pt records.jsonl     # the rollout engine's side
    python -m tandem_rl.export.slime train_3_0.pt records.jsonl     # both sides; several files may be given"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tandem_rl.export.padded_rows import header_for, last, padded_row, run

COLUMNS = {"behaviour_logprobs": "rollout_log_probs", "proximal_logprobs": "log_probs",
           "reference_logprobs": "ref_log_probs", "advantages": "advantages"}
FINISH = {"completed": "stop", "truncated": "length"}


def rows_of(path: str) -> Iterator[dict[str, Any]]:
    import torch
    data = torch.load(path, map_location="cpu", weights_only=False)
    samples = data.get("samples")
    if samples is None:  # one rank's columns, and fields that are of no sample
        columns = {name: values for name, values in data["rollout_data"].items()
                   if isinstance(values, (list, torch.Tensor)) and len(values) == len(data["rollout_data"]["tokens"])}
        samples = [dict(zip(columns, one)) for one in zip(*columns.values())]
    for sample in samples:
        length = int(sample.get("response_length", sample.get("response_lengths")))
        mask, reward = sample.get("loss_mask", sample.get("loss_masks")), sample.get("reward", sample.get("rewards"))
        versions = {str(version) for version in sample.get("weight_versions") or ()}
        yield padded_row(
            sample["tokens"], None, last([1] * length if mask is None else mask, length), step=data["rollout_id"],
            **{name: last(sample.get(field), length) for name, field in COLUMNS.items()},
            group_id=sample.get("group_index"), reward=None if isinstance(reward, dict) else reward,
            finish_reason=FINISH.get(sample.get("status", ""), sample.get("status")),
            weight_version=int(*versions) if len(versions) == 1 and "".join(versions).isdigit() else None)


if __name__ == "__main__":
    run(rows_of, header_for("slime", COLUMNS, {"engine": "sglang"}, {}), "debug files of slime and miles")
