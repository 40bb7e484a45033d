#include "trainer/run/run_history.h"

#include <nlohmann/json.hpp>

#include "common/base/status_macros.h"

namespace tandem::trainer {

using nlohmann::ordered_json;

absl::Status RunHistory::Open(const std::string& directory) {
  TANDEM_ASSIGN_OR_RETURN(history_, History::Open(directory, "trainer"));
  return absl::OkStatus();
}

void RunHistory::Began(const Begin& begin) {
  if (history_ == nullptr) return;
  history_->Write({{"event", "began"},
                   {"run_id", begin.run_id},
                   {"resumed", begin.resumed},
                   {"version", begin.version.value},
                   {"first_group", begin.first_group},
                   {"groups_per_step", begin.groups_per_step},
                   {"num_completions", begin.num_completions},
                   {"max_staleness", begin.max_staleness}});
}

void RunHistory::Asked(int64_t group_id, int64_t min_weight_version) {
  if (history_ == nullptr) return;
  history_->Write(
      {{"event", "asked"}, {"group_id", group_id}, {"min_version", min_weight_version}});
}

void RunHistory::Received(const experience::v1::ScoredGroup& group) {
  if (history_ == nullptr) return;
  ordered_json event = {{"event", "received"},
                        {"group_id", group.group_id()},
                        {"server", group.server()},
                        {"completions", ordered_json::array()}};
  for (const auto& member : group.completions()) {
    const rollout::v1::Completion& completion = member.completion();
    ordered_json one = {{"index", completion.index()},
                        {"tokens", completion.token_ids_size()},
                        {"spans", ordered_json::array()}};
    for (const auto& span : completion.version_spans()) {
      one["spans"].push_back({span.weight_version(), span.num_tokens()});
    }
    event["completions"].push_back(std::move(one));
  }
  history_->Write(event);
}

void RunHistory::Trained(WeightVersion made,
                         const std::vector<experience::v1::ScoredGroup>& groups) {
  if (history_ == nullptr) return;
  ordered_json event = {
      {"event", "trained"}, {"step", made.value}, {"group_ids", ordered_json::array()}};
  for (const auto& group : groups) event["group_ids"].push_back(group.group_id());
  history_->Write(event);
}

void RunHistory::Event(int64_t step, const std::string& kind, const std::string& message,
                       const JsonFields& fields) {
  if (history_ == nullptr) return;
  ordered_json event = {{"event", kind}, {"step", step}, {"message", message}};
  for (const auto& [name, json] : fields) {
    event[name] = ordered_json::parse(json, nullptr, /*allow_exceptions=*/false);
  }
  history_->Write(event);
}

}  // namespace tandem::trainer
