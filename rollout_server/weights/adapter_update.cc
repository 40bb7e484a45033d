#include "rollout_server/weights/adapter_update.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <thread>

#include "common/base/status_macros.h"
#include "common/process/thread_team.h"

namespace tandem::rollout {
namespace {

constexpr int64_t kRowsAtOnce = 64;

// Rows of one module.
struct Part {
  size_t module;
  int64_t first, rows;
};

template <typename T>
LoraEffect Serve(const LoraFactors& factors, const std::string& name, bool dither, const Part& part,
                 const HostTensor& base, std::byte* to) {
  const int64_t at = part.first * factors.in;
  return ServeMerged(factors, name, dither, part.first, part.rows,
                     reinterpret_cast<const T*>(base.bytes.data()) + at,
                     reinterpret_cast<T*>(to) + at);
}

}  // namespace

absl::StatusOr<std::unique_ptr<AdapterUpdate>> AdapterUpdate::Create(
    const AdapterHeader& header, std::vector<TensorSpec> manifest,
    const std::vector<TensorSpec>& model) {
  if (!std::isfinite(header.scaling) || header.scaling <= 0) {
    return InvalidArgument("the adapter's scaling is ", header.scaling);
  }
  auto update = std::make_unique<AdapterUpdate>();
  TANDEM_ASSIGN_OR_RETURN(update->modules_, ModulesOf(manifest, header.rank, model));
  for (const LoraModule& module : update->modules_) {
    const auto place = std::ranges::find(model, module.weight, &TensorSpec::name);
    update->places_.push_back(static_cast<size_t>(place - model.begin()));
  }
  update->header_ = header;
  update->manifest_ = std::move(manifest);
  return update;
}

MergedAdapter AdapterUpdate::Merge(const std::vector<StagedTensor>& arrived,
                                   const std::vector<HostTensor>& base,
                                   const DigestMap& base_digests,
                                   std::vector<std::shared_ptr<TensorMemory>>& memory) const {
  MergedAdapter merged = {.tensors = base, .effects = {}, .digests = base_digests};
  std::vector<Part> parts;
  for (size_t m = 0; m < modules_.size(); ++m) {
    const HostTensor& of_base = base[places_[m]];
    const bool is_ours = memory[m] != nullptr && memory[m].use_count() == 1;
    if (!is_ours) memory[m] = TakenMemory(of_base.spec);
    for (int64_t first = 0; first < modules_[m].out; first += kRowsAtOnce) {
      parts.push_back({m, first, std::min(kRowsAtOnce, modules_[m].out - first)});
    }
  }
  std::vector<LoraEffect> effects(parts.size());
  std::vector<std::string> digests(modules_.size());
  ThreadTeam team(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  team.Run([&](ThreadTeam::Member& member) {
    member.ForEach(std::ssize(parts), [&](int64_t i) {
      const Part& part = parts[static_cast<size_t>(i)];
      const LoraFactors factors = {
          reinterpret_cast<const float*>(arrived[2 * part.module].bytes().data()),
          reinterpret_cast<const float*>(arrived[2 * part.module + 1].bytes().data()), header_.rank,
          modules_[part.module].in, header_.scaling};
      const HostTensor& of_base = base[places_[part.module]];
      std::byte* const to = memory[part.module].get();
      const auto serve = of_base.spec.dtype == DType::kBF16 ? Serve<uint16_t> : Serve<float>;
      effects[static_cast<size_t>(i)] =
          serve(factors, modules_[part.module].weight, header_.dither, part, of_base, to);
    });
    member.ForEach(std::ssize(modules_), [&](int64_t m) {
      const auto size = static_cast<size_t>(base[places_[static_cast<size_t>(m)]].spec.num_bytes());
      digests[static_cast<size_t>(m)] = Digest128({memory[static_cast<size_t>(m)].get(), size});
    });
  });
  for (size_t m = 0; m < modules_.size(); ++m) {
    HostTensor& tensor = merged.tensors[places_[m]];
    tensor.bytes = {memory[m].get(), static_cast<size_t>(tensor.spec.num_bytes())};
    tensor.owner = memory[m];
    merged.digests[modules_[m].weight] = digests[m];
    merged.effects.push_back({modules_[m].weight, {}});
  }
  for (size_t i = 0; i < parts.size(); ++i) merged.effects[parts[i].module].effect += effects[i];
  return merged;
}

UnmergedAdapter AdapterUpdate::Unmerged(const std::vector<StagedTensor>& arrived,
                                        const DigestMap& base_digests) const {
  UnmergedAdapter unmerged = {.factors = {modules_, {}, header_.rank, header_.scaling},
                              .effects = {},
                              .digests = base_digests};
  for (size_t i = 0; i < arrived.size(); ++i) {
    unmerged.factors.tensors.push_back({manifest_[i], arrived[i].bytes(), arrived[i].memory()});
  }
  for (size_t m = 0; m < modules_.size(); ++m) {
    const double change = SquaredChange(unmerged.factors, m);
    const int64_t elements = modules_[m].out * modules_[m].in;
    unmerged.effects.push_back({modules_[m].weight,
                                {.squared_change = change,
                                 .arrived = change,
                                 .squared_loss = 0,
                                 .changed = change > 0 ? elements : 0}});
    std::string& digest = unmerged.digests[modules_[m].weight];
    digest = UnmergedDigest(digest, arrived[2 * m].bytes(), arrived[2 * m + 1].bytes());
  }
  return unmerged;
}

}  // namespace tandem::rollout
