// RolloutClientOptions: section trainer.client of a run file. Separate from the client, so that it is
// read without gRPC.
#pragma once

#include <cstdint>

#include "common/options/options.h"

namespace tandem::trainer {

struct RolloutClientOptions {
  int64_t groups_in_flight = 8;         // per server
  double call_timeout_seconds = 300;    // one GenerateGroup
  double server_patience_seconds = 60;  // without any server that is ready
  double start_patience_seconds = 0;  // the same before the first came; 0: server_patience_seconds

  double start_patience() const {
    return start_patience_seconds > 0 ? start_patience_seconds : server_patience_seconds;
  }
  double retry_initial_seconds = 0.1;
  double retry_max_seconds = 1;
  int64_t max_attempts = 8;              // of one group
  bool allow_incomplete_groups = false;  // whose completions a request cut short
};
void BindOptions(OptionBinder& binder, RolloutClientOptions& options);

}  // namespace tandem::trainer
