// What `tandem drift why RECORDS` prints: the verdict from records alone as text, as JSON and as the
// data of an HTML page. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "drift_lab/records/records.h"
#include "drift_lab/referee/referee.h"
#include "drift_lab/screening/screening.h"

namespace tandem::drift {

std::string ScreeningTable(const Screening& screening);

// {"format": "tandem-screening", ...}; docs/foreign_engines.md describes the fields.
std::string ScreeningJson(const Screening& screening);

struct RecordsPageLimits {
  int64_t max_points = 3000;  // of the scatter of delta against log-prob
  int64_t num_bins = 24;      // of every curve
  int64_t num_worst = 40;
};

// The text of token ids; "" where there is no tokenizer.
using TextOfIds = std::function<std::string(std::span<const int32_t>)>;

// The JSON with what the page draws besides: the referee's verdict as `referee` where there is one
// (else null), densities and curves, and the tokens with the largest abs(delta) in context.
std::string RecordsPageData(const Records& records, const Screening& screening,
                            const RefereeReport* referee, const TextOfIds& text_of,
                            const RecordsPageLimits& limits = {});

}  // namespace tandem::drift
