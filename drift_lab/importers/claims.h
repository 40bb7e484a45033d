// What a user or a file claims of the two sides, as text: --claim behaviour.temperature=0.7. Keys are
// the names of the header in docs/records.md. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "drift_lab/records/records.h"

namespace tandem::drift {

// "model", "tokenizer", "vocab_size", "eos_token_ids" and the fields of "behaviour." and "proximal.".
std::vector<std::string> ClaimKeys();

// Sets the field `key` of the header. `eos_token_ids` are separated by commas.
//   INVALID_ARGUMENT  no such key (the nearest is named), or a value of another type
absl::Status SetClaim(std::string_view key, std::string_view value, RecordsHeader& header);

// True if the header has a value for `key`.
bool HasClaim(const RecordsHeader& header, std::string_view key);

}  // namespace tandem::drift
