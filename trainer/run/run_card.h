// RunCard: what a run was made of and on (run.json, docs/run_directory.md). Used by trainer.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::trainer {

struct ServerCard {
  std::string address, dtype, weight_digest;
  std::string numerics, instruction_set, in_flight;  // as GetInfo gives them
  int64_t version = 0;
  std::vector<std::string> injected;  // faults switched on for calibration; empty: healthy
};

struct RunCard {
  std::string run_id, started_at;
  uint64_t seed = 0;
  bool deterministic = false;
  std::string model_path, model_type, tokenizer_hash;
  std::string model_source;  // ReadModelSource
  int64_t num_parameters = 0;
  std::string trainer_dtype, trainer_numerics, trainer_instruction_set;
  int64_t threads = 0;
  std::vector<ServerCard> servers;
  std::string libtorch, grpc;
  int64_t num_train_prompts = 0, num_eval_prompts = 0;
};

// Where the weights of a model directory come from, in one sentence: its SOURCE.txt, which whoever
// makes the directory may write; empty without one.
std::string ReadModelSource(const std::string& model_directory);

// With the versions of this build and the hardware of this machine added.
std::string ToJson(const RunCard& card);

}  // namespace tandem::trainer
