// PassWatch: calls that a pass through the policy makes on its way, for whoever brings parameters
// and takes gradients away (trainer/optimizer/parameter_buckets.h).
#pragma once

#include <cstddef>
#include <functional>

namespace tandem::trainer {

// A pass goes through the parts of the model, called its stages: forward from the embedding to the
// head, backward from the head to the embedding. They are counted in the order of the backward
// pass: 0 is the head with the final norm, then come the layers from the last to the first, and the
// embedding is the end. (The data path has stages too; those have nothing to do with these.)
enum class Pass { kForward, kBackward };

// Calls that a pass makes, on its thread.
struct PassWatch {
  // `begin` is called before a stage reads its parameters' masters or writes their gradients, `end`
  // after it did. After a backward stage the gradients of parameters that no later stage uses are
  // complete for this pass.
  std::function<void(Pass pass, size_t stage)> begin, end;
  // Masters have memory only from begin to end, so no cast of them may be kept.
  bool masters_come_and_go = false;
};

}  // namespace tandem::trainer
