#include "cli/simulate/constants.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/options/nearest_name.h"
#include "nlohmann/json.hpp"

namespace tandem::simulate {
namespace {

constexpr Origin kPublished = Origin::kPublished;
constexpr Origin kMeasured = Origin::kMeasured;
constexpr Origin kAssumed = Origin::kAssumed;

constexpr char kDatasheet[] = "NVIDIA H100 Tensor Core GPU datasheet, SXM column";

}  // namespace

const char* OriginName(Origin origin) {
  constexpr const char* kNames[] = {"published", "measured", "assumed"};
  return kNames[static_cast<size_t>(origin)];
}

Constants ClusterConstants() {
  return Constants({
      {"device_flops", 989e12, "FLOP/s", kPublished, absl::StrCat(kDatasheet, ": bf16, dense")},
      {"hbm_bytes_per_second", 3.35e12, "B/s", kPublished, kDatasheet},
      {"hbm_bytes", 80e9, "B", kPublished, kDatasheet},
      {"nvlink_bytes_per_second", 450e9, "B/s", kPublished,
       absl::StrCat(kDatasheet, ": 900 GB/s, both directions together")},
      {"nic_bytes_per_second", 50e9, "B/s", kPublished,
       "NVIDIA DGX H100 datasheet: one 400 Gb/s NDR port a GPU"},
      {"gpus_per_node", 8, "", kPublished, "NVIDIA DGX H100 datasheet"},
      {"train_mfu", 0.4, "of device_flops", kAssumed,
       "6 N per token and attention; fms-fsdp states 7500 tok/s on an H100 at 7B: 0.30 without "
       "attention",
       0.3, 0.5},
      {"prefill_fraction", 0.5, "of device_flops", kAssumed, "large products, as in training", 0.4,
       0.7},
      {"decode_fraction", 0.4, "of device_flops", kAssumed, "products of a few hundred rows", 0.2,
       0.6},
      {"hbm_fraction", 0.7, "of hbm_bytes_per_second", kAssumed, "decode, weights and KV", 0.5,
       0.85},
      {"step_overhead_seconds", 1e-3, "s", kAssumed, "of a decode step: plan, launch, sample",
       0.3e-3, 3e-3},
      {"tensor_parallel_latency_seconds", 10e-6, "s", kAssumed,
       "of one of the two all-reduces a layer", 5e-6, 30e-6},
      {"link_fraction", 0.75, "of the link", kAssumed,
       "collectives of gigabytes; a fabric that does not block", 0.5, 0.9},
      {"hidden_fraction", 0.85, "of the gradient sums", kMeasured,
       "gradient_sum_bench on two CPU ranks (docs/scaling.md); that GPUs hide as much is assumed",
       0.5, 1},
      {"activation_bytes", 10e9, "B", kAssumed,
       "of a trainer's GPU, 16384 tokens, recomputed by layer", 5e9, 20e9},
      {"usable_memory_fraction", 0.9, "of hbm_bytes", kAssumed,
       "the rest is the allocator's and the libraries'", 0, 0},
      {"microbatch_tokens", 16384, "tokens", kAssumed, "a rank differentiates at once", 8192,
       32768},
      {"delta_changed_share", 0.03, "of elements", kMeasured,
       "push/changed_share of demo runs (docs/weight_push.md); that large models are alike is "
       "assumed",
       0.01, 0.1},
      {"delta_bytes_per_changed", 2.1, "B", kMeasured,
       "push/bytes over push/changed_share of demo runs", 0, 0},
      {"prepare_bytes_per_second", 20e9, "B/s of dense weights", kAssumed,
       "cast, digests and deltas on the device; 1.1e9 is what tandem bench push measured on two "
       "CPU cores",
       1.1e9, 200e9},
      {"verify_bytes_per_second", 20e9, "B/s of dense weights", kAssumed,
       "digests at a server; 4e9 is what tandem bench push measured on two CPU cores", 4e9, 200e9},
      {"pause_seconds", 0.01, "s", kAssumed, "the goal of docs/weight_push.md; far less on the CPU",
       0, 0},
      {"record_seconds", 0.05, "s", kMeasured, "time/step less its parts in demo runs", 0, 0},
  });
}

Constants MachineConstants() {
  const std::string rollout =
      "tandem bench rollout --model models/smollm2-135m-instruct "
      "(tests/bench/results/2026-11-21-engine-cpu.md)";
  const std::string push = "tandem bench push --model models/smollm2-135m-instruct --servers 1";
  const std::string run = "a demo run: time/update against tokens";
  return Constants({
      {"decode_tokens_per_second_1", 85.4, "tok/s", kMeasured, rollout},
      {"decode_tokens_per_second_8", 497.8, "tok/s", kMeasured, rollout},
      {"decode_tokens_per_second_32", 637, "tok/s", kMeasured, rollout},
      {"decode_tokens_per_second_64", 688.8, "tok/s", kMeasured, rollout},
      {"prefill_tokens_per_second", 940, "tok/s", kMeasured, rollout},
      {"prompt_tokens", 44, "tokens", kMeasured,
       "tandem tokenize of a demo prompt, chat template included"},
      {"train_tokens_per_second", 120, "packed tok/s", kMeasured, run},
      {"train_fixed_seconds", 0, "s", kMeasured, run},
      {"cast_bytes_per_second", 0.27e9, "B/s of dense weights", kMeasured,
       "a demo run: time/push less push/seconds"},
      {"send_bytes_per_second", 0.6e9, "B/s that travel", kMeasured, push},
      {"verify_bytes_per_second", 4e9, "B/s of dense weights", kMeasured, push},
      {"pack_bytes_per_second", 1.5e9, "B/s of dense weights", kMeasured, push},
      {"record_seconds", 0.05, "s", kMeasured, "a demo run: time_s less time/step"},
  });
}

double Constants::operator[](std::string_view name) const {
  const auto found = std::ranges::find(table_, name, &Constant::name);
  TANDEM_CHECK(found != table_.end());
  return found->value;
}

void Constants::Set(std::string_view name, double value) {
  const auto found = std::ranges::find(table_, name, &Constant::name);
  TANDEM_CHECK(found != table_.end());
  found->value = value;
}

absl::Status Constants::Override(const std::string& json, const std::string& place) {
  const auto refused = [&](const std::string& what) { return InvalidArgument(place, ": ", what); };
  nlohmann::json document;
  try {
    document = nlohmann::json::parse(json);
  } catch (const nlohmann::json::parse_error& error) {
    return refused(absl::StrCat("not JSON: ", error.what()));
  }
  if (!document.is_object()) return refused("want an object of constants by name");
  std::vector<std::string> names;
  for (const Constant& constant : table_) names.push_back(constant.name);
  for (const auto& [name, entry] : document.items()) {
    const auto found = std::ranges::find(table_, name, &Constant::name);
    if (found == table_.end()) {
      const std::string nearest = NearestIfClose(name, names);
      return refused(absl::StrCat("unknown constant ", name,
                                  nearest.empty() ? "" : absl::StrCat("; nearest: ", nearest)));
    }
    const auto number = [&](const char* key) {
      return entry.is_object() && entry.contains(key) && entry[key].is_number();
    };
    if (!number("value")) return refused(absl::StrCat(name, ": no number \"value\""));
    const double value = entry["value"].get<double>();
    if (!std::isfinite(value) || value < 0 || (value == 0 && found->value != 0)) {
      return refused(absl::StrCat(name, ": ", value, " is not positive"));
    }
    if (!entry.contains("source") || !entry["source"].is_string() || entry["source"] == "") {
      return refused(
          absl::StrCat(name, ": no \"source\": which command measured it, or who says so"));
    }
    found->value = value;
    found->source = entry["source"].get<std::string>();
    const std::string origin = entry.value("origin", "measured");
    found->origin = origin == "published" ? kPublished : origin == "assumed" ? kAssumed : kMeasured;
    found->low = number("low") ? entry["low"].get<double>() : 0;
    found->high = number("high") ? entry["high"].get<double>() : 0;
  }
  return absl::OkStatus();
}

std::string Constants::ToJson() const {
  nlohmann::ordered_json out;
  for (const Constant& c : table_) {
    out[c.name] = {{"value", c.value},
                   {"unit", c.unit},
                   {"origin", OriginName(c.origin)},
                   {"source", c.source}};
    if (c.high > 0) {
      out[c.name]["low"] = c.low;
      out[c.name]["high"] = c.high;
    }
  }
  return out.dump(1) + "\n";
}

std::string Constants::ToMarkdown() const {
  std::string out = "| constant | value | range | | source |\n|---|---|---|---|---|\n";
  for (const Constant& c : table_) {
    absl::StrAppendFormat(&out, "| `%s` | %g %s | %s | %s | %s |\n", c.name, c.value, c.unit,
                          c.high > 0 ? absl::StrFormat("%g to %g", c.low, c.high) : "",
                          OriginName(c.origin), c.source);
  }
  return out;
}

absl::Status ReadConstants(const std::string& path, Constants* constants) {
  TANDEM_ASSIGN_OR_RETURN(const std::string json, ReadFile(path));
  return constants->Override(json, path);
}

}  // namespace tandem::simulate
