#include "drift_lab/calibration/trial_store.h"

#include <limits>
#include <utility>

#include "common/base/json.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tandem::drift {
namespace {

using nlohmann::ordered_json;
using offpolicy::Interval;

std::string HeaderOf(const TrialStudy& study) {
  const CaptureShape& shape = study.shape;
  const ordered_json json = {{"format", "tandem-calibration-trials"},
                             {"format_version", kTrialFormat},
                             {"subject_seed", study.seed},
                             {"groups", shape.groups},
                             {"completions", shape.completions},
                             {"tokens", shape.tokens}};
  return json.dump() + "\n";
}

ordered_json NumberJson(double number) { return JsonNumberAs<ordered_json>(number); }
ordered_json IntervalJson(const Interval& interval) {
  return {NumberJson(interval.value), NumberJson(interval.low), NumberJson(interval.high)};
}

double NumberOf(const ordered_json& json) {
  return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}
Interval IntervalOf(const ordered_json& json) {
  return {.value = NumberOf(json.at(0)), .low = NumberOf(json.at(1)), .high = NumberOf(json.at(2))};
}

std::string LineOf(const PlannedTrial& trial, const TrialResult& result) {
  ordered_json named = ordered_json::array();
  for (const NamedInTrial& one : result.named) {
    named.push_back({{"cause", one.cause},
                     {"share", NumberJson(one.share)},
                     {"dial", IntervalJson(one.strength)}});
  }
  const ordered_json json = {{"fault", trial.fault},
                             {"strength", NumberJson(trial.strength)},
                             {"seed", trial.seed},
                             {"comparable", result.comparable},
                             {"named", named},
                             {"open", result.open},
                             {"unexplained", NumberJson(result.unexplained)},
                             {"tokens", result.num_tokens},
                             {"mean_abs", IntervalJson(result.mean_abs)},
                             {"k3", IntervalJson(result.k3)},
                             {"seconds", NumberJson(result.seconds)}};
  return json.dump() + "\n";
}

std::pair<PlannedTrial, TrialResult> TrialOf(const ordered_json& json) {
  PlannedTrial trial{json.at("fault").get<std::string>(), json.at("strength").get<double>(),
                     json.at("seed").get<uint64_t>()};
  TrialResult result{.comparable = json.at("comparable").get<bool>(),
                     .open = json.at("open").get<bool>(),
                     .unexplained = NumberOf(json.at("unexplained")),
                     .num_tokens = json.at("tokens").get<int64_t>(),
                     .mean_abs = IntervalOf(json.at("mean_abs")),
                     .k3 = IntervalOf(json.at("k3")),
                     .seconds = NumberOf(json.at("seconds"))};
  for (const ordered_json& one : json.at("named")) {
    result.named.push_back({one.at("cause").get<std::string>(), NumberOf(one.at("share")),
                            IntervalOf(one.at("dial"))});
  }
  return {std::move(trial), std::move(result)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrialStore>> TrialStore::Open(const std::string& path,
                                                             const TrialStudy& study) {
  auto store = std::unique_ptr<TrialStore>(new TrialStore(path));
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok() && !absl::IsNotFound(text.status())) return text.status();
  const std::string whole = text.ok() ? text->substr(0, text->rfind('\n') + 1) : "";
  if (whole.empty()) {
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically(path, HeaderOf(study)));
  } else {
    TANDEM_RETURN_IF_ERROR(store->Read(whole, HeaderOf(study)));
    if (whole.size() < text->size()) TANDEM_RETURN_IF_ERROR(WriteFileAtomically(path, whole));
  }
  MutexLock lock(&store->mu_);
  TANDEM_ASSIGN_OR_RETURN(store->file_, AppendFile::Open(path));
  return store;
}

absl::Status TrialStore::Read(const std::string& text, const std::string& header) {
  MutexLock lock(&mu_);
  if (!text.starts_with(header)) {
    return InvalidArgument(
        path_,
        ":1: trials of another study or version of the lab; name another directory, "
        "or remove the file");
  }
  int number = 2;
  for (size_t begin = header.size(), end; begin < text.size(); begin = end + 1, ++number) {
    end = text.find('\n', begin);
    try {
      trials_.insert(TrialOf(ordered_json::parse(text.substr(begin, end - begin))));
    } catch (const ordered_json::exception& error) {
      return InvalidArgument(path_, ":", number, ": not a trial: ", error.what());
    }
  }
  return absl::OkStatus();
}

bool TrialStore::Has(const PlannedTrial& trial) const {
  MutexLock lock(&mu_);
  return trials_.contains(trial);
}

absl::Status TrialStore::Add(const PlannedTrial& trial, const TrialResult& result) {
  const std::string line = LineOf(trial, result);
  MutexLock lock(&mu_);
  TANDEM_RETURN_IF_ERROR(file_->Append(line));
  trials_.insert(TrialOf(ordered_json::parse(line)));  // with the digits that the file has
  return absl::OkStatus();
}

std::map<PlannedTrial, TrialResult> TrialStore::All() const {
  MutexLock lock(&mu_);
  return trials_;
}

}  // namespace tandem::drift
