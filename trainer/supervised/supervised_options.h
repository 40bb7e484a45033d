// SupervisedOptions: how examples that are given are trained on, whatever the loss: order, batches,
// memory, records. Free of LibTorch.
#pragma once

#include <cstdint>

#include "common/model/numerics.h"
#include "common/options/options.h"

namespace tandem::trainer {

struct SupervisedOptions {
  int64_t epochs = 1;
  int64_t max_updates = 0;  // 0: all of the epochs
  int64_t batch = 32;       // examples of one update, over all ranks
  int64_t seed = 0;
  bool shuffle = true;
  int64_t microbatch_tokens = 4096;
  ComputeDType dtype = ComputeDType::kFp32;
  Device device = Device::kCpu;
  bool checkpoint_activations = false;
  bool shard_parameters = false;
  int64_t evaluate_every = 0;    // updates; 0: at the end only
  int64_t checkpoint_every = 0;  // updates; 0: when a signal stops the run
};
void BindOptions(OptionBinder& binder, SupervisedOptions& options);

// The optimizer updates of a run over `num_examples`; the last batch of an epoch may be smaller.
int64_t NumUpdates(const SupervisedOptions& options, int64_t num_examples);

}  // namespace tandem::trainer
