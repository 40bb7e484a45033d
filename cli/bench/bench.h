// What `tandem bench` measures, and how it is shown: cases, times, peers, the table.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tensor/machine_limits.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {

enum class BenchKind { kDecode, kPrefill, kFirstToken };

struct BenchCase {
  std::string name;
  BenchKind kind = BenchKind::kDecode;
  int64_t batch = 1;  // completions
  int64_t group = 1;  // of one prompt
  int64_t prompt_tokens = 0, new_tokens = 0;
};

// One pass over a case. Prefill ends when every first token is drawn.
struct BenchTimes {
  double prefill_seconds = 0, decode_seconds = 0;
  int64_t prefill_tokens = 0, decode_tokens = 0;
  // What it had to read and multiply at least; 0 of peers.
  double prefill_bytes = 0, prefill_flops = 0, decode_bytes = 0, decode_flops = 0;
};

struct BenchTable {
  // By case, engine and repeat. "tandem" is what the others are compared with.
  std::map<std::string, std::map<std::string, std::vector<BenchTimes>>> rows;
  std::vector<MachineLimits> limits;  // by repeat
};

// "decode-N": N completions in groups of up to 8; "prefill-N": N prompts of 512 tokens;
// "first-token-N": N completions of one prompt of 512 tokens, up to their first token.
//   INVALID_ARGUMENT  another name
absl::StatusOr<BenchCase> ParseCase(const std::string& name, int64_t prompt_tokens,
                                    int64_t new_tokens);

// A program that runs cases through another engine (tests/bench/peers/README.md).
struct PeerCommand {
  std::string name, command;
};
//   NOT_FOUND  no such script (with where it was looked for)
absl::StatusOr<PeerCommand> FindPeer(const std::string& name_or_path, const std::string& model,
                                     const std::string& dtype, int64_t threads,
                                     const std::string& device = "cpu");
// Why `name` is no peer, or nothing: a check of an option, so that a wrong name is found before anything is run.
std::string CheckPeer(const std::string& name);

// Runs the peer with more arguments (shell-quoted, a space first); the JSON object it printed.
//   INTERNAL  it failed, or printed something else
absl::StatusOr<nlohmann::json> RunPeerCommand(const PeerCommand& peer,
                                              const std::string& arguments);

// Times by case name.
//   INTERNAL  it failed, or printed something else
absl::StatusOr<std::map<std::string, BenchTimes>> RunPeer(const PeerCommand& peer,
                                                          const std::vector<BenchCase>& cases);

// Medians, spreads, shares of the limit and ratios to peers. Pure.
std::string ToText(const BenchTable& table, const std::vector<BenchCase>& cases);
std::string ToJson(const BenchTable& table, const std::vector<BenchCase>& cases);

}  // namespace tandem::cli
