#include "drift_lab/screening/token_pairs.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/printable.h"
#include "drift_lab/screening/sign.h"

namespace tandem::drift {

const char* SignVerdictName(SignVerdict verdict) {
  switch (verdict) {
    case SignVerdict::kShown:
      return "shown";
    case SignVerdict::kSuspected:
      return "suspected";
    case SignVerdict::kNeedsWeights:
      return "needs_weights";
    case SignVerdict::kCannotTell:
      return "cannot_tell";
    case SignVerdict::kRuledOut:
      return "ruled_out";
  }
  return "";
}

const char* SignSideName(SignSide side) {
  switch (side) {
    case SignSide::kBehaviour:
      return "behaviour";
    case SignSide::kProximal:
      return "proximal";
    case SignSide::kBoth:
      return "both";
    case SignSide::kUnknown:
      return "unknown";
  }
  return "";
}

int64_t TokenPairs::CountPairs() const {
  int64_t count = 0;
  for (size_t m = 0; m < place.size(); ++m) count += std::isfinite(delta(m));
  return count;
}

TokenPairs PairsOf(const Records& records) {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  const auto behaviour = records.column(Column::kBehaviour);
  const auto proximal = records.column(Column::kProximal);
  TokenPairs pairs;
  for (int64_t row = 0; row < records.num_rows(); ++row) {
    for (int64_t n = records.begin_of(row); n < records.end_of(row); ++n) {
      const auto at = static_cast<size_t>(n);
      if (records.drawn[at] == 0) continue;
      pairs.place.push_back(n);
      pairs.behaviour.push_back(behaviour.empty() ? kNone : behaviour[at]);
      pairs.proximal.push_back(proximal.empty() ? kNone : proximal[at]);
    }
    pairs.offsets.push_back(pairs.num_tokens());
  }
  return pairs;
}

std::vector<float> AtDrawnTokens(const Records& records, const TokenPairs& pairs, Column column) {
  std::vector<float> values;
  if (!records.has(column)) return values;
  const auto all = records.column(column);
  values.reserve(pairs.place.size());
  for (const int64_t n : pairs.place) values.push_back(all[static_cast<size_t>(n)]);
  return values;
}

std::string NameOfRow(const Records& records, int64_t row) {
  const std::string& name = records.rows[static_cast<size_t>(row)].row_id;
  return name.empty() ? absl::StrCat("row ", row) : absl::StrCat("row \"", Printable(name), "\"");
}

}  // namespace tandem::drift
