#include "cli/pipeline/stage_record.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/weights/digest.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 4> kStates = {"pending", "running", "failed", "done"};

// The first difference of two maps as "NAME was A and is B now"; empty if they are equal.
std::string Difference(const std::map<std::string, std::string>& was,
                       const std::map<std::string, std::string>& now) {
  const auto value = [](const std::map<std::string, std::string>& of, const std::string& name) {
    const auto found = of.find(name);
    return found == of.end() ? std::string("not set") : absl::StrCat("`", found->second, "`");
  };
  std::map<std::string, std::string> all = was;
  all.insert(now.begin(), now.end());
  for (const auto& [name, unused] : all) {
    const std::string before = value(was, name), current = value(now, name);
    if (before != current) return absl::StrCat(name, " was ", before, " and is ", current, " now");
  }
  return "";
}

std::string WhatChanged(const StageIdentity& was, const StageIdentity& now) {
  if (was.kind != now.kind) return absl::StrCat("its kind was ", was.kind, " and is ", now.kind);
  const std::string option = Difference(was.options, now.options);
  if (!option.empty()) return absl::StrCat("its option ", option);
  for (const auto& [path, digest] : now.inputs) {
    const auto before = was.inputs.find(path);
    if (before == was.inputs.end() || before->second != digest) {
      return absl::StrCat("its input ", path, " has other contents now");
    }
  }
  return "its inputs were others";
}

StageRecord ParseRecord(const json& line) {
  StageRecord record;
  record.name = line.at("name");
  const auto state = std::ranges::find(kStates, line.at("state").get<std::string>());
  if (state == kStates.end()) throw std::out_of_range("state");
  record.state = static_cast<StageState>(state - kStates.begin());
  record.identity = {line.at("kind"), line.at("options"), line.at("inputs")};
  record.directory = line.at("directory");
  record.started = line.at("started");
  record.ended = line.at("ended");
  record.exit_code = line.at("exit_code");
  record.outputs = line.at("outputs");
  record.output_digests = line.at("output_digests");
  return record;
}

}  // namespace

std::string StageIdentity::Digest() const {
  // As JSON, so that no value can look like another name.
  const std::string text = json({kind, options, inputs}).dump();
  return Digest128(std::as_bytes(std::span(text.data(), text.size())));
}

std::string StateName(StageState state) {
  return std::string(kStates.at(static_cast<size_t>(state)));
}

std::string ToJson(const std::string& name, const std::string& file,
                   const std::vector<StageRecord>& records) {
  json stages = json::array();
  for (const StageRecord& record : records) {
    stages.push_back({{"name", record.name},
                      {"kind", record.identity.kind},
                      {"state", StateName(record.state)},
                      {"digest", record.identity.Digest()},
                      {"options", record.identity.options},
                      {"inputs", record.identity.inputs},
                      {"directory", record.directory},
                      {"started", record.started},
                      {"ended", record.ended},
                      {"exit_code", record.exit_code},
                      {"outputs", record.outputs},
                      {"output_digests", record.output_digests}});
  }
  return json({{"pipeline", name}, {"file", file}, {"stages", stages}}).dump(1) + "\n";
}

absl::StatusOr<std::vector<StageRecord>> ParseStageRecords(const std::string& text,
                                                           const std::string& path) {
  std::vector<StageRecord> records;
  try {
    const json document = json::parse(text);
    for (const json& line : document.at("stages")) records.push_back(ParseRecord(line));
  } catch (const std::exception& error) {
    return DataLoss(path, " is no record of a pipeline (", error.what(),
                    "): --clean begins the pipeline anew");
  }
  return records;
}

absl::StatusOr<StageAction> NextAction(const StageRecord& record, const StageIdentity& now,
                                       const StageEvidence& evidence) {
  if (record.state == StageState::kPending) return StageAction::kStart;
  const bool is_done = record.state == StageState::kDone;
  const bool holds_work = is_done || evidence.outputs_are_whole || evidence.can_resume;
  if (record.identity.Digest() != now.Digest()) {
    if (!holds_work) return StageAction::kStart;
    return InvalidArgument("stage ", record.name, is_done ? " is done" : " was begun", ", and ",
                           WhatChanged(record.identity, now),
                           ": put it back, or do this stage and all later ones again with --from ",
                           record.name);
  }
  if (is_done) return StageAction::kSkip;
  if (evidence.outputs_are_whole) return StageAction::kFinish;
  return evidence.can_resume ? StageAction::kResume : StageAction::kStart;
}

absl::Status CheckSameOrder(const std::vector<StageRecord>& records,
                            const std::vector<std::string>& names) {
  for (size_t i = 0; i < records.size(); ++i) {
    if (records[i].state == StageState::kPending) continue;
    const std::string now = i < names.size() ? names[i] : "not there";
    if (now == records[i].name) continue;
    return InvalidArgument("stage ", i + 1, " was ", records[i].name, ", which is ",
                           StateName(records[i].state), ", and is ", now,
                           " now: put it back, or begin the pipeline anew with --clean");
  }
  return absl::OkStatus();
}

}  // namespace tandem::cli
