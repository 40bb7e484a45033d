// Tracer: writes spans of a process as OTLP JSON lines, one ExportTraceServiceRequest each, the
// format of the OpenTelemetry Collector's otlpjsonfile receiver. Contexts travel between processes
// in the W3C `traceparent` header.
//
// Used by the trainer's loop and client and by the rollout server's services. If the file cannot be
// written, spans are lost and the log says so once; nothing else is affected.
#pragma once

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

// Identifies a span: lower-case hex ids of 32 and 16 digits. Empty ids mean no trace.
struct TraceContext {
  std::string trace_id, span_id;
  bool valid() const { return !trace_id.empty(); }
};

inline constexpr char kTraceparent[] = "traceparent";  // name of the header

// "00-TRACE-SPAN-01"; empty for no trace.
std::string ToTraceparent(const TraceContext& context);
// Parses a header. Returns nullopt if it is malformed, all zeros, or of version ff, as W3C Trace
// Context requires.
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

  // New ids for a child of `parent`, or for a new trace if `parent` is empty.
  static TraceContext NewContext(const TraceContext& parent = {});

  // Writes a span that has ended.
  void Record(const Span& span);

 private:
  struct Impl;
  explicit Tracer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

// A context for child spans and the tracer that records them; without a tracer, nothing is
// recorded.
struct TraceParent {
  Tracer* tracer = nullptr;
  TraceContext context;
};

// A span that lasts from construction to destruction, a child of `parent`. It costs nothing without
// a tracer. Not thread-safe.
class ScopedSpan {
 public:
  ScopedSpan(const TraceParent& parent, std::string name, SpanKind kind = SpanKind::kInternal);
  ~ScopedSpan();
  ScopedSpan(const ScopedSpan&) = delete;
  ScopedSpan& operator=(const ScopedSpan&) = delete;

  void Set(std::string name, SpanValue value);
  void SetError(std::string_view message);  // empty: none

  TraceParent parent() const { return {tracer_, span_.context}; }  // for child spans
  std::string traceparent() const { return ToTraceparent(span_.context); }

 private:
  Tracer* const tracer_;
  Span span_;
};

}  // namespace tandem
