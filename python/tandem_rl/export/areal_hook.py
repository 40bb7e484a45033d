"""A hook that makes AReaL's PPOActor write records at every step: logprobs of the inference engine, prox_logp of the actor.

    from tandem_rl.export.areal_hook import install
    install("records_{rank}.jsonl", model="Qwen/Qwen3-0.6B")   # in the process of the actor, before training

With recompute_logprob or use_decoupled_loss, else there is no prox_logp and that side is left out."""
from __future__ import annotations

import functools
import os
from typing import Any, Optional

from tandem_rl.export.padded_rows import append_rows, array, header_for, padded_row, version_spans

COLUMNS = {"behaviour_logprobs": "logprobs", "proximal_logprobs": "prox_logp"}


def rows_of_batch(data: Any, step: Optional[int]) -> Any:
    for i, ids in enumerate(data["input_ids"]):
        drawn = array(data["loss_mask"][i]).astype(bool) & array(data["attention_mask"][i]).astype(bool)
        # Element t of AReaL's prox_logp is about token t + 1, and of its logprobs about token t.
        proximal = None if data.get("prox_logp") is None else data["prox_logp"][i].roll(1)
        spans = None if data.get("versions") is None else version_spans(array(data["versions"][i])[drawn])
        yield padded_row(ids, data["attention_mask"][i], drawn, behaviour_logprobs=data["logprobs"][i], step=step,
                         proximal_logprobs=proximal, version_spans=spans, reward=data["rewards"][i])


def install(path: str, model: Optional[str] = None, actor: Any = None) -> None:
    if actor is None:
        from areal.trainer.ppo import actor as module
        actor = module.PPOActor
    compute = actor._compute_advantages

    @functools.wraps(compute)
    def recorded(self: Any, data: Any) -> Any:
        header = header_for("areal_hook", COLUMNS, {}, {"engine": "areal", "temperature": self.config.temperature}, model)
        header["columns"]["proximal_logprobs"]["transform"] = "shifted_by:-1"
        append_rows(path.format(rank=os.environ.get("RANK", "0")), header, rows_of_batch(data, self.engine.get_version()))
        return compute(self, data)
    actor._compute_advantages = recorded
