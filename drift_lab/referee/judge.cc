#include "drift_lab/referee/judge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace tandem::drift {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

bool ClaimsFloat32(const SideClaims& claims) {
  return claims.dtype == "float32" || claims.dtype == "fp32" || claims.dtype == "f32";
}

std::vector<double> Less(std::span<const double> a, std::span<const double> b) {
  std::vector<double> out(a.size());
  for (size_t i = 0; i < a.size(); ++i) out[i] = a[i] - b[i];
  return out;
}

void AddOnce(std::vector<std::string>& list, const std::string& what) {
  if (std::find(list.begin(), list.end(), what) == list.end()) list.push_back(what);
}

// The model's own distribution, up to what a fit can tell.
bool IsNeutral(const SamplerSettings& settings) {
  SamplerSettings rest = settings;
  rest.temperature = 1;
  return rest == SamplerSettings{} && std::abs(settings.temperature - 1) < 0.006;
}

std::string TextOf(bool raw, const SamplerSettings& settings, const SamplerSettings& claimed) {
  if (raw) {
    return absl::StrCat("raw log-probs (the model's distribution as it is), where those after ",
                        SettingsText(claimed), " are claimed");
  }
  return absl::StrCat("log-probs of ", SettingsText(settings), ", where ", SettingsText(claimed),
                      " is claimed");
}

using Effects = std::vector<std::vector<double>>;

// A shard is a run of neighbouring layers: the run whose effects, added up, explain most. Effects of
// single layers drown in bf16 where that of a run does not.
std::vector<bool> BestRun(const std::vector<double>& gap, const Effects& effects,
                          const TokenSet& tokens) {
  std::vector<bool> best(effects.size());
  double most = 0.03;
  for (size_t from = 0; from < effects.size(); ++from) {
    std::vector<double> sum(gap.size(), 0.0);
    for (size_t until = from; until < effects.size(); ++until) {
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += effects[until][i];
      const double share = Explain(gap, sum, tokens, false).share.value;
      if (share <= most) continue;
      most = share;
      best.assign(effects.size(), false);
      for (size_t part = from; part <= until; ++part) best[part] = true;
    }
  }
  return best;
}

// The part that takes away most, then the next, as long as each takes away a share.
std::vector<bool> GreedyParts(const std::vector<double>& gap, const Effects& effects,
                              const TokenSet& tokens) {
  std::vector<bool> chosen(effects.size());
  std::vector<double> left = gap;
  for (;;) {
    size_t best = effects.size();
    double most = 0.03;
    for (size_t i = 0; i < effects.size(); ++i) {
      if (chosen[i]) continue;
      const double share = Explain(left, effects[i], tokens, false).share.value;
      if (share <= most) continue;
      most = share;
      best = i;
    }
    if (best == effects.size()) return chosen;
    chosen[best] = true;
    left = Less(left, effects[best]);
  }
}

// How much larger differences are on a row's first drawn tokens, in noise scales.
double FirstTokens(const std::vector<double>& gap, const TokenSet& tokens,
                   const std::vector<TokenLogits>& logits) {
  double first = 0, num_first = 0, rest = 0, num_rest = 0;
  for (size_t i = 0; i < gap.size(); ++i) {
    if (std::isnan(gap[i])) continue;
    const double z = std::clamp(gap[i], -6.0, 6.0) / tokens.scale[i];
    const bool early = logits[i].place < 8;
    (early ? first : rest) += z * z;
    (early ? num_first : num_rest) += 1;
  }
  return num_first > 0 && num_rest > 0 && rest > 0
             ? std::sqrt(first / num_first / (rest / num_rest))
             : 0;
}

}  // namespace

struct Judge::Side {
  SignSide side;
  SideClaims claims;
  SamplerSettings claimed;
  std::span<const double> values;
  std::vector<double> own;  // the referee's prediction under the claims
  std::vector<double> gap;
  TokenSet tokens;
  SettingsFit fit;       // of the settings alone
  double fit_share = 0;  // on tokens that were not used to find it
  bool settled = false;
  std::vector<Candidate> candidates;
};

// What a cause predicts, and how well it did where it was found.
struct Judge::Candidate {
  std::string cause, text, advice;
  Variant variant;
  SamplerSettings settings;
  bool rounds = false;
  Explained found;
  RefereeCause measured;
  std::vector<double> predicted;  // on the verified tokens, less the referee's own
};

struct Judge::Part {
  TokenSet tokens;
  std::vector<double> values, own, gap;
};

