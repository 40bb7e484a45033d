"""The list of cases, in four parts: healthy, faults of the record, of the sampler, of the model."""
from __future__ import annotations

import math
from typing import Any, Callable

import pools
from cases import (Case, bf16, column_of, from_the_start, last, mapped, no_end, padded_left, permute, rows_of, scores_of,
                   shifted, some)

Add = Callable[[Callable[[], Case]], None]

MISMATCH = "mismatch.md, table 5.2, row "
FOREIGN = "foreign-engines.md, "


def precision(scorer: Any) -> str:
    """The dtype that a header claims for a scorer of transformers or an engine."""
    if isinstance(scorer, pools.Own):
        return "bfloat16" if scorer.dtype == pools.BF16 else "float32"
    return "bfloat16" if scorer == "bf16" else "float32"


def pair(name: str, side: str, kind: str, size: str, visible: bool, notes: str, source: str, draws: str = "base",
         scores: str = "base.hf", recorded: str = "raw", entropy: bool = False, behaviour_claims: dict[str, Any] | None = None,
         proximal_claims: dict[str, Any] | None = None, **more: Any) -> Callable[[], Case]:
    """A case of one pool of draws, recorded `raw` or `processed`, and one set of scores of the same tokens."""
    def make() -> Case:
        rows, scored = rows_of(draws), scores_of(scores)
        behaviour = {"dtype": precision(pools.DRAWS[draws][0]), **(behaviour_claims or {})}
        proximal = {"dtype": precision(pools.SCORES[scores][1]), **(proximal_claims or {})}
        return Case(name, side, kind, size, visible, notes, source, rows, column_of(rows, recorded), scored["values"],
                    behaviour, proximal, scored["entropy"] if entropy else None, **more)
    return make


def healthy(add: Add) -> None:
    def none(name: str, notes: str, source: str = "null run, mismatch.md 11.5", **more: Any) -> None:
        add(pair(name, "none", "healthy", "0", True, notes, source, **more))

    none("healthy_fp32", "both sides float32")
    none("healthy_fp32_entropy", "both sides float32, with the trainer's entropy", entropy=True)
    none("healthy_bf16_fp32", "bf16 behaviour, attention written out, against float32", MISMATCH + "1", draws="bf16", scores="bf16.hf",
         behaviour_claims={"dtype": "bfloat16"}, entropy=True)
    none("healthy_bf16_bf16", "bf16 on both sides: attention written out against sdpa", MISMATCH + "1", draws="bf16",
             scores="bf16.hf")
    none("healthy_fp16_fp32", "behaviour rounded to fp16 after every operation, against float32", MISMATCH + "2", draws="fp16",
         scores="fp16.hf", behaviour_claims={"dtype": "float16"})
    none("healthy_t07", "temperature 0.7 declared and processed on both sides", draws="cool", scores="cool.hf_cool", recorded="processed",
         behaviour_claims={"temperature": 0.7}, proximal_claims={"temperature": 0.7}, entropy=True)
    none("healthy_topp", "top-p 0.9 declared and processed on both sides, bf16: the supports differ at their edge, where the trainer says -Infinity", draws="topp",
         scores="topp.hf_topp", recorded="processed", behaviour_claims={"top_p": 0.9}, proximal_claims={"top_p": 0.9})
    none("healthy_rope_constant_offset", "one side adds 1 to every position: rotary embedding is relative, so nothing changes",
         "mismatch.md, table 5.2, row 22 (TRL #6800)", scores="base.rope_offset")
    none("healthy_declared_staleness", "behaviour at version 4, proximal at 5, declared so in every row: the gap is staleness",
         "mismatch.md 5.1 rung 7", draws="earlier", scores="earlier.hf", behaviour_version=4, proximal_version=5, weights="earlier")

    def multi_turn() -> Case:
        if not (pools.POOL / "turns.hf.json").exists():
            raise LookupError("turns.hf")
        second, scored = pools.turns()
        first, before = [r for r in rows_of("base") if len(r["tokens"]) > 32], scores_of("base.hf")["values"]
        before = [v for v, r in zip(before, rows_of("base")) if len(r["tokens"]) > 32]
        rows, behaviour, proximal = [], [], []
        for a, b, old, new in zip(first, second, before, scored["values"]):
            gap = len(b["prompt"]) - len(a["prompt"]) - 32
            rows.append({**b, "prompt": a["prompt"], "tokens": b["prompt"][len(a["prompt"]):] + b["tokens"], "between": gap})
            behaviour.append(a["raw"][:32] + [None] * gap + b["raw"])
            proximal.append(old[:32] + [None] * gap + new)

        def mask(lines: list[dict]) -> None:
            for line, row in zip(lines, rows):
                start, end = len(row["prompt"]) + 32, len(row["prompt"]) + 32 + row["between"]
                line["loss_mask"] = [int(t >= len(row["prompt"]) and not start <= t < end) for t in range(len(line["token_ids"]))]
                del line["prompt_length"]

        return Case("healthy_multi_turn", "none", "healthy", "0", True, "two turns, the user's tokens masked", MISMATCH + "31",
                    rows, behaviour, proximal, edit_rows=mask)

    add(multi_turn)


