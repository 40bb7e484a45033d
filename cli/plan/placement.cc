#include "cli/plan/placement.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/model/forward_kernels.h"
#include "nlohmann/json.hpp"

namespace tandem::plan {
namespace {

std::string Gib(int64_t bytes) {
  return absl::StrFormat("%.2f GiB", static_cast<double>(bytes) / (int64_t{1} << 30));
}

Place Fullest(const RunShape& run) {
  const std::vector<Place> places = PlaceProcesses(run);
  return *std::ranges::max_element(
      places, {}, [](const Place& place) { return place.bytes - place.memory_bytes; });
}

// The largest KV cache with which the fullest place fits, in whole blocks; 0: none.
int64_t KvTokensThatFit(const RunShape& run) {
  RunShape least = run;
  rollout::EngineOptions& engine = least.server->engine;
  engine.kv_capacity_tokens = kKvBlockTokens;
  const int64_t one = Fullest(least).bytes;
  engine.kv_capacity_tokens = 2 * kKvBlockTokens;
  const int64_t block = Fullest(least).bytes - one;
  const int64_t left = run.memory_bytes - one;
  return block <= 0 || left < 0 ? 0 : (left / block + 1) * kKvBlockTokens;
}

struct Change {
  std::string option;
  std::function<void(RunShape&)> apply;
};

std::vector<Change> ChangesFor(const RunShape& run) {
  const TrainerShape& trainer = run.trainer;
  const bool supervised = !run.server.has_value();
  const std::string prefix = supervised ? "" : "trainer.";
  std::vector<Change> changes;
  const auto add = [&](std::string option, std::function<void(RunShape&)> apply) {
    changes.push_back({std::move(option), std::move(apply)});
  };
  if (trainer.ranks > 1 && !trainer.shard_parameters) {
    add(supervised ? "shard_parameters: true" : "trainer.ranks.shard_parameters: true",
        [](RunShape& s) { s.trainer.shard_parameters = true; });
  }
  if (!trainer.checkpoint_activations) {
    add(prefix + "checkpoint_activations: true",
        [](RunShape& s) { s.trainer.checkpoint_activations = true; });
  }
  const int64_t shorter = std::max(run.least_row_tokens, trainer.row_tokens / 2);
  if (shorter < trainer.row_tokens) {
    add(absl::StrCat(prefix, "microbatch_tokens: ", shorter), [shorter](RunShape& s) {
      s.trainer.row_targets = s.trainer.row_targets * shorter / s.trainer.row_tokens;
      s.trainer.row_tokens = shorter;
    });
  }
  if (trainer.critic.has_value()) {
    add("trainer.critic.backbone: shared", [](RunShape& s) { s.trainer.critic.reset(); });
  }
  if (trainer.has_reference) {
    add("trainer.loss.kl_coefficient: 0 (and measure_reference_kl: false)",
        [](RunShape& s) { s.trainer.has_reference = false; });
  }
  if (trainer.device == Device::kCuda && trainer.dtype == ComputeDType::kFp32) {
    add(prefix + "dtype: bf16", [](RunShape& s) { s.trainer.dtype = ComputeDType::kBf16; });
  }
  if (!supervised) {
    const int64_t tokens = KvTokensThatFit(run);
    const int64_t now = run.server->engine.kv_capacity_tokens;
    if (tokens > 0 && tokens < now) {
      add(absl::StrCat("server.engine.kv_capacity_tokens: ", tokens),
          [tokens](RunShape& s) { s.server->engine.kv_capacity_tokens = tokens; });
    }
  }
  if (trainer.device == Device::kCuda) {
    if (run.one_gpu) {
      add("--gpus 2: trainer and server apart", [](RunShape& s) { s.one_gpu = false; });
    } else {
      add(absl::StrCat("twice the ranks (", 2 * trainer.ranks, "), with shard_parameters: true"),
          [](RunShape& s) {
            s.trainer.ranks *= 2;
            s.trainer.shard_parameters = true;
          });
    }
  }
  return changes;
}

}  // namespace

std::vector<Place> PlaceProcesses(const RunShape& run) {
  const bool on_gpus = run.trainer.device == Device::kCuda;
  Place trainers = {.name = absl::StrCat("GPU of a trainer rank"),
                    .count = run.trainer.ranks,
                    .processes = {TrainerMemory(run.trainer)},
                    .memory_bytes = run.memory_bytes};
  std::vector<Place> places;
  if (!run.server.has_value()) {
    places = {trainers};
  } else {
    ServerShape server = *run.server;
    const int64_t shared = run.one_gpu ? trainers.processes[0].total() : 0;
    server.device_bytes = run.memory_bytes - shared;
    Place servers = {.name = "GPU of a rollout server",
                     .count = run.servers,
                     .processes = {ServerMemory(server)},
                     .memory_bytes = run.memory_bytes};
    if (run.one_gpu) {
      trainers.name = "GPU";
      trainers.processes.push_back(servers.processes[0]);
      places = {trainers};
    } else {
      places = {trainers, servers};
    }
  }
  if (!on_gpus) {  // all processes share the machine
    Place machine = {.name = "this machine", .memory_bytes = run.memory_bytes};
    for (const Place& place : places) {
      for (int64_t i = 0; i < place.count; ++i) machine.processes.push_back(place.processes[0]);
    }
    places = {machine};
  }
  for (Place& place : places) {
    for (const ProcessMemory& process : place.processes) place.bytes += process.total();
  }
  return places;
}

std::vector<Advice> Advise(const RunShape& run) {
  const Place fullest = Fullest(run);
  if (fullest.fits()) return {};
  std::vector<Advice> advice;
  for (const Change& change : ChangesFor(run)) {
    RunShape changed = run;
    change.apply(changed);
    const int64_t saved = fullest.bytes - Fullest(changed).bytes;
    if (saved > 0) advice.push_back({change.option, saved});
  }
  std::ranges::stable_sort(advice, std::ranges::greater(), &Advice::saved_bytes);
  return advice;
}

absl::StatusOr<int64_t> ParseBytes(const std::string& text) {
  const size_t digits = text.find_first_not_of("0123456789.");
  double number = 0;
  const std::string unit = digits == std::string::npos ? "" : text.substr(digits);
  constexpr char kLetters[] = "KMGT";
  double scale = 1;
  bool good = absl::SimpleAtod(text.substr(0, digits), &number) && number > 0;
  if (!unit.empty()) {
    const auto* const letter = std::find(kLetters, kLetters + 4, unit[0]);
    const std::string rest = unit.substr(1);
    good = good && letter != kLetters + 4 && (rest.empty() || rest == "iB" || rest == "B");
    scale = std::pow(rest == "B" ? 1000.0 : 1024.0, static_cast<double>(letter - kLetters + 1));
  }
  if (good) return static_cast<int64_t>(number * scale);
  return InvalidArgument("'", text,
                         "' is no size: want a number above 0 with K, M, G or T, as 80G (80 GiB) "
                         "or 80GB (80 * 10^9 bytes)");
}

std::string ToText(const RunShape& run) {
  std::string text;
  bool fits = true;
  for (const Place& place : PlaceProcesses(run)) {
    fits = fits && place.fits();
    absl::StrAppend(&text, place.name,
                    place.count > 1 ? absl::StrCat(", ", place.count, " of them") : "", ": ",
                    Gib(place.bytes), " of ", Gib(place.memory_bytes),
                    place.fits() ? ", fits\n" : ", DOES NOT FIT\n");
    for (const ProcessMemory& process : place.processes) {
      absl::StrAppendFormat(&text, "  %-34s %12s\n", process.name, Gib(process.total()));
      for (const MemoryPart& part : process.parts) {
        absl::StrAppendFormat(&text, "    %-32s %12s  %s\n", part.name, Gib(part.bytes),
                              part.about);
      }
    }
  }
  if (fits) return text;
  const std::vector<Advice> all = Advise(run);
  absl::StrAppend(&text, all.empty() ? "no option saves memory on the fullest: it needs more\n"
                                     : "each of these alone saves, on the fullest:\n");
  for (const Advice& advice : all) {
    absl::StrAppendFormat(&text, "  %12s  %s\n", Gib(advice.saved_bytes), advice.option);
  }
  return text;
}

std::string ToJson(const RunShape& run) {
  using nlohmann::json;
  json places = json::array(), advice = json::array();
  bool fits = true;
  for (const Place& place : PlaceProcesses(run)) {
    fits = fits && place.fits();
    json processes = json::array();
    for (const ProcessMemory& process : place.processes) {
      json parts = json::array();
      for (const MemoryPart& part : process.parts) {
        parts.push_back({{"name", part.name}, {"about", part.about}, {"bytes", part.bytes}});
      }
      processes.push_back({{"name", process.name}, {"bytes", process.total()}, {"parts", parts}});
    }
    places.push_back({{"name", place.name},
                      {"count", place.count},
                      {"bytes", place.bytes},
                      {"memory_bytes", place.memory_bytes},
                      {"fits", place.fits()},
                      {"processes", processes}});
  }
  for (const Advice& each : Advise(run)) {
    advice.push_back({{"option", each.option}, {"saved_bytes", each.saved_bytes}});
  }
  return json(
             {{"algorithm", run.algorithm}, {"fits", fits}, {"places", places}, {"advice", advice}})
      .dump();
}

}  // namespace tandem::plan
