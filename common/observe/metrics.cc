#include "common/observe/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "common/base/check.h"
#include "common/base/mutex.h"

namespace tandem {
namespace {

bool IsValidName(std::string_view name, bool colon_allowed) {
  if (name.empty() || absl::ascii_isdigit(static_cast<unsigned char>(name[0]))) return false;
  for (const char c : name) {
    const bool letter = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
    if (!letter && !(colon_allowed && c == ':')) return false;
  }
  return true;
}

bool AreValidLabels(const MetricLabels& labels) {
  for (const auto& [name, value] : labels) {
    if (!IsValidName(name, false) || name.starts_with("__")) return false;
  }
  return true;
}

}  // namespace

void Counter::Add(double amount) { counter_->Increment(amount); }
double Counter::Value() const { return counter_->Value(); }

void Gauge::Set(double value) { gauge_->Set(value); }
double Gauge::Value() const { return gauge_->Value(); }

void HistogramMetric::Observe(double value) { histogram_->Observe(value); }
void HistogramMetric::ObserveMany(double value, int64_t times) {
  std::vector<double> counts(bounds_.size() + 1, 0.0);
  const auto bucket = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  counts[static_cast<size_t>(bucket)] = static_cast<double>(times);
  histogram_->ObserveMultiple(counts, value * static_cast<double>(times));
}

struct MetricsRegistry::Impl {
  enum class Kind { kCounter, kGauge, kHistogram };
  using Key = std::pair<std::string, MetricLabels>;

  // The metric of a name and labels, which a prometheus::Build...() makes when it is new. A name
  // belongs to a single kind of metric.
  template <typename Metric, typename Builder, typename... Bounds>
  Metric* Get(Kind kind, std::map<Key, Metric>& metrics, Builder builder, std::string_view name,
              std::string_view help, const MetricLabels& labels, const Bounds&... bounds)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    TANDEM_CHECK(IsValidName(name, true));
    TANDEM_CHECK(AreValidLabels(labels));
    TANDEM_CHECK(kinds.emplace(name, kind).first->second == kind);
    const Key key(name, labels);
    auto found = metrics.find(key);
    if (found == metrics.end()) {
      auto& family = builder.Name(key.first).Help(std::string(help)).Register(*registry);
      found = metrics.emplace(key, Metric(&family.Add(labels, bounds...), bounds...)).first;
    }
    return &found->second;
  }

  Mutex mu;
  std::shared_ptr<prometheus::Registry> registry = std::make_shared<prometheus::Registry>();
  std::map<std::string, Kind> kinds ABSL_GUARDED_BY(mu);
  std::map<Key, Counter> counters ABSL_GUARDED_BY(mu);
  std::map<Key, Gauge> gauges ABSL_GUARDED_BY(mu);
  std::map<Key, HistogramMetric> histograms ABSL_GUARDED_BY(mu);

  mutable Mutex updates_mu;  // held while updates run; never taken while mu is held
  std::vector<std::pair<const void*, std::function<void()>>> updates ABSL_GUARDED_BY(updates_mu);
};

MetricsRegistry::MetricsRegistry() : impl_(std::make_unique<Impl>()) {}
MetricsRegistry::~MetricsRegistry() = default;

Counter* MetricsRegistry::GetCounter(std::string_view name, std::string_view help,
                                     const MetricLabels& labels) {
  MutexLock lock(&impl_->mu);
  return impl_->Get(Impl::Kind::kCounter, impl_->counters, prometheus::BuildCounter(), name, help,
                    labels);
}

Gauge* MetricsRegistry::GetGauge(std::string_view name, std::string_view help,
                                 const MetricLabels& labels) {
  MutexLock lock(&impl_->mu);
  return impl_->Get(Impl::Kind::kGauge, impl_->gauges, prometheus::BuildGauge(), name, help,
                    labels);
}

HistogramMetric* MetricsRegistry::GetHistogram(std::string_view name, std::string_view help,
                                               const std::vector<double>& bounds,
                                               const MetricLabels& labels) {
  MutexLock lock(&impl_->mu);
  return impl_->Get(Impl::Kind::kHistogram, impl_->histograms, prometheus::BuildHistogram(), name,
                    help, labels, bounds);
}

void MetricsRegistry::BeforeRender(const void* owner, std::function<void()> update) {
  MutexLock lock(&impl_->updates_mu);
  impl_->updates.emplace_back(owner, std::move(update));
}

void MetricsRegistry::Forget(const void* owner) {
  MutexLock lock(&impl_->updates_mu);
  std::erase_if(impl_->updates, [&](const auto& one) { return one.first == owner; });
}

std::string MetricsRegistry::Render() const {
  {
    MutexLock lock(&impl_->updates_mu);
    for (const auto& [owner, update] : impl_->updates) update();
  }
  return prometheus::TextSerializer().Serialize(impl_->registry->Collect());
}

}  // namespace tandem
