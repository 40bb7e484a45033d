#include "cli/bench/bench_push.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench/serve_load.h"
#include "cli/io/live_line.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_input.h"
#include "cli/run/local_servers.h"
#include "cli/run_file/launch_options.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/model/model_config.h"
#include "common/model/safetensors.h"
#include "common/options/command_line.h"
#include "common/tensor/nearest_cast.h"
#include "nlohmann/json.hpp"
#include "trainer/weight_push/weight_publisher.h"

namespace tandem::cli {
namespace {

constexpr double kReadySeconds = 300, kStopSeconds = 20;

// The bytes per second of one TCP connection on the loopback device between two threads.
double MeasureLoopback() {
  constexpr int64_t kBytes = int64_t{1} << 30;
  constexpr size_t kBuffer = 1 << 20;
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener, generic, size) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, generic, &size) != 0) {
    close(listener);
    return 0;
  }
  std::thread sender([address] {
    const int out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const std::vector<char> bytes(kBuffer, 1);
    int64_t left = kBytes;
    if (connect(out, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) left = 0;
    while (left > 0) {
      const ssize_t sent = send(out, bytes.data(), kBuffer, MSG_NOSIGNAL);
      if (sent <= 0) break;
      left -= sent;
    }
    close(out);
  });
  const int in = accept(listener, nullptr, nullptr);
  std::vector<char> bytes(kBuffer);
  int64_t received = 0;
  const double start = MonotonicSeconds();
  for (ssize_t count; (count = recv(in, bytes.data(), kBuffer, 0)) > 0;) received += count;
  const double seconds = MonotonicSeconds() - start;
  sender.join();
  close(in);
  close(listener);
  return static_cast<double>(received) / seconds;
}

// A sequence of versions of the model's weights. Between two versions, some elements change in
// their lowest bit.
class Versions {
 public:
  Versions(std::vector<HostTensor> first, double changed_share)
      : tensors_(std::move(first)), changed_share_(changed_share) {}

  std::vector<HostTensor> Next() {
    std::geometric_distribution<int64_t> gap(std::clamp(changed_share_, 1e-9, 1.0));
    for (HostTensor& tensor : tensors_) {
      auto bytes = std::shared_ptr<std::byte[]>(new std::byte[tensor.bytes.size()]);
      std::memcpy(bytes.get(), tensor.bytes.data(), tensor.bytes.size());
      const int64_t width = DTypeBytes(tensor.spec.dtype), count = tensor.spec.num_elements();
      for (int64_t e = gap(random_); e < count; e += 1 + gap(random_)) {
        uint16_t low = 0;
        std::memcpy(&low, bytes.get() + e * width, sizeof(low));
        low = static_cast<uint16_t>(low ^ 1);
        std::memcpy(bytes.get() + e * width, &low, sizeof(low));
      }
      tensor = {tensor.spec, {bytes.get(), tensor.bytes.size()}, bytes};
    }
    return tensors_;
  }

 private:
  std::vector<HostTensor> tensors_;
  const double changed_share_;
  std::mt19937_64 random_{7};
};

absl::StatusOr<std::vector<HostTensor>> ReadWeights(const PushBench& bench) {
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(bench.model));
  TANDEM_ASSIGN_OR_RETURN(std::vector<HostTensor> file, ReadModelTensors(bench.model));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<HostTensor> masters,
                          MatchModelTensors(config, std::move(file)));
  std::vector<HostTensor> weights;
  for (const HostTensor& master : masters) {
    TANDEM_ASSIGN_OR_RETURN(
        weights.emplace_back(),
        CastNearest(master, bench.dtype == "bf16" ? DType::kBF16 : DType::kF32));
  }
  return weights;
}

absl::Status StartServers(const PushBench& bench, int64_t count, LocalServers& servers) {
  TANDEM_RETURN_IF_ERROR(
      servers.Start(bench.logs, count, [&](int64_t, int64_t, const std::string& port_file) {
        std::vector<std::string> command = {bench.server_binary, "--model",     bench.model,
                                            "--listen",          "127.0.0.1:0", "--port-file",
                                            port_file,           "--dtype",     bench.dtype};
        if (bench.device == "cuda") {
          // The servers share the memory of the device.
          command.insert(command.end(), {"--set", "server.engine.device=cuda", "--set",
                                         "server.engine.kv_capacity_tokens=8192"});
        }
        return command;
      }));
  const double start = MonotonicSeconds();
  while (!servers.Ready()) {
    for (const auto& child : servers.children()) {
      if (const auto end = child->Poll()) {
        return Internal(child->name(), " ended with ", end->ToString(), "; its log is ",
                        child->log_path());
      }
    }
    if (MonotonicSeconds() - start > kReadySeconds) {
      return Internal("the servers are not ready after ", kReadySeconds, " s; their logs are in ",
                      bench.logs);
    }
    poll(nullptr, 0, 50);
  }
  return absl::OkStatus();
}

