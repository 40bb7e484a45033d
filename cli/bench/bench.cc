#include "cli/bench/bench.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

constexpr const char* kPeers = "tests/bench/peers";
constexpr int64_t kLongPrompt = 512, kGroup = 8;

struct Spread {
  double median = 0, low = 0, high = 0;
};

Spread SpreadOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

// A part of a case, measured in tokens per second or in milliseconds.
struct Part {
  const char* name;
  const char* unit;
  const char* json_name;
  PhaseTimes BenchTimes::*phase;
  bool is_rate = true;
};
constexpr Part kDecode = {"decode", "tok/s", "tokens_per_second", &BenchTimes::decode};
constexpr Part kPrefill = {"prefill", "tok/s", "tokens_per_second", &BenchTimes::prefill};
constexpr Part kFirstToken = {"first", "ms", "milliseconds", &BenchTimes::prefill, false};

std::vector<Part> PartsOf(const BenchCase& c) {
  if (c.kind == BenchKind::kDecode) return {kDecode, kPrefill};
  return {c.kind == BenchKind::kPrefill ? kPrefill : kFirstToken};
}

std::vector<double> Values(const std::vector<BenchTimes>& times, const Part& part) {
  std::vector<double> values;
  for (const BenchTimes& t : times) {
    const PhaseTimes& phase = t.*part.phase;
    if (phase.seconds <= 0) continue;
    values.push_back(part.is_rate ? static_cast<double>(phase.tokens) / phase.seconds
                                  : phase.seconds * 1e3);
  }
  return values;
}

// The least possible time over the measured time, for each pass.
std::vector<double> LimitShares(const std::vector<BenchTimes>& times,
                                const std::vector<MachineLimits>& limits, const Part& part) {
  std::vector<double> shares;
  for (size_t i = 0; i < times.size() && i < limits.size(); ++i) {
    const PhaseTimes& phase = times[i].*part.phase;
    if (phase.work.operations() <= 0 || phase.seconds <= 0) continue;
    shares.push_back(RooflineSeconds(limits[i], phase.work) / phase.seconds);
  }
  return shares;
}

// Our values over theirs, repeat by repeat, so that neighbouring measurements are compared.
std::vector<double> Ratios(const std::vector<double>& ours, const std::vector<double>& theirs) {
  std::vector<double> ratios;
  for (size_t i = 0; i < ours.size() && i < theirs.size(); ++i)
    ratios.push_back(ours[i] / theirs[i]);
  return ratios;
}

MachineLimits MedianLimits(const std::vector<MachineLimits>& limits) {
  const auto median = [&](double MachineLimits::*field) {
    std::vector<double> values;
    for (const MachineLimits& one : limits) values.push_back(one.*field);
    return SpreadOf(values).median;
  };
  return {median(&MachineLimits::read_bytes_per_second), median(&MachineLimits::flops_per_second),
          median(&MachineLimits::bf16_flops_per_second),
          median(&MachineLimits::int8_ops_per_second)};
}

}  // namespace

absl::StatusOr<BenchCase> ParseCase(const std::string& name, int64_t prompt_tokens,
                                    int64_t new_tokens) {
  const std::map<std::string, BenchKind> kinds = {{"decode", BenchKind::kDecode},
                                                  {"prefill", BenchKind::kPrefill},
                                                  {"first-token", BenchKind::kFirstToken}};
  const size_t dash = name.rfind('-');
  const auto kind = kinds.find(name.substr(0, dash));
  int32_t batch = 0;
  if (dash == std::string::npos || kind == kinds.end() ||
      !absl::SimpleAtoi(name.substr(dash + 1), &batch) || batch < 1) {
    return InvalidArgument("'", name, "', want decode-N, prefill-N or first-token-N");
  }
  BenchCase out{name, kind->second, batch, 1, kLongPrompt, 1};
  if (out.kind == BenchKind::kFirstToken) out.group = batch;
  if (out.kind == BenchKind::kDecode) {
    if (batch < kGroup) out.group = batch;
    if (batch % kGroup == 0) out.group = kGroup;
    out.prompt_tokens = prompt_tokens;
    out.new_tokens = new_tokens;
  }
  return out;
}

