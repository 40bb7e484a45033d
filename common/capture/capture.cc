#include "common/capture/capture.h"

#include <algorithm>
#include <cstddef>

#include "common/base/status_macros.h"

namespace tandem::offpolicy {
namespace {

absl::Status CheckLength(const char* column, size_t length, int64_t want, const char* of) {
  if (static_cast<int64_t>(length) == want) return absl::OkStatus();
  return InvalidArgument("capture: column ", column, " has ", length, " entries for ", want, " ",
                         of);
}

absl::Status CheckOffsets(const char* column, const std::vector<int64_t>& offsets, int64_t end,
                          bool may_be_empty) {
  bool rising = !offsets.empty() && offsets.front() == 0 && offsets.back() == end;
  for (size_t i = 1; rising && i < offsets.size(); ++i) {
    rising = may_be_empty ? offsets[i] >= offsets[i - 1] : offsets[i] > offsets[i - 1];
  }
  if (rising) return absl::OkStatus();
  return InvalidArgument("capture: ", column, " does not rise from 0 to ", end,
                         may_be_empty ? "" : " without an empty part");
}

absl::Status CheckCompletionColumns(const Capture& c) {
  const int64_t s = c.num_completions();
  const auto check = [&](const char* column, const auto& values) {
    return CheckLength(column, values.size(), s, "completions");
  };
  TANDEM_RETURN_IF_ERROR(check("completion_index", c.completion_index));
  TANDEM_RETURN_IF_ERROR(check("reward", c.reward));
  TANDEM_RETURN_IF_ERROR(check("masked", c.masked));
  TANDEM_RETURN_IF_ERROR(check("finish", c.finish));
  TANDEM_RETURN_IF_ERROR(check("token_hash", c.token_hash));
  TANDEM_RETURN_IF_ERROR(check("seed", c.seed));
  for (size_t i = 0; i < c.group.size(); ++i) {
    const bool in_order = i == 0 || c.group[i] >= c.group[i - 1];
    if (in_order && c.group[i] >= 0 && c.group[i] < c.num_groups()) continue;
    return InvalidArgument("capture: completion ", i, " is of group ", c.group[i], " of ",
                           c.num_groups(), "; groups must come in order");
  }
  return absl::OkStatus();
}

absl::Status CheckTokenColumns(const Capture& c) {
  const int64_t t = c.num_tokens();
  const auto check = [&](const char* column, const auto& values) {
    return CheckLength(column, values.size(), t, "tokens");
  };
  TANDEM_RETURN_IF_ERROR(check("behaviour_logprobs", c.behaviour_logprobs));
  TANDEM_RETURN_IF_ERROR(check("raw_logprobs", c.raw_logprobs));
  TANDEM_RETURN_IF_ERROR(check("proximal_logprobs", c.proximal_logprobs));
  TANDEM_RETURN_IF_ERROR(check("entropies", c.entropies));
  TANDEM_RETURN_IF_ERROR(check("logprob_second_moments", c.logprob_second_moments));
  TANDEM_RETURN_IF_ERROR(check("kept_mass", c.kept_mass));
  TANDEM_RETURN_IF_ERROR(check("advantages", c.advantages));
  if (!c.token_rewards.empty()) {
    TANDEM_RETURN_IF_ERROR(check("token_rewards", c.token_rewards));
  }
  if (!c.turn.empty()) TANDEM_RETURN_IF_ERROR(check("turn", c.turn));
  TANDEM_RETURN_IF_ERROR(check("weight_version", c.weight_version));
  TANDEM_RETURN_IF_ERROR(check("decode_batch_size", c.decode_batch_size));
  return check("prefix_cached", c.prefix_cached);
}

// Turns count from 1 in each completion, with given tokens between them and nowhere else.
absl::Status CheckTurns(const Capture& c) {
  if (c.turn.empty()) return absl::OkStatus();
  for (int64_t s = 0; s < c.num_completions(); ++s) {
    const auto begin = c.turn.begin() + c.begin_of(s), end = begin + std::ssize(c.ids(s));
    int32_t turn = *begin;
    bool good = turn == 1 && *(end - 1) != 0;
    for (auto one = begin + 1; good && one != end; ++one) {
      const bool is_next = *(one - 1) == 0 && *one == turn + 1;
      good = *one == 0 || *one == *(one - 1) || is_next;
      turn = std::max(turn, *one);
    }
    if (good) continue;
    return InvalidArgument("capture: column turn of completion ", s,
                           " does not count 1, 2, ... with 0 between the turns alone");
  }
  return absl::OkStatus();
}

// The part of a concatenation at `place`, by the offsets of all parts.
template <typename T>
std::span<const T> PartOf(const std::vector<T>& all, const std::vector<int64_t>& offsets,
                          int64_t place) {
  const auto begin = static_cast<size_t>(offsets[static_cast<size_t>(place)]);
  const auto end = static_cast<size_t>(offsets[static_cast<size_t>(place) + 1]);
  return std::span(all).subspan(begin, end - begin);
}

std::string_view PackedOf(const Capture& c, int64_t token) {
  const auto bytes = PartOf(c.packed_support, c.packed_support_offsets, token);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// SupportView requires bytes that have been checked.
absl::Status CheckSupports(const Capture& c) {
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < c.num_tokens(); ++t) {
    ids.clear();
    const absl::Status good = UnpackSupport(PackedOf(c, t), kMostIds, &ids);
    if (good.ok()) continue;
    return InvalidArgument("packed_support of token ", t, ": ", good.message());
  }
  return absl::OkStatus();
}

}  // namespace

std::span<const int32_t> Capture::prompt(int64_t group_place) const {
  return PartOf(prompt_ids, prompt_offsets, group_place);
}

std::span<const int32_t> Capture::ids(int64_t completion) const {
  return PartOf(token_ids, token_offsets, completion);
}

SupportView Capture::support(int64_t token) const {
  return SupportView::OfBytes(PackedOf(*this, token));
}

const CapturedWeights* Capture::WeightsOf(int64_t version) const {
  const auto found = std::ranges::find(manifest.weights, version, &CapturedWeights::version);
  return found == manifest.weights.end() ? nullptr : &*found;
}

CaptureRecord MakeCaptureRecord(const Capture& capture) {
  CaptureRecord record;
  for (int64_t s = 0; s < capture.num_completions(); ++s) {
    const int64_t begin = capture.begin_of(s), end = begin + std::ssize(capture.ids(s));
    int32_t num_drawn = 0;
    for (int64_t t = begin; t < end; ++t) {
      record.sequence.push_back(static_cast<int32_t>(s));
      record.position.push_back(num_drawn);
      record.mask.push_back(!capture.masked[static_cast<size_t>(s)] && capture.is_drawn(t));
      num_drawn += capture.is_drawn(t);
    }
    record.length.push_back(num_drawn);
  }
  for (const int64_t version : capture.weight_version) {
    record.version_lag.push_back(
        static_cast<int32_t>(std::max<int64_t>(0, capture.manifest.proximal_version - version)));
  }
  return record;
}

TokenRecord RecordOf(const Capture& capture, const CaptureRecord& columns) {
  return {capture.behaviour_logprobs,
          capture.proximal_logprobs,
          capture.entropies,
          capture.logprob_second_moments,
          capture.advantages,
          columns.sequence,
          columns.position,
          columns.version_lag,
          columns.mask,
          capture.group,
          columns.length,
          capture.turn};
}

absl::Status CheckCapture(const Capture& capture) {
  const auto ids = static_cast<int64_t>(capture.prompt_ids.size());
  const auto supports = static_cast<int64_t>(capture.packed_support.size());
  TANDEM_RETURN_IF_ERROR(CheckLength("prompt_offsets", capture.prompt_offsets.size(),
                                     capture.num_groups() + 1, "ends of prompts"));
  TANDEM_RETURN_IF_ERROR(CheckLength("token_offsets", capture.token_offsets.size(),
                                     capture.num_completions() + 1, "ends of completions"));
  TANDEM_RETURN_IF_ERROR(CheckLength("packed_support_offsets",
                                     capture.packed_support_offsets.size(),
                                     capture.num_tokens() + 1, "ends of supports"));
  TANDEM_RETURN_IF_ERROR(CheckOffsets("prompt_offsets", capture.prompt_offsets, ids, false));
  TANDEM_RETURN_IF_ERROR(
      CheckOffsets("token_offsets", capture.token_offsets, capture.num_tokens(), false));
  TANDEM_RETURN_IF_ERROR(
      CheckOffsets("packed_support_offsets", capture.packed_support_offsets, supports, true));
  TANDEM_RETURN_IF_ERROR(CheckSupports(capture));
  TANDEM_RETURN_IF_ERROR(CheckCompletionColumns(capture));
  TANDEM_RETURN_IF_ERROR(CheckTokenColumns(capture));
  return CheckTurns(capture);
}

}  // namespace tandem::offpolicy
