// Records: what two engines say of the same tokens, from whatever engines (capture format 3,
// docs/records.md). Stage 1 of a verdict from records: the importers and the reader fill it, the
// screening and the referee read it. Free of LibTorch. Plain data: thread-compatible.
//
// Memory: 4 bytes a token and column, so ten million tokens with two columns of log-probs hold
// about 130 MB.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tandem::drift {

// Per-token columns of floats. The names in files are those of ColumnName.
enum class Column : uint8_t {
  kBehaviour,       // log-probs by the engine that drew the tokens
  kProximal,        // log-probs by the trainer
  kBehaviourRaw,    // before temperature, penalties and filters
  kBehaviourScore,  // of the finished sequence, given as a prompt
  kReference,       // of a third policy
  kBehaviourEntropy,
  kProximalEntropy,
  kAdvantages,
};
inline constexpr size_t kNumColumns = 8;
// "behaviour_logprobs", ..., "advantages".
const char* ColumnName(Column column);

// How a column came to be (the header's `columns`). Empty where the file does not say.
struct ColumnOrigin {
  std::string from, transform, digits;
};

// What one side claims of itself. Absent means unknown.
struct SideClaims {
  std::string engine, engine_version, dtype, weights;
  std::string logprobs;  // "raw", "processed" or ""
  std::string policy;    // "proximal", "moving" or ""; of the proximal side only
  std::optional<double> temperature, top_p, min_p;
  std::optional<double> repetition_penalty, frequency_penalty, presence_penalty;
  std::optional<int64_t> top_k, min_tokens;
};

struct RecordsHeader {
  std::string model, tokenizer, created_by, created_at;
  std::optional<int64_t> vocab_size;
  std::vector<int32_t> eos_token_ids;
  SideClaims behaviour, proximal;
  std::map<std::string, ColumnOrigin> columns;  // by ColumnName
};

// A run of drawn tokens of one weight version.
struct RecordSpan {
  int64_t version = 0;
  int64_t num_tokens = 0;
};

// What a row says besides its tokens. Absent means unknown.
struct RowFacts {
  std::string row_id, group_id, finish_reason;
  std::optional<bool> stop_token_kept;
  std::optional<double> reward, advantage;
  std::optional<int64_t> step, proximal_version;
  std::vector<RecordSpan> spans;  // of the drawn tokens, in order; empty: unknown
  std::string prompt_text, completion_text;
};

// The most probable tokens of each position, on one side. Ragged: those of token n are
// [offsets[n], offsets[n + 1]). Empty vectors where the file has none.
struct TopTokens {
  std::vector<int64_t> offsets;  // [N + 1]
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
};

// Lengths: [S] rows, [N] tokens of all rows, prompts included. Element n of every per-token vector is
// about token n given the tokens of its row before it.
struct Records {
  std::string path;  // for messages
  RecordsHeader header;

  std::vector<int64_t> offsets{0};  // [S + 1]
  std::vector<RowFacts> rows;       // [S]

  std::vector<int32_t> token_ids;  // [N]
  std::vector<uint8_t> drawn;      // [N] 1: drawn by the behaviour policy, which the lab looks at
  // [N] each, or empty where no row has the column. NaN where there is no value.
  std::array<std::vector<float>, kNumColumns> columns;
  // How many elements of the column were given, and how many of drawn tokens were not a number (the
  // text "NaN").
  std::array<int64_t, kNumColumns> num_given{};
  std::array<int64_t, kNumColumns> num_nan{};
  TopTokens behaviour_top, proximal_top;

  int64_t num_rows() const { return static_cast<int64_t>(rows.size()); }
  int64_t num_tokens() const { return static_cast<int64_t>(token_ids.size()); }
  int64_t begin_of(int64_t row) const { return offsets[static_cast<size_t>(row)]; }
  int64_t end_of(int64_t row) const { return offsets[static_cast<size_t>(row) + 1]; }
  bool has(Column column) const { return !columns[static_cast<size_t>(column)].empty(); }
  std::span<const float> column(Column column) const {
    return columns[static_cast<size_t>(column)];
  }
  // The elements of `row` of a [N] vector.
  template <typename T>
  std::span<const T> of_row(const std::vector<T>& values, int64_t row) const {
    return std::span<const T>(values).subspan(static_cast<size_t>(begin_of(row)),
                                              static_cast<size_t>(end_of(row) - begin_of(row)));
  }
};

}  // namespace tandem::drift
