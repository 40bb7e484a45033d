#include "rollout_server/engine/cuda/cuda_arrival.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>

#include <utility>

#include "common/base/status_macros.h"
#include "common/cuda/kernels.h"
#include "common/tensor/torch_status.h"
#include "common/weights/digest.h"
#include "rollout_server/engine/cuda/device_ops.h"

namespace tandem::rollout {
namespace {

at::ScalarType TypeOf(DType dtype) { return dtype == DType::kBF16 ? at::kBFloat16 : at::kFloat; }

// Runs `work` on the stream of uploads and waits for it.
template <typename Work>
absl::Status OnUploads(const char* what, const Work& work) {
  return CatchTorch(what, [&] {
    const c10::InferenceMode inference;
    const c10::Stream stream = cuda::StreamOfUploads();
    const c10::StreamGuard guard(stream);
    work();
    cuda::Wait(stream);
    if (const char* const error = tandem::cuda::KernelError())
      TORCH_CHECK(false, "a kernel failed: ", error);
  });
}

// The bytes of the tensor in `dtype`. A bf16 tensor that is stored as fp32 was widened by appending
// zeros, so the upper halves are the bits that arrived.
at::Tensor BitsOf(const at::Tensor& place, DType dtype) {
  if (place.scalar_type() == TypeOf(dtype)) return place;
  return place.view(-1).view(at::kShort).slice(0, 1, std::nullopt, 2).contiguous();
}

absl::Status Sealed() {
  return absl::FailedPreconditionError("the weights are sealed: nothing more goes in");
}

}  // namespace

CudaArrival::CudaArrival(const ModelConfig& config, DType dtype, std::unique_ptr<CudaWeights> spare,
                         GiveBack give_back)
    : dtype_(dtype), give_back_(std::move(give_back)), weights_(std::move(spare)) {
  const c10::InferenceMode inference;
  const c10::StreamGuard guard(cuda::StreamOfUploads());
  if (!weights_) weights_ = std::make_unique<CudaWeights>();
  places_ = TensorPlaces(config, dtype, *weights_);
}

CudaArrival::~CudaArrival() {
  std::unique_ptr<StagedWeights> left;
  {
    MutexLock lock(&mu_);
    left = std::move(weights_);
  }
  if (left) give_back_(std::move(left));
}

absl::StatusOr<std::span<std::byte>> CudaArrival::Buffer(size_t index, int64_t num_bytes) {
  MutexLock lock(&mu_);
  if (sealed_) return Sealed();
  at::Tensor& buffer = weights_->buffers[index];
  if (!buffer.defined() || buffer.numel() < num_bytes) {
    try {
      const c10::InferenceMode inference;
      const c10::StreamGuard guard(cuda::StreamOfUploads());
      buffer = at::Tensor();
      buffer = at::empty({num_bytes}, cuda::On(at::kByte));
    } catch (const c10::OutOfMemoryError&) {
      return ResourceExhausted(
          "no device memory for a bucket of ", num_bytes,
          " bytes: lower trainer.push.group.bucket_bytes or engine.kv_capacity_tokens");
    } catch (const std::exception& error) {
      return Internal("memory for a bucket on the device: ", error.what());
    }
  }
  return std::span(static_cast<std::byte*>(buffer.data_ptr()), static_cast<size_t>(num_bytes));
}

absl::Status CudaArrival::Write(size_t index, int64_t offset, std::span<const std::byte> bytes) {
  const int64_t width = DTypeBytes(dtype_), length = static_cast<int64_t>(bytes.size());
  MutexLock lock(&mu_);
  if (sealed_) return Sealed();
  if (index >= places_.size()) {
    return OutOfRange("tensor ", index, " of ", places_.size());
  }
  const at::Tensor& place = places_[index];
  const int64_t size = place.numel() * width;
  if (offset < 0 || offset > size || length > size - offset) {
    return OutOfRange(length, " bytes at ", offset, " end past the ", size, " bytes of tensor ",
                      index);
  }
  if (offset % width != 0 || length % width != 0) {
    return InvalidArgument(length, " bytes at ", offset, " of tensor ", index,
                           " cut an element in two: want buckets of a multiple of ", width,
                           " bytes");
  }
  if (length == 0) return absl::OkStatus();
  return OnUploads("weights from a bucket to their place", [&] {
    // from_blob wants a mutable pointer; copy_ only reads.
    const at::Tensor from = at::from_blob(const_cast<std::byte*>(bytes.data()), {length / width},
                                          cuda::On(TypeOf(dtype_)));
    place.view(-1).narrow(0, offset / width, length / width).copy_(from);
  });
}

absl::StatusOr<std::vector<std::string>> CudaArrival::Seal() {
  MutexLock lock(&mu_);
  sealed_ = true;
  const auto count = static_cast<int64_t>(places_.size());
  at::Tensor host;
  TANDEM_RETURN_IF_ERROR(OnUploads("digests of weights on the device", [&] {
    const at::Tensor sums = at::zeros({count, 2}, cuda::On(at::kLong));
    std::vector<at::Tensor> read;  // alive until the kernels have ended
    for (int64_t i = 0; i < count; ++i) {
      const at::Tensor& bits = read.emplace_back(BitsOf(places_[static_cast<size_t>(i)], dtype_));
      tandem::cuda::RunWordSums(
          {.bytes = bits.const_data_ptr(),
           .num_bytes = static_cast<int64_t>(bits.nbytes()),
           .sums = reinterpret_cast<uint64_t*>(sums.data_ptr<int64_t>()) + 2 * i},
          cuda::CurrentStream());
    }
    host = sums.to(at::kCPU);  // waits
  }));
  std::vector<std::string> texts;
  const auto* const sums = reinterpret_cast<const uint64_t*>(host.const_data_ptr<int64_t>());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t num_bytes = places_[static_cast<size_t>(i)].numel() * DTypeBytes(dtype_);
    texts.push_back(WordSumsText({sums[2 * i], sums[2 * i + 1]}, num_bytes));
  }
  return texts;
}

std::unique_ptr<StagedWeights> CudaArrival::Take() {
  MutexLock lock(&mu_);
  places_.clear();
  return std::move(weights_);
}

}  // namespace tandem::rollout
