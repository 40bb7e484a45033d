#include "rollout_server/groups/group_report.h"

#include <string>

namespace tandem::rollout {

void RecordSpans(const GroupReport& report, int64_t ended_unix_ns, Tracer* tracer) {
  const auto at = [&](double seconds) {
    return ended_unix_ns - static_cast<int64_t>((report.ended - seconds) * 1e9);
  };
  const TraceContext whole = Tracer::NewContext(report.trace);
  const auto part = [&](const char* name, double begin, double end) {
    tracer->Record({.name = name,
                    .context = Tracer::NewContext(whole),
                    .parent_span_id = whole.span_id,
                    .begin_ns = at(begin),
                    .end_ns = at(end)});
  };
  part("queue", report.arrived, report.started);
  part("prefill", report.started, report.decoding);
  part("decode", report.decoding, report.ended);
  tracer->Record({.name = "generate_group",
                  .context = whole,
                  .parent_span_id = report.trace.span_id,
                  .kind = SpanKind::kServer,
                  .begin_ns = at(report.arrived),
                  .end_ns = ended_unix_ns,
                  .attributes = {{"tandem.group_id", report.group_id},
                                 {"tandem.num_completions", report.num_completions},
                                 {"tandem.num_tokens", report.num_tokens}}});
}

}  // namespace tandem::rollout
