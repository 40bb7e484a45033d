#include "trainer/ranks/rank_options.h"

namespace tandem::trainer {

void BindOptions(OptionBinder& binder, RankOptions& options) {
  binder.Number("meet_seconds", &options.meet_seconds, {.min = 1}, "s",
                "for all ranks of a launch to find each other");
  binder.Number("deadline_seconds", &options.deadline_seconds, {.min = 1}, "s",
                "of one collective operation: a rank that is further behind is lost");
  binder.Number("lag_seconds", &options.lag_seconds, {.min = 1}, "s",
                "a rank that others wait for longer is named in their logs, and not ended");
  binder.Flag("shard_parameters", &options.shard_parameters,
              "each rank holds its part of weights and gradients only, and gathers them layer by "
              "layer in every pass: for models that do not fit one rank; slower");
  binder.Number("silence_seconds", &options.silence_seconds, {.min = 1}, "s",
                "rank 0 may be silent so long while the others wait for it");
}

}  // namespace tandem::trainer
