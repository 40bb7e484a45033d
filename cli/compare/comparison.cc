#include "cli/compare/comparison.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "drift_lab/records/records_builder.h"

namespace tandem::cli {
namespace {

// Prompts and rows that go into one request: few, so that progress is seen, and enough for an engine
// that batches them.
constexpr size_t kPromptsPerRequest = 8;
constexpr size_t kRowsPerRequest = 16;

struct ComparedRow {
  int64_t prompt = 0;
  int64_t version = 0;
  int64_t index = 0;  // among the completions of the prompt
  DrawnCompletion drawn;
  RowScore own_score;  // by A; no log-probs: A cannot
  RowScore score;      // by B
};

class Comparison {
 public:
  Comparison(const ComparisonPlan& plan, const ComparisonProgress& progress)
      : plan_(plan), progress_(progress) {}

  absl::Status RunA(ComparedEngine& engine) {
    a_ = engine.Info();
    const auto num_versions = static_cast<int64_t>(plan_.steps_of_weights.size()) + 1;
    for (int64_t version = 0; version < num_versions; ++version) {
      TANDEM_RETURN_IF_ERROR(UseVersion(engine, a_, version));
      const size_t begin = rows_.size();
      TANDEM_RETURN_IF_ERROR(SampleVersion(engine, version, num_versions));
      TANDEM_RETURN_IF_ERROR(ScoreOwn(engine, begin));
    }
    return absl::OkStatus();
  }

