// Importers of what training frameworks write of a step: NeMo-RL, prime-rl, open-instruct, and slime
// and miles. Each takes one item (source_items.h) and adds its rows. docs/foreign_engines.md names the
// source files in which the layouts were read. Nothing is repaired: placeholders (0.0 on prompts,
// log(1/V) on first tokens) are carried as they are, and lengths that do not agree are refused.
#pragma once

#include "absl/status/status.h"
#include "drift_lab/importers/import_context.h"
#include "drift_lab/records/records.h"
#include "nlohmann/json_fwd.hpp"

namespace tandem::drift {

// train_data_step{N}.jsonl of nemo_rl/algorithms/grpo.py: a batch, cut to one sample a line, so that
// every value is a list of one. Sequences are padded on the right to the longest of the batch;
// input_lengths says how long they are.
void DescribeNemoRl(RecordsHeader& header);
absl::Status AddNemoRl(const nlohmann::json& item, ImportContext& context);

// token_exports/step_N/rank_R.jsonl of prime_rl/trainer/rl/token_export.py, schema 1: a sequence a
// line, every column of its length.
void DescribePrimeRl(RecordsHeader& header);
absl::Status AddPrimeRl(const nlohmann::json& item, ImportContext& context);

// {run}_rollouts_{shard}.jsonl of open_instruct/rl_utils.py (RolloutRecord): prompt and response apart,
// log-probs of the response. {run}_metadata.jsonl beside it names the model.
void DescribeOpenInstruct(RecordsHeader& header);
absl::Status AddOpenInstruct(const nlohmann::json& item, ImportContext& context);

// A Sample of slime or miles (its dict as JSON, or {"samples": [...]} with a list of them), a sample of
// slime's train data, or a row of the Parquet file that miles writes for its dashboard: tokens of the
// whole sequence, every other column of the response only.
void DescribeSlime(RecordsHeader& header);
absl::Status AddSlime(const nlohmann::json& item, ImportContext& context);

}  // namespace tandem::drift
