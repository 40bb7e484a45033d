"""verl's cached rollouts (skip.rollout.action=cache: gen_batch.dp of DataProto, tq_batch.pt of the V1 trainer) to records.
    python -m tandem_rl.export.verl CACHE/7/gen_batch.dp records.jsonl      # where verl is installed
Log-probs are in them with actor_rollout_ref.rollout.calculate_log_probs=True: rollout_log_probs, of the rollout engine."""
from __future__ import annotations

import json
import pathlib
import pickle
from collections.abc import Iterator
from typing import Any

from tandem_rl.export.padded_rows import header_for, lines_of, member, padded_row, run

COLUMNS = {"behaviour_logprobs": "rollout_log_probs", "proximal_logprobs": "old_log_probs",
           "reference_logprobs": "ref_log_prob", "advantages": "advantages"}


def rows_of_batch(batch: Any, uids: Any = None, **facts: Any) -> Iterator[dict[str, Any]]:
    """Of a DataProto's `batch` (padded) or of a TensorDict of nested tensors (not padded); a plain dict of either will do."""
    given = lines_of(batch, ("input_ids", "response_mask"), ("attention_mask", "rm_scores", *COLUMNS.values()))
    for i, ids in enumerate(given["input_ids"]):
        yield padded_row(ids, given["attention_mask"][i] if "attention_mask" in given else None, given["response_mask"][i],
                         **{name: given[field][i] for name, field in COLUMNS.items() if field in given}, **facts,
                         group_id=None if uids is None else str(uids[i]),
                         reward=given["rm_scores"][i].sum() if "rm_scores" in given else None)


def rows_of(path: str) -> Iterator[dict[str, Any]]:
    import torch
    if path.endswith(".pt"):
        data = torch.load(path, map_location="cpu", weights_only=False)
        return rows_of_batch(data["tensordict"], [key.split("_")[0] for key in data["keys"]], step=data["global_steps"])
    proto, meta = pickle.loads(pathlib.Path(path).read_bytes()), pathlib.Path(path).with_name("meta.json")
    step = json.loads(meta.read_text()).get("global_steps") if meta.is_file() else None
    return rows_of_batch(member(proto, "batch", proto), member(proto, "non_tensor_batch", {}).get("uid"), step=step)


if __name__ == "__main__":
    run(rows_of, header_for("verl", COLUMNS, {}, {"engine": "verl"}), "gen_batch.dp and tq_batch.pt of verl")