Judge::Judge(const RefereeModel& model, const ScoredRows& scored, const RefereeOptions& options,
             const RefereeProgress& progress, std::function<double()> seconds)
    : model_(model),
      scored_(scored),
      options_(options),
      progress_(progress),
      seconds_(std::move(seconds)),
      screen_end_(std::min(scored.RowsFor(0, options.screen_tokens, 3),
                           std::max<size_t>(1, scored.rows.size() / 2))),
      verify_end_(scored.RowsFor(screen_end_, options.verify_tokens, 8)) {}

Judge::Side Judge::Open(SignSide side, const SideClaims& claims) const {
  Side out{.side = side, .claims = claims, .claimed = ClaimedSettings(claims)};
  out.values = side == SignSide::kBehaviour ? scored_.behaviour : scored_.proximal;
  out.own = PredictLogprobs(scored_.logits, out.claimed);
  out.gap = Less(out.values, out.own);
  out.tokens.rounding.assign(out.own.size(), kNone);
  for (size_t i = 0; i < scored_.bf16.size(); ++i) {
    const double e = ScoreToken(scored_.bf16[i], out.claimed).logprob - out.own[i];
    out.tokens.rounding[i] = std::isfinite(e) ? e : kNone;
  }
  out.tokens.scale = NoiseScale(out.own, out.tokens.rounding);
  // With few rows, runs of 24 tokens are what intervals resample.
  const int64_t runs = verify_end_ - screen_end_ < 12 ? 24 : 1 << 20;
  for (const TokenLogits& token : scored_.logits) {
    out.tokens.row.push_back(token.row * 65536 + token.place / runs);
  }
  return out;
}

Judge::Part Judge::Between(const Side& side, size_t from, size_t until) const {
  Part part;
  for (size_t i = scored_.TokensBefore(from); i < scored_.TokensBefore(until); ++i) {
    part.tokens.row.push_back(side.tokens.row[i]);
    part.tokens.scale.push_back(side.tokens.scale[i]);
    part.tokens.rounding.push_back(side.tokens.rounding[i]);
    part.values.push_back(side.values[i]);
    part.own.push_back(side.own[i]);
    part.gap.push_back(side.gap[i]);
  }
  return part;
}

// Logs of another base, and values that stand one token off.
void Judge::TryTransforms(Side& side, SideReport& report) const {
  const auto try_one = [&](const char* cause, const char* text, const auto& of) {
    AddOnce(report.tried, cause);
    ++report.num_tried;
    std::vector<double> predicted(side.own.size(), kNone);
    for (size_t i = 0; i < side.own.size(); ++i) predicted[i] = of(i) - side.own[i];
    const Explained explained = Explain(side.gap, predicted, side.tokens, true);
    const ResidualSize left = SizeOf(Less(side.gap, predicted), side.tokens);
    if (!(left.same() || left.as_rounding()) || explained.share.low < 0.9) return;
    report.status = SideStatus::kNamed;
    report.causes = {{cause, text, "correct the column where it is written", explained, left}};
    side.settled = report.by_settings = true;
  };
  const auto at = [&](size_t i, int shift) {
    const size_t j = i + static_cast<size_t>(shift);
    return j < side.own.size() && scored_.logits[j].row == scored_.logits[i].row ? side.own[j]
                                                                                 : kNone;
  };
  try_one("log_base", "log-probs are in base 2",
          [&](size_t i) { return side.own[i] / std::log(2.0); });
  try_one("log_base", "log-probs are in base 10",
          [&](size_t i) { return side.own[i] / std::log(10.0); });
  try_one("log_base", "probabilities in place of their logs",
          [&](size_t i) { return std::exp(side.own[i]); });
  try_one("shift", "values are those of the token after", [&](size_t i) { return at(i, 1); });
  try_one("shift", "values are those of the token before", [&](size_t i) { return at(i, -1); });
}