def records(add: Add) -> None:
    def fault(name: str, side: str, kind: str, size: str, notes: str, source: str, rounded: bool = False, visible: bool = True,
              **more: Any) -> None:
        """Half of the record faults lie on a bf16 pair, half on a float32 one."""
        if rounded:
            more = {"draws": "bf16", "scores": "bf16.hf", **more}
        add(pair(name, side, kind, size, visible, notes, source, **more))

    off = "mismatch.md, table 5.2, rows 17-18 (eval-protocol #457, prime-rl #1525); foreign-engines.md section 3, llama-cpp-python"
    fault("shift_late_behaviour", "behaviour", "shift", "+1", "element t holds the value of t - 1", off, edit_behaviour=shifted(1))
    fault("shift_early_behaviour", "behaviour", "shift", "-1", "element t holds the value of t + 1", off, True, edit_behaviour=shifted(-1))
    fault("shift_late_proximal", "proximal", "shift", "+1", "element t holds the value of t - 1", off, True, edit_proximal=shifted(1))
    fault("shift_early_proximal", "proximal", "shift", "-1", "element t holds the value of t + 1", off, edit_proximal=shifted(-1))
    fault("shift_some_rows", "behaviour", "shift", "+1 in every fifth row", "rows 0, 5, 10, ...", off, True,
          edit_behaviour=lambda i, row, v: shifted(1)(i, row, v) if i % 5 == 0 else v)
    end = "mismatch.md, table 5.2, row 20 (SkyRL #2148)"
    fault("last_value_zero", "behaviour", "synthetic_end", "0.0 at the last token of every row",
          "an end token that was never drawn gets 0.0", end, edit_behaviour=lambda i, row, v: v[:-1] + [0.0])
    fault("stop_value_zero", "behaviour", "synthetic_end", "0.0 at the end token of rows that stopped", "as above, only where a row stopped",
          end, True, edit_behaviour=last(0.0))
    fault("end_missing_behaviour", "behaviour", "missing_end", "no value at the end token of rows that stopped",
          "the engine leaves out the stop token's value", end, edit_rows=no_end("behaviour_logprobs"))
    fault("end_missing_proximal", "proximal", "missing_end", "no value at the end token of rows that stopped",
          "the trainer masks the end token, EOS = pad (MemGen #33)", end, True, edit_rows=no_end("proximal_logprobs"))
    sentinel = FOREIGN + "section 1, 'Sentinels seen'"
    fault("sentinel_one", "behaviour", "sentinel", "1.0 at prompt tokens", "Atropos gives prompt tokens 1.0", sentinel,
          edit_behaviour=lambda i, row, v: [1.0 if x is None else x for x in v])
    fault("sentinel_zero", "behaviour", "sentinel", "0.0 at 5 % of drawn tokens", "verifiers turns a missing value into 0.0", sentinel,
          edit_behaviour=some(0.05, 0.0))
    fault("sentinel_minus_9999", "behaviour", "sentinel", "-9999 at 1 % of drawn tokens", "SkyRL pads with -9999", sentinel, True,
          edit_behaviour=some(0.01, -9999.0))
    fault("all_zero", "behaviour", "sentinel", "0.0 everywhere", "openvino-genai with log-probs off", sentinel, edit_behaviour=mapped(lambda v: 0.0))
    fault("nan_tokens", "behaviour", "non_finite", "NaN at 2 % of drawn tokens", "", MISMATCH + "32", edit_behaviour=some(0.02, math.nan))
    fault("log2_behaviour", "behaviour", "log_base", "log2", "", FOREIGN + "section 6", edit_behaviour=mapped(lambda v: v / math.log(2)))
    fault("log10_proximal", "proximal", "log_base", "log10", "", FOREIGN + "section 6", True, edit_proximal=mapped(lambda v: v / math.log(10)))
    fault("decimals_3", "behaviour", "rounding", "3 decimals", "", FOREIGN + "section 6", edit_behaviour=mapped(lambda v: round(v, 3)))
    fault("decimals_2", "behaviour", "rounding", "2 decimals", "", FOREIGN + "section 6", edit_behaviour=mapped(lambda v: round(v, 2)))
    fault("bf16_stored", "behaviour", "rounding", "bfloat16", "values computed in float32 and stored as bf16", MISMATCH + "3",
          edit_behaviour=mapped(bf16))
    fault("bf16_stored_proximal", "proximal", "rounding", "bfloat16", "values computed in float32 and stored as bf16", MISMATCH + "3",
          draws="bf16", scores="bf16.hf_fp32", edit_proximal=mapped(bf16))
    fault("rows_permuted", "behaviour", "rows_permuted", "every row has another row's values", "cut or repeated to the row's length",
          "foreign-engines.md section 6, 'rows of other completions'", True, edit_rows=permute)
    fault("prompt_included", "behaviour", "prompt_included", "values begin at the prompt",
          "the reader takes the first n of prompt + completion; prompt values are 0.0", sentinel, edit_behaviour=from_the_start)
    fault("padding_side", "behaviour", "padding_side", "short rows shifted by their padding", "padded on the left, read from the left; 0.0 is the pad",
          MISMATCH + "22", True, edit_behaviour=padded_left(pools.LENGTH))
    fault("sign_flipped", "behaviour", "sign", "negated", "negative log-likelihood in place of log-likelihood", "own addition",
          edit_behaviour=mapped(lambda v: -v))
    fault("probability_stored", "behaviour", "log_base", "probability", "exp of the log-prob was stored", "own addition", True,
          edit_behaviour=mapped(math.exp))
    fault("shift_and_log2", "behaviour", "combination", "shift +1, log2", "two record faults on one side", "own addition",
          edit_behaviour=lambda i, row, v: [x if x is None else x / math.log(2) for x in shifted(1)(i, row, v)])


