#include "drift_lab/records/records_summary.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/printable.h"
#include "drift_lab/records/records_builder.h"

namespace tandem::drift {
namespace {

constexpr float kMissingMark = -9999;

// Counts the tokens, or rows, that one finding is about, and remembers the first place.
struct Tally {
  int64_t count = 0;
  int64_t row = -1, element = 0;

  void Add(int64_t at_row, int64_t at_element = 0) {
    if (count++ == 0) std::tie(row, element) = std::pair(at_row, at_element);
  }
};

bool IsLogprobs(Column column) {
  return column == Column::kBehaviour || column == Column::kProximal ||
         column == Column::kBehaviourRaw || column == Column::kBehaviourScore ||
         column == Column::kReference;
}

bool IsEntropy(Column column) {
  return column == Column::kBehaviourEntropy || column == Column::kProximalEntropy;
}

class Findings {
 public:
  explicit Findings(const Records& records) : records_(records) {}

  // "COLUMN: WHAT at N of M EACH, first in row R, element E. MEANING"
  void AddTokens(const char* kind, Column column, const Tally& tally, int64_t of,
                 const std::string& what, const std::string& meaning) {
    if (tally.count == 0) return;
    const char* const name = ColumnName(column);
    findings_.push_back(
        {kind, name, tally.count,
         absl::StrCat(name, ": ", what, " at ", tally.count, " of ", of, " drawn tokens, first in ",
                      RowName(records_, tally.row), ", element ", tally.element, ". ", meaning)});
  }
  void AddRows(const char* kind, const std::string& column, const Tally& tally,
               const std::string& what) {
    if (tally.count == 0) return;
    findings_.push_back(
        {kind, column, tally.count,
         absl::StrCat(column, column.empty() ? "" : ": ", what, " in ", tally.count, " of ",
                      records_.num_rows(), " rows, first in ", RowName(records_, tally.row), ".")});
  }
  void Add(RecordsFinding finding) { findings_.push_back(std::move(finding)); }

  std::vector<RecordsFinding> Take() { return std::move(findings_); }

 private:
  const Records& records_;
  std::vector<RecordsFinding> findings_;
};

// What is strange about the values of one column on drawn tokens.
struct ColumnTallies {
  Tally absent, nan, minus_infinity, plus_infinity, zero, one, missing_mark, positive, negative;
  Tally rows_without;
  float largest = 0;

