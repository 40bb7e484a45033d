"""Writes the fixtures of `tandem drift import`: small files in the exact layout of what frameworks and engines write.

  .deps/venv/bin/python tests/testdata/foreign/make_fixtures.py

None of these files was written by the framework itself, since none but TRL installs beside the others on a CPU. Each
is laid out by hand after the source file that the function of its folder names, with that file's key order, nesting,
types and placeholders; compare_with_writers.py holds those of NeMo-RL, prime-rl and open-instruct against what the
projects' own functions write. Numbers are those of float32 tensors as Python prints them (`f`). What the importers must make
of them stands in expected/*.jsonl, which is written by hand and not by this script.
"""
import json
import math
import pathlib
import pickle
import struct

import pandas
import pyarrow
import pyarrow.parquet
import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent


def f(value):
    """A float32 as tensor.tolist() and json.dumps show it."""
    return struct.unpack("f", struct.pack("f", value))[0]


def fs(*values):
    return [f(value) for value in values]


def lines(path, rows, separators=(", ", ": ")):
    path = HERE / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, separators=separators) + "\n" for row in rows))


def nemo_rl():
    """NVIDIA-NeMo/RL nemo_rl/algorithms/grpo.py (log_data), nemo_rl/utils/logger.py (log_batched_dict_as_jsonl).

    The batch is cut to one sample a line, so every value is a list of one. Padded on the right to the longest;
    generation_logprobs is 0 where nothing was generated, prev_logprobs 0 on the first token.
    """
    def sample(idx, length, ids, mask, advantages, generation, prev, reward, content):
        return {"content": [content], "rewards": [reward], "input_lengths": [length], "token_ids": [ids],
                "token_loss_mask": [mask], "sample_loss_mask": [1.0], "advantages": [advantages],
                "generation_logprobs": [generation], "prev_logprobs": [prev], "idx": idx}

    lines("nemo-rl/train_data_step3.jsonl", [
        sample(0, 5, [1, 11, 12, 13, 2, 0, 0], [0, 0, 1, 1, 1, 0, 0], fs(.5, .5, .5, .5, .5, .5, .5),
               fs(0, 0, -.25, -.41, -1.5, 0, 0), fs(0, -2, -.3, -.4, -1.25, -7, -7), 1.0, ["2+2?", "4"]),
        sample(1, 7, [1, 11, 21, 22, 31, 23, 2], [0, 0, 1, 1, 0, 1, 1], fs(*[-.5] * 7),
               fs(0, 0, -.5, -.75, 0, -.125, -.0625), fs(0, -2, -.5, -.875, -3, -.125, -.0625), 0.0, ["2+2?", "5"])])
    lines("nemo-rl/train_data_step4.jsonl", [
        sample(0, 3, [1, 41, 42], [0, 1, 1], fs(1, 1, 1), fs(0, -.1, -.2), fs(0, -.1, -.2), 1.0, ["hi"])])
    # The other file of the same directory: of validation, text only.
    lines("nemo-rl/val_data_step4.jsonl", [
        {"content": [["hi"]], "rewards": [1.0], "idx": 0}])