def samplers(add: Add) -> None:
    def fault(name: str, side: str, kind: str, size: str, notes: str, source: str, visible: bool = True, entropy: bool = True, **more: Any) -> None:
        add(pair(name, side, kind, size, visible, notes, source, entropy=entropy, **more))

    cool = {"temperature": 0.7}
    fault("temperature_undeclared_behaviour", "behaviour", "temperature", "0.7", "drawn and recorded at 0.7, the header says 1.0", MISMATCH + "12",
          draws="cool", scores="cool.hf", recorded="processed")
    fault("temperature_missing_proximal", "proximal", "temperature", "1.0 in place of 0.7", "both headers say 0.7; the trainer scored at 1.0",
          "mismatch.md, row 12 (TRL #4159)", draws="cool", scores="cool.hf", recorded="processed", behaviour_claims=cool, proximal_claims=cool)
    fault("temperature_missing_proximal_no_entropy", "proximal", "temperature", "1.0 in place of 0.7", "the same without entropies",
          "mismatch.md, row 12 (TRL #4159)", entropy=False, draws="cool", scores="cool.hf", recorded="processed", behaviour_claims=cool,
          proximal_claims=cool)
    fault("raw_recorded_t07", "behaviour", "raw_recorded", "0.7", "header says processed at 0.7; raw values stand there", MISMATCH + "13 (verl #6867)",
          draws="cool", scores="cool.hf_cool", behaviour_claims=cool, proximal_claims=cool)
    fault("raw_recorded_t07_both", "behaviour", "raw_recorded", "0.7", "as before, the trainer also scored at 1.0: delta is 0, draws are not",
          MISMATCH + "13", draws="cool", scores="cool.hf", behaviour_claims=cool, proximal_claims={"temperature": 1.0})
    for name, label, claim, size in (("topk", "top_k", 20, "20"), ("topp", "top_p", 0.9, "0.9"), ("minp", "min_p", 0.1, "0.1")):
        fault(f"{name}_not_renormalised", "behaviour", label, size, "declared as processed; the recorded values are not divided by the kept mass",
              MISMATCH + "14 (TRL #7269)", draws=name, scores=f"{name}.hf", behaviour_claims={label: claim})
        fault(f"{name}_undeclared", "behaviour", label, size, "processed values recorded, the header does not name the filter",
              MISMATCH + "14 (TRL #7269)", draws=name, scores=f"{name}.hf", recorded="processed")
    fault("topp_undeclared_raw", "behaviour", "top_p", "0.9", "raw values recorded, no filter in the header: delta is 0, draws are not",
          MISMATCH + "13-14", draws="topp", scores="topp.hf")
    for name, label, size in (("repetition", "repetition_penalty", "1.3"), ("frequency", "frequency_penalty", "0.5"), ("presence", "presence_penalty", "0.8")):
        fault(f"{name}_penalty_raw", "behaviour", label, size, "undeclared, raw values recorded: delta is 0, draws are not", MISMATCH + "15",
              draws=name, scores=f"{name}.hf")
    fault("repetition_penalty_processed", "behaviour", "repetition_penalty", "1.3", "undeclared, processed values recorded", MISMATCH + "15",
          draws="repetition", scores="repetition.hf", recorded="processed")
    fault("min_tokens_ban", "behaviour", "min_tokens", "64", "end token banned, undeclared, raw values recorded", MISMATCH + "15",
          draws="mintokens", scores="mintokens.hf")
    fault("draws_warmer_than_recorded", "behaviour", "draws", "temperature 1.15", "raw values of temperature 1.0 recorded and declared",
          "mismatch.md 6.4", draws="warm", scores="warm.hf")
    fault("temperature_and_bf16", "proximal", "combination", "temperature 1.0 in place of 0.7, bf16",
          "the trainer scored in bf16 and without the temperature", MISMATCH + "1 and 12", draws="cool", scores="cool.hf_bf16",
          recorded="processed", behaviour_claims=cool, proximal_claims={**cool, "dtype": "bfloat16"})


