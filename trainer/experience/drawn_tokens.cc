#include "trainer/experience/drawn_tokens.h"

#include "common/base/status_macros.h"

namespace tandem::trainer {

using rollout::v1::Completion;

int64_t NumDrawn(const Completion& completion) {
  int64_t drawn = completion.token_ids_size();
  for (const auto& segment : completion.segments()) {
    if (segment.given()) drawn -= segment.num_tokens();
  }
  return drawn;
}

int64_t NumTurns(const Completion& completion) {
  if (!HasTurns(completion)) return 1;
  int64_t turns = 0;
  for (const auto& segment : completion.segments()) turns += !segment.given();
  return turns;
}

std::string_view LastTurnText(const Completion& completion) {
  return HasTurns(completion) ? completion.segments().rbegin()->text() : completion.text();
}

std::vector<int32_t> TurnEnds(const Completion& completion) {
  if (!HasTurns(completion)) return {completion.token_ids_size()};
  std::vector<int32_t> ends;
  int32_t end = 0;
  for (const auto& segment : completion.segments()) {
    end += segment.num_tokens();
    if (!segment.given()) ends.push_back(end);
  }
  return ends;
}

std::vector<int32_t> TurnsOf(const Completion& completion) {
  const auto length = static_cast<size_t>(completion.token_ids_size());
  if (!HasTurns(completion)) return std::vector<int32_t>(length, 1);
  std::vector<int32_t> turns;
  int32_t turn = 0;
  for (const auto& segment : completion.segments()) {
    turn += !segment.given();
    turns.insert(turns.end(), static_cast<size_t>(segment.num_tokens()),
                 segment.given() ? 0 : turn);
  }
  return turns;
}

std::vector<int64_t> VersionsOf(const Completion& completion) {
  std::vector<int64_t> drawn;
  for (const auto& span : completion.version_spans()) {
    drawn.insert(drawn.end(), static_cast<size_t>(span.num_tokens()), span.weight_version());
  }
  if (!HasTurns(completion)) return drawn;
  std::vector<int64_t> versions;
  auto next = drawn.begin();
  for (const int32_t turn : TurnsOf(completion)) versions.push_back(turn == 0 ? 0 : *next++);
  return versions;
}

int64_t EndDrawn(const std::vector<int32_t>& turns, int64_t end) {
  while (end > 1 && turns[static_cast<size_t>(end - 1)] == 0) --end;
  return end;
}

absl::Status CheckSegments(const Completion& completion, const std::string& who) {
  int64_t total = 0;
  bool expects_given = false;
  for (const auto& segment : completion.segments()) {
    if (segment.num_tokens() < 1) return InvalidArgument(who, ": an empty segment");
    if (segment.given() != expects_given) {
      return InvalidArgument(who, ": segments must be drawn and given by turns, drawn ones first");
    }
    expects_given = !expects_given;
    total += segment.num_tokens();
  }
  if (HasTurns(completion) && !expects_given) {
    return InvalidArgument(who, ": the last segment was given, and a completion ends with a turn");
  }
  if (HasTurns(completion) && total != completion.token_ids_size()) {
    return InvalidArgument(who, ": segments cover ", total, " of ", completion.token_ids_size(),
                           " tokens");
  }
  int64_t spanned = 0;
  for (const auto& span : completion.version_spans()) spanned += span.num_tokens();
  if (spanned == NumDrawn(completion)) return absl::OkStatus();
  return InvalidArgument(who, ": version spans cover ", spanned, " of ", NumDrawn(completion),
                         HasTurns(completion) ? " drawn tokens" : " tokens");
}

}  // namespace tandem::trainer