def prime_rl():
    """PrimeIntellect-ai/prime-rl src/prime_rl/trainer/rl/token_export.py, schema 1.

    The first token has log(1/V) and log(V) (train.py shifts logits with these pads; here V = 1024); prompts have 0.0
    as inference log-prob; numbers that are not finite are null. STABLE is touched once all ranks have written.
    """
    pad = f(-6.931471824645996)

    def record(step, rank, sequence, ids, mask, inference, trainer, entropy, advantage):
        n = len(ids)
        nothing = [None] * n
        ratios = [None if i is None else f(t - i) for t, i in zip(trainer, inference)]
        return {"schema_version": 1, "step": step, "rank": rank, "micro_step": 0, "micro_sequence_idx": sequence,
                "export_sequence_idx": sequence, "env_name": "gsm8k", "token_ids": ids, "position_ids": list(range(n)),
                "loss_mask": mask, "advantages": [advantage] * n, "inference_logprobs": inference,
                "trainer_logprobs": trainer, "entropy": entropy, "mismatch_kl": [None if r is None else f(math.expm1(r) - r) for r in ratios],
                "log_importance_ratio": ratios,
                "importance_ratio": [None if r is None else f(math.exp(r)) for r in ratios],
                "prob_delta": [None if i is None else f(math.exp(t) - math.exp(i)) for t, i in zip(trainer, inference)],
                "is_masked": [False] * n, "is_masked_high": [False] * n, "is_masked_low": [False] * n,
                "rl_weights": nothing, "ce_weights": nothing, "ref_kl_weights": nothing}

    compact = (",", ":")
    lines("prime-rl/token_exports/step_2/rank_0.jsonl", [
        record(2, 0, 0, [1, 11, 12, 2], [False, False, True, True], fs(0, 0, -.25, -.41), [pad, *fs(-2, -.3, -.4)],
               fs(6.931471824645996, 3, .7, .9), 1.0),
        record(2, 0, 1, [1, 13, 2], [False, True, True], [0.0, None, f(-.5)], [pad, *fs(-1.5, -.5)],
               fs(6.931471824645996, 1, .5), -1.0)], compact)
    lines("prime-rl/token_exports/step_2/rank_1.jsonl", [
        record(2, 1, 0, [1, 14, 15], [False, True, True], fs(0, -.75, -.125), [pad, *fs(-.75, -.25)],
               fs(6.931471824645996, 2, .25), .5)], compact)
    (HERE / "prime-rl/token_exports/step_2/STABLE").touch()
    lines("prime-rl/token_exports/step_3/rank_0.jsonl", [
        record(3, 0, 0, [1, 16], [False, True], fs(0, -.5), [pad, f(-.5)], fs(6.931471824645996, 2), 0.0)], compact)


def open_instruct():
    """allenai/open-instruct open_instruct/rl_utils.py: RolloutRecord and RolloutMetadata."""
    def record(sample, prompt, response, logprobs, reward, reason, called):
        info = {"num_calls": int(called), "timeouts": 0, "tool_errors": "", "tool_outputs": "", "tool_runtimes": 0.0,
                "tool_calleds": called, "tool_call_stats": [], "rollout_state": {}}
        return {"step": 5, "sample_idx": sample, "prompt_idx": sample // 2, "prompt_tokens": prompt,
                "response_tokens": response, "reward": reward, "advantage": reward - .5, "finish_reason": reason,
                "dataset": "gsm8k", "ground_truth": [4], "request_info": info, "logprobs": logprobs}

    lines("open-instruct/grpo_1_rollouts_000000.jsonl", [
        record(0, [1, 11], [12, 13, 2], fs(-.25, -.41, -1.5), 1.0, "stop", False),
        record(1, [1, 11], [14, 15], fs(-.5, -.75), 0.0, "length", True)])
    lines("open-instruct/grpo_1_metadata.jsonl", [
        {"run_name": "grpo_1", "git_commit": "e6c3044", "model_name": "allenai/OLMo-2-0425-1B",
         "timestamp": "2026-08-20T22:05:01+00:00"}])


def sample_dict(index, tokens, response_length, logprobs, **more):
    """Sample.to_dict of slime/utils/types.py and miles/utils/types.py, what of it is JSON."""
    return {"group_index": 0, "index": index, "rollout_id": None, "prompt": "2+2?", "tokens": tokens,
            "multimodal_inputs": None, "response": "4", "response_length": response_length, "label": "4", "reward": 1.0,
            "loss_mask": None, "weight_versions": [], "rollout_log_probs": logprobs, "remove_sample": False,
            "status": "completed", "metadata": {}, **more}


