// WeightCaster: fp32 masters in the dtype of the servers, and what the cast did to the update
// (first half of arrow 9). Free of LibTorch in its header. Used by the trainer's learner before
// each push.
//
// Rounding to bfloat16: common/tensor/bf16_rounding.h.
// Use from one thread. Memory: a copy of the masters and of the last cast.
#ifndef TANDEM_TRAINER_WEIGHT_CAST_H_
#define TANDEM_TRAINER_WEIGHT_CAST_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/options.h"
#include "common/weights/host_tensor.h"

namespace tandem::trainer {

enum class Rounding { kNearest, kDither };
std::string_view RoundingName(Rounding rounding);  // "nearest", "dither"

struct WeightCastOptions {
  Rounding rounding = Rounding::kDither;
};
void BindOptions(OptionBinder& binder, WeightCastOptions& options);

// One tensor's masters [count] as a push sends them to a bf16 server. Parallel.
void CastToBf16(std::string_view name, const float* masters, int64_t count, Rounding rounding,
                uint16_t* out);

// What a cast did to an update u = masters - masters at the cast before, of which the servers see
// s = cast - cast before. Of the first cast everything is new: 1, 0, 0, 1.
struct CastNumbers {
  double changed_share = 1;  // elements whose bytes differ
  double update_norm = 0;    // ||u||
  double lost_norm = 0;      // ||u - s||: with dither mostly noise that averages out over elements
  // <s, u> / <u, u>: 1 when the update arrives whole on average or is 0, 0 when it is swallowed.
  double arrived_share = 1;
};

struct CastWeights {
  std::vector<HostTensor> tensors;  // names, shapes and order of the masters; own memory
  Rounding rounding = Rounding::kNearest;  // of a cast to kBF16
  CastNumbers numbers;
};

class WeightCaster {
 public:
  explicit WeightCaster(const WeightCastOptions& options);

  // Casts F32 `masters` to kF32 (a copy) or kBF16, and remembers both for the next call's numbers.
  //   INVALID_ARGUMENT  another dtype, or other tensors than the call before
  absl::StatusOr<CastWeights> Cast(std::span<const HostTensor> masters, DType dtype);

  // The nearest cast that a server makes of a directory at load: what `Cast` is compared with next.
  // Version 0 is made by this.
  absl::StatusOr<CastWeights> CastNearest(std::span<const HostTensor> masters, DType dtype);

 private:
  absl::StatusOr<CastWeights> CastWith(std::span<const HostTensor> masters, DType dtype,
                                       Rounding rounding);

  const WeightCastOptions options_;
  std::vector<std::vector<float>> last_masters_;
  std::vector<HostTensor> last_cast_;
};

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_WEIGHT_CAST_H_