class Pusher {
 public:
  Pusher(const LocalServers& servers, const std::string& transport, bool is_delta)
      : pool_(servers.addresses()), is_delta_(is_delta), over_group_(transport != "stream") {
    trainer::WeightPublisherOptions options;
    options.transport =
        over_group_ ? trainer::PushTransport::kCollective : trainer::PushTransport::kStream;
    options.delta = is_delta;
    publisher_ = std::make_unique<trainer::WeightPublisher>(&pool_, "bench", options);
    for (size_t i = 0; i < servers.addresses().size(); ++i) all_.push_back(static_cast<int>(i));
  }

  absl::Status Claim() {
    for (const int server : all_) TANDEM_RETURN_IF_ERROR(publisher_->Claim(server));
    return absl::OkStatus();
  }

  absl::StatusOr<PushTimes> Push(std::vector<HostTensor> tensors, bool warm_up) {
    PushTimes times;
    const double start = MonotonicSeconds();
    TANDEM_RETURN_IF_ERROR(publisher_->SetWeights({++version_}, PresentAll(tensors)));
    times.prepare_seconds = MonotonicSeconds() - start;
    const std::vector<trainer::ServerPush> pushes = publisher_->Publish(all_);
    for (const trainer::ServerPush& push : pushes) {
      TANDEM_RETURN_IF_ERROR(push.status);
      if (push.over_group != over_group_ || (push.is_delta != is_delta_ && !warm_up)) {
        return absl::InternalError(
            "a push did not use the transport and the form that are measured");
      }
      times.seconds = std::max(times.seconds, push.seconds);
      times.send_seconds = std::max(times.send_seconds, push.send_seconds);
      times.verify_seconds = std::max(times.verify_seconds, push.verify_ms / 1e3);
      times.pack_seconds = std::max(times.pack_seconds, push.pack_ms / 1e3);
      times.pause_seconds = std::max(times.pause_seconds, push.pause_ms / 1e3);
      times.wire_bytes = push.bytes;
    }
    return times;
  }

 private:
  const trainer::ServerPool pool_;
  const bool is_delta_;
  const bool over_group_;
  std::unique_ptr<trainer::WeightPublisher> publisher_;
  std::vector<int> all_;
  int64_t version_ = 0;
};

// Requests groups of 4 x 64 tokens from one server while it calls `beside` again and again. Returns
// the longest time between two tokens of each completion.
absl::StatusOr<std::vector<double>> GapsUnderLoad(const std::string& address, int64_t groups,
                                                  uint64_t seed,
                                                  const std::function<absl::Status()>& beside) {
  std::atomic<bool> done = false;
  absl::StatusOr<ServeResult> served;
  std::thread load([&] {
    served = RunServeLoad({.address = address,
                           .groups = groups,
                           .group_size = 4,
                           .prompt_tokens = 32,
                           .new_tokens = 64,
                           .concurrency = 2,
                           .seed = seed},
                          [](int64_t) {});
    done = true;
  });
  absl::Status status = absl::OkStatus();
  while (!done && status.ok() && beside != nullptr) status = beside();
  load.join();
  TANDEM_RETURN_IF_ERROR(status);
  TANDEM_RETURN_IF_ERROR(served.status());
  std::vector<double> gaps;
  for (const ServedGroup& group : served->groups) {
    gaps.insert(gaps.end(), group.longest_gap_ms.begin(), group.longest_gap_ms.end());
  }
  return gaps;
}

absl::Status MeasureRow(const PushBench& bench, const LocalServers& servers, Versions& versions,
                        PushRow& row) {
  Pusher pusher(servers, row.transport, row.is_delta);
  TANDEM_RETURN_IF_ERROR(pusher.Claim());
  // Forms the process group, and gives the servers the weights to which a delta is added.
  TANDEM_RETURN_IF_ERROR(pusher.Push(versions.Next(), /*warm_up=*/true).status());
  for (int64_t i = 0; i < bench.repeats; ++i) {
    TANDEM_ASSIGN_OR_RETURN(row.pushes.emplace_back(),
                            pusher.Push(versions.Next(), /*warm_up=*/false));
  }
  if (bench.load_groups == 0) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(
      row.token_gaps_ms,
      GapsUnderLoad(servers.addresses()[0], bench.load_groups,
                    /*seed=*/std::hash<std::string>()(row.transport) + (row.is_delta ? 1 : 0),
                    [&] { return pusher.Push(versions.Next(), /*warm_up=*/false).status(); }));
  return absl::OkStatus();
}

