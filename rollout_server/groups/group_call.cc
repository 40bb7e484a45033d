#include "rollout_server/groups/group_call.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"

namespace tandem::rollout {

GroupCall::Item GroupCall::Next(size_t* cursor) const {
  MutexLock lock(&mu_);
  if (!error_.ok()) return error_;
  if (*cursor < parts_.size()) {
    return std::visit([](const auto& part) -> Item { return part; }, parts_[(*cursor)++]);
  }
  if (report_) return *report_;
  return Nothing{};
}

GroupCall::Item GroupCall::NextWhenWhole(size_t* cursor) const {
  MutexLock lock(&mu_);
  if (!error_.ok()) return error_;
  if (!report_) return Nothing{};
  if (*cursor == parts_.size()) return *report_;
  const auto index_of = [](const auto& part) {
    return std::visit([](const auto& one) { return one->index; }, part);
  };
  const int32_t first = index_of(*std::ranges::min_element(parts_, {}, index_of));
  const auto wanted = first + static_cast<int32_t>((*cursor)++);
  for (const auto& part : parts_) {
    const auto* const completion = std::get_if<CompletionPtr>(&part);
    if (completion != nullptr && (*completion)->index == wanted) return *completion;
  }
  return Internal("a group ended without one of its completions");
}

void GroupCall::Append(Part part) {
  MutexLock lock(&mu_);
  parts_.push_back(std::move(part));
}

void GroupCall::End(GroupReport report) {
  MutexLock lock(&mu_);
  if (error_.ok() && !report_) report_ = std::move(report);
}

void GroupCall::End(absl::Status error) {
  MutexLock lock(&mu_);
  if (!error_.ok() || report_) return;
  error_ = std::move(error);
  parts_.clear();  // nobody reads them any more
}

void GroupCall::AddListener(std::shared_ptr<GroupListener> listener) {
  MutexLock lock(&mu_);
  listeners_.push_back(std::move(listener));
}

bool GroupCall::RemoveListener(const GroupListener* listener) {
  std::vector<std::shared_ptr<GroupListener>> gone;  // destroyed after the lock is released
  MutexLock lock(&mu_);
  std::vector<std::shared_ptr<GroupListener>> left;
  for (auto& one : listeners_) (one.get() == listener ? gone : left).push_back(std::move(one));
  listeners_ = std::move(left);
  return !gone.empty() && listeners_.empty();
}

std::vector<std::shared_ptr<GroupListener>> GroupCall::listeners() const {
  MutexLock lock(&mu_);
  return listeners_;
}

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
