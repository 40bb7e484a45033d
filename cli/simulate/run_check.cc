#include "cli/simulate/run_check.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "nlohmann/json.hpp"

namespace tandem::simulate {
namespace {

absl::StatusOr<double> Number(const nlohmann::json& line, const char* key,
                              const std::string& place) {
  if (!line.contains(key) || !line[key].is_number()) {
    return InvalidArgument(place, ": no number ", key);
  }
  return line[key].get<double>();
}

// Lengths with the given mean and maximum, all equal except the longest.
std::vector<std::vector<int64_t>> EvenLengths(int64_t prompts, int64_t group, double mean,
                                              int64_t max) {
  const int64_t count = prompts * group;
  const int64_t total = std::llround(mean * static_cast<double>(count));
  std::vector<int64_t> all(static_cast<size_t>(count), max);
  for (int64_t i = 1; i < count; ++i) {
    const int64_t others = total - max;
    all[static_cast<size_t>(i)] = others * i / (count - 1) - others * (i - 1) / (count - 1);
  }
  std::vector<std::vector<int64_t>> groups;
  for (int64_t p = 0; p < prompts; ++p) {
    groups.emplace_back(all.begin() + p * group, all.begin() + (p + 1) * group);
  }
  return groups;
}

absl::StatusOr<int64_t> Setting(const YAML::Node& node, const std::string& place,
                                const std::string& dotted) {
  YAML::Node at = YAML::Clone(node);
  for (const auto part : absl::StrSplit(dotted, '.')) {
    if (!at.IsMap() || !at[std::string(part)].IsDefined()) {
      return InvalidArgument(place, "/config.yaml: no ", dotted);
    }
    at.reset(at[std::string(part)]);
  }
  int64_t value = 0;
  if (!at.IsScalar() || !YAML::convert<int64_t>::decode(at, value) || value < 0) {
    return InvalidArgument(place, "/config.yaml: ", dotted, " is not a whole number");
  }
  return value;
}

absl::Status ReadSettings(const std::string& config, const std::string& place, RecordedRun* run) {
  YAML::Node document;
  try {
    document = YAML::Load(config);
  } catch (const YAML::Exception& error) {
    return InvalidArgument(place, "/config.yaml: ", error.what());
  }
  TANDEM_ASSIGN_OR_RETURN(run->prompts, Setting(document, place, "trainer.prompts_per_step"));
  TANDEM_ASSIGN_OR_RETURN(run->group, Setting(document, place, "trainer.completions_per_prompt"));
  TANDEM_ASSIGN_OR_RETURN(run->max_staleness, Setting(document, place, "trainer.max_staleness"));
  TANDEM_ASSIGN_OR_RETURN(run->groups_in_flight,
                          Setting(document, place, "trainer.client.groups_in_flight"));
  // Runs that were started without the launcher do not have these sections in config.yaml.
  run->servers = Setting(document, place, "launch.num_servers").value_or(1);
  run->max_sequences = Setting(document, place, "server.engine.max_batch_sequences").value_or(64);
  if (run->prompts < 1 || run->group < 1 || run->servers < 1) {
    return InvalidArgument(place, "/config.yaml: prompts, completions and servers are at least 1");
  }
  return absl::OkStatus();
}

absl::StatusOr<RecordedStep> ReadStep(const nlohmann::json& line, const RecordedRun& run,
                                      const std::string& place) {
  RecordedStep step{.step = line["step"].get<int64_t>()};
  TANDEM_ASSIGN_OR_RETURN(const double mean, Number(line, "length/mean", place));
  TANDEM_ASSIGN_OR_RETURN(const double longest, Number(line, "length/max", place));
  step.lengths = EvenLengths(run.prompts, run.group, mean, std::llround(longest));
  TANDEM_ASSIGN_OR_RETURN(step.wire_bytes, Number(line, "push/bytes", place));
  TANDEM_ASSIGN_OR_RETURN(step.dense_bytes, Number(line, "push/dense_bytes", place));
  TANDEM_ASSIGN_OR_RETURN(step.rollout, Number(line, "time/rollout", place));
  TANDEM_ASSIGN_OR_RETURN(step.update, Number(line, "time/update", place));
  TANDEM_ASSIGN_OR_RETURN(step.push, Number(line, "time/push", place));
  TANDEM_ASSIGN_OR_RETURN(step.whole, Number(line, "time/step", place));
  if (step.whole <= 0) return InvalidArgument(place, ": time/step is 0");
  return step;
}

// Replaces even lengths by those of rollouts/step_N.jsonl, which has no failed groups.
absl::Status ReadLengths(const std::string& path, RecordedStep* step) {
  const auto text = ReadFile(path);
  if (!text.ok()) return absl::OkStatus();
  std::vector<std::vector<int64_t>> groups;
  for (const auto line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
    const nlohmann::json group = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
    if (!group.is_object() || !group.contains("completions")) {
      return InvalidArgument(path, ": not a line of a group");
    }
    std::vector<int64_t> lengths;
    for (const nlohmann::json& completion : group["completions"]) {
      if (!completion.contains("token_ids")) {
        return InvalidArgument(path, ": a completion without token_ids");
      }
      lengths.push_back(static_cast<int64_t>(completion["token_ids"].size()));
    }
    groups.push_back(std::move(lengths));
  }
  for (size_t i = 0; i < std::min(groups.size(), step->lengths.size()); ++i) {
    step->lengths[i] = std::move(groups[i]);
  }
  return absl::OkStatus();
}

PairPlan PlanOf(const RecordedRun& run, const Constants& c, const Scales& scales) {
  PairPlan plan;
  plan.steps = static_cast<int64_t>(run.steps.size());
  plan.prompts_per_step = run.prompts;
  plan.max_staleness = run.max_staleness;
  plan.servers = run.servers;
  plan.groups_in_flight = run.groups_in_flight;
  plan.shared_machine = true;
  for (const int batch : {1, 8, 32, 64}) {
    const double rate = c[absl::StrCat("decode_tokens_per_second_", batch)];
    plan.server.knots.push_back({static_cast<double>(batch), scales.rollout * batch / rate});
  }
  plan.server.prefill_tokens_per_second = c["prefill_tokens_per_second"] / scales.rollout;
  plan.server.max_sequences = run.max_sequences;
  const auto prompt = static_cast<int64_t>(c["prompt_tokens"]);
  plan.work = [&run, prompt](int64_t group) {
    // Groups for steps after the last are not recorded, so they get the lengths of the last.
    const auto step = std::min(static_cast<size_t>(group / run.prompts), run.steps.size() - 1);
    return GroupWork{.prompt_tokens = prompt,
                     .lengths = run.steps[step].lengths[static_cast<size_t>(group % run.prompts)]};
  };
  plan.trainer = [&run, &c, scales](int64_t step, const Sampled& sampled) {
    const RecordedStep& real = run.steps[static_cast<size_t>(step)];
    const double one = real.dense_bytes / static_cast<double>(run.servers);
    TrainerSeconds cost;
    cost.compute =
        scales.update * (c["train_fixed_seconds"] +
                         static_cast<double>(sampled.packed_tokens) / c["train_tokens_per_second"]);
    cost.prepare = scales.push * one / c["cast_bytes_per_second"];
    cost.send = scales.push * real.wire_bytes / c["send_bytes_per_second"];
    cost.install = scales.push * real.dense_bytes *
                   (1 / c["verify_bytes_per_second"] + 1 / c["pack_bytes_per_second"]);
    cost.record = c["record_seconds"];
    return cost;
  };
  return plan;
}

size_t First(size_t steps) { return steps > 1 ? 1 : 0; }

}  // namespace

absl::StatusOr<RecordedRun> ParseRun(const std::string& metrics, const std::string& config,
                                     const std::string& place) {
  RecordedRun run;
  TANDEM_RETURN_IF_ERROR(ReadSettings(config, place, &run));
  std::map<int64_t, RecordedStep> steps;  // a resume repeats some: the last counts
  int64_t number = 0;
  for (const auto text : absl::StrSplit(metrics, '\n', absl::SkipEmpty())) {
    const std::string at = absl::StrCat(place, "/metrics.jsonl:", ++number);
    const nlohmann::json line = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
    if (!line.is_object() || !line.contains("step") || !line["step"].is_number_integer()) {
      return InvalidArgument(at, ": not a line of a train step");
    }
    if (line["step"] == 0) continue;  // the evaluation before the first
    TANDEM_ASSIGN_OR_RETURN(RecordedStep step, ReadStep(line, run, at));
    steps[step.step] = std::move(step);
  }
  for (auto& [step, recorded] : steps) {
    if (step != static_cast<int64_t>(run.steps.size()) + 1) {
      return InvalidArgument(place, "/metrics.jsonl: step ", run.steps.size() + 1, " is missing");
    }
    run.steps.push_back(std::move(recorded));
  }
  if (run.steps.empty()) {
    return InvalidArgument(place, "/metrics.jsonl: no train step");
  }
  return run;
}

absl::StatusOr<RecordedRun> ReadRun(const std::string& directory) {
  TANDEM_ASSIGN_OR_RETURN(const std::string metrics, ReadFile(directory + "/metrics.jsonl"));
  TANDEM_ASSIGN_OR_RETURN(const std::string config, ReadFile(directory + "/config.yaml"));
  TANDEM_ASSIGN_OR_RETURN(RecordedRun run, ParseRun(metrics, config, directory));
  for (RecordedStep& step : run.steps) {
    TANDEM_RETURN_IF_ERROR(
        ReadLengths(absl::StrCat(directory, "/rollouts/step_", step.step, ".jsonl"), &step));
  }
  return run;
}

absl::StatusOr<CheckResult> CheckRun(const RecordedRun& run, const Constants& machine,
                                     const Scales& scales) {
  if (run.steps.empty()) return absl::InvalidArgumentError("a run without train steps");
  TANDEM_ASSIGN_OR_RETURN(const PairResult predicted, SimulatePair(PlanOf(run, machine, scales)));
  CheckResult result{.scales = scales};
  for (size_t i = 0; i < run.steps.size(); ++i) {
    result.steps.push_back({run.steps[i], predicted.steps[i]});
  }
  return result;
}

absl::StatusOr<Scales> FitScales(const RecordedRun& run, const Constants& machine) {
  if (run.steps.size() < 2 || run.max_staleness > 0) {
    return InvalidArgument(
        "constants are fitted to runs of at least two steps at max_staleness 0; this one has ",
        run.steps.size(), " at ", run.max_staleness);
  }
  TANDEM_ASSIGN_OR_RETURN(const CheckResult plain, CheckRun(run, machine, {}));
  Scales real{0, 0, 0}, predicted{0, 0, 0};
  for (size_t i = First(plain.steps.size()); i < plain.steps.size(); ++i) {
    const CheckedStep& step = plain.steps[i];
    real.rollout += step.real.rollout;
    real.update += step.real.update;
    real.push += step.real.push;
    predicted.rollout += step.predicted.rollout;
    predicted.update += step.predicted.train;
    predicted.push += step.predicted.push;
  }
  const auto ratio = [](double a, double b) { return a > 0 && b > 0 ? a / b : 1; };
  return Scales{ratio(real.rollout, predicted.rollout), ratio(real.update, predicted.update),
                ratio(real.push, predicted.push)};
}

double CheckResult::Error() const {
  double real = 0, predicted = 0;
  for (size_t i = First(steps.size()); i < steps.size(); ++i) {
    real += steps[i].real.whole;
    predicted += steps[i].predicted.step();
  }
  return predicted / real - 1;
}

double CheckResult::MeanAbsoluteError() const {
  double sum = 0;
  const size_t first = First(steps.size());
  for (size_t i = first; i < steps.size(); ++i) {
    sum += std::abs(steps[i].predicted.step() / steps[i].real.whole - 1);
  }
  return sum / static_cast<double>(steps.size() - first);
}

std::string ToText(const CheckResult& result) {
  std::string out =
      absl::StrFormat("%4s %21s %21s %21s %21s %7s\n%4s %10s %10s %10s %10s %10s %10s %10s %10s\n",
                      "", "rollout s", "update s", "push s", "step s", "", "step", "real",
                      "predicted", "real", "predicted", "real", "predicted", "real", "predicted");
  for (const CheckedStep& step : result.steps) {
    absl::StrAppendFormat(
        &out, "%4d %10.2f %10.2f %10.2f %10.2f %10.2f %10.2f %10.2f %10.2f %+6.1f%%\n",
        step.real.step, step.real.rollout, step.predicted.rollout, step.real.update,
        step.predicted.train, step.real.push, step.predicted.push, step.real.whole,
        step.predicted.step(), 100 * (step.predicted.step() / step.real.whole - 1));
  }
  absl::StrAppendFormat(&out,
                        "all steps but the first: predicted over real %+.1f %%, mean of a step's "
                        "absolute error %.1f %%\nslower than the constants say: rollout %.2f, "
                        "update %.2f, push %.2f times (by --fit)\n",
                        100 * result.Error(), 100 * result.MeanAbsoluteError(),
                        result.scales.rollout, result.scales.update, result.scales.push);
  return out;
}

std::string ToJson(const CheckResult& result) {
  nlohmann::ordered_json out = {{"error", result.Error()},
                                {"mean_absolute_error", result.MeanAbsoluteError()},
                                {"scales",
                                 {{"rollout", result.scales.rollout},
                                  {"update", result.scales.update},
                                  {"push", result.scales.push}}}};
  const auto times = [](double rollout, double update, double push, double whole) {
    return nlohmann::ordered_json{
        {"rollout", rollout}, {"update", update}, {"push", push}, {"step", whole}};
  };
  for (const CheckedStep& s : result.steps) {
    out["steps"].push_back(
        {{"step", s.real.step},
         {"real", times(s.real.rollout, s.real.update, s.real.push, s.real.whole)},
         {"predicted",
          times(s.predicted.rollout, s.predicted.train, s.predicted.push, s.predicted.step())}});
  }
  return out.dump(1) + "\n";
}

}  // namespace tandem::simulate
