"""A hook that makes TRL's GRPOTrainer, and what derives from it, write records of every batch that it generates.

    from tandem_rl.export.trl_callback import record
    record(trainer, "records.jsonl")                # after GRPOTrainer(...), before trainer.train(); one file per process

sampling_per_token_logps are there with use_vllm=True or a rollout_func; old_per_token_logps with vLLM's importance sampling
correction, or where a batch is used for several updates. A side that TRL does not have is left out."""
from __future__ import annotations

from typing import Any

from tandem_rl.export.padded_rows import append_rows, header_for, padded_row

COLUMNS = {"behaviour_logprobs": "sampling_per_token_logps", "proximal_logprobs": "old_per_token_logps",
           "reference_logprobs": "ref_per_token_logps"}


def record(trainer: Any, path: str) -> None:
    import torch
    score, claims = trainer._generate_and_score_completions, {"temperature": trainer.args.temperature}
    engine = {"engine": "vllm"} if trainer.use_vllm else {}
    header = header_for("trl_callback", COLUMNS, {**engine, **claims}, {"engine": "transformers", **claims},
                        trainer.model.config._name_or_path or None)

    def recorded(inputs: Any) -> Any:
        out = score(inputs)
        given = {name: out[field] for name, field in COLUMNS.items() if field in out}
        if not {"behaviour_logprobs", "proximal_logprobs"} & set(given):
            raise ValueError("TRL has no log-probs of this batch: set use_vllm=True, or num_iterations above 1")
        ids = torch.cat([out["prompt_ids"], out["completion_ids"]], dim=1)
        attention = torch.cat([out["prompt_mask"], out["completion_mask"]], dim=1)
        drawn = out["completion_mask"] * out.get("tool_mask", 1)
        append_rows(path, header, (
            padded_row(ids[i], attention[i], drawn[i], step=trainer.state.global_step, advantage=out["advantages"][i],
                       **{name: values[i] for name, values in given.items()}) for i in range(len(ids))))
        return out
    trainer._generate_and_score_completions = recorded
