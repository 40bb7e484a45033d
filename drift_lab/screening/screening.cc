#include "drift_lab/screening/screening.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "drift_lab/screening/alignment_signs.h"
#include "drift_lab/screening/distribution_signs.h"
#include "drift_lab/screening/lattice_signs.h"
#include "drift_lab/screening/pattern_signs.h"
#include "drift_lab/screening/value_signs.h"

namespace tandem::drift {
namespace {

// The file's name of the model goes into a command line only where a shell takes it as it is.
std::string ReplayCommand(const Records& records) {
  const std::string& model = records.header.model;
  const bool plain = !model.empty() && model[0] != '-' && std::ranges::all_of(model, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '/' ||
           c == '-';
  });
  return absl::StrCat("tandem drift why ", records.path, " --model ", plain ? model : "DIR");
}

void Append(std::vector<Sign> more, std::vector<Sign>& signs) {
  std::ranges::move(more, std::back_inserter(signs));
}

// All pairs equal bit by bit, and not because everything is certain.
Sign IdenticalSign(const TokenPairs& pairs) {
  int64_t count = 0, equal = 0;
  for (size_t m = 0; m < pairs.place.size(); ++m) {
    if (!std::isfinite(pairs.delta(m)) || pairs.behaviour[m] > -1e-3F) continue;
    ++count;
    equal += pairs.behaviour[m] == pairs.proximal[m];
  }
  Sign sign{.id = "identical",
            .side = SignSide::kBoth,
            .statistic = "share of uncertain tokens with equal values"};
  sign.value.value = count > 0 ? static_cast<double>(equal) / static_cast<double>(count) : 0;
  if (count < 20) {
    sign.statement = "Too few uncertain tokens have values on both sides.";
  } else if (equal == count) {
    sign.verdict = SignVerdict::kShown;
    sign.statement = absl::StrFormat(
        "Both sides give the same value at all %d uncertain tokens: one engine, one that repeats "
        "the "
        "other bit by bit, or a column that was copied.",
        count);
  } else {
    sign.verdict = SignVerdict::kRuledOut;
    sign.statement = absl::StrFormat("%d of %d uncertain tokens have equal values.", equal, count);
  }
  return sign;
}

Sign MovingPolicySign() {
  return {.id = "moving_policy",
          .verdict = SignVerdict::kShown,
          .side = SignSide::kProximal,
          .statement =
              "proximal_logprobs are of the moving policy, by the header: updates within the train "
              "step are part of "
              "every difference here."};
}

// Divides the behaviour's values by `factor`, which the sign of the log base found.
void RescaleBehaviour(double factor, TokenPairs& pairs) {
  for (float& x : pairs.behaviour) x = static_cast<float>(x / factor);
}

// In the order of a reader's questions: what is wrong, what is so, what may be, what is open. Among
// faults, those come first that others follow from: missing values from a shift, draws that do not
// fit from another base of logs.
int RankOf(const Sign& sign) {
  constexpr const char* kCauses[] = {
      "shift",         "prompt_shift", "padding_shift",   "other_rows",  "log_base",
      "probabilities", "negated",      "sentinel_values", "zero_values", "last_value_zero",
      "truncation",    "temperature",  "raw_logprobs"};
  if (!sign.accuses) return static_cast<int>(sign.verdict);
  const auto place = std::ranges::find(kCauses, sign.id) - std::begin(kCauses);
  return static_cast<int>(place) - 100;
}

// Signs that cannot be told because another one stands in the way.
void AppendOutOfPlace(std::vector<Sign>& signs) {
  for (const char* id : {"draws", "truncation", "temperature", "few_tokens", "position", "steps"}) {
    signs.push_back(
        {.id = id, .statement = "Can be told only once the values are at the right tokens."});
  }
}

// Tokens that are left out change an entropy as a temperature does.
void DoubtTemperature(Sign& sign) {
  if (!sign.accuses) return;
  sign.accuses = false;
  sign.verdict = SignVerdict::kSuspected;
  sign.false_alarm_rate = std::numeric_limits<double>::quiet_NaN();
  sign.statement +=
      " The tokens that one side leaves out do the same to a regression on entropies.";
}

void AppendComparisons(const Records& records, const TokenPairs& pairs, uint64_t seed,
                       std::vector<Sign>& signs) {
  signs.push_back(DrawsSign(records, pairs, seed));
  signs.push_back(TruncationSign(records, pairs, seed));
  const bool truncated = signs.back().verdict == SignVerdict::kShown;
  signs.push_back(TemperatureSign(records, pairs, seed));
  if (truncated && records.proximal_top.ids.empty()) DoubtTemperature(signs.back());
  Append(PatternSigns(records, pairs, seed), signs);
}

bool IsNumbersAlone(const Records& records, const TrainingEffect& effect) {
  const bool both_float32 =
      records.header.behaviour.dtype == "float32" && records.header.proximal.dtype == "float32";
  if (both_float32) return effect.mean_abs_delta.value <= kMostFloat32MeanAbs;
  return effect.mean_abs_delta.value <= kMostBfloat16MeanAbs && effect.k3.value <= kMostBfloat16K3;
}

std::string SizeWords(const TrainingEffect& effect) {
  return absl::StrFormat("The sides differ by %.3g nats a token on average (k3 %.2g)",
                         effect.mean_abs_delta.value, effect.k3.value);
}

// The first sign that shows a difference which the file declares; null if there is none.
const Sign* DeclaredDifference(const Screening& screening) {
  constexpr const char* kDeclared[] = {"truncation", "temperature", "moving_policy",
                                       "staleness",  "some_rows",   "raw_logprobs"};
  for (const char* id : kDeclared) {
    const auto sign = std::ranges::find(screening.signs, id, &Sign::id);
    if (sign != screening.signs.end() && sign->verdict == SignVerdict::kShown) return &*sign;
  }
  return nullptr;
}

void Conclude(const Records& records, Screening& screening) {
  const TrainingEffect& effect = screening.effect;
  const auto first = std::ranges::find(screening.signs, true, &Sign::accuses);
  const auto accusing = std::ranges::count(screening.signs, true, &Sign::accuses);
  const bool identical = std::ranges::any_of(screening.signs, [](const Sign& s) {
    return s.id == "identical" && s.verdict == SignVerdict::kShown;
  });
  if (first != screening.signs.end()) {
    screening.verdict = ScreeningVerdict::kShown;
    screening.headline =
        absl::StrCat("Shown: ", first->statement,
                     accusing > 1 ? absl::StrFormat(" %d more below.", accusing - 1) : "");
    screening.command = first->command;
  } else if (effect.num_tokens == 0) {
    screening.headline = "Nothing to compare: no drawn token has log-probs of both sides.";
  } else if (identical) {
    screening.verdict = ScreeningVerdict::kIdentical;
    screening.headline = "Identical: both sides give the same log-prob at every token, bit by bit.";
  } else if (IsNumbersAlone(records, effect)) {
    screening.verdict = ScreeningVerdict::kNumbersAlone;
    screening.headline =
        absl::StrCat(SizeWords(effect),
                     ", which is of the size that number formats and kernels alone give, and the "
                     "records show no fault. A small one can hide in it; weights would tell.");
    screening.command = ReplayCommand(records);
  } else {
    screening.verdict = ScreeningVerdict::kNeedsWeights;
    const Sign* declared = DeclaredDifference(screening);
    screening.headline = absl::StrCat(
        SizeWords(effect), ", which is more than number formats and kernels give",
        declared == nullptr ? ", and the records do not show why. Needs weights."
                            : absl::StrCat(". Declared, and part of it: ", declared->statement,
                                           " Whether it is all of it needs weights."));
    screening.command = ReplayCommand(records);
  }
}

}  // namespace

