#include "drift_lab/referee/judge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "drift_lab/referee/column_transforms.h"
#include "drift_lab/referee/glance_order.h"
#include "drift_lab/referee/part_choice.h"
#include "drift_lab/referee/verdict.h"

namespace tandem::drift {
namespace {

// Every suspect is looked at first on the beginnings of two rows: so many tokens, with at least so many
// drawn ones. Those that do best there, so many, are replayed on more. Glances take at most this share
// of the time that is left.
constexpr size_t kGlanceRows = 2, kGlanceTokens = 48, kGlanceDrawn = 20;
constexpr size_t kMostScreened = 12;
constexpr double kShareOfGlances = 0.7;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

std::vector<double> Less(std::span<const double> a, std::span<const double> b) {
  std::vector<double> out(a.size());
  for (size_t i = 0; i < a.size(); ++i) out[i] = a[i] - b[i];
  return out;
}

void AddOnce(std::vector<std::string>& list, const std::string& what) {
  if (std::find(list.begin(), list.end(), what) == list.end()) list.push_back(what);
}

// The beginnings of the first of `rows`.
std::vector<RefereeRow> BeginningsOf(std::span<const RefereeRow> rows) {
  std::vector<RefereeRow> beginnings;
  for (const RefereeRow& row : rows.first(std::min(rows.size(), kGlanceRows))) {
    RefereeRow& beginning = beginnings.emplace_back(row);
    while (beginning.targets.size() > kGlanceDrawn &&
           beginning.targets.back() >= static_cast<int64_t>(kGlanceTokens)) {
      beginning.targets.pop_back();
    }
    if (!beginning.targets.empty()) {
      beginning.ids.resize(static_cast<size_t>(beginning.targets.back()) + 1);
    }
  }
  return beginnings;
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
  return absl::StrCat("log-probs of ", SettingsText(settings),
                      IsNeutral(claimed)
                          ? std::string(", though no setting of the sampler is claimed")
                          : absl::StrCat(", where ", SettingsText(claimed), " is claimed"));
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
  NoiseCurve noise;
  TokenSet tokens;
  SettingsFit fit;       // of the settings alone
  double fit_share = 0;  // on tokens that were not used to find it
  bool settled = false;
  std::vector<SamplerSettings> settings;  // those that suspects are played with
  std::vector<Candidate> candidates;
  double until = 0;  // seconds of the referee, when it turns to what it has
};

struct Judge::Part {
  TokenSet tokens;
  std::vector<double> values, own, gap;
  void Add(const Side& side, size_t from, size_t until);  // tokens
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
      verify_end_(scored.RowsFor(screen_end_, options.verify_tokens, 8)),
      glance_(BeginningsOf(std::span(scored.rows).first(screen_end_))) {}

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
  out.noise = NoiseCurve(out.own, out.tokens.rounding);
  out.tokens.scale = out.noise.At(out.own);
  // With few rows, runs of 24 tokens are what intervals resample.
  const int64_t runs = verify_end_ - screen_end_ < 12 ? 24 : 1 << 20;
  for (const TokenLogits& token : scored_.logits) {
    out.tokens.row.push_back(token.row * 65536 + token.place / runs);
  }
  return out;
}

void Judge::Part::Add(const Side& side, size_t from, size_t until) {
  for (size_t i = from; i < until; ++i) {
    tokens.row.push_back(side.tokens.row[i]);
    tokens.scale.push_back(side.tokens.scale[i]);
    tokens.rounding.push_back(side.tokens.rounding[i]);
    values.push_back(side.values[i]);
    own.push_back(side.own[i]);
    gap.push_back(side.gap[i]);
  }
}

Judge::Part Judge::Between(const Side& side, size_t from, size_t until) const {
  Part part;
  part.Add(side, scored_.TokensBefore(from), scored_.TokensBefore(until));
  return part;
}

Judge::Part Judge::Glanced(const Side& side) const {
  Part part;
  for (size_t row = 0; row < glance_.size(); ++row) {
    const size_t from = scored_.TokensBefore(row);
    part.Add(side, from, from + glance_[row].targets.size());
  }
  return part;
}

void Judge::TryTransforms(Side& side, SideReport& report) const {
  std::vector<int64_t> rows;
  for (const TokenLogits& token : scored_.logits) rows.push_back(token.row);
  const std::vector<double> model = PredictLogprobs(scored_.logits, {});
  for (const ColumnTransform& transform :
       ColumnTransforms(side.own, model, rows, side.tokens, side.claimed.temperature)) {
    AddOnce(report.tried, transform.cause);
    ++report.num_tried;
    const std::vector<double> predicted = Less(transform.values, side.own);
    const Explained explained = Explain(side.gap, predicted, transform.tokens, true);
    const ResidualSize left = SizeOf(Less(side.gap, predicted), transform.tokens);
    if (!(left.same() || left.as_rounding()) || explained.share.low < 0.9) continue;
    report.status = SideStatus::kNamed;
    report.causes = {{transform.cause, transform.text, "correct the column where it is written",
                      explained, left}};
    side.settled = report.by_settings = true;
    return;
  }
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
  report.num_tried += side.fit.num_tried;
  for (const char* cause : {"temperature", "raw_logprobs", "top_k", "top_p", "min_p", "typical_p",
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
  // A strength that is right up to the steps of its search leaves far less than bf16 would.
  const bool nearly_all = left.bounded < 0.1 && measured.explained.share.low > 0.97;
  if (!(left.same() || rounding || nearly_all)) return;
  report.status = SideStatus::kNamed;
  report.causes = {measured};
  side.settled = report.by_settings = true;
  const SettingsFit rival = FitSettings(scored_.logits, side.values, side.tokens, search,
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

absl::StatusOr<const std::vector<TokenLogits>*> Judge::Replayed(
    const Suspect& suspect, std::span<const RefereeRow> rows,
    std::map<std::string, std::vector<TokenLogits>>& kept) const {
  const auto found = kept.find(suspect.text);
  if (found != kept.end()) return &found->second;
  TANDEM_ASSIGN_OR_RETURN(
      std::vector<TokenLogits> logits,
      RefereeForward(model_, rows, suspect.variant, {.end_tokens = scored_.end_tokens}));
  return &(kept[suspect.text] = std::move(logits));
}

absl::StatusOr<const std::vector<TokenLogits>*> Judge::Screened(const Suspect& suspect) {
  return Replayed(suspect, std::span(scored_.rows).first(screen_end_), screened_);
}

// What is left of the gap under a prediction. A token has the noise of one that is as likely as
// predicted or as the referee says, whichever is more.
ResidualSize Judge::Left(const Side& side, const Part& part, const std::vector<double>& predicted) {
  TokenSet tokens = part.tokens;
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens.scale[i] = std::max(tokens.scale[i], side.noise.At(part.own[i] + predicted[i]));
  }
  return SizeOf(Less(part.gap, predicted), tokens);
}

// Replays a suspect on the screened rows, with every setting in question. True: it leaves nothing for
// another suspect.
absl::StatusOr<bool> Judge::Screen(Side& side, const Suspect& suspect, SideReport& report) {
  const Part part = Between(side, 0, screen_end_);
  TANDEM_ASSIGN_OR_RETURN(const std::vector<TokenLogits>* const logits, Screened(suspect));
  bool enough = false;
  for (size_t s = 0; s < side.settings.size(); ++s) {
    ++report.num_tried;
    const std::vector<double> predicted =
        Less(PredictLogprobs(*logits, side.settings[s]), part.own);
    Candidate candidate{.cause = suspect.cause,
                        .text = suspect.text,
                        .advice = suspect.advice,
                        .variant = suspect.variant,
                        .settings = side.settings[s],
                        .rounds = suspect.rounds,
                        .may_round_inputs = suspect.may_round_inputs,
                        .found = Explain(part.gap, predicted, part.tokens, false)};
    if (s > 0) {
      candidate.cause = absl::StrCat(suspect.cause, "+", absl::StrJoin(side.fit.causes, "+"));
      absl::StrAppend(&candidate.text, ", and log-probs of ", SettingsText(side.settings[s]));
    }
    const ResidualSize left = Left(side, part, predicted);
    enough |= left.same() || (left.as_rounding() && candidate.found.share.value > 0.93 &&
                              (!ClaimsFloat32(side.claims) || left.goes_with_bf16()));
    side.candidates.push_back(std::move(candidate));
  }
  return enough;
}

// How well a suspect does on the few tokens that come first; NaN where it does nothing there, so that
// they do not speak against it.
absl::StatusOr<double> Judge::Glance(const Side& side, const Suspect& suspect) {
  const Part part = Glanced(side);
  TANDEM_ASSIGN_OR_RETURN(const std::vector<TokenLogits>* const logits,
                          Replayed(suspect, glance_, glanced_));
  double best = 0;
  for (const SamplerSettings& settings : side.settings) {
    const std::vector<double> predicted = Less(PredictLogprobs(*logits, settings), part.own);
    if (SizeOf(predicted, part.tokens).mean_abs < kSameMeanAbs) return kNone;
    const Explained explained = Explain(part.gap, predicted, part.tokens, false);
    best = std::max({best, explained.correlation, explained.share.value});
  }
  return best;
}

// Glances at all suspects, and replays on more rows the best of them, and then those that need longer
// rows to do anything.
absl::Status Judge::TrySuspects(Side& side, std::span<const Suspect> suspects, SideReport& report) {
  side.settings = {side.claimed};
  if (!side.fit.causes.empty() && side.fit_share > 0.1) side.settings.push_back(side.fit.settings);
  std::vector<std::pair<double, const Suspect*>> best;
  std::vector<const Suspect*> chosen, unseen;
  const double begin = seconds_();
  const double glances_end = begin + kShareOfGlances * (side.until - begin);
  GlanceOrder order(suspects);
  while (order.num_left() > 0) {
    if (seconds_() > glances_end) {
      report.num_left += static_cast<int64_t>(order.num_left());
      break;
    }
    const Suspect& suspect = *order.Next();
    progress_(suspect.text, 0.7 - 0.3 * static_cast<double>(order.num_left() + 1) /
                                      static_cast<double>(suspects.size()));
    AddOnce(report.tried, suspect.cause);
    TANDEM_ASSIGN_OR_RETURN(const double well, Glance(side, suspect));
    order.Report(well);
    if (well > 0.95) {
      TANDEM_ASSIGN_OR_RETURN(const bool enough, Screen(side, suspect, report));
      if (enough) return absl::OkStatus();
    } else if (std::isnan(well)) {
      unseen.push_back(&suspect);
    } else {
      ++report.num_tried;
      best.emplace_back(well, &suspect);
    }
  }
  std::stable_sort(best.begin(), best.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  best.resize(std::min(best.size(), kMostScreened));
  for (const auto& [well, suspect] : best) chosen.push_back(suspect);
  chosen.insert(chosen.end(), unseen.begin(), unseen.end());
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (seconds_() > side.until) {
      report.num_left += static_cast<int64_t>(chosen.size() - i);
      break;
    }
    progress_(chosen[i]->text,
              0.7 + 0.15 * static_cast<double>(i) / static_cast<double>(chosen.size()));
    TANDEM_ASSIGN_OR_RETURN(const bool enough, Screen(side, *chosen[i], report));
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
    if (seconds_() > side.until) {
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
  if (best == nullptr || best->found.correlation < 0.3 || best->variant.format_embedding) {
    return absl::OkStatus();
  }
  const Suspect suspect = WithEmbedding({.variant = best->variant});
  return TrySuspects(side, std::span(&suspect, 1), report);
}

// Other forward passes of a side that is off: those of the second directory first, since they were
// given because they are suspected, and where these go some of the way, their parts.
absl::Status Judge::TryForwards(Side& side, SideReport& report) {
  const auto best_share = [&] {
    double best = 0;
    for (const Candidate& candidate : side.candidates) {
      best = std::max(best, candidate.found.share.value);
    }
    return best;
  };
  // A cause leaves hardly anything of a side in float32, and rounding of any other.
  const double enough = ClaimsFloat32(side.claims) ? 0.999 : 0.93;
  TANDEM_RETURN_IF_ERROR(TrySuspects(side, OtherWeights(model_), report));
  const bool some_way = best_share() > 0.2;
  if (some_way && best_share() < enough) TANDEM_RETURN_IF_ERROR(TryParts(side, report));
  if (best_share() > enough) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(TrySuspects(side, ForwardSuspects(model_, scored_.rows), report));
  TANDEM_RETURN_IF_ERROR(TryEmbedding(side, report));
  // A single layer goes less far than all weights do, which may be farther off than the side is.
  if (!some_way && best_share() < enough) TANDEM_RETURN_IF_ERROR(TryParts(side, report));
  return absl::OkStatus();
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
                          Left(side, part, candidate.predicted)};
    if (candidate.may_round_inputs) {
      Variant both = candidate.variant;
      both.activations_q8 = true;
      TANDEM_ASSIGN_OR_RETURN(const std::vector<TokenLogits> rounded,
                              RefereeForward(model_, rows, both, forward));
      const std::vector<double> moved =
          Less(PredictLogprobs(rounded, candidate.settings), part.own);
      candidate.measured.rounded_inputs =
          SizeOf(Less(moved, candidate.predicted), part.tokens).in_scale;
    }
    causes.push_back(candidate.cause);
    verified.push_back(candidate);
  }
  PreferSettingsAlone(side, part, verified);
  std::stable_sort(verified.begin(), verified.end(), [](const Candidate& a, const Candidate& b) {
    return a.measured.explained.share.value > b.measured.explained.share.value;
  });
  // Where inputs are rounded too, what is left is compared with what that gives in the same units.
  if (!verified.empty() && !ClaimsFloat32(side.claims) &&
      !(verified.front().measured.rounded_inputs > 0)) {
    TANDEM_RETURN_IF_ERROR(MeasureInItsNoise(part, rows, verified.front()));
  }
  Decide(part.gap, part.tokens, side.claims, verified, report);
  report.by_settings = report.status == SideStatus::kNamed &&
                       report.causes.front().cause == absl::StrJoin(side.fit.causes, "+");
  return absl::OkStatus();
}

// Another forward pass has other roundings, more of them where it makes the model worse. If what the
// best candidate leaves is more than the model's own rounding, it is measured in units of its own.
absl::Status Judge::MeasureInItsNoise(const Part& part, std::span<const RefereeRow> rows,
                                      Candidate& candidate) const {
  const ResidualSize& left = candidate.measured.left;
  if (left.as_rounding() || !(candidate.measured.explained.share.value > 0.5)) {
    return absl::OkStatus();
  }
  Variant rounded = candidate.variant;
  rounded.precision = Precision::kBf16;
  TANDEM_ASSIGN_OR_RETURN(
      const std::vector<TokenLogits> logits,
      RefereeForward(model_, rows, rounded, {.end_tokens = scored_.end_tokens, .with_seen = true}));
  std::vector<double> predicted = candidate.predicted;
  for (size_t i = 0; i < predicted.size(); ++i) predicted[i] += part.own[i];
  TokenSet tokens = part.tokens;
  tokens.rounding = Less(PredictLogprobs(logits, candidate.settings), predicted);
  tokens.scale = NoiseCurve(predicted, tokens.rounding).At(predicted);
  // A pass that makes the model much worse has much noise, in which a wrong cause would hide.
  const ResidualSize in_its_noise = SizeOf(Less(part.gap, candidate.predicted), tokens);
  if (in_its_noise.goes_with_bf16() || candidate.measured.explained.share.low > 0.9) {
    candidate.measured.left = in_its_noise;
  }
  return absl::OkStatus();
}

// A forward pass that is played beside settings must explain more than the settings do alone: what
// does not is dropped, and the settings stand for it.
void Judge::PreferSettingsAlone(const Side& side, const Part& part,
                                std::vector<Candidate>& verified) const {
  if (side.settings.size() < 2 || verified.empty()) return;
  const size_t from = scored_.TokensBefore(screen_end_);
  const auto logits = std::span(scored_.logits).subspan(from, part.own.size());
  Candidate alone{.cause = absl::StrJoin(side.fit.causes, "+"),
                  .text = absl::StrCat("log-probs of ", SettingsText(side.fit.settings)),
                  .advice = "compare the sampler's settings, and raw with processed log-probs",
                  .settings = side.fit.settings};
  alone.predicted = Less(PredictLogprobs(logits, alone.settings), part.own);
  alone.measured = {alone.cause, alone.text, alone.advice,
                    Explain(part.gap, alone.predicted, part.tokens, true),
                    Left(side, part, alone.predicted)};
  std::erase_if(verified, [&](const Candidate& candidate) {
    return candidate.settings == alone.settings &&
           !(ShareAdvantage(part.gap, candidate.predicted, alone.predicted, part.tokens).low >
             0.05);
  });
  verified.push_back(std::move(alone));
}

double Judge::Distance(SignSide side, const SideClaims& claims) const {
  const Side opened = Open(side, claims);
  return SizeOf(opened.gap, opened.tokens).in_scale;
}

absl::StatusOr<SideReport> Judge::JudgeSide(SignSide which, const SideClaims& claims,
                                            double until) {
  Side side = Open(which, claims);
  side.until = until;
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
  TANDEM_RETURN_IF_ERROR(TryForwards(side, report));
  TANDEM_RETURN_IF_ERROR(Verify(side, report));
  return report;
}

}  // namespace tandem::drift
