#include "common/observe/tracer.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/files/file_system.h"

namespace tandem {
namespace {

using nlohmann::ordered_json;

constexpr size_t kTraceDigits = 32, kSpanDigits = 16;

// Random hex digits that are not all zeros, since zeros mean "no id".
std::string RandomHex(size_t digits) {
  thread_local std::mt19937_64 random = [] {
    std::random_device device;
    std::seed_seq seed = {device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  std::string hex;
  while (hex.size() < digits) absl::StrAppend(&hex, absl::Hex(random() | 1, absl::kZeroPad16));
  return hex.substr(0, digits);
}

bool IsHex(std::string_view text, size_t digits) {
  return text.size() == digits && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

bool IsId(std::string_view text, size_t digits) {
  return IsHex(text, digits) && text.find_first_not_of('0') != std::string_view::npos;
}

// Protobuf's JSON format writes 64-bit integers as strings.
ordered_json Value(const SpanValue& value) {
  if (const auto* number = std::get_if<int64_t>(&value)) {
    return {{"intValue", std::to_string(*number)}};
  }
  if (const auto* number = std::get_if<double>(&value)) return {{"doubleValue", *number}};
  return {{"stringValue", std::get<std::string>(value)}};
}

ordered_json Attribute(const std::string& name, const SpanValue& value) {
  return {{"key", name}, {"value", Value(value)}};
}

ordered_json ToJson(const Span& span) {
  ordered_json attributes = ordered_json::array();
  for (const auto& [name, value] : span.attributes) attributes.push_back(Attribute(name, value));
  ordered_json json = {{"traceId", span.context.trace_id}, {"spanId", span.context.span_id}};
  if (!span.parent_span_id.empty()) json["parentSpanId"] = span.parent_span_id;
  json["name"] = span.name;
  json["kind"] = static_cast<int>(span.kind);
  json["startTimeUnixNano"] = std::to_string(span.begin_ns);
  json["endTimeUnixNano"] = std::to_string(span.end_ns);
  json["attributes"] = std::move(attributes);
  if (!span.error.empty()) json["status"] = {{"code", 2}, {"message", span.error}};
  return json;
}

}  // namespace

std::string ToTraceparent(const TraceContext& context) {
  if (!context.valid()) return "";
  return absl::StrCat("00-", context.trace_id, "-", context.span_id, "-01");
}

std::optional<TraceContext> ParseTraceparent(std::string_view header) {
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(header.data(), header.size()), '-');
  if (parts.size() < 4 || !IsHex(parts[0], 2) || parts[0] == "ff" ||
      (parts[0] == "00" && parts.size() != 4) || !IsId(parts[1], kTraceDigits) ||
      !IsId(parts[2], kSpanDigits) || !IsHex(parts[3], 2)) {
    return std::nullopt;
  }
  return TraceContext{parts[1], parts[2]};
}

int64_t UnixNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

struct Tracer::Impl {
  ordered_json resource;
  Mutex mu;
  std::unique_ptr<AppendFile> file ABSL_GUARDED_BY(mu);
  bool has_failed ABSL_GUARDED_BY(mu) = false;
};

absl::StatusOr<std::unique_ptr<Tracer>> Tracer::Open(const std::string& path,
                                                     const std::string& service) {
  auto impl = std::make_unique<Impl>();
  TANDEM_ASSIGN_OR_RETURN(impl->file, AppendFile::Open(path));
  std::array<char, 256> host = {};
  gethostname(host.data(), host.size() - 1);
  impl->resource["attributes"] = {Attribute("service.name", service),
                                  Attribute("service.version", std::string(ProjectVersion())),
                                  Attribute("host.name", std::string(host.data())),
                                  Attribute("process.pid", int64_t{getpid()})};
  return std::unique_ptr<Tracer>(new Tracer(std::move(impl)));
}

Tracer::Tracer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tracer::~Tracer() = default;

TraceContext Tracer::NewContext(const TraceContext& parent) {
  return {parent.valid() ? parent.trace_id : RandomHex(kTraceDigits), RandomHex(kSpanDigits)};
}

void Tracer::Record(const Span& span) {
  const ordered_json scope_spans = {{"scope", {{"name", "tandem"}}},
                                    {"spans", ordered_json::array({ToJson(span)})}};
  const ordered_json line = {
      {"resourceSpans",
       ordered_json::array(
           {{{"resource", impl_->resource}, {"scopeSpans", ordered_json::array({scope_spans})}}})}};
  const std::string text = line.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  MutexLock lock(&impl_->mu);
  const absl::Status written = impl_->file->Append(text);
  if (written.ok() || std::exchange(impl_->has_failed, true)) return;
  log::Warning("spans cannot be written", {{"reason", written.ToString()}});
}

ScopedSpan::ScopedSpan(const TraceParent& parent, std::string name, SpanKind kind)
    : tracer_(parent.tracer) {
  if (tracer_ == nullptr) return;
  span_ = {.name = std::move(name),
           .context = Tracer::NewContext(parent.context),
           .parent_span_id = parent.context.span_id,
           .kind = kind,
           .begin_ns = UnixNanoseconds()};
}

ScopedSpan::~ScopedSpan() {
  if (tracer_ == nullptr) return;
  span_.end_ns = UnixNanoseconds();
  tracer_->Record(span_);
}

void ScopedSpan::Set(std::string name, SpanValue value) {
  if (tracer_ != nullptr) span_.attributes.emplace_back(std::move(name), std::move(value));
}

void ScopedSpan::SetError(std::string_view message) {
  if (tracer_ != nullptr) span_.error = message;
}

}  // namespace tandem
