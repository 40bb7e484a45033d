#include "rollout_server/engine/cuda/device_draws.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "common/base/status_macros.h"
#include "rollout_server/engine/cuda/device_ops.h"
#include "rollout_server/engine/cuda/step/decode_step.h"

namespace tandem::rollout::cuda {
namespace {

template <typename T>
at::Tensor BytesFor(int64_t count) {
  return at::empty({count * static_cast<int64_t>(sizeof(T))}, On(at::kByte));
}

// Null for an undefined tensor.
template <typename T>
T* PointerOf(const at::Tensor& tensor, int64_t first) {
  return tensor.defined() ? static_cast<T*>(tensor.data_ptr()) + first : nullptr;
}

template <typename T>
T RecordAt(const at::Tensor& host, size_t i) {
  T record;
  std::memcpy(&record, static_cast<const char*>(host.const_data_ptr()) + i * sizeof(T), sizeof(T));
  return record;
}

// Errors as SampleToken's.
absl::Status StateOf(const Drawn& drawn) {
  switch (drawn.state) {
    case DrawState::kDrawn:
      return absl::OkStatus();
    case DrawState::kBroken:
      return absl::DataLossError("the model gave a logit that is NaN or +inf, or nothing but -inf");
    case DrawState::kNothingLeft:
      return absl::FailedPreconditionError("no token is left to draw from");
  }
  return absl::InternalError("the draw kernel left no state");
}

}  // namespace

DrawWants WantsOf(std::span<const TokenDraw> draws) {
  DrawWants wants;
  for (const TokenDraw& draw : draws) {
    wants.supports = wants.supports || RecordsSupport(*draw.params);
    wants.tops = wants.tops || draw.params->top_logprobs > 0;
  }
  return wants;
}

DrawMemory MakeDrawMemory(int64_t num_draws, int64_t vocabulary, const DrawWants& wants) {
  DrawMemory memory;
  memory.drawn = BytesFor<Drawn>(num_draws);
  if (wants.supports) memory.kept = at::empty({num_draws, KeptWords(vocabulary)}, On(at::kInt));
  if (wants.tops) memory.top = BytesFor<TopId>(num_draws * kMostTop);
  if (wants.scores) memory.scored = BytesFor<Scored>(num_draws);
  memory.workspace = at::empty({DrawWorkspaceBytes(vocabulary, num_draws)}, On(at::kByte));
  return memory;
}

DrawTask TaskOf(const DrawMemory& memory, const at::Tensor& logits, const Draw* draws,
                const int32_t* forbidden, int64_t first, int64_t count) {
  return {.logits = logits.const_data_ptr<float>(),
          .vocabulary = logits.size(1),
          .draws = draws + first,
          .num_draws = count,
          .forbidden = forbidden,
          .drawn = PointerOf<Drawn>(memory.drawn, first),
          .kept = PointerOf<uint32_t>(memory.kept, 0),  // its rows are named by the draws
          .top = PointerOf<TopId>(memory.top, first * kMostTop),
          .scored = PointerOf<Scored>(memory.scored, first),
          .workspace = memory.workspace.data_ptr()};
}

DrawMemory Fetch(const DrawMemory& memory, int64_t count, const DrawWants& wants) {
  DrawMemory host = FetchWanted(memory, count, wants);
  const auto bytes = count * static_cast<int64_t>(sizeof(Drawn));
  host.drawn = memory.drawn.narrow(0, 0, bytes).to(at::kCPU);
  return host;
}

DrawMemory FetchWanted(const DrawMemory& memory, int64_t count, const DrawWants& wants) {
  const auto head = [](const at::Tensor& bytes, int64_t size) {
    return bytes.narrow(0, 0, size).to(at::kCPU);
  };
  DrawMemory host;
  if (wants.supports) host.kept = head(memory.kept, count);
  if (wants.tops)
    host.top = head(memory.top, count * kMostTop * static_cast<int64_t>(sizeof(TopId)));
  if (wants.scores) host.scored = head(memory.scored, count * static_cast<int64_t>(sizeof(Scored)));
  return host;
}

absl::StatusOr<SampledToken> TokenAt(const DrawMemory& host, size_t i, const TokenDraw& draw) {
  const auto drawn = RecordAt<Drawn>(host.drawn, i);
  TANDEM_RETURN_IF_ERROR(StateOf(drawn));
  SampledToken token;
  token.id = drawn.id;
  token.behaviour_logprob = drawn.behaviour_logprob;
  token.raw_logprob = drawn.raw_logprob;
  token.entropy = drawn.entropy;
  token.logprob_second_moment = drawn.logprob_second_moment;
  token.kept_mass = drawn.kept_mass;
  if (RecordsSupport(*draw.params)) {
    const auto words = static_cast<size_t>(host.kept.size(1));
    token.support =
        KeptIds({static_cast<const uint32_t*>(host.kept.const_data_ptr()) + i * words, words});
  }
  for (int32_t t = 0; t < std::min(drawn.num_top, draw.params->top_logprobs); ++t) {
    const auto top = RecordAt<TopId>(host.top, i * kMostTop + static_cast<size_t>(t));
    token.top.push_back({top.id, top.logprob});
  }
  return token;
}

absl::StatusOr<ScoredToken> ScoreAt(const DrawMemory& host, size_t i) {
  const auto drawn = RecordAt<Drawn>(host.drawn, i);
  TANDEM_RETURN_IF_ERROR(StateOf(drawn));
  const auto scored = RecordAt<Scored>(host.scored, i);
  ScoredToken token;
  token.logprob = drawn.behaviour_logprob;
  token.raw_logprob = drawn.raw_logprob;
  token.entropy = drawn.entropy;
  token.logprob_second_moment = drawn.logprob_second_moment;
  token.squared_probs = scored.squared_probs;
  token.kept_mass = drawn.kept_mass;
  token.margin = scored.margin;
  token.rank = scored.rank;
  token.gap = scored.gap;
  token.mass_above = scored.mass_above;
  return token;
}

}  // namespace tandem::rollout::cuda