const char* ScreeningVerdictName(ScreeningVerdict verdict) {
  switch (verdict) {
    case ScreeningVerdict::kNothingToCompare:
      return "nothing_to_compare";
    case ScreeningVerdict::kIdentical:
      return "identical";
    case ScreeningVerdict::kNumbersAlone:
      return "numbers_alone";
    case ScreeningVerdict::kShown:
      return "shown";
    case ScreeningVerdict::kNeedsWeights:
      return "needs_weights";
  }
  return "";
}

Screening Screen(const Records& records, uint64_t seed) {
  Screening screening{.path = records.path,
                      .num_rows = records.num_rows(),
                      .num_tokens = records.num_tokens(),
                      .pairs = PairsOf(records)};
  TokenPairs& pairs = screening.pairs;
  std::vector<Sign>& signs = screening.signs;
  screening.num_drawn = pairs.num_tokens();
  signs = ValueSigns(records, &pairs);
  Append(RoundingSigns(records, pairs), signs);
  signs.push_back(RawSign(records, pairs));
  screening.effect = EffectOnTraining(records, pairs, seed);
  if (screening.effect.num_tokens > 0) {
    if (records.header.proximal.policy == "moving") signs.push_back(MovingPolicySign());
    signs.push_back(IdenticalSign(pairs));
    signs.push_back(LogBaseSign(pairs));
    const Sign& base = signs.back();
    if (base.accuses) {
      RescaleBehaviour(base.value.value, pairs);
      screening.notes.push_back(absl::StrFormat(
          "Behind the base of the logs, the tests used behaviour_logprobs divided by %.4f.",
          base.value.value));
    }
    const Alignment alignment = AlignmentSigns(records, pairs, seed);
    Append(alignment.signs, signs);
    if (alignment.in_place) {
      AppendComparisons(records, pairs, seed, signs);
    } else {
      AppendOutOfPlace(signs);
    }
  } else if (records.has(Column::kBehaviour)) {
    signs.push_back(DrawsSign(records, pairs, seed));
  }
  if (screening.num_rows > 4000) {
    screening.notes.push_back(
        absl::StrFormat("Shifts were looked for in 256 rows and exchanged rows in 400, chosen with "
                        "seed %d; every other number is of all rows.",
                        seed));
  }
  std::ranges::stable_sort(signs, {}, RankOf);
  Conclude(records, screening);
  return screening;
}

}  // namespace tandem::drift
