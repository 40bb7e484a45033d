#include "trainer/weight_push/weight_cast.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "common/base/status_macros.h"
#include "common/tensor/bf16_rounding.h"

namespace tandem::trainer {
namespace {

constexpr int64_t kBlock = 1 << 15;

void Add(CastSums of, CastSums& sums) {
  const std::vector<double*> from = of.all(), to = sums.all();
  for (size_t i = 0; i < to.size(); ++i) *to[i] += *from[i];
}

void Compare(const float* master, const float* last_master, const float* cast,
             const float* last_cast, int64_t count, CastSums& sums) {
  int64_t changed = 0;
  double update = 0, lost = 0, arrived = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double moved = static_cast<double>(master[i]) - last_master[i];
    const double sent = static_cast<double>(cast[i]) - last_cast[i];
    changed += std::bit_cast<uint32_t>(cast[i]) != std::bit_cast<uint32_t>(last_cast[i]);
    update += moved * moved;
    lost += (moved - sent) * (moved - sent);
    arrived += moved * sent;
  }
  Add({static_cast<double>(count), static_cast<double>(changed), update, lost, arrived}, sums);
}

void WidenBlock(const std::byte* bytes, DType dtype, int64_t first, int64_t count, float* out) {
  if (dtype == DType::kF32) {
    std::memcpy(out, bytes + first * 4, static_cast<size_t>(count) * 4);
    return;
  }
  const auto* values = reinterpret_cast<const uint16_t*>(bytes) + first;
  for (int64_t i = 0; i < count; ++i) out[i] = Bf16ToFloat(values[i]);
}

void CastBlock(const float* master, uint64_t name_hash, int64_t first, int64_t count,
               Rounding rounding, uint16_t* out) {
  if (rounding == Rounding::kNearest) {
    for (int64_t i = 0; i < count; ++i) out[i] = NearestBf16(master[i]);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    out[i] = DitherBf16(master[i], name_hash, static_cast<uint64_t>(first + i));
  }
}

HostTensor NewTensor(const TensorSpec& like, DType dtype) {
  HostTensor tensor{.spec = like};
  tensor.spec.dtype = dtype;
  const auto size = static_cast<size_t>(tensor.spec.num_bytes());
  auto bytes = std::shared_ptr<std::byte[]>(new std::byte[size]);
  tensor.bytes = {bytes.get(), size};
  tensor.owner = std::move(bytes);
  return tensor;
}

const float* Floats(const HostTensor& tensor) {
  return reinterpret_cast<const float*>(tensor.bytes.data());
}

// Casts one and, when there is one before it, compares. Then `last_master` is this one.
CastSums CastPart(const TensorPart& part, Rounding rounding, const HostTensor& result,
                  float* last_master, const HostTensor* last_cast) {
  const HostTensor& master = part.values;
  const int64_t count = master.spec.num_elements();
  const uint64_t name_hash = DitherNameHash(master.spec.name);
  const int64_t num_blocks = (count + kBlock - 1) / kBlock;
  std::vector<CastSums> sums(static_cast<size_t>(num_blocks));
  auto* out = const_cast<std::byte*>(result.bytes.data());  // made by NewTensor, not shared yet
  at::parallel_for(0, num_blocks, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> now(kBlock), before(kBlock);
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * kBlock, size = std::min(kBlock, count - first);
      const float* from = Floats(master) + first;
      if (result.spec.dtype == DType::kF32) {
        std::memcpy(out + first * 4, from, static_cast<size_t>(size) * 4);
      } else {
        CastBlock(from, name_hash, part.first + first, size, rounding,
                  reinterpret_cast<uint16_t*>(out) + first);
      }
      if (last_cast != nullptr) {
        WidenBlock(out, result.spec.dtype, first, size, now.data());
        WidenBlock(last_cast->bytes.data(), last_cast->spec.dtype, first, size, before.data());
        Compare(from, last_master + first, now.data(), before.data(), size,
                sums[static_cast<size_t>(b)]);
      }
      std::memcpy(last_master + first, from, static_cast<size_t>(size) * 4);
    }
  });
  CastSums total;
  for (const CastSums& of_block : sums) Add(of_block, total);
  return total;
}

absl::Status CheckMasters(std::span<const TensorPart> masters, DType dtype,
                          const std::vector<HostTensor>& last_cast) {
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    return InvalidArgument("cannot cast weights to ", DTypeName(dtype),
                           ": servers take F32 or BF16");
  }
  if (!last_cast.empty() && last_cast.size() != masters.size()) {
    return InvalidArgument("cast of ", masters.size(), " tensors after ", last_cast.size());
  }
  for (size_t i = 0; i < masters.size(); ++i) {
    const TensorSpec& spec = masters[i].values.spec;
    const bool as_before = last_cast.empty() || (last_cast[i].spec.name == spec.name &&
                                                 last_cast[i].spec.shape == spec.shape);
    if (spec.dtype != DType::kF32 || !as_before ||
        static_cast<int64_t>(masters[i].values.bytes.size()) != spec.num_bytes()) {
      return InvalidArgument(spec.ToString(), " is not the F32 master that was cast before");
    }
  }
  return absl::OkStatus();
}

}  // namespace

void BindOptions(OptionBinder& binder, WeightCastOptions& options) {
  binder.Choice(
      "rounding", &options.rounding,
      {{"nearest", Rounding::kNearest}, {"dither", Rounding::kDither}},
      "of fp32 masters to a bf16 server: dither keeps small updates, nearest swallows them");
}

void CastToBf16(std::string_view name, int64_t first, const float* masters, int64_t count,
                Rounding rounding, uint16_t* out) {
  const uint64_t name_hash = DitherNameHash(name);
  at::parallel_for(0, count, kBlock, [&](int64_t begin, int64_t end) {
    CastBlock(masters + begin, name_hash, first + begin, end - begin, rounding, out + begin);
  });
}

CastNumbers CastSums::Numbers() const {
  if (num_elements == 0) return {};
  return {.changed_share = changed / num_elements,
          .update_norm = std::sqrt(update),
          .lost_norm = std::sqrt(lost),
          .arrived_share = update > 0 ? arrived / update : 1};
}

absl::StatusOr<CastParts> WeightCaster::Cast(std::span<const TensorPart> masters, DType dtype,
                                             Rounding rounding) {
  TANDEM_RETURN_IF_ERROR(CheckMasters(masters, dtype, last_cast_));
  const bool first = last_cast_.empty();
  if (first) last_masters_.resize(masters.size());
  CastParts result;
  for (size_t i = 0; i < masters.size(); ++i) {
    const HostTensor& master = masters[i].values;
    const HostTensor tensor = NewTensor(master.spec, dtype);
    last_masters_[i].resize(static_cast<size_t>(master.spec.num_elements()));
    const CastSums sums = CastPart(masters[i], rounding, tensor, last_masters_[i].data(),
                                   first ? nullptr : &last_cast_[i]);
    Add(sums, result.sums);
    result.tensors.push_back(tensor);
  }
  last_cast_ = result.tensors;
  return result;
}

}  // namespace tandem::trainer
