// WeightCaster: fp32 masters in the dtype of the servers, and what the cast did to the update
// (first half of stage 9). Free of LibTorch in its header. Used by the trainer's learner before
// each push.
//
// Rounding to bfloat16: common/tensor/bf16_rounding.h.
// Use from one thread. Memory: a copy of the masters and of the last cast.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/options/options.h"
#include "common/weights/host_tensor.h"
#include "trainer/weight_push/bucket_source.h"

namespace tandem::trainer {

struct AdapterPush;

enum class Rounding { kNearest, kDither };
inline std::string_view RoundingName(Rounding rounding) {
  return rounding == Rounding::kNearest ? "nearest" : "dither";
}

struct WeightCastOptions {
  Rounding rounding = Rounding::kDither;
};
void BindOptions(OptionBinder& binder, WeightCastOptions& options);

// Masters [count] of a tensor from element `first` on, as a push sends them to a bf16 server.
// Parallel.
void CastToBf16(std::string_view name, int64_t first, const float* masters, int64_t count,
                Rounding rounding, uint16_t* out);

// The effect of a cast on an update u = masters - masters at the cast before. The servers see
// s = cast - cast before. In the first cast everything is new: 1, 0, 0, 1.
struct CastNumbers {
  double changed_share = 1;  // elements whose bytes differ
  double update_norm = 0;    // ||u||
  double lost_norm = 0;      // ||u - s||: with dither mostly noise that averages out over elements
  // <s, u> / <u, u>: 1 when the update arrives whole on average or is 0, 0 when it is swallowed.
  double arrived_share = 1;
};

// The sums behind CastNumbers. They add up over tensors, and over ranks that cast slices of them.
struct CastSums {
  double num_elements = 0, changed = 0;  // 0 elements: a first cast
  double update = 0, lost = 0, arrived = 0;

  std::vector<double*> all() { return {&num_elements, &changed, &update, &lost, &arrived}; }
  CastNumbers Numbers() const;
};

// Part of a tensor, or all of it.
struct TensorPart {
  HostTensor values;  // of the tensor's name; [num_elements] where it is a part
  int64_t first = 0;  // element of the tensor
};

inline std::vector<HostTensor> ValuesOf(const std::vector<TensorPart>& parts) {
  std::vector<HostTensor> values;
  for (const TensorPart& part : parts) values.push_back(part.values);
  return values;
}

struct CastParts {
  std::vector<HostTensor> tensors;  // names, shapes and order of the masters; own memory
  CastSums sums;
};

// A version as servers get it.
struct CastWeights {
  std::vector<TensorSource> tensors;  // names, shapes and order of the masters
  // The same bytes made on the device that the masters lie on, until they change; null: they do not
  // lie on one, or not whole.
  std::shared_ptr<BucketSource> on_device;
  Rounding rounding = Rounding::kNearest;  // of a cast to kBF16
  CastNumbers numbers;
  std::shared_ptr<const AdapterPush> adapter;  // then `tensors` are an adapter's, F32
};

class WeightCaster {
 public:
  // Casts F32 `masters` to kF32 (a copy) or kBF16, and remembers both for the next call's sums.
  // Version 0 is cast to nearest, because a server that loads a model directory rounds it so.
  //   INVALID_ARGUMENT  another dtype, or other tensors than the call before
  absl::StatusOr<CastParts> Cast(std::span<const TensorPart> masters, DType dtype,
                                 Rounding rounding);

 private:
  std::vector<std::vector<float>> last_masters_;
  std::vector<HostTensor> last_cast_;
};

}  // namespace tandem::trainer