absl::StatusOr<PeerCommand> FindPeer(const std::string& name_or_path, const std::string& model,
                                     const std::string& dtype, int64_t threads,
                                     const std::string& device) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const size_t colon = name_or_path.rfind(':');
  const std::string program = name_or_path.substr(0, colon);
  const std::string weights =
      colon == std::string::npos ? std::string() : name_or_path.substr(colon + 1);
  if (!std::ranges::all_of(weights, [](char c) { return absl::ascii_isalnum(c) || c == '_'; })) {
    return InvalidArgument("'", name_or_path, "', want NAME or NAME:WEIGHTS, as in llama_cpp:q8_0");
  }
  const fs::path named = fs::path(kPeers) / (program + ".py");
  const fs::path script = fs::exists(named, ignored) ? named : fs::path(program);
  if (!fs::is_regular_file(script, ignored)) {
    return NotFound("'", name_or_path, "' is neither ", named.string(),
                    " (from the source tree's top folder) nor a file");
  }
  const fs::path venv = ".deps/venv/bin/python";
  const std::string python = fs::exists(venv, ignored) ? venv.string() : "python3";
  // Peers use their own thread settings, not those of this process.
  return PeerCommand{
      script.stem().string() + (weights.empty() ? "" : " " + weights),
      absl::StrCat("env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT ", python, " '", script.string(),
                   "' --model '", model, "' --dtype ", dtype, " --threads ", threads,
                   weights.empty() ? "" : absl::StrCat(" --weight-format ", weights),
                   device == "cpu" ? "" : absl::StrCat(" --device ", device))};
}

std::string CheckPeer(const std::string& name) {
  return std::string(FindPeer(name, "", "", 0).status().message());
}

absl::StatusOr<nlohmann::json> RunPeerCommand(const PeerCommand& peer,
                                              const std::string& arguments) {
  const std::string command = peer.command + arguments;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return Internal("cannot run ", command);
  std::string output;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
  const int code = pclose(pipe);
  nlohmann::json answer = nlohmann::json::parse(output, nullptr, /*allow_exceptions=*/false);
  if (code != 0 || !answer.is_object()) {
    return Internal("peer ", peer.name, " ended with ", code,
                    " and printed: ", output.substr(0, 400));
  }
  return answer;
}

absl::StatusOr<std::map<std::string, BenchTimes>> RunPeer(const PeerCommand& peer,
                                                          const std::vector<BenchCase>& cases) {
  nlohmann::json wanted = nlohmann::json::array();
  for (const BenchCase& c : cases) {
    wanted.push_back({{"name", c.name},
                      {"batch", c.batch},
                      {"group", c.group},
                      {"prompt_tokens", c.prompt_tokens},
                      {"new_tokens", c.new_tokens}});
  }
  TANDEM_ASSIGN_OR_RETURN(const nlohmann::json answer,
                          RunPeerCommand(peer, absl::StrCat(" --cases '", wanted.dump(), "'")));
  std::map<std::string, BenchTimes> times;
  for (const BenchCase& c : cases) {
    if (!answer.contains(c.name)) continue;  // the peer cannot run this case
    const nlohmann::json& row = answer[c.name];
    BenchTimes& t = times[c.name];
    t.prefill.seconds = row.value("prefill_seconds", 0.0);
    t.decode.seconds = row.value("decode_seconds", 0.0);
    t.prefill.tokens = row.value("prefill_tokens", c.batch * c.prompt_tokens);
    t.decode.tokens = c.batch * (c.new_tokens - 1);
  }
  return times;
}

