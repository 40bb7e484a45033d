#include "drift_lab/referee/referee.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "drift_lab/referee/judge.h"
#include "drift_lab/referee/scored_rows.h"

namespace tandem::drift {
namespace {

// The share of the time that is left for the side that is farther from the model: all of it where the
// other side says the model's numbers, most of it where the other differs by rounding.
double ShareOfFirstSide(double distance_of_second) {
  if (distance_of_second < 0.02) return 1;
  return distance_of_second < kMostRounding ? 0.8 : 0.6;
}

std::string NameOf(const SideReport& side) {
  const std::string name = absl::StrCat("the ", SignSideName(side.side), " side");
  return side.engine.empty() ? name : absl::StrCat(name, " (", side.engine, ")");
}

std::string ShareText(const offpolicy::Interval& share) {
  if (!share.known()) return absl::StrFormat("%.0f %%", 100 * share.value);
  return absl::StrFormat("%.1f %% [%.1f, %.1f]", 100 * share.value, 100 * share.low,
                         100 * share.high);
}

std::string MeasuredText(const RefereeCause& cause) {
  const std::string share =
      absl::StrCat(ShareText(cause.explained.share),
                   " of the squared difference on rows that were not used to find it");
  if (cause.rounded_inputs > 0) {
    return absl::StrFormat(
        "the weights alone explain %s, at the strength that they have (%.2f [%.2f, %.2f], where 1 "
        "is "
        "right); what is left is %.2f times the referee's own bf16, and rounding to int8 what they "
        "multiply, which cannot be replayed number by number, gives %.2f times it",
        share, cause.explained.coefficient.value, cause.explained.coefficient.low,
        cause.explained.coefficient.high, cause.left.in_scale, cause.rounded_inputs);
  }
  return absl::StrFormat("it explains %s, and leaves a mean of %.2g nats", share,
                         cause.left.mean_abs);
}

std::string SentenceOf(const SideReport& side) {
  const std::string name = NameOf(side);
  const ResidualSize& gap = side.gap;
  const std::string size =
      absl::StrFormat("mean |difference| %.2g nats over %d tokens", gap.mean_abs, gap.num_tokens);
  switch (side.status) {
    case SideStatus::kNoValues:
      return absl::StrCat(name, " has no log-probs of these tokens.");
    case SideStatus::kSameNumbers:
      return absl::StrCat(name, " says the same numbers as the referee in fp32: ", size, ".");
    case SideStatus::kRounding:
      return absl::StrFormat(
          "%s differs by what bf16 or fp16 in another engine's kernels gives: %s, %.2f times the "
          "referee's own bf16 (at most %.1f is healthy), %.2f %% beyond five times it; %s. A fault "
          "much smaller than that would not be seen%s.",
          name, size, gap.bounded, kMostRounding, 100 * gap.tail,
          gap.goes_with_bf16()
              ? absl::StrFormat("it goes with the referee's own roundings (correlation %.2f)",
                                gap.like_bf16)
              : "it does not go with the referee's own roundings, so that only its size speaks "
                "for it",
          side.num_left > 0 ? absl::StrFormat("; %d suspects of faults below it were left for want "
                                              "of time (--referee-seconds gives more)",
                                              side.num_left)
                            : "");
    case SideStatus::kNamed:
      return absl::StrCat(name, ": ", side.causes.front().text, ". With ", size, ", ",
                          MeasuredText(side.causes.front()), ".");
    case SideStatus::kOneOf: {
      std::vector<std::string> texts;
      for (const RefereeCause& cause : side.causes) texts.push_back(cause.text);
      return absl::StrCat(name, ": one of the following, which explain it about as well: ",
                          absl::StrJoin(texts, "; or "), ". ", size, ".");
    }
    case SideStatus::kUnknown: {
      std::string text = absl::StrFormat(
          "%s differs by more than that is explained: %s, %.2f times the referee's own bf16. None "
          "of "
          "%d suspects explains it",
          name, size, gap.in_scale, side.num_tried);
      if (gap.as_rounding()) {
        text = absl::StrFormat(
            "%s differs by no more than bf16 would (%s, %.2f times the referee's own bf16), but "
            "claims float32 and does not go with the roundings of bf16. None of %d suspects "
            "explains "
            "it",
            name, size, gap.in_scale, side.num_tried);
      }
      if (!side.causes.empty()) {
        absl::StrAppend(&text, "; the nearest (", side.causes.front().text, ") explains ",
                        ShareText(side.causes.front().explained.share));
      }
      if (side.num_left > 0) {
        absl::StrAppend(&text, "; ", side.num_left,
                        " were left for want of time (--referee-seconds gives more)");
      }
      text += ".";
      if (side.first_tokens > 1.5) {
        absl::StrAppendFormat(&text,
                              " It is %.1f times as large on the first 8 drawn tokens of a row as "
                              "on the others, as where "
                              "the prompt that the engine saw is another one (a template, a system "
                              "message); that is a "
                              "hint, not a finding.",
                              side.first_tokens);
      }
      return text;
    }
  }
  return "";
}

std::string AdviceOf(const SideReport& side) {
  switch (side.status) {
    case SideStatus::kNamed:
    case SideStatus::kOneOf:
      return side.causes.front().advice;
    case SideStatus::kUnknown:
      return "give the weights that the engine may have served with --weights DIR, and compare the "
             "token ids that each side is given";
    default:
      return "";
  }
}

void CheckDrawsOf(const ScoredRows& scored, const SideClaims& claims, SideReport& side) {
  // Weights that are not the model's draw otherwise than the referee's; settings of the sampler, and
  // a column that was written wrongly, do not change what the referee knows of the draws.
  const bool forward_is_known = side.status == SideStatus::kSameNumbers ||
                                side.status == SideStatus::kRounding ||
                                (side.status == SideStatus::kNamed && side.by_settings);
  if (!forward_is_known) return;
  SideClaims processed = claims;
  processed.logprobs = "processed";
  const SamplerSettings claimed = ClaimedSettings(processed);
  side.draws_checked = true;
  side.draws = CheckDraws(scored.logits, claimed);
  const bool claims_none = claimed == SamplerSettings{};
  if (side.draws.follows) {
    side.draws_sentence = absl::StrCat(
        claims_none
            ? std::string("No setting of the sampler is claimed, and none shows in the draws")
            : absl::StrCat("The tokens were drawn as claimed (", SettingsText(claimed), ")"),
        ": nothing makes them likelier by 15 nats.");
    return;
  }
  const bool sure = side.draws.over_rival > 8;
  side.draws_sentence = absl::StrFormat(
      "%s: with %s they are likelier by %.0f nats%s.",
      claims_none
          ? std::string("No setting of the sampler is claimed, but the tokens were not drawn "
                        "from the model's distribution as it is")
          : absl::StrCat("The tokens were not drawn from what is claimed (", SettingsText(claimed),
                         ")"),
      SettingsText(side.draws.best.settings), side.draws.gain,
      sure ? ""
           : absl::StrCat(", and with a change of ", side.draws.rival,
                          " nearly as likely, so that the two cannot be told apart"));
}

// The correlation of what the two sides differ by from the referee; 0 if it is not known.
double CorrelationOfSides(const ScoredRows& scored, const RecordsHeader& header) {
  const std::vector<double> own_a =
      PredictLogprobs(scored.logits, ClaimedSettings(header.behaviour));
  const std::vector<double> own_b =
      PredictLogprobs(scored.logits, ClaimedSettings(header.proximal));
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < own_a.size(); ++i) {
    const double a = std::clamp(scored.behaviour[i] - own_a[i], -6.0, 6.0);
    const double b = std::clamp(scored.proximal[i] - own_b[i], -6.0, 6.0);
    if (std::isnan(a) || std::isnan(b)) continue;
    ab += a * b;
    aa += a * a;
    bb += b * b;
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

// Both sides differ from the model in the same way, which rounding does not explain and no suspect
// does: then the model is in question, and not a side.
bool ModelIsInQuestion(const RefereeReport& report) {
  // Roundings that are for the most part the referee's own are no other weights.
  const auto suspicious = [](const SideReport& side) {
    return side.status == SideStatus::kUnknown ||
           (side.status == SideStatus::kRounding && side.gap.like_bf16 < 0.5);
  };
  const auto unknown = [](const SideReport& side) { return side.status == SideStatus::kUnknown; };
  return report.sides.size() == 2 && std::ranges::all_of(report.sides, suspicious) &&
         std::ranges::any_of(report.sides, unknown) && report.correlation_of_sides > 0.4;
}

std::string HeadlineOf(const RefereeReport& report) {
  if (ModelIsInQuestion(report)) {
    return absl::StrFormat(
        "Both sides differ from the model in the same way (correlation %.2f), so that neither may "
        "have run these weights: which side is off cannot be said. Give the weights that they ran "
        "as --model.",
        report.correlation_of_sides);
  }
  std::vector<std::string> off, healthy;
  for (const SideReport& side : report.sides) {
    if (side.status == SideStatus::kNoValues) continue;
    const bool fine =
        side.status == SideStatus::kSameNumbers || side.status == SideStatus::kRounding;
    (fine ? healthy : off).push_back(NameOf(side));
  }
  const bool otherwise_drawn = !report.sides.empty() && report.sides.front().draws_checked &&
                               !report.sides.front().draws.follows;
  if (off.empty() && healthy.size() == 2 && !(report.sides[0].claimed == report.sides[1].claimed)) {
    return absl::StrCat(
        "No side is off, but they speak of different distributions: the behaviour side's log-probs "
        "are of ",
        SettingsText(report.sides[0].claimed), ", the proximal side's of ",
        SettingsText(report.sides[1].claimed),
        ". That is the gap: have both engines return log-probs of the same.");
  }
  if (off.empty() && otherwise_drawn) {
    return "Both sides say what the model says, but the tokens were not drawn from what is "
           "claimed.";
  }
  if (off.empty()) {
    return healthy.empty() ? "No side has log-probs."
                           : "No side is off: the difference is rounding.";
  }
  if (healthy.empty()) {
    return absl::StrCat(absl::StrJoin(off, " and "),
                        off.size() == 1 ? " differs from the model." : " differ from the model.");
  }
  const bool named = std::ranges::any_of(report.sides, [](const SideReport& side) {
    return side.status == SideStatus::kNamed || side.status == SideStatus::kOneOf;
  });
  // Without a cause it may be the model that is not the right one.
  if (!named) {
    return absl::StrCat(absl::StrJoin(off, " and "),
                        " differs from the model by more than rounding, for no cause that was "
                        "tried; ",
                        absl::StrJoin(healthy, " and "),
                        " does not. Make sure that --model has the weights that both ran.");
  }
  return absl::StrCat(absl::StrJoin(off, " and "), " is off; ", absl::StrJoin(healthy, " and "),
                      " is not.");
}

// The side that is farther from the model first, and with most of the time.
absl::Status JudgeSides(const ScoredRows& scored, const RecordsHeader& header,
                        const RefereeOptions& options, const std::function<double()>& seconds,
                        Judge& judge, std::vector<SideReport>& sides) {
  const auto claims_of = [&](SignSide side) -> const SideClaims& {
    return side == SignSide::kBehaviour ? header.behaviour : header.proximal;
  };
  std::array<std::pair<double, SignSide>, 2> order;  // distance from the model
  for (size_t i = 0; i < 2; ++i) {
    const SignSide side = i == 0 ? SignSide::kBehaviour : SignSide::kProximal;
    order[i] = {judge.Distance(side, claims_of(side)), side};
  }
  if (order[1].first > order[0].first) std::swap(order[0], order[1]);
  double share = ShareOfFirstSide(order[1].first);
  for (const auto& [distance, which] : order) {
    const double now = seconds();
    TANDEM_ASSIGN_OR_RETURN(
        SideReport side,
        judge.JudgeSide(which, claims_of(which), now + share * (options.budget_seconds - now)));
    if (which == SignSide::kBehaviour) CheckDrawsOf(scored, header.behaviour, side);
    side.sentence = SentenceOf(side);
    side.sentence[0] = 'T';
    side.advice = AdviceOf(side);
    sides.insert(which == SignSide::kBehaviour ? sides.begin() : sides.end(), std::move(side));
    share = 1;
  }
  return absl::OkStatus();
}

}  // namespace

const char* SideStatusName(SideStatus status) {
  switch (status) {
    case SideStatus::kNoValues:
      return "no_values";
    case SideStatus::kSameNumbers:
      return "same_numbers";
    case SideStatus::kRounding:
      return "rounding";
    case SideStatus::kNamed:
      return "named";
    case SideStatus::kOneOf:
      return "one_of";
    case SideStatus::kUnknown:
      return "unknown";
  }
  return "";
}

absl::StatusOr<RefereeReport> RunReferee(const Records& records, const TokenPairs& pairs,
                                         const RefereeOptions& options,
                                         const RefereeProgress& progress) {
  const double start = MonotonicSeconds();
  const auto seconds = [start] { return MonotonicSeconds() - start; };
  at::set_num_threads(options.num_threads);
  progress("loading the model", 0);
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<RefereeModel> model,
                          RefereeModel::Load(options.model, options.weights));
  TANDEM_ASSIGN_OR_RETURN(const ScoredRows scored,
                          ScoreRows(*model, records, pairs, options, progress));
  RefereeReport report{.model = model->directory(), .weights = model->other_directory()};
  report.num_rows = static_cast<int64_t>(scored.rows.size());
  report.num_tokens = static_cast<int64_t>(scored.logits.size());
  report.num_drawn = pairs.num_tokens();
  for (size_t i = 0; i < scored.bf16.size(); ++i) {
    report.bf16_mean_abs += std::abs(ScoreToken(scored.bf16[i], {}).logprob -
                                     ScoreToken(scored.logits[i], {}).logprob) /
                            static_cast<double>(scored.bf16.size());
  }
  Judge judge(*model, scored, options, progress, seconds);
  TANDEM_RETURN_IF_ERROR(JudgeSides(scored, records.header, options, seconds, judge, report.sides));
  report.correlation_of_sides = CorrelationOfSides(scored, records.header);
  report.headline = HeadlineOf(report);
  if (report.headline.starts_with("the ")) report.headline[0] = 'T';
  report.seconds = seconds();
  return report;
}

}  // namespace tandem::drift