def models(add: Add) -> None:
    def scored(name: str, kind: str, size: str, notes: str, source: str, score: str = "", visible: bool = False, entropy: bool = False,
               **more: Any) -> None:
        """A fault of the proximal side. Behaviour is what transformers says; the draws are healthy."""
        def make() -> Case:
            key = score or name
            draws = "base" if key in pools.FINE else "bf16"
            rows, right, wrong = rows_of(draws), scores_of(f"{draws}.hf")["values"], scores_of(f"{draws}.{key}")
            prompt_fault = key in pools.CONTEXTS  # scored by transformers, so the engine stands on the other side
            dtype = precision(pools.DRAWS[draws][0])
            engines = ("player", "transformers") if prompt_fault else ("transformers", "player")
            return Case(name, "proximal", kind, size, visible, notes, source, rows, column_of(rows, "raw") if prompt_fault else right,
                        wrong["values"], {"engine": engines[0], "dtype": dtype}, {"engine": engines[1], "dtype": dtype},
                        wrong["entropy"] if entropy else None, **more)
        add(make)

    def drawn(name: str, kind: str, size: str, notes: str, source: str, draws: str, entropy: bool = False, visible: bool = False, **more: Any) -> None:
        """A fault of the behaviour side, which drew with it."""
        add(pair(name, "behaviour", kind, size, visible, notes, source, draws=draws, scores=f"{draws}.hf", entropy=entropy, **more))

    late = "mismatch.md, table 5.2, row 9 (TRL #5312)"
    part = "mismatch.md, table 5.2, row 9a (SkyRL #1345, #1680; prime-rl #2438)"
    scored("rope_theta", "rope_theta", "10000 in place of 100000", "", MISMATCH + "23", entropy=True)
    scored("rope_gap", "rope_position", "+1 for drawn tokens", "positions of drawn tokens are one too far from the prompt's", MISMATCH + "22 (OpenRLHF #217)")
    scored("norm_eps_large", "norm_eps", "1e-3 in place of 1e-5", "", MISMATCH + "24", "norm_eps_1e-3")
    scored("norm_eps_small", "norm_eps", "1e-6 in place of 1e-5", "may be below what can be seen", MISMATCH + "24", "norm_eps_1e-6")
    scored("window_64", "attention_window", "64", "", FOREIGN + "section 6, 'attention window'", entropy=True)
    scored("sinks_dropped", "attention_sinks", "first 4 keys unseen from position 32 on", "", "own addition")
    scored("softcap_30", "softcap", "30", "logits capped on one side", "own addition")
    scored("head_stale", "head_stale", "one checkpoint", "the head of the earlier checkpoint, everything else current", part, weights="earlier")
    scored("layer_stale", "tensors_stale", "layer 14", "", part, weights="earlier")
    scored("shard_stale", "tensors_stale", "layers 10-19", "", part, weights="earlier", entropy=True)
    scored("weights_late_proximal", "weights_late", "one checkpoint", "the trainer's side is the earlier one; both rows say the same version", late,
           "weights_late", weights="earlier", behaviour_version=3, proximal_version=3)
    drawn("weights_late_behaviour", "weights_late", "one checkpoint", "drawn from the earlier checkpoint; no versions recorded", late, "earlier",
          weights="earlier")
    drawn("weights_late_mislabelled", "weights_late", "one checkpoint", "as before, rows claim version 5 on both sides", late, "earlier",
          entropy=True, weights="earlier", behaviour_version=5, proximal_version=5)
    scored("lora_not_merged", "lora", "0 times", "model = base + adapter (rank 8, q and v); one side runs the base", FOREIGN + "section 5, last lines",
           "lora_base", weights="lora_base")
    scored("lora_twice", "lora", "2 times", "model = base + adapter; one side adds it twice", "mismatch.md, row 9b; own addition", weights="lora_base")
    eight = MISMATCH + "8"
    scored("int8_tensor", "weight_quantisation", "int8 per tensor", "linear layers, not embeddings", eight)
    drawn("int8_channel", "weight_quantisation", "int8 per channel", "linear layers, not embeddings", eight, "int8", entropy=True)
    scored("int4_32", "weight_quantisation", "int4, groups of 32", "", eight, entropy=True)
    drawn("int4_128", "weight_quantisation", "int4, groups of 128", "", eight, "int4")
    scored("fp8", "weight_quantisation", "fp8 e4m3 per tensor", "", eight)
    drawn("kv_int8", "kv_quantisation", "int8 per token and head", "", MISMATCH + "7", "kv_int8")
    drawn("kv_fp8", "kv_quantisation", "fp8 e4m3 without scale", "", MISMATCH + "7", "kv_fp8", entropy=True)
    scored("logits_fp16", "logits_precision", "float16", "", MISMATCH + "3")
    scored("softmax_bf16", "softmax_precision", "bfloat16", "logits and log-softmax in bf16", MISMATCH + "3", visible=True, entropy=True)
    scored("scores_bf16", "attention_precision", "bfloat16", "attention scores only", MISMATCH + "6")
    prompt = MISMATCH + "19"
    for name, kind, size in (("bos_missing", "bos", "missing"), ("bos_twice", "bos", "twice"),
                             ("other_system", "prompt", "other system prompt, chat rows (14 of 26)"),
                             ("other_template", "prompt", "other template, chat rows (14 of 26)"),
                             ("context_truncated", "context_truncated", "last 6 prompt tokens only")):
        scored(name, kind, size, "token_ids are those that the behaviour engine saw", prompt, entropy=name.startswith("o"))
    scored("noise", "weight_noise", "1 % of every weight", "", FOREIGN + "section 6, 'noise on all weights'")
    drawn("stale_and_decimals", "combination", "one checkpoint, 3 decimals", "drawn from the earlier checkpoint, rounded in the record", late, "earlier",
          weights="earlier", edit_behaviour=mapped(lambda v: round(v, 3)))
    drawn("int8_and_bf16_stored", "combination", "int8 per channel, bf16 values", "", eight, "int8", edit_behaviour=mapped(bf16))