  void AddValue(float value, int64_t row, int64_t element) {
    if (!HasValue(value)) {
      absent.Add(row, element);
    } else if (std::isnan(value)) {
      nan.Add(row, element);
    } else if (std::isinf(value)) {
      (value < 0 ? minus_infinity : plus_infinity).Add(row, element);
    } else if (value == 0) {
      zero.Add(row, element);
    } else if (value == 1) {
      one.Add(row, element);
    } else if (value == kMissingMark) {
      missing_mark.Add(row, element);
    } else if (value > 0) {
      positive.Add(row, element);
      largest = std::max(largest, value);
    } else {
      negative.Add(row, element);
    }
  }
};

ColumnTallies TallyColumn(const Records& records, Column column) {
  ColumnTallies tallies;
  const std::span<const float> values = records.column(column);
  for (int64_t row = 0; row < records.num_rows(); ++row) {
    int64_t num_drawn = 0, num_values = 0;
    const int64_t begin = records.begin_of(row);
    for (int64_t n = begin; n < records.end_of(row); ++n) {
      if (records.drawn[static_cast<size_t>(n)] == 0) continue;
      const float value = values[static_cast<size_t>(n)];
      tallies.AddValue(value, row, n - begin);
      ++num_drawn;
      num_values += HasValue(value) && !std::isnan(value);
    }
    if (num_drawn > 0 && num_values == 0) tallies.rows_without.Add(row);
  }
  return tallies;
}

void FindInColumn(const Records& records, Column column, int64_t num_drawn, Findings& findings) {
  const ColumnTallies tallies = TallyColumn(records, column);
  const auto add = [&](const char* kind, const Tally& tally, const std::string& what,
                       const std::string& meaning) {
    findings.AddTokens(kind, column, tally, num_drawn, what, meaning);
  };
  findings.AddRows("row_without_value", ColumnName(column), tallies.rows_without,
                   "no value on any drawn token");
  add("drawn_without_value", tallies.absent, "no value", "There is nothing to compare.");
  add("nan", tallies.nan, "NaN", "There is nothing to compare.");
  add("plus_infinity", tallies.plus_infinity, "Infinity", "No log-prob or entropy is so.");
  if (IsEntropy(column)) {
    add("negative_entropy", tallies.negative, "a value below 0", "An entropy is not below 0.");
  }
  if (!IsLogprobs(column)) return;
  add("minus_infinity", tallies.minus_infinity, "-Infinity",
      "The side says that the token cannot have been drawn.");
  add("value_zero", tallies.zero, "exactly 0.0",
      "That is a probability of 1, which rounding gives to near-certain tokens, and what some "
      "writers put where they have no value.");
  add("value_one", tallies.one, "exactly 1.0",
      "A log-prob is not above 0: some writers mark a missing value so.");
  add("value_missing_mark", tallies.missing_mark, "exactly -9999",
      "SkyRL pads with it, and vLLM's server writes it in place of -Infinity.");
  add("positive", tallies.positive, "a value above 0",
      absl::StrCat("A log-prob is not above 0; the largest is ", tallies.largest, "."));
}

void FindInVersions(const Records& records, Findings& findings) {
  Tally backwards, proximal_older, drew_nothing;
  for (int64_t row = 0; row < records.num_rows(); ++row) {
    const RowFacts& facts = records.rows[static_cast<size_t>(row)];
    const std::span<const uint8_t> drawn = records.of_row(records.drawn, row);
    if (std::ranges::find(drawn, 1) == drawn.end()) drew_nothing.Add(row);
    if (facts.spans.empty()) continue;
    if (!std::ranges::is_sorted(facts.spans, {}, &RecordSpan::version)) backwards.Add(row);
    const int64_t newest = std::ranges::max(facts.spans, {}, &RecordSpan::version).version;
    if (facts.proximal_version && *facts.proximal_version < newest) proximal_older.Add(row);
  }
  findings.AddRows("drew_nothing", "", drew_nothing, "no token was drawn");
  findings.AddRows("versions_backwards", "version_spans", backwards, "versions go backwards");
  findings.AddRows("proximal_version_behind", "proximal_version", proximal_older,
                   "it is below a version that drew tokens");
}

ColumnSummary SummarizeColumn(const Records& records, Column column) {
  const auto place = static_cast<size_t>(column);
  ColumnSummary summary{.name = ColumnName(column), .num_given = records.num_given[place]};
  const std::span<const float> values = records.column(column);
  for (size_t n = 0; n < values.size(); ++n) {
    summary.num_nan += std::isnan(values[n]) && HasValue(values[n]);
    summary.num_infinite += std::isinf(values[n]);
    summary.num_given_drawn += records.drawn[n] != 0 && HasValue(values[n]);
  }
  return summary;
}

// "Given" counts the tokens that have a list.
void SummarizeTop(const Records& records, const TopTokens& top, const char* name,
                  std::vector<ColumnSummary>& columns) {
  if (top.offsets.empty()) return;
  ColumnSummary summary{.name = name};
  for (size_t n = 0; n < records.drawn.size(); ++n) {
    const bool is_given = top.offsets[n + 1] > top.offsets[n];
    summary.num_given += is_given;
    summary.num_given_drawn += is_given && records.drawn[n] != 0;
  }
  columns.push_back(summary);
}

}  // namespace

std::string RowName(const Records& records, int64_t row) {
  const std::string& id = records.rows[static_cast<size_t>(row)].row_id;
  return id.empty() ? absl::StrCat("row ", row) : absl::StrCat("row \"", Printable(id), "\"");
}

RecordsSummary Summarize(const Records& records) {
  RecordsSummary summary;
  summary.num_rows = records.num_rows();
  summary.num_tokens = records.num_tokens();
  summary.num_drawn = std::accumulate(records.drawn.begin(), records.drawn.end(), int64_t{0});
  summary.num_with_versions = std::ranges::count_if(
      records.rows, [](const RowFacts& facts) { return !facts.spans.empty(); });
  Findings findings(records);
  if (records.num_rows() == 0) findings.Add({"no_rows", "", 0, "There is a header and no row."});
  FindInVersions(records, findings);
  for (size_t c = 0; c < kNumColumns; ++c) {
    const auto column = static_cast<Column>(c);
    if (!records.has(column)) continue;
    summary.columns.push_back(SummarizeColumn(records, column));
    FindInColumn(records, column, summary.num_drawn, findings);
  }
  for (const Column column : {Column::kBehaviour, Column::kProximal}) {
    if (records.has(column) || records.num_rows() == 0) continue;
    findings.Add({"column_absent", ColumnName(column), records.num_rows(),
                  absl::StrCat(ColumnName(column),
                               ": no row has it, so that the two sides cannot be compared.")});
  }
  SummarizeTop(records, records.behaviour_top, "behaviour_top_logprobs", summary.columns);
  SummarizeTop(records, records.proximal_top, "proximal_top_logprobs", summary.columns);
  summary.findings = findings.Take();
  return summary;
}

}  // namespace tandem::drift