def slime():
    """THUDM/slime slime/observability/rollout_data_utils.py and train_data_utils.py; radixark/miles
    miles/ray/rollout/debug_data.py (save_dashboard_columns).

    slime and miles write {"rollout_id", "samples"} with torch.save (rollout_3.pt); the JSON files hold the same dicts.
    """
    rollout = {"rollout_id": 3, "samples": [
        sample_dict(0, [1, 11, 12, 13, 2], 3, fs(-.25, -.41, -1.5), weight_versions=["7", "7"]),
        sample_dict(1, [1, 11, 21, 31, 22], 3, fs(-.5, 0, -.75), loss_mask=[1, 0, 1], weight_versions=["7", "8"],
                    status="truncated", reward={"score": 1.0})]}
    path = HERE / "slime/rollout_3.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rollout, indent=1) + "\n")
    torch.save(rollout, HERE / "slime/rollout_3.pt")
    # Per-sample names of the train data are those of the columns that were cut: plural.
    lines("slime/train_3.json", [{"format_version": 2, "rollout_id": 3, "rank": 0, "samples": [
        {"data_parallel_rank": 0, "sample_index": 0, "rollout_position": 0, "tokens": [1, 11, 12, 13, 2],
         "response_lengths": 3, "total_lengths": 5, "loss_masks": [1, 1, 1], "rewards": 1.0,
         "rollout_log_probs": fs(-.25, -.41, -1.5), "log_probs": fs(-.3, -.4, -1.25),
         "ref_log_probs": fs(-.35, -.4, -1), "advantages": fs(.5, .5, .5)}]}])
    frame = pyarrow.table({
        "sample_index": pyarrow.array([0, 1], pyarrow.int32()),
        "response_length": pyarrow.array([3, 2], pyarrow.int32()),
        "total_length": pyarrow.array([5, 3], pyarrow.int32()),
        "tokens": pyarrow.array([[1, 11, 12, 13, 2], [1, 14, 15]], pyarrow.list_(pyarrow.int32())),
        "loss_mask": pyarrow.array([None, [1, 0]], pyarrow.list_(pyarrow.int8())),
        "rollout_log_probs": pyarrow.array([[-.25, -.41, -1.5], [-.5, 0]], pyarrow.list_(pyarrow.float32()))})
    (HERE / "miles/dashboard_columns").mkdir(parents=True, exist_ok=True)
    # polars compresses with Zstandard.
    pyarrow.parquet.write_table(frame, HERE / "miles/dashboard_columns/rollout_3.parquet", compression="zstd",
                                row_group_size=8)


def texts_and_pickles():
    """What has no token ids: verl/trainer/ppo/ray_trainer.py (_dump_generations) and protocol.py (save_to_disk: a
    pickle), SkyRL skyrl/train/trainer.py (dump_data: a pickle), AReaL areal/infra/workflow_executor.py
    (_dump_trajectory), TRL trl/trainer/grpo_trainer.py (log: pandas.DataFrame.to_parquet)."""
    lines("verl/1.jsonl", [{"input": "user\n2+2?", "output": "4", "gts": "4", "score": 1.0, "step": 1}])
    (HERE / "verl/gen_batch.dp").write_bytes(pickle.dumps({"batch": {"responses": [12, 2]}}))
    (HERE / "skyrl").mkdir(exist_ok=True)
    (HERE / "skyrl/global_step_1_training_input.pkl").write_bytes(pickle.dumps({"sequences": [1, 11, 12]}))
    lines("areal/0/17.jsonl", [
        {"task_id": 17, "sample_idx": 0, "seqlen": 5, "prompt_len": 3, "head_version": 0, "tail_version": 0,
         "reward": 1.0, "prompt": "2+2?", "completion": "4"}])
    (HERE / "trl").mkdir(exist_ok=True)
    pandas.DataFrame({"step": [1, 1], "prompt": ["2+2?", "2+2?"], "completion": ["4", "5"],
                      "accuracy_reward": [1.0, 0.0], "advantage": [.7, -.7]}).to_parquet(
        HERE / "trl/completions_00001.parquet")


