// The cases of `tandem bench rollout`, their times and the table of results, and the commands of
// peers: other engines and trainers that are measured on the same work.
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
  int64_t group = 1;  // completions of one prompt
  int64_t prompt_tokens = 0, new_tokens = 0;
};

struct PhaseTimes {
  double seconds = 0;
  int64_t tokens = 0;
  MachineWork work;  // the least that it had to read and to multiply; 0 for peers
};
// One pass over a case. Prefill ends when every completion has its first token.
struct BenchTimes {
  PhaseTimes prefill, decode;
};

struct BenchTable {
  // By case, engine and repeat. The others, also those of other weights ("tandem int8"), are compared
  // with "tandem".
  std::map<std::string, std::map<std::string, std::vector<BenchTimes>>> rows;
  std::vector<MachineLimits> limits;  // by repeat
};

// "decode-N": N completions in groups of up to 8; "prefill-N": N prompts of 512 tokens;
// "first-token-N": N completions of one prompt of 512 tokens, up to their first token.
//   INVALID_ARGUMENT  the name has another form
absl::StatusOr<BenchCase> ParseCase(const std::string& name, int64_t prompt_tokens,
                                    int64_t new_tokens);

// A program that runs cases through another engine (tests/bench/peers/README.md).
struct PeerCommand {
  std::string name, command;
};
// `name_or_path` may end in :WEIGHTS, a number format that the peer gets as
// --weight-format.
//   NOT_FOUND         there is no such script (with where it was looked for)
//   INVALID_ARGUMENT  WEIGHTS is no word
absl::StatusOr<PeerCommand> FindPeer(const std::string& name_or_path, const std::string& model,
                                     const std::string& dtype, int64_t threads,
                                     const std::string& device = "cpu");
// Says why `name` is not a peer; empty if it is one. A check of a CLI11 option, so that a wrong
// name is found before anything runs.
std::string CheckPeer(const std::string& name);

// Runs the peer with further arguments, which are shell-quoted and start with a space. Returns the
// JSON object that it printed.
//   INTERNAL  it failed, or printed something else
absl::StatusOr<nlohmann::json> RunPeerCommand(const PeerCommand& peer,
                                              const std::string& arguments);

// Runs the cases through the peer. Returns times by case name. Errors are those of RunPeerCommand.
absl::StatusOr<std::map<std::string, BenchTimes>> RunPeer(const PeerCommand& peer,
                                                          const std::vector<BenchCase>& cases);

// Medians, ranges, shares of the machine's limits and ratios to peers. Pure.
std::string ToText(const BenchTable& table, const std::vector<BenchCase>& cases);
std::string ToJson(const BenchTable& table, const std::vector<BenchCase>& cases);

}  // namespace tandem::cli
