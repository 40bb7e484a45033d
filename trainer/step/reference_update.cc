#include "trainer/step/reference_update.h"

#include <ATen/core/grad_mode.h>

#include <vector>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/tensor/torch_status.h"

namespace tandem::trainer {

absl::StatusOr<bool> MoveReference(const ReferenceOptions& options, int64_t steps_done,
                                   PlacedPolicy& policy, PlacedPolicy& reference) {
  const bool resets =
      options.kind == ReferenceKind::kReset && steps_done % options.reset_every == 0;
  if (!resets && options.kind != ReferenceKind::kEma) return false;
  TANDEM_RETURN_IF_ERROR(CatchTorch("reference policy", [&] {
    const at::NoGradGuard no_grad;
    const std::vector<at::Tensor> from = policy.buckets().OwnMasters();
    const std::vector<at::Tensor> to = reference.buckets().OwnMasters();
    TANDEM_CHECK(from.size() == to.size());
    for (size_t i = 0; i < to.size(); ++i) {
      if (resets) {
        to[i].copy_(from[i]);
      } else {
        to[i].lerp_(from[i], 1 - options.ema_decay);
      }
    }
  }));
  TANDEM_RETURN_IF_ERROR(reference.buckets().ShareMasters());
  reference.policy().WeightsChanged();
  return resets;
}

}  // namespace tandem::trainer
