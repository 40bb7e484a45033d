// What the importers share while they read: the builder that takes rows, the sentences about what was
// left out, and what rows claim of the side that drew them. Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "drift_lab/records/records_builder.h"
#include "nlohmann/json_fwd.hpp"

namespace tandem::drift {

class ImportContext {
 public:
  ImportContext(std::string path, RecordsHeader header)
      : builder_(std::move(path), std::move(header)) {}

  // The step in the name of the file that is being read, for rows that do not say theirs.
  void set_step(std::optional<int64_t> step) { step_ = step; }

  // Appends the row, with the step of the file where it has none. Errors are those of RecordsBuilder.
  absl::Status Add(RecordRow row);

  // Something was left out or is not known; the sentence is printed once, with how often it applied.
  void Note(std::string_view sentence);

  // A row says that `key` ("behaviour.temperature", "model") is `value`. The header claims it if all
  // rows agree.
  void Claim(std::string_view key, std::string_view value);
  // The same for the sampling parameters that engines' requests and answers name alike: temperature,
  // top_p, top_k, min_p, repetition_penalty and so on.
  void ClaimSampling(const nlohmann::json& parameters);

  int64_t num_rows() const { return builder_.num_rows(); }
  // The records, with the claims of rows that the header does not have yet. Ends the life of this.
  Records Finish();
  // "SENTENCE (12 times)", in the order of their first occurrence.
  std::vector<std::string> Notes() const;

 private:
  RecordsBuilder builder_;
  std::optional<int64_t> step_;
  std::vector<std::pair<std::string, int64_t>> notes_;
  std::map<std::string, std::string> claims_;  // "" where rows disagree
};

}  // namespace tandem::drift
