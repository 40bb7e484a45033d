// SupervisedObjective: what a model is trained on when the data is given and not sampled: examples,
// and their loss as a function of what a pass over them gives. supervised_model.h makes the passes.
// The objectives are in objectives/. Free of LibTorch.
//
// An example is a prompt with its completions, one for supervised fine-tuning and two for a pair.
// The loss of a batch is the sum of its examples' parts. A part depends on its own example and on
// numbers of the batch that BeginBatch is given, so the examples of a batch may lie in any rows and
// on any rank.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/experience/packed_rows.h"

namespace tandem::trainer {

// A token whose hidden state the heads read.
struct ScorePlace {
  size_t completion = 0;
  int64_t token = 0;  // from the completion's start
};

// What the pass of one example gave.
struct ExampleScores {
  std::vector<std::span<const float>> logprobs;  // of each completion's tokens
  std::span<const float> prompt_logprobs;        // of its tokens but the first; reads_prompt()
  std::span<const float> heads;                  // [places, K], row-major; num_heads() > 0
};

// The derivative of the batch's loss by each number of ExampleScores, laid out alike. Zeros at the
// start.
struct ExampleSlopes {
  std::vector<std::span<float>> logprobs;
  std::span<float> prompt_logprobs;  // added to: examples of one prompt may share it
  std::span<float> heads;
};

// A metric is a mean: `sum` over the batch divided by `count`. NaN if no example has it.
struct MetricSum {
  double sum = 0, count = 0;

  void Add(double value, double weight = 1) {
    sum += weight * value;
    count += weight;
  }
  double mean() const { return sum / count; }
};

// All ranks hold the same objective. Use from one thread.
class SupervisedObjective {
 public:
  virtual ~SupervisedObjective() = default;

  virtual int64_t num_examples() const = 0;
  // Prompt and completions, each with a token. The objective owns the ids.
  virtual GroupTokens Example(int64_t example) const = 0;

  // K outputs of a linear head are read at ScorePlaces; 0: log-probs are read.
  virtual int64_t num_heads() const { return 0; }
  virtual std::vector<ScorePlace> ScorePlaces(int64_t /*example*/) const { return {}; }
  // Whether log-probs of the prompt's tokens are read too.
  virtual bool reads_prompt() const { return false; }

  // A sequence that is scored before the batch's own passes, without a gradient, and the number
  // that comes of its log-probs. BeginBatch gets the sum of these numbers over the batch.
  virtual std::optional<GroupTokens> SequenceBefore(int64_t /*example*/) const {
    return std::nullopt;
  }
  virtual double NumberBefore(int64_t /*example*/, const ExampleScores& /*scores*/) const {
    return 0;
  }

  // What the parts of the batch's loss are divided by, and other numbers that its examples share.
  virtual void BeginBatch(std::span<const int64_t> examples, double sum_before) = 0;

  // The part of one example of the batch. Writes its slopes unless `slopes` is null, and adds to
  // `metrics`, which are parallel to MetricNames().
  virtual double Loss(int64_t example, const ExampleScores& scores, ExampleSlopes* slopes,
                      std::span<MetricSum> metrics) const = 0;
  virtual std::vector<std::string> MetricNames() const = 0;
};

}  // namespace tandem::trainer
