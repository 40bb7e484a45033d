// Reports what pushes did to foreign servers (ForeignDelivery), in place of the proof by digests that
// our own servers give. Used by trainer.cc.
#pragma once

#include "absl/status/status.h"
#include "trainer/foreign/foreign_bridge.h"
#include "trainer/metrics/metrics_line.h"

namespace tandem::trainer {

// Writes an event `foreign_delivery` for each push since the last call, and warns of one that changed
// bytes and no log-prob. `bridge` may be null. Errors of `events`.
absl::Status ReportForeignDeliveries(ForeignBridge* bridge, const EventSink& events);

}  // namespace tandem::trainer