void Judge::TrySettings(Side& side, SideReport& report) const {
  std::vector<bool> search(side.gap.size());
  std::vector<double> held(side.gap.size(), kNone);
  int64_t number = -1, last = -1;
  for (size_t i = 0; i < search.size(); ++i) {
    if (scored_.logits[i].row != last) ++number;
    last = scored_.logits[i].row;
    search[i] = scored_.rows.size() > 3 ? number % 2 == 0 : i % 2 == 0;
    if (!search[i]) held[i] = side.gap[i];
  }
  progress_(absl::StrCat("settings of the sampler, ", SignSideName(side.side), " side"), 0.36);
  side.fit = FitSettings(scored_.logits, side.values, side.tokens, search, side.claimed);
  report.num_tried += 120;
  for (const char* cause : {"temperature", "raw_logprobs", "top_k", "top_p", "min_p",
                            "repetition_penalty", "frequency_penalty", "presence_penalty",
                            "end_token_ban", "logit_softcap", "filter_order"}) {
    AddOnce(report.tried, cause);
  }
  if (side.fit.causes.empty()) return;
  const bool raw = IsNeutral(side.fit.settings) && !IsNeutral(side.claimed);
  if (raw) {
    side.fit.settings = {};
    side.fit.causes = {"raw_logprobs"};
  }
  const auto predict = [&](const SamplerSettings& settings) {
    return Less(PredictLogprobs(scored_.logits, settings), side.own);
  };
  const std::vector<double> predicted = predict(side.fit.settings);
  RefereeCause measured{
      absl::StrJoin(side.fit.causes, "+"), TextOf(raw, side.fit.settings, side.claimed),
      "compare the sampler's settings, and raw with processed log-probs",
      Explain(held, predicted, side.tokens, true), SizeOf(Less(held, predicted), side.tokens)};
  side.fit_share = measured.explained.share.value;
  const ResidualSize& left = measured.left;
  const bool rounding = left.as_rounding() && measured.explained.share.low > 0.5 &&
                        (!ClaimsFloat32(side.claims) || left.goes_with_bf16());
  if (!(left.same() || rounding)) return;
  report.status = SideStatus::kNamed;
  report.causes = {measured};
  side.settled = report.by_settings = true;
  const SettingsFit rival = RivalSettings(scored_.logits, side.values, side.tokens, search,
                                          side.claimed, side.fit.causes.front());
  if (rival.causes.empty() || (raw && IsNeutral(rival.settings))) return;
  const std::vector<double> theirs = predict(rival.settings);
  const ResidualSize rival_left = SizeOf(Less(held, theirs), side.tokens);
  const offpolicy::Interval better = ShareAdvantage(held, predicted, theirs, side.tokens);
  const bool as_good = left.same() ? rival_left.same() : !(better.low > 0.02);
  if (!as_good) return;
  report.status = SideStatus::kOneOf;
  report.causes.push_back({absl::StrJoin(rival.causes, "+"),
                           absl::StrCat("log-probs of ", SettingsText(rival.settings)), "",
                           Explain(held, theirs, side.tokens, true), rival_left});
}

absl::StatusOr<const std::vector<TokenLogits>*> Judge::Screened(const Suspect& suspect) {
  const auto found = screened_.find(suspect.text);
  if (found != screened_.end()) return &found->second;
  ForwardOptions forward{.end_tokens = scored_.end_tokens};
  TANDEM_ASSIGN_OR_RETURN(
      std::vector<TokenLogits> logits,
      RefereeForward(model_, std::span(scored_.rows).first(screen_end_), suspect.variant, forward));
  return &(screened_[suspect.text] = std::move(logits));
}

absl::Status Judge::TrySuspects(Side& side, std::span<const Suspect> suspects, SideReport& report) {
  const Part part = Between(side, 0, screen_end_);
  std::vector<SamplerSettings> settings = {side.claimed};
  if (!side.fit.causes.empty() && side.fit_share > 0.1) settings.push_back(side.fit.settings);
  size_t done = 0;
  for (const Suspect& suspect : suspects) {
    if (seconds_() > options_.budget_seconds) {
      report.num_left += static_cast<int64_t>(suspects.size() - done);
      break;
    }
    progress_(suspect.text,
              0.4 + 0.45 * static_cast<double>(done++) / static_cast<double>(suspects.size()));
    AddOnce(report.tried, suspect.cause);
    TANDEM_ASSIGN_OR_RETURN(const std::vector<TokenLogits>* const logits, Screened(suspect));
    bool enough = false;  // nothing is left for another suspect
    for (size_t s = 0; s < settings.size(); ++s) {
      ++report.num_tried;
      const std::vector<double> predicted = Less(PredictLogprobs(*logits, settings[s]), part.own);
      Candidate candidate{suspect.cause,
                          suspect.text,
                          suspect.advice,
                          suspect.variant,
                          settings[s],
                          suspect.rounds,
                          Explain(part.gap, predicted, part.tokens, false)};
      if (s > 0) {
        candidate.cause = absl::StrCat(suspect.cause, "+", absl::StrJoin(side.fit.causes, "+"));
        absl::StrAppend(&candidate.text, ", and log-probs of ", SettingsText(settings[s]));
      }
      const ResidualSize left = SizeOf(Less(part.gap, predicted), part.tokens);
      enough |= left.same() || (left.as_rounding() && candidate.found.share.value > 0.93 &&
                                (!ClaimsFloat32(side.claims) || left.goes_with_bf16()));
      side.candidates.push_back(std::move(candidate));
    }
    if (enough) break;
  }
  return absl::OkStatus();
}