std::string ToText(const BenchTable& table, const std::vector<BenchCase>& cases) {
  const MachineLimits limits = MedianLimits(table.limits);
  std::string out =
      absl::StrFormat("machine: reads %.1f GB/s, multiplies %.0f GFLOP/s fp32",
                      limits.read_bytes_per_second / 1e9, limits.flops_per_second / 1e9);
  if (limits.bf16_flops_per_second > 0) {
    absl::StrAppendFormat(&out, ", %.0f bf16", limits.bf16_flops_per_second / 1e9);
  }
  if (limits.int8_ops_per_second > 0) {
    absl::StrAppendFormat(&out, ", %.0f int8", limits.int8_ops_per_second / 1e9);
  }
  absl::StrAppendFormat(&out, "\n%-14s %-8s %-18s %10s %-5s %19s %9s %s\n", "case", "part",
                        "engine", "median", "", "(least - most)", "of limit",
                        "tandem over it (least - most)");
  for (const BenchCase& c : cases) {
    const auto& engines = table.rows.at(c.name);
    for (const Part& part : PartsOf(c)) {
      const std::vector<double> ours = Values(engines.at("tandem"), part);
      const auto line = [&](const std::string& engine, const std::vector<double>& values,
                            const std::string& limit, const std::string& ratio) {
        const Spread s = SpreadOf(values);
        absl::StrAppendFormat(&out, "%-14s %-8s %-18s %10.1f %-5s %19s %9s %s\n", c.name, part.name,
                              engine, s.median, part.unit,
                              absl::StrFormat("(%.1f - %.1f)", s.low, s.high), limit, ratio);
      };
      const auto share = [&](const std::vector<BenchTimes>& times) {
        const std::vector<double> shares = LimitShares(times, table.limits, part);
        return shares.empty() ? std::string()
                              : absl::StrFormat("%.0f %%", 100 * SpreadOf(shares).median);
      };
      line("tandem", ours, share(engines.at("tandem")), "");
      for (const auto& [engine, times] : engines) {
        if (engine == "tandem") continue;
        const std::vector<double> theirs = Values(times, part);
        const Spread ratio = SpreadOf(Ratios(ours, theirs));
        line(engine, theirs, share(times),
             absl::StrFormat("%.2fx (%.2f - %.2f)", ratio.median, ratio.low, ratio.high));
      }
    }
  }
  return out;
}

std::string ToJson(const BenchTable& table, const std::vector<BenchCase>& cases) {
  const MachineLimits limits = MedianLimits(table.limits);
  nlohmann::json out;
  out["machine"] = {{"read_bytes_per_second", limits.read_bytes_per_second},
                    {"flops_per_second", limits.flops_per_second},
                    {"bf16_flops_per_second", limits.bf16_flops_per_second},
                    {"int8_ops_per_second", limits.int8_ops_per_second}};
  const auto spread = [](const std::vector<double>& values) {
    const Spread s = SpreadOf(values);
    return nlohmann::json{{"median", s.median}, {"least", s.low}, {"most", s.high}};
  };
  for (const BenchCase& c : cases) {
    const auto& engines = table.rows.at(c.name);
    for (const Part& part : PartsOf(c)) {
      nlohmann::json& row = out["cases"][c.name][part.name];
      const std::vector<double> ours = Values(engines.at("tandem"), part);
      row["tandem"][part.json_name] = spread(ours);
      row["tandem"]["share_of_limit"] =
          spread(LimitShares(engines.at("tandem"), table.limits, part));
      for (const auto& [engine, times] : engines) {
        if (engine == "tandem") continue;
        const std::vector<double> theirs = Values(times, part);
        row[engine][part.json_name] = spread(theirs);
        row[engine]["ratio"] = spread(Ratios(ours, theirs));
        const std::vector<double> shares = LimitShares(times, table.limits, part);
        if (!shares.empty()) row[engine]["share_of_limit"] = spread(shares);
      }
    }
  }
  return out.dump(1) + "\n";
}

}  // namespace tandem::cli
