// RefereeForward: the referee's own forward pass. It scores the drawn tokens of rows with a Variant
// of the model and returns the logits behind them (token_logits.h). Written apart from the trainer's
// and the server's forward passes, in plain operations of LibTorch, so that every part can be played
// differently. The header is free of LibTorch.
//
// Memory: activations of about 2,048 tokens, logits of 256 rows, and a copy of the weights where the
// variant rounds them.
// Deterministic. Use from one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "drift_lab/records/records.h"
#include "drift_lab/referee/forward/referee_model.h"
#include "drift_lab/referee/forward/token_logits.h"
#include "drift_lab/referee/forward/variant.h"

namespace tandem::drift {

// A row of a records file. `targets` are the drawn tokens to score, increasing, none 0.
struct RefereeRow {
  int64_t row = 0;
  std::vector<int32_t> ids;
  std::vector<int64_t> targets;
  int64_t prompt_length = 0;  // tokens before the first drawn one
};

// Rows of `records` with drawn tokens, all of them, in order. The first token of a row has no context
// and is left out.
std::vector<RefereeRow> RefereeRows(const Records& records);

struct ForwardOptions {
  std::vector<int32_t> end_tokens;
  bool with_seen = false;  // penalties need the context's logits
  std::function<void(double done)> progress = [](double) {};
};

// One element for each target of each row, in order.
//   INVALID_ARGUMENT  an id outside the vocabulary (the row is named)
//   INTERNAL          LibTorch's message
absl::StatusOr<std::vector<TokenLogits>> RefereeForward(const RefereeModel& model,
                                                        std::span<const RefereeRow> rows,
                                                        const Variant& variant,
                                                        const ForwardOptions& options);

}  // namespace tandem::drift