// Which parts of the second directory are there: what each does alone is measured, the sum is fitted,
// and the parts with a coefficient near 1 are played together.
absl::Status Judge::TryParts(Side& side, SideReport& report) {
  const std::vector<Suspect> parts = PartsOfOther(model_);
  if (parts.size() < 2) return absl::OkStatus();
  const Part part = Between(side, 0, screen_end_);
  AddOnce(report.tried, "part_of_other_weights");
  std::vector<std::vector<double>> effects;
  for (const Suspect& one : parts) {
    if (seconds_() > options_.budget_seconds) {
      ++report.num_left;
      return absl::OkStatus();
    }
    progress_(absl::StrCat(one.text, " of --weights"),
              0.85 + 0.1 * static_cast<double>(effects.size()) / static_cast<double>(parts.size()));
    TANDEM_ASSIGN_OR_RETURN(const std::vector<TokenLogits>* const logits, Screened(one));
    effects.push_back(Less(PredictLogprobs(*logits, side.claimed), part.own));
    ++report.num_tried;
  }
  std::vector<Suspect> joined;
  for (const std::vector<bool>& chosen :
       {BestRun(part.gap, effects, part.tokens), GreedyParts(part.gap, effects, part.tokens)}) {
    const auto count = std::count(chosen.begin(), chosen.end(), true);
    if (count == 0 || count == static_cast<int64_t>(parts.size())) continue;
    joined.push_back(JoinParts(model_, parts, chosen));
  }
  return TrySuspects(side, joined, report);
}

// Tries whether the best rounding of weights rounds the embedding and the head as well.
absl::Status Judge::TryEmbedding(Side& side, SideReport& report) {
  const Candidate* best = nullptr;
  for (const Candidate& candidate : side.candidates) {
    if (candidate.variant.format == WeightFormat::kOwn) continue;
    if (best == nullptr || candidate.found.correlation > best->found.correlation) best = &candidate;
  }
  if (best == nullptr || best->found.correlation < 0.3) return absl::OkStatus();
  const Suspect suspect = WithEmbedding({.variant = best->variant});
  return TrySuspects(side, std::span(&suspect, 1), report);
}

absl::Status Judge::Verify(Side& side, SideReport& report) {
  std::stable_sort(side.candidates.begin(), side.candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return a.found.share.value > b.found.share.value;
                   });
  const Part part = Between(side, screen_end_, verify_end_);
  const auto rows = std::span(scored_.rows).subspan(screen_end_, verify_end_ - screen_end_);
  std::vector<Candidate> verified;
  std::vector<std::string> causes;
  for (Candidate& candidate : side.candidates) {
    if (verified.size() >= 3 || candidate.found.share.value < 0.05) break;
    // A second strength is looked at only for the best cause.
    const auto same_cause = std::count(causes.begin(), causes.end(), candidate.cause);
    if (same_cause >= (causes.empty() || causes.front() != candidate.cause ? 1 : 2)) continue;
    progress_(absl::StrCat("on other rows: ", candidate.text), 0.96);
    ForwardOptions forward{.end_tokens = scored_.end_tokens, .with_seen = true};
    TANDEM_ASSIGN_OR_RETURN(const std::vector<TokenLogits> logits,
                            RefereeForward(model_, rows, candidate.variant, forward));
    candidate.predicted = Less(PredictLogprobs(logits, candidate.settings), part.own);
    candidate.measured = {candidate.cause, candidate.text, candidate.advice,
                          Explain(part.gap, candidate.predicted, part.tokens, true),
                          SizeOf(Less(part.gap, candidate.predicted), part.tokens)};
    causes.push_back(candidate.cause);
    verified.push_back(candidate);
  }
  std::stable_sort(verified.begin(), verified.end(), [](const Candidate& a, const Candidate& b) {
    return a.measured.explained.share.value > b.measured.explained.share.value;
  });
  Decide(side, verified, report);
  return absl::OkStatus();
}