def vllm():
    """vllm-project/vllm vllm/entrypoints/openai/completion/protocol.py, .../chat_completion/protocol.py,
    vllm/entrypoints/serve/disagg/protocol.py, vllm/outputs.py (RequestOutput; the fields, as dataclasses.asdict
    and json.dumps give them)."""
    usage = {"prompt_tokens": 2, "total_tokens": 5, "completion_tokens": 3}
    choice = {"index": 0, "text": " 4", "finish_reason": "stop", "stop_reason": None, "prompt_logprobs": None,
              "prompt_token_ids": [1, 11], "token_ids": [12, 13, 2], "routed_experts": None,
              "logprobs": {"text_offset": [0, 1, 2], "token_logprobs": fs(-.25, -.41, -1.5), "tokens": [" ", "4", ""],
                           "top_logprobs": [{" ": f(-.25)}, {"4": f(-.41)}, {"": f(-1.5)}]}}
    answer = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "HuggingFaceTB/SmolLM2-135M-Instruct",
              "choices": [choice], "service_tier": None, "system_fingerprint": None, "usage": usage,
              "kv_transfer_params": None}
    lines("vllm/completions.jsonl", [answer])
    # Without return_token_ids the two fields are null.
    lines("vllm/texts_only.jsonl", [{**answer, "choices": [{**choice, "prompt_token_ids": None, "token_ids": None}]}])

    def entry(token, logprob, top):
        return {"token": token, "logprob": logprob, "bytes": None,
                "top_logprobs": [{"token": t, "logprob": p, "bytes": None} for t, p in top]}

    lines("vllm/generate.jsonl", [{
        "request": {"token_ids": [1, 11], "sampling_params": {"temperature": 0.7, "top_p": 0.9, "logprobs": 1},
                    "model": "policy"},
        "response": {"request_id": "g-1", "choices": [
            {"index": 0, "finish_reason": "length", "token_ids": [12, 13], "logprobs": {"content": [
                entry("token_id:12", f(-.25), [("token_id:12", f(-.25))]),
                entry("token_id:13", -9999.0, [("token_id:14", f(-.125))])]}}],
            "prompt_logprobs": None, "kv_transfer_params": None}}])

    def logprob(value, rank):
        return {"logprob": value, "rank": rank, "decoded_token": "x"}

    lines("vllm/request_output.jsonl", [{
        "request_id": "0", "prompt": "2+2?", "prompt_token_ids": [1, 11], "prompt_logprobs": None, "outputs": [
            {"index": 0, "text": "4", "token_ids": [12, 2], "cumulative_logprob": -1.75, "routed_experts": None,
             "logprobs": [{"12": logprob(f(-.25), 1), "14": logprob(f(-1.75), 2)},
                          {"9": logprob(f(-.5), 1), "8": logprob(f(-1.25), 2), "2": logprob(f(-1.5), 4)}],
             "finish_reason": "stop", "stop_reason": None, "lora_request": None, "kv_transfer_params": None},
            {"index": 1, "text": "5", "token_ids": [15], "cumulative_logprob": -.5, "routed_experts": None,
             "logprobs": [{"15": logprob(f(-.5), 1)}], "finish_reason": "length", "stop_reason": None,
             "lora_request": None, "kv_transfer_params": None}],
        "finished": True, "metrics": None, "lora_request": None, "num_cached_tokens": 0}])


def sglang():
    """sgl-project/sglang python/sglang/srt/managers/tokenizer_manager.py (meta_info), .../utils/weight_versions.py."""
    def answer(rid, ids, output, prompt, versions):
        return {"text": "4", "output_ids": ids, "meta_info": {
            "id": rid, "finish_reason": {"type": "stop", "matched": 2}, "prompt_tokens": 2,
            "weight_version": versions[-1]["version"], "weight_versions": versions, "total_retractions": 0,
            "input_token_logprobs": prompt, "output_token_logprobs": output, "completion_tokens": len(ids),
            "cached_tokens": 0, "e2e_latency": 0.25}}

    prompt = [[None, 1, None], [f(-2), 11, None]]
    lines("sglang/generate.jsonl", [
        answer("r0", [12, 13, 2], [[f(-.25), 12, None], [f(-.41), 13, None], [f(-1.5), 2, None]], prompt,
               [{"version": "7", "start": 0, "end": 1}, {"version": "8", "start": 1, "end": 3}]),
        # A batch is answered with a list.
        [answer("r1", [14], [[f(-.5), 14, None]], prompt, [{"version": "default", "start": 0, "end": 1}])]])