absl::Status Push(PushBench& bench, const JsonFlags& json) {
  TANDEM_RETURN_IF_ERROR(FindModel(&bench.model));
  LiveLine live;
  const auto result =
      RunPushBench(bench, [&](const std::string& what) { live.Update("bench push: " + what); });
  live.Clear();
  TANDEM_RETURN_IF_ERROR(result.status());
  return PrintResult(json, ToText(*result), ToJson(*result));
}

const char* FormOf(const PushRow& row) { return row.is_delta ? "delta" : "dense"; }

std::string GapText(const std::vector<double>& gaps) {
  return absl::StrFormat("p50 %.0f ms, p99 %.0f ms, longest %.0f ms", Quantile(gaps, 0.5),
                         Quantile(gaps, 0.99), Quantile(gaps, 1));
}

}  // namespace

absl::StatusOr<PushBenchResult> RunPushBench(
    const PushBench& bench, const std::function<void(const std::string&)>& progress) {
  PushBenchResult result;
  TANDEM_ASSIGN_OR_RETURN(std::vector<HostTensor> weights, ReadWeights(bench));
  for (const HostTensor& tensor : weights) {
    result.dense_bytes += tensor.spec.num_bytes();
    result.num_parameters += tensor.spec.num_elements();
  }
  result.loopback_bytes_per_second = MeasureLoopback();
  Versions versions(std::move(weights), bench.changed_share);
  for (const int64_t count : bench.servers) {
    progress(absl::StrCat("starting ", count, " servers"));
    LocalServers servers;
    TANDEM_RETURN_IF_ERROR(StartServers(bench, count, servers));
    if (bench.load_groups > 0 && result.quiet_gaps_ms.empty()) {
      progress("load without pushes");
      TANDEM_ASSIGN_OR_RETURN(result.quiet_gaps_ms,
                              GapsUnderLoad(servers.addresses()[0], bench.load_groups, 1, nullptr));
    }
    for (const std::string& transport : bench.transports) {
      for (const bool is_delta : {false, true}) {
        PushRow row = {.servers = count, .transport = transport, .is_delta = is_delta};
        progress(absl::StrCat(count, " servers, ", transport, is_delta ? ", delta" : ", dense"));
        TANDEM_RETURN_IF_ERROR(MeasureRow(bench, servers, versions, row));
        result.rows.push_back(std::move(row));
      }
    }
    servers.Stop(kStopSeconds);
  }
  return result;
}

void AddBenchPushCommand(CLI::App& bench, Action& chosen) {
  auto flags = std::make_shared<PushBench>();
  auto json = std::make_shared<JsonFlags>();
  flags->server_binary = ProgramDirectory() + "/rollout_server";
  flags->logs = (std::filesystem::temp_directory_path() / "tandem_bench_push").string();
  CLI::App* sub = bench.add_subcommand(
      "push",
      "Weight pushes to rollout servers on this machine, by transport, dense and as a delta");
  sub->add_option("--model", flags->model, kModelFlagHelp)->required();
  AddChoice(sub, "--dtype", flags->dtype, {"fp32", "bf16"}, "compute dtype of the servers");
  AddChoice(sub, "--device", flags->device, {"cpu", "cuda"}, "where the servers compute");
  sub->add_option("--num-servers", flags->servers, "numbers of servers to measure")
      ->delimiter(',')
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  sub->add_option("--transports", flags->transports, "transports to measure: stream, collective")
      ->delimiter(',')
      ->check(CLI::IsMember({"stream", "collective"}))
      ->capture_default_str();
  AddShare(sub, "--changed", flags->changed_share,
           "share of the elements that change between pushes (in the demo: 0.02 to 0.05)");
  AddPositive(sub, "--repeats", flags->repeats,
              "measured pushes of each kind, after one to warm up");
  AddNonNegative(
      sub, "--load", flags->load_groups,
      "groups of 4 x 64 tokens that the first server samples during pushes, to measure the longest "
      "time between two tokens; 0: none");
  sub->add_option("--logs", flags->logs, "directory of the servers' logs")->capture_default_str();
  AddJsonFlags(sub, json.get());
  EndHelp(*sub, "", "tandem bench push --model MODEL --num-servers 1,2 --repeats 3");
  SetAction(*sub, chosen, [flags, json] { return Finish(Push(*flags, *json)); });
}

