#include "trainer/policy/cuda/device_cast.h"

#include <ATen/ops/empty.h>

#include <array>

#include "common/base/status_macros.h"
#include "common/tensor/bf16_rounding.h"
#include "common/tensor/torch_status.h"
#include "trainer/policy/cuda/launch.h"
#include "trainer/policy/cuda/training_kernels.h"

namespace tandem::trainer {
namespace {

class DeviceCast : public BucketSource {
 public:
  DeviceCast(const std::vector<NamedParameter>& masters, DType dtype, Rounding rounding)
      : dtype_(dtype), rounding_(rounding) {
    for (const NamedParameter& each : masters) {
      masters_.push_back({DitherNameHash(each.name), each.master.detach().view(-1)});
    }
  }

  Device memory() const override {
    return masters_.empty() || masters_[0].values.is_cpu() ? Device::kCpu : Device::kCuda;
  }

  absl::StatusOr<std::span<std::byte>> Fill(size_t place, const Bucket& bucket) override {
    const int64_t width = DTypeBytes(dtype_);
    for (const BucketSlice& slice : bucket.slices) {
      if (slice.offset % width == 0 && slice.length % width == 0) continue;
      return InvalidArgument(slice.length, " bytes at ", slice.offset, " of tensor ", slice.tensor,
                             " cut an element in two: want buckets of a multiple of ", width,
                             " bytes");
    }
    at::Tensor& buffer = buffers_[place];
    TANDEM_RETURN_IF_ERROR(CatchTorch("a bucket on the device", [&] {
      if (!buffer.defined() || buffer.numel() < bucket.num_bytes) {
        buffer = at::Tensor();
        buffer = at::empty({bucket.num_bytes}, masters_[0].values.options().dtype(at::kByte));
      }
      int64_t at = 0;
      for (const BucketSlice& slice : bucket.slices) {
        Write(slice, buffer.narrow(0, at, slice.length));
        at += slice.length;
      }
      CheckLaunch("cast");
    }));
    return std::span(static_cast<std::byte*>(buffer.data_ptr()),
                     static_cast<size_t>(bucket.num_bytes));
  }

 private:
  struct Master {
    uint64_t name_hash;
    at::Tensor values;  // [num_elements]
  };

  void Write(const BucketSlice& slice, const at::Tensor& to) const {
    const Master& master = masters_[static_cast<size_t>(slice.tensor)];
    const int64_t width = DTypeBytes(dtype_);
    const int64_t first = slice.offset / width, count = slice.length / width;
    const at::Tensor from = master.values.narrow(0, first, count);
    if (dtype_ == DType::kF32) {
      to.copy_(from.view(at::kByte));
      return;
    }
    cuda::RunWeightCast({.masters = from.const_data_ptr<float>(),
                         .count = count,
                         .dither = rounding_ == Rounding::kDither,
                         .name_hash = master.name_hash,
                         .first = first,
                         .out = static_cast<uint16_t*>(to.data_ptr())},
                        CurrentStream());
  }

  const DType dtype_;
  const Rounding rounding_;
  std::vector<Master> masters_;
  std::array<at::Tensor, 2> buffers_;  // bytes
};

}  // namespace

std::shared_ptr<BucketSource> MakeDeviceCast(const std::vector<NamedParameter>& masters,
                                             DType dtype, Rounding rounding) {
  return std::make_shared<DeviceCast>(masters, dtype, rounding);
}

}  // namespace tandem::trainer
