#include "trainer/foreign/foreign_report.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace tandem::trainer {
namespace {

std::string DescribeProbe(const ForeignDelivery& delivery) {
  if (delivery.num_tokens == 0) {
    return "the probe text could not be scored before and after the push";
  }
  return absl::StrCat(
      delivery.num_moved, " of ", delivery.num_tokens, " log-probs of the probe text moved, by ",
      delivery.mean_abs_change, " nats on average and ", delivery.max_abs_change, " at most",
      delivery.bytes == ForeignBytes::kSame ? "; the bytes were those of the version before" : "");
}

std::string DescribeDelivery(const ForeignDelivery& delivery) {
  const std::string proven =
      delivery.num_parameters == 0
          ? "no checksums"
          : absl::StrCat(delivery.num_proven, " of ", delivery.num_parameters,
                         " parameters have the digest of what was written");
  return absl::StrCat(proven, "; ", DescribeProbe(delivery));
}

}  // namespace

absl::Status ReportForeignDeliveries(ForeignBridge* bridge, const EventSink& events) {
  if (bridge == nullptr) return absl::OkStatus();
  for (const ForeignDelivery& delivery : bridge->TakeDeliveries()) {
    const bool told = delivery.num_tokens > 0;
    if (told && delivery.num_moved == 0 && delivery.bytes == ForeignBytes::kOther) {
      log::Warning("a push changed bytes and moved no log-prob of the probe text",
                   {{"server", delivery.server}, {"version", delivery.version}});
    }
    TANDEM_RETURN_IF_ERROR(
        events("foreign_delivery", DescribeDelivery(delivery),
               {{"server", JsonText(delivery.server)},
                {"version", absl::StrCat(delivery.version)},
                {"parameters", absl::StrCat(delivery.num_parameters)},
                {"proven", absl::StrCat(delivery.num_proven)},
                {"probe_tokens", absl::StrCat(delivery.num_tokens)},
                {"probe_moved", absl::StrCat(delivery.num_moved)},
                {"mean_abs_change", told ? JsonNumber(delivery.mean_abs_change) : "null"},
                {"max_abs_change", told ? JsonNumber(delivery.max_abs_change) : "null"}}));
  }
  return absl::OkStatus();
}

}  // namespace tandem::trainer
