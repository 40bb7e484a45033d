// KeptMasters: masters as they were when a learner kept them. Free of LibTorch and protobuf.
#ifndef TANDEM_TRAINER_RANKS_KEPT_MASTERS_H_
#define TANDEM_TRAINER_RANKS_KEPT_MASTERS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "common/model/tensor_source.h"

namespace tandem::trainer {

struct KeptMasters {
  int64_t number = 0;                 // of this learner's
  std::vector<TensorSource> tensors;  // F32, Hugging Face names
  std::shared_ptr<const void> owner;  // they are kept as long as this
};

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_RANKS_KEPT_MASTERS_H_
