// ProgressView: turns the trainer's progress lines into what the launcher shows of a run. Pure.
//
// A progress line is one JSON object: a line of metrics.jsonl (docs/run_directory.md), a line of
// events.jsonl, or {"phase": "rollout", "step": 4} while a step runs.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

namespace tandem::cli {

// The numbers of a run that are printed at its end.
struct RunSummary {
  std::vector<double> rewards;  // mean reward of each train step, in order
  double first_greedy = -1;     // held-out share correct at the first evaluation; -1: none
  double last_greedy = -1;
  std::map<std::string, int64_t> alerts;  // name -> how often
  // Completions without a reward: why -> how many. Those of environments are counted in all groups,
  // the others in groups that are trained.
  std::map<std::string, int64_t> masked;
  std::map<std::string, int64_t> restarts;  // process -> how often it was started again

  double FirstRewards() const;  // mean over the first three steps
  double LastRewards() const;   // and over the last three
  // "alerts: drift_guard 3x, entropy_collapse 1x (...)" and a newline; empty if there are none.
  std::string AlertsLine() const;
  // "masked: environment_failed 11x (...)" and a newline; empty if no completion was.
  std::string MaskedLine() const;
  // "restarts: rollout_server 0 1x, trainer 2x (...)" and a newline; empty if there are none.
  std::string RestartsLine() const;
};

class ProgressView {
 public:
  explicit ProgressView(int64_t num_steps) : num_steps_(num_steps) {}

  // Takes one progress line. Returns true if `text()` is to be printed as a line of its own (the
  // end of a step, an evaluation, an alert with a new name, a lost server, the first failure of an
  // environment or a reward), and false if it only redraws the live line or is unchanged.
  bool Take(std::string_view line);

  const std::string& text() const { return text_; }
  const RunSummary& summary() const { return summary_; }
  int64_t last_step() const { return last_step_; }  // the last train step that ended; 0: none

 private:
  bool TakeStep(const nlohmann::json& line);
  void CountMasked(const nlohmann::json& line);
  bool TakeEvent(const nlohmann::json& line);

  const int64_t num_steps_;
  std::string text_;
  std::string numbers_;  // of the last step that ended, for the live line
  RunSummary summary_;
  std::set<std::string> failures_;  // kinds that were shown
  int64_t last_step_ = 0;
  double seconds_per_step_ = 0;
};

}  // namespace tandem::cli
