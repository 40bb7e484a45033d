#include "cli/bench/serve_load.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

// The due times of a Poisson process, in seconds after the start.
std::vector<double> ArrivalTimes(const ServeLoad& load) {
  std::mt19937_64 random(load.seed);
  std::exponential_distribution<double> gap(load.groups_per_second);
  std::vector<double> due;
  double at = 0;
  for (int64_t g = 0; g < load.groups; ++g) {
    due.push_back(at);
    at += gap(random);
  }
  return due;
}

ServeRequest MakeRequest(const ServeLoad& load, int64_t vocab_size, int64_t g) {
  ServeRequest request = {.number = g};
  std::mt19937_64 random(load.seed ^ (0x9E3779B97F4A7C15ull * static_cast<uint64_t>(g + 1)));
  for (int64_t t = 0; t < load.prompt_tokens; ++t) {
    request.prompt.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocab_size)));
  }
  request.seed = random();
  return request;
}

// Requests all groups, with one thread per group in flight.
ServeResult RunLoad(const ServeLoad& load, ServeTarget& target, int64_t vocab_size,
                    const std::function<void(int64_t)>& progress) {
  const bool open_loop = load.groups_per_second > 0;
  const std::vector<double> due_times = open_loop ? ArrivalTimes(load) : std::vector<double>();
  ServeResult result{.groups = std::vector<ServedGroup>(static_cast<size_t>(load.groups))};
  std::atomic<int64_t> next = 0;
  Mutex mutex;
  int64_t done = 0;  // guarded by `mutex`, as `result`
  const double start = MonotonicSeconds();
  const auto ask_for = [&](int64_t g) {
    const auto request = MakeRequest(load, vocab_size, g);
    double due = MonotonicSeconds();
    if (open_loop) {
      due = start + due_times[static_cast<size_t>(g)];
      const double wait = due - MonotonicSeconds();
      if (wait > 0) std::this_thread::sleep_for(std::chrono::duration<double>(wait));
    }
    const double sent = MonotonicSeconds();
    ServedGroup group = target.Ask(request);
    group.total_ms = (MonotonicSeconds() - due) * 1e3;
    group.late_ms = (sent - due) * 1e3;
    MutexLock lock(&mutex);
    result.groups[static_cast<size_t>(g)] = std::move(group);
    progress(++done);
  };
  // In an open loop no request may wait for an answer, so every group has a thread.
  const int64_t num_threads = open_loop ? load.groups : std::min(load.concurrency, load.groups);
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < num_threads; ++i) {
    threads.emplace_back([&] {
      for (int64_t g; (g = next.fetch_add(1)) < load.groups;) ask_for(g);
    });
  }
  for (std::thread& thread : threads) thread.join();
  result.seconds = MonotonicSeconds() - start;
  return result;
}

// A time in the result: its names, and its values over the groups or completions that were
// answered.
struct Measured {
  const char* name;
  const char* json_name;
  std::vector<double> values;
};

std::vector<Measured> Times(const ServeResult& result) {
  Measured queue = {"queue", "queue_ms", {}};
  Measured first = {"first token", "first_token_ms", {}};
  Measured between = {"between tokens", "between_tokens_ms", {}};
  Measured gap = {"longest gap", "longest_gap_ms", {}};
  Measured whole = {"whole group", "group_ms", {}};
  for (const ServedGroup& group : result.groups) {
    if (group.code != "OK") continue;
    if (!std::isnan(group.queue_ms)) queue.values.push_back(group.queue_ms);
    if (!std::isnan(group.prefill_ms)) {
      first.values.push_back(group.late_ms + (std::isnan(group.queue_ms) ? 0 : group.queue_ms) +
                             group.prefill_ms);
    }
    whole.values.push_back(group.total_ms);
    for (const double ms : group.between_tokens_ms) between.values.push_back(ms);
    for (const double ms : group.longest_gap_ms) gap.values.push_back(ms);
  }
  return {queue, first, between, gap, whole};
}

struct Totals {
  std::map<std::string, int64_t> groups_by_code;
  std::map<std::string, std::string> example;  // a message of each code
  int64_t tokens = 0;
};

