// RankOptions: options of a trainer of several processes. The launcher decides how many processes
// there are (common/rendezvous/rank_environment.h).
#pragma once

#include "common/options/options.h"

namespace tandem::trainer {

struct RankOptions {
  double meet_seconds = 300;      // until all ranks have found each other
  double deadline_seconds = 600;  // for one collective operation
  double lag_seconds = 30;        // after which a rank that others wait for is named
  bool shard_parameters = false;
  double silence_seconds = 60;  // that rank 0 may be silent while others wait
};
void BindOptions(OptionBinder& binder, RankOptions& options);

}  // namespace tandem::trainer
