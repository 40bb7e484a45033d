// RankOptions: knobs of a trainer of several processes. How many there are, the launcher says
// (common/rendezvous/rank_environment.h).
#ifndef TANDEM_TRAINER_RANKS_RANK_OPTIONS_H_
#define TANDEM_TRAINER_RANKS_RANK_OPTIONS_H_

#include "common/options/options.h"

namespace tandem::trainer {

struct RankOptions {
  double meet_seconds = 300;      // for all ranks to come
  double deadline_seconds = 600;  // of one collective operation
  double lag_seconds = 30;        // that others wait for a rank before it is named
  bool shard_parameters = false;
  double silence_seconds = 60;  // of rank 0, while the others wait for an order
};
void BindOptions(OptionBinder& binder, RankOptions& options);

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_RANKS_RANK_OPTIONS_H_
