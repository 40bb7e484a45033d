#include "drift_lab/pages/screening_report.h"

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "drift_lab/pages/report_parts.h"

namespace tandem::drift {
namespace {

using nlohmann::ordered_json;

void AppendEffect(const TrainingEffect& effect, std::string& out) {
  if (effect.num_tokens == 0) return;
  const auto line = [&](const char* name, const std::string& value, const char* note) {
    absl::StrAppendFormat(&out, "  %-26s %-34s %s\n", name, value, note);
  };
  const auto percent = [](const offpolicy::Interval& share) {
    if (!share.known()) return absl::StrCat(Percent(share.value), " %");
    return absl::StrCat(Percent(share.value), " % [", Percent(share.low), ", ", Percent(share.high),
                        "]");
  };
  absl::StrAppend(
      &out, "\nwhat it does to training, if nothing corrects it (95 % intervals over rows)\n");
  line("mean |delta|, nats", WithBounds(effect.mean_abs_delta),
       "delta = log proximal - log behaviour");
  line("k3", WithBounds(effect.k3), "mean of w - 1 - delta, w = e^delta");
  line("k1", WithBounds(effect.k1), "mean of -delta");
  line("mean w", WithBounds(effect.mean_w, 5), "1 where no tokens are left out");
  line("effective sample size", percent(effect.ess), "of the tokens");
  line("w > 2 (truncated)", percent(effect.truncated), "of the tokens");
  line("w outside 0.8 .. 1.2", percent(effect.clipped), "of the tokens");
  line("|delta| 50/99/99.9 %, most",
       absl::StrFormat("%s / %s / %s, %s", NumberText(effect.abs_delta_p50),
                       NumberText(effect.abs_delta_p99), NumberText(effect.abs_delta_p999),
                       NumberText(effect.max_abs_delta)),
       "");
  if (!effect.has_advantages) return;
  line("gradient missing, A > 0", percent(effect.bias_positive), "mean of w - 1, weighted by |A|");
  line("gradient missing, A < 0", percent(effect.bias_negative), "below 0: too much");
}

std::string Words(const char* verdict) {
  std::string words = verdict;
  for (char& c : words) c = c == '_' ? ' ' : c;
  return words;
}

void AppendSigns(const Screening& screening, std::string& out) {
  constexpr size_t kIndent = 33;
  absl::StrAppend(&out, "\nsigns\n");
  for (const Sign& sign : screening.signs) {
    const std::string side = sign.side == SignSide::kUnknown ? "" : SignSideName(sign.side);
    const std::string verdict = sign.accuses ? "SHOWN" : Words(SignVerdictName(sign.verdict));
    absl::StrAppendFormat(&out, "  %-16s %-13s ", sign.id, verdict);
    absl::StrAppend(&out, WrapText(sign.statement, kIndent, kIndent), "\n");
    if (sign.accuses && !sign.command.empty()) {
      absl::StrAppend(&out, std::string(kIndent, ' '),
                      WrapText("-> " + sign.command, kIndent, kIndent + 3), "\n");
    }
  }
}

ordered_json SignJson(const Sign& sign) {
  ordered_json json = {{"sign", sign.id},
                       {"verdict", SignVerdictName(sign.verdict)},
                       {"accuses", sign.accuses},
                       {"side", SignSideName(sign.side)},
                       {"statement", sign.statement},
                       {"statistic", sign.statistic}};
  json["value"] = sign.statistic.empty() ? ordered_json(nullptr) : ToJson(sign.value);
  json["p_value"] = Number(sign.p_value);
  json["false_alarm_rate"] = Number(sign.false_alarm_rate);
  json["command"] = sign.command;
  return json;
}

ordered_json EffectJson(const TrainingEffect& effect) {
  ordered_json json = {{"num_tokens", effect.num_tokens}, {"num_rows", effect.num_rows}};
  if (effect.num_tokens == 0) return json;
  json["mean_abs_delta"] = ToJson(effect.mean_abs_delta);
  json["mean_delta"] = ToJson(effect.mean_delta);
  json["k1"] = ToJson(effect.k1);
  json["k3"] = ToJson(effect.k3);
  json["mean_w"] = ToJson(effect.mean_w);
  json["ess_fraction"] = ToJson(effect.ess);
  json["truncated_share"] = ToJson(effect.truncated);
  json["clipped_share"] = ToJson(effect.clipped);
  json["abs_delta_p50"] = Number(effect.abs_delta_p50);
  json["abs_delta_p99"] = Number(effect.abs_delta_p99);
  json["abs_delta_p99_9"] = Number(effect.abs_delta_p999);
  json["max_abs_delta"] = Number(effect.max_abs_delta);
  if (effect.has_advantages) {
    json["gradient_missing_positive_advantage"] = ToJson(effect.bias_positive);
    json["gradient_missing_negative_advantage"] = ToJson(effect.bias_negative);
  }
  return json;
}

}  // namespace

std::string ScreeningTable(const Screening& screening) {
  std::string out = absl::StrCat(WrapText(screening.headline, 0, 0), "\n");
  if (!screening.command.empty())
    absl::StrAppend(&out, "\nwhat to do\n  ", WrapText(screening.command, 2, 2), "\n");
  absl::StrAppendFormat(
      &out, "\n%s: %d rows, %d tokens, %d drawn, %d of them with log-probs of both sides\n",
      screening.path, screening.num_rows, screening.num_tokens, screening.num_drawn,
      screening.effect.num_tokens);
  for (const std::string& note : screening.notes) absl::StrAppend(&out, WrapText(note, 0, 0), "\n");
  AppendEffect(screening.effect, out);
  AppendSigns(screening, out);
  absl::StrAppendFormat(&out,
                        "\nA healthy record shows a fault (SHOWN) with a chance of %g at most.\n",
                        kRecordLevel);
  return out;
}

std::string ScreeningJson(const Screening& screening) {
  ordered_json signs = ordered_json::array();
  for (const Sign& sign : screening.signs) signs.push_back(SignJson(sign));
  const ordered_json json = {{"format", "tandem-screening"},
                             {"format_version", 1},
                             {"records", screening.path},
                             {"num_rows", screening.num_rows},
                             {"num_tokens", screening.num_tokens},
                             {"num_drawn", screening.num_drawn},
                             {"verdict", ScreeningVerdictName(screening.verdict)},
                             {"headline", screening.headline},
                             {"command", screening.command},
                             {"false_alarm_rate", Number(kRecordLevel)},
                             {"training_effect", EffectJson(screening.effect)},
                             {"signs", signs},
                             {"notes", screening.notes}};
  return json.dump(1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace tandem::drift