  absl::Status RunB(ComparedEngine& engine) {
    b_ = engine.Info();
    size_t begin = 0;
    while (begin < rows_.size()) {
      const int64_t version = rows_[begin].version;
      TANDEM_RETURN_IF_ERROR(UseVersion(engine, b_, version));
      size_t end = begin;
      while (end < rows_.size() && rows_[end].version == version) ++end;
      TANDEM_RETURN_IF_ERROR(Score(engine, begin, end, b_.engine + " scores", &ComparedRow::score));
      begin = end;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<ComparisonResult> Result() const {
    drift::RecordsBuilder builder("", HeaderOf());
    for (const ComparedRow& row : rows_) {
      TANDEM_RETURN_IF_ERROR(builder.AddRow(RecordOf(row)));
    }
    return ComparisonResult{.records = builder.Finish(), .notes = notes_};
  }

 private:
  absl::Status UseVersion(ComparedEngine& engine, const EngineInfo& info, int64_t version) const {
    if (version == 0) return absl::OkStatus();  // what it was started with
    if (!info.can_load_weights) {
      return Unimplemented(info.engine, " cannot load other weights (--steps-of-weights)");
    }
    return engine.LoadWeights(plan_.steps_of_weights[static_cast<size_t>(version) - 1]);
  }

  absl::Status SampleVersion(ComparedEngine& engine, int64_t version, int64_t num_versions) {
    const auto total =
        static_cast<int64_t>(plan_.prompts.size()) * num_versions * plan_.sampling.num_completions;
    for (size_t begin = 0; begin < plan_.prompts.size(); begin += kPromptsPerRequest) {
      progress_(a_.engine + " samples", static_cast<int64_t>(rows_.size()), total);
      const size_t end = std::min(begin + kPromptsPerRequest, plan_.prompts.size());
      EngineSampling sampling = plan_.sampling;
      // No two requests have the seeds of their prompts in common.
      sampling.seed += (static_cast<uint64_t>(version) << 20) + begin;
      TANDEM_ASSIGN_OR_RETURN(
          std::vector<DrawnCompletion> drawn,
          engine.Sample({plan_.prompts.begin() + static_cast<std::ptrdiff_t>(begin),
                         plan_.prompts.begin() + static_cast<std::ptrdiff_t>(end)},
                        sampling));
      std::vector<int64_t> num_of_prompt(end - begin, 0);
      for (DrawnCompletion& one : drawn) {
        rows_.push_back({.prompt = one.prompt + static_cast<int64_t>(begin),
                         .version = version,
                         .index = num_of_prompt[static_cast<size_t>(one.prompt)]++,
                         .drawn = std::move(one)});
      }
    }
    return absl::OkStatus();
  }

  // An engine that cannot score leaves the column out.
  absl::Status ScoreOwn(ComparedEngine& engine, size_t begin) {
    if (!notes_.empty()) return absl::OkStatus();
    const absl::Status status = Score(engine, begin, rows_.size(),
                                      a_.engine + " scores what it drew", &ComparedRow::own_score);
    if (!absl::IsUnimplemented(status)) return status;
    for (ComparedRow& row : rows_) row.own_score = {};
    notes_.push_back(absl::StrCat("no behaviour_score_logprobs: ", status.message()));
    return absl::OkStatus();
  }

  absl::Status Score(ComparedEngine& engine, size_t from, size_t to, const std::string& what,
                     RowScore ComparedRow::*member) {
    for (size_t begin = from; begin < to; begin += kRowsPerRequest) {
      progress_(what, static_cast<int64_t>(begin), static_cast<int64_t>(rows_.size()));
      const size_t end = std::min(begin + kRowsPerRequest, to);
      std::vector<RowToScore> rows;
      for (size_t i = begin; i < end; ++i) {
        const std::vector<int32_t>& prompt = plan_.prompts[static_cast<size_t>(rows_[i].prompt)];
        RowToScore& row = rows.emplace_back();
        row.token_ids = prompt;
        row.token_ids.insert(row.token_ids.end(), rows_[i].drawn.token_ids.begin(),
                             rows_[i].drawn.token_ids.end());
        row.prompt_length = static_cast<int64_t>(prompt.size());
      }
      TANDEM_ASSIGN_OR_RETURN(std::vector<RowScore> scores,
                              engine.Score(rows, plan_.sampling.temperature));
      for (size_t i = begin; i < end; ++i) rows_[i].*member = std::move(scores[i - begin]);
    }
    return absl::OkStatus();
  }

  drift::RecordsHeader HeaderOf() const {
    drift::RecordsHeader header;
    header.model = plan_.model;
    header.created_by = "tandem drift compare";
    header.created_at = absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone());
    header.vocab_size = plan_.vocab_size;
    header.eos_token_ids = plan_.eos_token_ids;
    const EngineSampling& sampling = plan_.sampling;
    header.behaviour = {.engine = a_.engine, .engine_version = a_.version, .dtype = a_.dtype};
    header.behaviour.weights = plan_.weights_a;
    header.behaviour.logprobs = sampling.raw ? "raw" : "processed";
    header.behaviour.temperature = sampling.temperature;
    header.behaviour.top_p = sampling.top_p;
    if (sampling.top_k > 0) header.behaviour.top_k = sampling.top_k;
    header.proximal = {.engine = b_.engine, .engine_version = b_.version, .dtype = b_.dtype};
    header.proximal.weights = plan_.weights_b;
    header.proximal.policy = "proximal";
    header.proximal.temperature = sampling.temperature;
    return header;
  }

  drift::RecordRow RecordOf(const ComparedRow& row) const {
    const std::vector<int32_t>& prompt = plan_.prompts[static_cast<size_t>(row.prompt)];
    const bool has_versions = !plan_.steps_of_weights.empty();
    drift::RecordRow record;
    record.token_ids = prompt;
    record.token_ids.insert(record.token_ids.end(), row.drawn.token_ids.begin(),
                            row.drawn.token_ids.end());
    record.prompt_length = static_cast<int64_t>(prompt.size());
    const auto set = [&](drift::Column column, const std::vector<float>& values) {
      if (values.empty()) return;
      std::vector<float>& whole = record.column(column);
      whole.assign(prompt.size(), drift::kNoValue);
      whole.insert(whole.end(), values.begin(), values.end());
    };
    set(drift::Column::kBehaviour, row.drawn.logprobs);
    set(drift::Column::kBehaviourRaw, row.drawn.raw_logprobs);
    if (!plan_.sampling.raw) set(drift::Column::kBehaviourEntropy, row.drawn.entropies);
    set(drift::Column::kBehaviourScore, row.own_score.logprobs);
    set(drift::Column::kProximal, row.score.logprobs);
    set(drift::Column::kProximalEntropy, row.score.entropies);
    record.weight_version = row.version;
    record.facts.row_id =
        absl::StrCat("version ", row.version, " prompt ", row.prompt, " completion ", row.index);
    record.facts.group_id = absl::StrCat(row.version, "/", row.prompt);
    record.facts.finish_reason = row.drawn.finish_reason;
    if (row.drawn.finish_reason == "stop") record.facts.stop_token_kept = true;
    record.facts.proximal_version = row.version;
    if (has_versions) record.facts.step = row.version;
    return record;
  }

  const ComparisonPlan& plan_;
  const ComparisonProgress& progress_;
  EngineInfo a_, b_;
  std::vector<ComparedRow> rows_;  // in order of versions
  std::vector<std::string> notes_;
};

}  // namespace

absl::StatusOr<ComparisonResult> Compare(const ComparisonPlan& plan, const EngineStarter& start_a,
                                         const EngineStarter& start_b,
                                         const ComparisonProgress& progress) {
  Comparison comparison(plan, progress);
  {
    TANDEM_ASSIGN_OR_RETURN(const auto a, start_a());
    TANDEM_RETURN_IF_ERROR(comparison.RunA(*a));
  }
  TANDEM_ASSIGN_OR_RETURN(const auto b, start_b());
  TANDEM_RETURN_IF_ERROR(comparison.RunB(*b));
  return comparison.Result();
}

}  // namespace tandem::cli