def llama_cpp():
    """ggml-org/llama.cpp tools/server/server-task.cpp (to_json_non_oaicompat, completion_token_output), and
    abetlen/llama-cpp-python llama_cpp/llama.py (_create_completion)."""
    def entry(token, text, logprob, top):
        return {"id": token, "token": text, "bytes": list(text.encode()), "logprob": logprob,
                "top_logprobs": [{"id": i, "token": t, "bytes": list(t.encode()), "logprob": p} for i, t, p in top]}

    lines("llama.cpp/completion.jsonl", [{
        "request": {"prompt": [1, 11], "n_predict": 2, "n_probs": 2, "return_tokens": True, "temperature": 0.8},
        "response": {"index": 0, "content": " 4", "tokens": [12, 13], "id_slot": 0, "stop": True,
                     "model": "smollm2-q8_0.gguf", "tokens_predicted": 2, "tokens_evaluated": 2,
                     "generation_settings": {"n_predict": 2, "seed": 1, "temperature": f(.8), "top_k": 40,
                                             "top_p": f(.95), "min_p": f(.05), "repeat_penalty": 1.0,
                                             "presence_penalty": 0.0, "frequency_penalty": 0.0, "n_probs": 2,
                                             "post_sampling_probs": False},
                     "prompt": "<s>2+2?", "has_new_line": False, "truncated": False, "stop_type": "limit",
                     "stopping_word": "", "tokens_cached": 3, "timings": {"prompt_n": 2},
                     "completion_probabilities": [
                         entry(12, " ", f(-.25), [(12, " ", f(-.25)), (14, "5", f(-1.75))]),
                         entry(13, "4", f(-3.5), [(15, "6", f(-.125)), (16, "7", -3.4028234663852886e+38)])]}}])
    (HERE / "llama.cpp/llama_cpp_python.json").write_text(json.dumps({
        "id": "cmpl-1", "object": "text_completion", "created": 1, "model": "smollm2-q8_0.gguf", "choices": [
            {"text": " 4", "index": 0, "finish_reason": "length",
             "logprobs": {"tokens": [" ", "4"], "text_offset": [4, 5], "token_logprobs": fs(-.25, -3.5),
                          "top_logprobs": [{" ": f(-.25)}, {"6": f(-.125), "4": f(-3.5)}]}}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}}, indent=2) + "\n")


def openai():
    """The form of POST /v1/chat/completions with logprobs; the first with vLLM's return_token_ids."""
    def answer(entries, **ids):
        return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "policy", **ids.get("top", {}),
                "choices": [{"index": 0, "message": {"role": "assistant", "content": "4"}, "finish_reason": "stop",
                             "logprobs": {"content": entries}, **ids.get("choice", {})}]}

    def entry(token, logprob):
        return {"token": token, "logprob": logprob, "bytes": [52], "top_logprobs": []}

    entries = [entry("4", -.25), entry("", -1.5)]
    lines("openai/chat.jsonl", [answer(entries, top={"prompt_token_ids": [1, 11, 5]}, choice={"token_ids": [12, 2]})])
    lines("openai/texts_only.jsonl", [answer(entries)])


def anybody():
    """Rows with names of their own, for --from jsonl."""
    lines("jsonl/rows.jsonl", [
        {"q": [1, 11], "a": [12, 13, 2], "lp": {"sampler": fs(-.25, -.41, -1.5), "trainer": fs(-.3, -.4, -1.25)},
         "score": 1, "it": 9}])
    # Python's json.dumps writes NaN.
    lines("jsonl/nan.jsonl", [
        {"token_ids": [1, 11, 12], "prompt_length": 1, "behaviour_logprobs": [None, float("nan"), -float("inf")]}])
    save_file({"ids": torch.tensor([[0, 1, 11, 12, 2], [1, 11, 14, 15, 0]]),
               "valid": torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]], dtype=torch.uint8),
               "prompt_len": torch.tensor([3, 2]),
               "lp": torch.tensor([[0, 0, 0, -.25, -1.5], [0, 0, -.5, -.75, 0]], dtype=torch.bfloat16)},
              HERE / "jsonl/rows.safetensors")


if __name__ == "__main__":
    for write in (nemo_rl, prime_rl, open_instruct, slime, texts_and_pickles, vllm, sglang, llama_cpp, openai, anybody):
        write()