std::string ToText(const PushBenchResult& result) {
  std::string out = absl::StrFormat(
      "weights: %.1f MB, %.1f M parameters; loopback: %.2f GB/s through one TCP connection\n\n",
      static_cast<double>(result.dense_bytes) / 1e6,
      static_cast<double>(result.num_parameters) / 1e6, result.loopback_bytes_per_second / 1e9);
  absl::StrAppendFormat(&out, "%-7s %-10s %-5s %9s %17s %8s %8s %9s %8s %8s %7s %7s %9s %8s\n",
                        "servers", "transport", "form", "push s", "(least - most)", "wire MB",
                        "GB/s", "of loopb.", "s/1e9 p", "send s", "verify", "pack s", "pause ms",
                        "before s");
  for (const PushRow& row : result.rows) {
    const std::vector<double> seconds = Column(row.pushes, &PushTimes::seconds);
    const double median = Median(seconds);
    const double sent = Median(Column(row.pushes, &PushTimes::send_seconds));
    // The weights that all servers received, over the time of the push.
    const double rate = static_cast<double>(result.dense_bytes * row.servers) / median;
    const double wire = row.pushes.empty() ? 0 : static_cast<double>(row.pushes.back().wire_bytes);
    absl::StrAppendFormat(
        &out,
        "%-7d %-10s %-5s %9.3f %17s %8.1f %8.2f %7.0f %% %8.2f %8.3f %6.1f%% %7.3f %9.2f %8.3f\n",
        row.servers, row.transport, FormOf(row), median,
        absl::StrFormat("(%.3f - %.3f)", Quantile(seconds, 0), Quantile(seconds, 1)), wire / 1e6,
        rate / 1e9,
        100 * wire * static_cast<double>(row.servers) / sent / result.loopback_bytes_per_second,
        median * 1e9 / static_cast<double>(result.num_parameters), sent,
        100 * Median(Column(row.pushes, &PushTimes::verify_seconds)) / median,
        Median(Column(row.pushes, &PushTimes::pack_seconds)),
        1e3 * Median(Column(row.pushes, &PushTimes::pause_seconds)),
        Median(Column(row.pushes, &PushTimes::prepare_seconds)));
  }
  if (result.quiet_gaps_ms.empty()) return out;
  absl::StrAppend(&out,
                  "\nthe longest time between two tokens of a completion, at the first server:\n",
                  "  without pushes: ", GapText(result.quiet_gaps_ms), "\n");
  for (const PushRow& row : result.rows) {
    absl::StrAppend(&out, "  ", row.servers, " ", row.transport, " ", FormOf(row),
                    " one push after the other: ", GapText(row.token_gaps_ms), "\n");
  }
  return out;
}

std::string ToJson(const PushBenchResult& result) {
  nlohmann::json out = {{"dense_bytes", result.dense_bytes},
                        {"num_parameters", result.num_parameters},
                        {"loopback_bytes_per_second", result.loopback_bytes_per_second},
                        {"rows", nlohmann::json::array()}};
  const auto spread = [](const std::vector<double>& values) {
    return nlohmann::json{
        {"median", Median(values)}, {"least", Quantile(values, 0)}, {"most", Quantile(values, 1)}};
  };
  const auto gaps = [](const std::vector<double>& values) {
    return nlohmann::json{{"p50", Quantile(values, 0.5)},
                          {"p99", Quantile(values, 0.99)},
                          {"most", Quantile(values, 1)}};
  };
  for (const PushRow& row : result.rows) {
    nlohmann::json one = {
        {"servers", row.servers},
        {"transport", row.transport},
        {"form", FormOf(row)},
        {"wire_bytes", row.pushes.empty() ? 0 : row.pushes.back().wire_bytes},
        {"push_seconds", spread(Column(row.pushes, &PushTimes::seconds))},
        {"send_seconds", spread(Column(row.pushes, &PushTimes::send_seconds))},
        {"verify_seconds", spread(Column(row.pushes, &PushTimes::verify_seconds))},
        {"pack_seconds", spread(Column(row.pushes, &PushTimes::pack_seconds))},
        {"pause_seconds", spread(Column(row.pushes, &PushTimes::pause_seconds))},
        {"prepare_seconds", spread(Column(row.pushes, &PushTimes::prepare_seconds))}};
    if (!row.token_gaps_ms.empty()) one["longest_token_gap_ms"] = gaps(row.token_gaps_ms);
    out["rows"].push_back(std::move(one));
  }
  if (!result.quiet_gaps_ms.empty()) {
    out["longest_token_gap_ms_without_pushes"] = gaps(result.quiet_gaps_ms);
  }
  return out.dump(1) + "\n";
}

}  // namespace tandem::cli
