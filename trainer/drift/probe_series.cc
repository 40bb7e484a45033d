#include "trainer/drift/probe_series.h"

#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/drift/probe_drift.h"
#include "nlohmann/json.hpp"

namespace tandem::trainer {
namespace {

using nlohmann::json;
using offpolicy::Interval;
using offpolicy::ProbeDrift;
using offpolicy::ServerScores;

constexpr size_t kVersionsKept = 17;  // of the trainer's scores, for servers that are late

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// A server's pushes with numbers by which servers are compared: what is not known is least.
double Suspicion(const offpolicy::DeliveryTrend& trend) {
  return std::isfinite(trend.undelivered.value) ? trend.undelivered.value : -1;
}

}  // namespace

ProbeSeries::ProbeSeries(std::vector<int32_t> completion) : completion_(std::move(completion)) {
  for (const int32_t number : completion_) {
    if (num_tokens_.size() <= static_cast<size_t>(number)) num_tokens_.push_back(0);
    num_tokens_[static_cast<size_t>(number)] += 1;
  }
}

void ProbeSeries::AddTrainer(int64_t version, TrainerProbe scores) {
  as_served_[version] = scores.served;
  if (as_served_.size() > kVersionsKept) as_served_.erase(std::next(as_served_.begin()));
  trainer_[version] = std::move(scores);
}

void ProbeSeries::NoteNearest(int server, std::span<const float> logprobs) {
  Nearest best{.square = std::numeric_limits<double>::infinity()};
  for (const auto& [version, trainer] : as_served_) {
    double sum = 0;
    for (const double square : offpolicy::SquareSums(
             completion_, static_cast<int64_t>(num_tokens_.size()), trainer, logprobs)) {
      sum += square;
    }
    const double mean = sum / static_cast<double>(completion_.size());
    if (mean <= best.square) best = {version, mean};
  }
  if (std::isfinite(best.square)) nearest_[server] = best;
}

// A version counts once: servers that are held back stay at one for a while.
void ProbeSeries::AddServer(int64_t version, int server, std::vector<float> logprobs) {
  Pushes& pushes = pushes_[server];
  const auto trainer = trainer_.find(version);
  const bool is_next = pushes.all.empty() || pushes.all.back().version < version;
  if (trainer != trainer_.end() && is_next) {
    pushes.all.push_back(
        {version, trainer->second.distance, trainer->second.push_distance,
         offpolicy::SquareSums(completion_, static_cast<int64_t>(num_tokens_.size()),
                               trainer->second.served, logprobs)});
  }
  newest_[server] = version;
  NoteNearest(server, logprobs);
  servers_[version][server] = std::move(logprobs);
}

void ProbeSeries::ForgetBefore(int64_t version) {
  std::erase_if(trainer_, [version](const auto& entry) { return entry.first < version; });
  std::erase_if(servers_, [version](const auto& entry) { return entry.first < version; });
  std::erase_if(newest_, [&](const auto& entry) {
    if (entry.second >= version) return false;
    nearest_.erase(entry.first);
    return true;
  });
}

void ProbeSeries::Report(int64_t version, MetricsLine* line) const {
  const auto trainer = trainer_.find(version);
  if (trainer == trainer_.end() || newest_.empty()) return;
  std::vector<ServerScores> now, equal;
  int64_t oldest = version;
  for (const auto& [server, served] : newest_) {
    now.push_back({servers_.at(served).at(server), 1.0 / static_cast<double>(newest_.size())});
    oldest = std::min(oldest, served);
  }
  const ProbeDrift drift = ComputeProbeDrift(completion_, trainer->second.masters, now);
  line->AddCount("drift/probe/version", version);
  line->AddCount("drift/probe/lag", version - oldest);
  line->AddCount("drift/probe/tokens", drift.num_tokens);
  line->AddInterval("drift/probe/k1", drift.k1);
  line->AddInterval("drift/probe/k3", drift.k3);
  line->AddInterval("drift/probe/mean_abs_delta", drift.mean_abs_delta);
  line->Add("drift/probe/distance", trainer->second.distance);
  line->Add("drift/probe/push_distance", trainer->second.push_distance);
  ReportDelivery(line);
}

// The numbers of the server that is suspected most.
void ProbeSeries::ReportDelivery(MetricsLine* line) const {
  offpolicy::DeliveryTrend worst;
  int worst_server = -1;
  for (const auto& [server, pushes] : pushes_) {
    const auto trend = offpolicy::FitDeliveryTrend(pushes.all, num_tokens_);
    if (trend.num_pushes > 0 && (worst_server < 0 || Suspicion(trend) > Suspicion(worst))) {
      worst = trend;
      worst_server = server;
    }
  }
  if (worst_server < 0) return;
  line->AddCount("drift/delivery/server", worst_server);
  line->AddCount("drift/delivery/pushes", worst.num_pushes);
  line->AddInterval("drift/delivery/square", worst.square);
  line->Add("drift/delivery/floor", worst.floor);
  line->AddInterval("drift/delivery/undelivered", worst.undelivered);
  line->AddInterval("drift/delivery/late", worst.late);
  if (const auto nearest = nearest_.find(worst_server); nearest != nearest_.end()) {
    line->AddCount("drift/delivery/behind", newest_.at(worst_server) - nearest->second.version);
    line->Add("drift/delivery/nearest_square", nearest->second.square);
  }
}

void ProbeSeries::ReportVisitation(int64_t version, const std::map<int64_t, int64_t>& lags,
                                   MetricsLine* line) const {
  const auto trainer = trainer_.find(version);
  if (trainer == trainer_.end() || lags.empty()) return;
  double num_tokens = 0;
  for (const auto& [lag, tokens] : lags) num_tokens += static_cast<double>(tokens);
  std::vector<ServerScores> behind;
  for (const auto& [lag, tokens] : lags) {
    const auto servers = servers_.find(version - lag);
    if (servers == servers_.end()) return;
    for (const auto& [server, logprobs] : servers->second) {
      behind.push_back({logprobs, static_cast<double>(tokens) / num_tokens /
                                      static_cast<double>(servers->second.size())});
    }
  }
  const ProbeDrift probe = ComputeProbeDrift(completion_, trainer->second.masters, behind);
  for (const auto& [name, interval] : {std::pair("mean_abs_delta", probe.mean_abs_delta),
                                       std::pair("k1", probe.k1), std::pair("k3", probe.k3)}) {
    const Interval fresh = line->GetInterval(absl::StrCat("drift/", name));
    if (!std::isfinite(fresh.value)) continue;
    line->AddInterval(absl::StrCat("drift/visitation/", name),
                      IntervalOfDifference(fresh, interval));
  }
}

std::vector<std::string> ProbeSeries::TakePushLines(int64_t step) {
  std::vector<std::string> lines;
  for (auto& [server, pushes] : pushes_) {
    for (; pushes.num_written < pushes.all.size(); ++pushes.num_written) {
      const offpolicy::ProbedPush& push = pushes.all[pushes.num_written];
      // NaN becomes null.
      lines.push_back(json({{"step", step},
                            {"server", server},
                            {"version", push.version},
                            {"distance", push.distance},
                            {"push_distance", push.push_distance},
                            {"squares", push.squares}})
                          .dump());
    }
  }
  return lines;
}

absl::Status ProbeSeries::RestorePush(std::string_view text) {
  const json line = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto number = [](const json& value) {
    return value.is_number() ? value.get<double>() : kNaN;
  };
  const bool fits = line.is_object() && line.contains("server") &&
                    line["server"].is_number_integer() && line.contains("version") &&
                    line["version"].is_number_integer() && line.contains("squares") &&
                    line["squares"].is_array() && line["squares"].size() == num_tokens_.size();
  if (!fits) return DataLoss("not a push of this probe set");
  offpolicy::ProbedPush push = {line["version"].get<int64_t>(),
                                number(line.value("distance", json())),
                                number(line.value("push_distance", json())),
                                {}};
  for (const json& square : line["squares"]) push.squares.push_back(number(square));
  Pushes& pushes = pushes_[line["server"].get<int>()];
  pushes.all.push_back(std::move(push));
  pushes.num_written = pushes.all.size();
  return absl::OkStatus();
}

}  // namespace tandem::trainer