Totals TotalsOf(const ServeResult& result) {
  Totals totals;
  for (const ServedGroup& group : result.groups) {
    ++totals.groups_by_code[group.code];
    totals.example.emplace(group.code, group.message);
    if (group.code == "OK") totals.tokens += group.tokens;
  }
  return totals;
}

}  // namespace

absl::StatusOr<ServeResult> RunServeLoad(const ServeLoad& load,
                                         const std::function<void(int64_t)>& progress) {
  const std::unique_ptr<ServeTarget> target =
      load.protocol == ServeProtocol::kGrpc ? MakeGrpcTarget(load) : MakeHttpTarget(load);
  TANDEM_ASSIGN_OR_RETURN(const ServeTarget::Limits limits, target->Reach());
  if (load.prompt_tokens + load.new_tokens > limits.context_tokens) {
    return InvalidArgument("prompts of ", load.prompt_tokens, " and completions of ",
                           load.new_tokens, " tokens do not fit the server's context of ",
                           limits.context_tokens);
  }
  return RunLoad(load, *target, limits.vocab_size, progress);
}

bool AnyServed(const ServeResult& result) {
  return std::any_of(result.groups.begin(), result.groups.end(),
                     [](const ServedGroup& group) { return group.code == "OK"; });
}

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<int64_t>(std::ceil(q * static_cast<double>(values.size())));
  return values[static_cast<size_t>(std::max<int64_t>(rank, 1) - 1)];
}

std::string ToText(const ServeLoad& load, const ServeResult& result) {
  const Totals totals = TotalsOf(result);
  std::string out =
      absl::StrFormat("%s: %d groups of %d, prompts of %d tokens, %d new, ", load.address,
                      load.groups, load.group_size, load.prompt_tokens, load.new_tokens);
  if (load.groups_per_second > 0) {
    absl::StrAppendFormat(&out, "%g groups/s (open loop)\n", load.groups_per_second);
  } else {
    absl::StrAppendFormat(&out, "%d groups in flight (closed loop)\n", load.concurrency);
  }
  for (const auto& [code, count] : totals.groups_by_code) {
    absl::StrAppendFormat(&out, "%-20s %6d groups%s%s\n", code, count, code == "OK" ? "" : "  ",
                          code == "OK" ? "" : totals.example.at(code));
  }
  if (totals.tokens == 0) return out;
  absl::StrAppendFormat(&out, "throughput %.1f tok/s over %.1f s\n",
                        static_cast<double>(totals.tokens) / result.seconds, result.seconds);
  absl::StrAppendFormat(&out, "%-16s %10s %10s %10s %10s\n", "ms", "p50", "p90", "p99", "largest");
  for (const Measured& time : Times(result)) {
    if (time.values.empty()) continue;
    absl::StrAppendFormat(&out, "%-16s %10.1f %10.1f %10.1f %10.1f\n", time.name,
                          Quantile(time.values, 0.5), Quantile(time.values, 0.9),
                          Quantile(time.values, 0.99), Quantile(time.values, 1));
  }
  return out;
}

std::string ToJson(const ServeLoad& load, const ServeResult& result) {
  const Totals totals = TotalsOf(result);
  nlohmann::json out;
  out["load"] = {{"groups", load.groups},
                 {"group_size", load.group_size},
                 {"prompt_tokens", load.prompt_tokens},
                 {"new_tokens", load.new_tokens}};
  if (load.groups_per_second > 0) {
    out["load"]["groups_per_second"] = load.groups_per_second;
  } else {
    out["load"]["concurrency"] = load.concurrency;
  }
  out["groups"] = totals.groups_by_code;
  out["seconds"] = result.seconds;
  out["tokens_per_second"] = static_cast<double>(totals.tokens) / result.seconds;
  for (const Measured& time : Times(result)) {
    if (time.values.empty()) continue;
    out[time.json_name] = {{"p50", Quantile(time.values, 0.5)},
                           {"p90", Quantile(time.values, 0.9)},
                           {"p99", Quantile(time.values, 0.99)},
                           {"largest", Quantile(time.values, 1)}};
  }
  return out.dump() + "\n";
}

}  // namespace tandem::cli
