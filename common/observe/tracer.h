// Tracer: spans of a process as OTLP JSON lines, one ExportTraceServiceRequest each, the form that
// the OpenTelemetry Collector's otlpjsonfile receiver reads. Contexts travel between processes as
// the W3C `traceparent` header.
//
// Used by the trainer's loop and client and by the rollout server's services. A file that cannot be
// written loses spans, says so once in the log, and harms nothing else.
#ifndef TANDEM_COMMON_OBSERVE_TRACER_H_
#define TANDEM_COMMON_OBSERVE_TRACER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem {

// What names a span; both lower-case hex, 32 and 16 digits. Empty: no trace.
struct TraceContext {
  std::string trace_id, span_id;
  bool valid() const { return !trace_id.empty(); }
};

inline constexpr char kTraceparent[] = "traceparent";  // the name of the header

// "00-TRACE-SPAN-01"; empty for no trace.
std::string ToTraceparent(const TraceContext& context);
// None where it is malformed, all zeros, or of the version ff: as W3C Trace Context has it.
std::optional<TraceContext> ParseTraceparent(std::string_view header);

int64_t UnixNanoseconds();

enum class SpanKind { kInternal = 1, kServer = 2, kClient = 3 };  // OTLP's numbers

using SpanValue = std::variant<int64_t, double, std::string>;

struct Span {
  std::string name;
  TraceContext context;
  std::string parent_span_id;  // empty: the root of its trace
  SpanKind kind = SpanKind::kInternal;
  int64_t begin_ns = 0, end_ns = 0;  // since 1970
  std::vector<std::pair<std::string, SpanValue>> attributes;
  std::string error;  // empty: no error
};

// Thread-safe.
class Tracer {
 public:
  // Appends to `path`; `service` is the resource's service.name.
  //   UNAVAILABLE, PERMISSION_DENIED  it cannot be opened
  static absl::StatusOr<std::unique_ptr<Tracer>> Open(const std::string& path,
                                                      const std::string& service);
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // Fresh ids: of a child of `parent`, or of a new trace where it is none.
  static TraceContext NewContext(const TraceContext& parent = {});

  // Writes a span that has ended.
  void Record(const Span& span);

 private:
  struct Impl;
  explicit Tracer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

// A span under `context`, and who records it; without a tracer nothing is recorded.
struct TraceParent {
  Tracer* tracer = nullptr;
  TraceContext context;
};

// A span from construction to its end, a child of `parent`. Costs nothing without a tracer. Not
// thread-safe.
class ScopedSpan {
 public:
  ScopedSpan(const TraceParent& parent, std::string name, SpanKind kind = SpanKind::kInternal);
  ~ScopedSpan();
  ScopedSpan(const ScopedSpan&) = delete;
  ScopedSpan& operator=(const ScopedSpan&) = delete;

  void Set(std::string name, SpanValue value);
  void SetError(std::string_view message);  // empty: none

  TraceParent parent() const { return {tracer_, span_.context}; }  // for children
  std::string traceparent() const { return ToTraceparent(span_.context); }

 private:
  Tracer* const tracer_;
  Span span_;
};

}  // namespace tandem

#endif  // TANDEM_COMMON_OBSERVE_TRACER_H_
