// ProgressView: what the launcher shows of a run, from the trainer's progress lines. Pure.
//
// A progress line is one JSON object: a line of metrics.jsonl (docs/run_directory.md), a line of
// events.jsonl, or {"phase": "rollout", "step": 4} while a step runs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

namespace tandem::cli {

// How the run went, for the closing words.
struct RunSummary {
  std::vector<double> rewards;  // mean reward of each train step, in order
  double first_greedy = -1;     // held-out share correct at the first evaluation; -1: none
  double last_greedy = -1;
  std::map<std::string, int64_t> alerts;    // name -> how often
  std::map<std::string, int64_t> restarts;  // process -> how often it was started again

  double FirstRewards() const;  // mean over the first three steps
  double LastRewards() const;   // and over the last three
  // "alerts: drift_guard 3x, entropy_collapse 1x (...)" and a newline; empty without any.
  std::string AlertsLine() const;
  // "restarts: rollout_server 0 1x, trainer 2x (...)" and a newline; empty without any.
  std::string RestartsLine() const;
};

class ProgressView {
 public:
  explicit ProgressView(int64_t num_steps) : num_steps_(num_steps) {}

  // Takes in one line. True when `text()` is worth a line of its own (a step ended, an evaluation,
  // an alert of a new name, a server lost); false when it only redraws the live line, or says
  // nothing.
  bool Take(std::string_view line);

  const std::string& text() const { return text_; }
  const RunSummary& summary() const { return summary_; }
  int64_t last_step() const { return last_step_; }  // the train step that ended last; 0: none has

 private:
  bool TakeStep(const nlohmann::json& line);
  bool TakeEvent(const nlohmann::json& line);

  const int64_t num_steps_;
  std::string text_;
  std::string numbers_;  // of the step that ended last, for the live line
  RunSummary summary_;
  int64_t last_step_ = 0;
  double seconds_per_step_ = 0;
};

}  // namespace tandem::cli
