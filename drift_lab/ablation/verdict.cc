#include "drift_lab/ablation/verdict.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"

namespace tandem::drift {
namespace {

using offpolicy::Interval;

bool IsMaterial(const PartShare& share) {
  return share.mean_abs.value > kLogprobFloor && share.square().value >= kLeastShare &&
         share.square().low > 0;
}

// A replay must reproduce every bit of the record, so a single token that differs is evidence, and
// no interval over sequences is needed.
bool IsUnexplainedRecord(const PartShare& share, const RecordDiagnosis& diagnosis) {
  return share.part == Part::kRecord && !diagnosis.explained &&
         share.mean_abs.value > kLogprobFloor && share.square().value >= kLeastShare;
}

std::string EvidenceOf(const PartShare& share) {
  return absl::StrFormat("%s: mean abs %.3g nats a token", std::string(PartDescription(share.part)),
                         share.mean_abs.value);
}

// What to measure next where numbers differ although nothing about the model was changed.
const char* DecidingMeasurement(Part part) {
  switch (part) {
    case Part::kRecord:
      return "capture again with the prefix cache off, with one group at a time, and with "
             "trainer.capture.versions_before, so that more versions of the weights can be tried";
    case Part::kTrainerRecord:
      return "score the same capture twice with the trainer: if the two differ, something is "
             "random (dropout, train mode); if not, the run packed or cast otherwise than it says";
    case Part::kEmulation:
      return "the serving engine's instructions round otherwise than fp32 with rounded inputs: set "
             "TANDEM_INSTRUCTION_SET=avx512 on the server and capture again";
    default:
      return "";
  }
}

// The question that the diagnosis of the record leaves open.
OpenQuestion RestOfRecord(const PartShare& share, const RecordDiagnosis& diagnosis) {
  return {absl::StrFormat(
              "%.0f %% of the mean square is in %s, and none of %d hypotheses that were replayed "
              "(transforms, precision, weights, prompts) gives it back, nor is it noise",
              100 * share.square().value, std::string(PartDescription(share.part)),
              diagnosis.num_tries),
          DecidingMeasurement(share.part)};
}

const DiagnosedCause* Diagnosed(const RecordDiagnosis& diagnosis, Part part) {
  const auto found = std::ranges::find(diagnosis.causes, part, &DiagnosedCause::part);
  return found == diagnosis.causes.end() ? nullptr : &*found;
}

// A fault of sampling has no share, because scoring the tokens again cannot show it.
void JudgeSampler(const SamplerDiagnosis& sampler, double calibration_z, int64_t num_tokens,
                  Verdict& verdict) {
  if (sampler.named) {
    verdict.named.push_back({*sampler.named, {.value = 0}});
    return;
  }
  // NaN without the entropies of the sampler, as of a foreign server: that accuses nobody.
  if (!(std::abs(calibration_z) > kCalibrationAlarm) && !sampler.suspicious) return;
  verdict.open.push_back(
      {absl::StrFormat(
           "tokens were not drawn from the distribution that was recorded: calibration z "
           "is %.1f over %d tokens",
           calibration_z, num_tokens),
       "more tokens under the same settings (no one transform is likelier than the others by "
       "enough yet); compare the sampling settings the server applies with those it records"});
}

}  // namespace

Verdict Judge(const PartShares& shares, const RecordDiagnosis& diagnosis,
              const SamplerDiagnosis& sampler, double calibration_z) {
  Verdict verdict;
  verdict.nothing_to_explain = shares.total_mean_abs.value <= kLogprobFloor;
  Interval explained{.value = 0, .low = 0, .high = 0};
  for (const PartShare& share : shares.parts) {
    const DiagnosedCause* const diagnosed = Diagnosed(diagnosis, share.part);
    // A cause whose replay gives the record back is believed whatever its share is.
    const bool believed = diagnosed != nullptr && share.mean_abs.value > kLogprobFloor;
    if (IsUnexplainedRecord(share, diagnosis)) {
      verdict.open.push_back(RestOfRecord(share, diagnosis));
      continue;
    }
    if (!believed && (verdict.nothing_to_explain || !IsMaterial(share))) continue;
    if (IsPlace(share.part)) {
      verdict.open.push_back(
          {absl::StrFormat("%.0f %% of the mean square is in %s", 100 * share.square().value,
                           std::string(PartDescription(share.part))),
           DecidingMeasurement(share.part)});
      continue;
    }
    verdict.named.push_back(
        diagnosed != nullptr
            ? NamedCause{*diagnosed, share.square()}
            : NamedCause{{.part = share.part, .evidence = EvidenceOf(share)}, share.square()});
    explained.value += share.square().value;
    explained.low += share.square().low;
    explained.high += share.square().high;
  }
  std::ranges::sort(verdict.named, std::ranges::greater(),
                    [](const NamedCause& cause) { return cause.share.value; });
  verdict.unexplained = {.value = std::max(0.0, 1 - explained.value),
                         .low = std::max(0.0, 1 - explained.high),
                         .high = std::clamp(1 - explained.low, 0.0, 1.0)};
  if (verdict.nothing_to_explain) {
    verdict.unexplained = {.value = std::numeric_limits<double>::quiet_NaN()};
  }
  JudgeSampler(sampler, calibration_z, shares.num_tokens, verdict);
  return verdict;
}

}  // namespace tandem::drift