void Judge::Decide(const Side& side, std::vector<Candidate>& verified, SideReport& report) const {
  report.status = SideStatus::kUnknown;
  if (verified.empty()) return;
  const Part part = Between(side, screen_end_, verify_end_);
  const Candidate& best = verified.front();
  const RefereeCause& measured = best.measured;
  report.causes = {measured};
  const offpolicy::Interval& share = measured.explained.share;
  const offpolicy::Interval& strength = measured.explained.coefficient;
  // What explains nearly all leaves nothing for a suspect that was not reached.
  const bool complete = report.num_left == 0 || share.low > 0.9;
  const bool rounding = complete && measured.left.as_rounding() && share.low > 0.5 &&
                        strength.low < 1.1 && strength.high > 0.9 && strength.value > 0.85 &&
                        strength.value < 1.18 &&
                        (!ClaimsFloat32(side.claims) || measured.left.goes_with_bf16());
  // A fault smaller than the noise is known by its strength, which no noise has: weights that are at
  // hand are played as they are, and the coefficient is 1.
  const bool below_noise = complete && measured.left.as_rounding() &&
                           best.cause.find("other_weights") != std::string::npos &&
                           share.low > 0.02 && strength.low > 0.6 && strength.high < 1.4 &&
                           strength.low < 1 && strength.high > 1;
  // A rounding need not be played number by number alike to be known.
  const bool as_rounded =
      complete && best.rounds && share.low > 0.3 && measured.explained.correlation > 0.6;
  if (!(measured.left.same() || rounding || as_rounded || below_noise)) return;
  report.status = SideStatus::kNamed;
  for (size_t i = 1; i < verified.size(); ++i) {
    const Candidate& rival = verified[i];
    if (rival.cause == best.cause) continue;
    const offpolicy::Interval better =
        ShareAdvantage(part.gap, best.predicted, rival.predicted, part.tokens);
    const bool as_good = measured.left.same() ? rival.measured.left.same()
                                              : !(better.low > (below_noise ? 0.0 : 0.05));
    if (!as_good) continue;
    report.status = SideStatus::kOneOf;
    report.causes.push_back(rival.measured);
  }
}

absl::StatusOr<SideReport> Judge::JudgeSide(SignSide which, const SideClaims& claims) {
  Side side = Open(which, claims);
  SideReport report{.side = which, .engine = claims.engine, .claimed = side.claimed};
  report.gap = SizeOf(side.gap, side.tokens);
  if (report.gap.num_tokens == 0) return report;
  report.first_tokens = FirstTokens(side.gap, side.tokens, scored_.logits);
  report.status = SideStatus::kUnknown;
  if (report.gap.same()) {
    report.status = SideStatus::kSameNumbers;
    return report;
  }
  TryTransforms(side, report);
  if (side.settled) return report;
  // Where nothing is claimed, a difference far below bf16 that does not go with it is not bf16.
  const bool claims_rounding = !claims.dtype.empty() && !ClaimsFloat32(claims);
  const bool of_its_size = claims.dtype.empty() && report.gap.in_scale > 0.5;
  const bool believable = claims_rounding || of_its_size || report.gap.goes_with_bf16();
  const bool healthy = report.gap.as_rounding() && believable;
  if (!healthy) TrySettings(side, report);
  if (side.settled) return report;
  if (healthy) {
    TANDEM_RETURN_IF_ERROR(TrySuspects(side, HiddenSuspects(model_), report));
    // Parts of the second directory go some way with the whole of it; where nothing does, their many
    // replays are saved for a side that needs them.
    const bool some_way =
        std::any_of(side.candidates.begin(), side.candidates.end(), [](const Candidate& candidate) {
          return candidate.cause == "other_weights" && candidate.found.coefficient.value > 0.15;
        });
    if (some_way) TANDEM_RETURN_IF_ERROR(TryParts(side, report));
    const bool hidden =
        std::any_of(side.candidates.begin(), side.candidates.end(), [](const Candidate& candidate) {
          return candidate.found.share.value > 0.05 && candidate.found.coefficient.value > 0.5;
        });
    report.status = SideStatus::kRounding;
    if (!hidden) return report;
    TANDEM_RETURN_IF_ERROR(Verify(side, report));
    if (report.status == SideStatus::kUnknown) {
      report.status = SideStatus::kRounding;
      report.causes.clear();
    }
    return report;
  }
  TANDEM_RETURN_IF_ERROR(TrySuspects(side, ForwardSuspects(model_, scored_.rows), report));
  TANDEM_RETURN_IF_ERROR(TryEmbedding(side, report));
  const bool explained =
      std::any_of(side.candidates.begin(), side.candidates.end(),
                  [](const Candidate& candidate) { return candidate.found.share.value > 0.93; });
  if (!explained) TANDEM_RETURN_IF_ERROR(TryParts(side, report));
  TANDEM_RETURN_IF_ERROR(Verify(side, report));
  return report;
}

}  // namespace tandem::drift
