"""A hook that makes verl's trainer write records at every step, both sides: rollout_log_probs and old_log_probs.
    from tandem_rl.export.verl_hook import install
    install("records.jsonl", model="Qwen/Qwen3-0.6B")       # in the process of the trainer, before it is made
Switch on actor_rollout_ref.rollout.calculate_log_probs=True. In bypass mode old_log_probs are a copy of rollout_log_probs,
which is left out, since it is of no trainer. `trainer`: the class, such as PPOTrainer of verl.trainer.ppo.v1."""
from __future__ import annotations

import functools
from typing import Any, Optional

from tandem_rl.export.padded_rows import append_rows, header_for
from tandem_rl.export.verl import COLUMNS, rows_of_batch


def record(trainer: Any, batch: Any, path: str, model: Optional[str]) -> None:
    if hasattr(batch, "partition_id"):  # V1: the batch lies in the TransferQueue
        import transfer_queue
        tensors = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id)
        uids = [key.split("_")[0] for key in batch.keys]
    else:
        tensors, uids = batch.batch, batch.non_tensor_batch.get("uid")
    is_copy = bool((trainer.config.algorithm.get("rollout_correction") or {}).get("bypass_mode"))
    tensors = {name: tensors[name] for name in tensors.keys() if name != "old_log_probs" or not is_copy}
    rollout = trainer.config.actor_rollout_ref.rollout
    header = header_for("verl_hook", COLUMNS, {"engine": rollout.name, "temperature": rollout.temperature},
                        {"engine": "verl", "temperature": rollout.temperature}, model)
    append_rows(path, header, rows_of_batch(tensors, uids, step=trainer.global_steps))


def install(path: str, model: Optional[str] = None, trainer: Any = None) -> None:
    if trainer is None:
        from verl.trainer.ppo import ray_trainer
        trainer = ray_trainer.RayPPOTrainer
    update = trainer._update_actor

    @functools.wraps(update)
    def recorded(self: Any, batch: Any, *rest: Any, **more: Any) -> Any:
        record(self, batch, path, model)
        return update(self, batch, *rest, **more)
    trainer._update_actor = recorded
