#include "rollout_server/service/server_history.h"

#include <nlohmann/json.hpp>

namespace tandem::rollout {

using nlohmann::ordered_json;

namespace {

void Write(History* history, const ordered_json& event) {
  if (history != nullptr) history->Write(event);
}

}  // namespace

void ServerHistory::Started(std::string_view in_flight, const DigestMap& digests) {
  Write(history_.get(), {{"event", "started"},
                         {"in_flight", std::string(in_flight)},
                         {"version", 0},
                         {"digest", CombinedDigest(digests)}});
}

void ServerHistory::Listens(const std::string& address) {
  Write(history_.get(), {{"event", "listens"}, {"address", address}});
}

void ServerHistory::Drew(const std::string& run_id, int64_t group_id,
                         const FinishedCompletion& completion) {
  // Weights may have been installed since its last token was sampled.
  const bool ends_late =
      completion.finish_reason == FinishReason::kStoppedEarly || completion.wait_seconds > 0;
  ordered_json event = {{"event", "drawn"},
                        {"run_id", run_id},
                        {"group_id", group_id},
                        {"index", completion.index},
                        {"tokens", completion.num_sampled()},
                        {"spans", ordered_json::array()},
                        {"stopped_early", ends_late}};
  for (const VersionSpan& span : completion.version_spans) {
    event["spans"].push_back({span.version.value, span.num_tokens});
  }
  if (completion.found_kv) {
    event["found_kv"] = {{"of_install", completion.found_kv->of_install},
                         {"at_install", completion.found_kv->at_install}};
  }
  Write(history_.get(), event);
}

void ServerHistory::Installed(WeightVersion version) {
  Write(history_.get(), {{"event", "installed"}, {"version", version.value}});
}

void ServerHistory::EpochBegan(const std::string& run_id, int64_t epoch) {
  Write(history_.get(), {{"event", "epoch"}, {"run_id", run_id}, {"epoch", epoch}});
}

void ServerHistory::Committed(int64_t epoch, WeightVersion version, const DigestMap& digests) {
  Write(history_.get(), {{"event", "committed"},
                         {"epoch", epoch},
                         {"version", version.value},
                         {"digest", CombinedDigest(digests)}});
}

}  // namespace tandem::rollout
