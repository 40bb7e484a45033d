// The trainer's side of weight pushes as a program, for push_faults_test.py.
//
//   push_worker MODEL TRANSPORT FORM DEADLINE_SECONDS SECRET ADDRESS...
//
// FORM is dense, delta, or adapter: then a version is an adapter of the model. MODEL is the directory of the model that the servers serve in bf16. A process with the SECRET of
// an earlier one counts as the same run. It reads commands from standard input and answers each
// with a JSON line on standard output:
//
//   claim I   claims server I, which gets versions from the next push on
//   push V    pushes version V to the claimed servers; the same V has the same weights. A server
//             whose push fails is no longer claimed
//   verify    proves the delivery to the claimed servers
//   end       releases all servers
#include <unistd.h>

#include <cstring>
#include <iostream>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/lora/lora_shape.h"
#include "common/model/model_config.h"
#include "common/model/safetensors.h"
#include "common/tensor/nearest_cast.h"
#include "common/weights/digest.h"
#include "nlohmann/json.hpp"
#include "trainer/weight_push/adapter_push.h"
#include "trainer/weight_push/weight_publisher.h"

namespace tandem {
namespace {

using nlohmann::json;

std::vector<HostTensor> ReadBf16(const std::string& directory) {
  const auto config = ReadModelConfig(directory);
  auto file = ReadModelTensors(directory);
  if (!config.ok() || !file.ok()) return {};
  const auto tensors = MatchModelTensors(*config, *std::move(file));
  std::vector<HostTensor> weights;
  if (!tensors.ok()) return weights;
  for (const HostTensor& tensor : *tensors) {
    auto cast = CastNearest(tensor, DType::kBF16);
    if (cast.ok()) weights.push_back(*std::move(cast));
  }
  return weights;
}

// The weights of the model in which every 37th element, starting at one that depends on the
// version, is changed in its lowest bit.
std::vector<HostTensor> WeightsOf(const std::vector<HostTensor>& model, int64_t version) {
  std::vector<HostTensor> weights = model;
  for (HostTensor& tensor : weights) {
    auto bytes = std::shared_ptr<std::byte[]>(new std::byte[tensor.bytes.size()]);
    std::memcpy(bytes.get(), tensor.bytes.data(), tensor.bytes.size());
    for (int64_t e = version % 37; e < tensor.spec.num_elements(); e += 37) {
      bytes[static_cast<size_t>(e * 2)] ^= std::byte{1};
    }
    tensor = {tensor.spec, {bytes.get(), tensor.bytes.size()}, bytes};
  }
  return weights;
}

// An adapter of rank 2 of every linear layer, whose values depend on the version: A of ones, and B of
// one number in each row.
struct Adapter {
  std::vector<HostTensor> tensors;
  std::shared_ptr<trainer::AdapterPush> push;
};

HostTensor Filled(const TensorSpec& spec, const std::vector<float>& pattern) {
  auto values = std::make_shared<std::vector<float>>();
  for (int64_t i = 0; i < spec.num_elements(); ++i) {
    values->push_back(pattern[static_cast<size_t>(i) % pattern.size()]);
  }
  return {spec, std::as_bytes(std::span(*values)), values};
}

Adapter AdapterOf(const ModelConfig& config, const std::vector<HostTensor>& model,
                  int64_t version) {
  Adapter adapter = {.tensors = {}, .push = std::make_shared<trainer::AdapterPush>()};
  const float b = 0.001f * static_cast<float>(version);
  *adapter.push = {
      .rank = 2, .scaling = 2, .dither = true, .base_digest = CombinedDigest(DigestTensors(model))};
  const auto modules = LoraModules(config, {.rank = 2});
  if (!modules.ok()) return adapter;
  for (const LoraModule& module : *modules) {
    const std::vector<TensorSpec> specs = LoraTensors({module}, 2, DType::kF32);
    adapter.tensors.push_back(Filled(specs[0], {1}));
    adapter.tensors.push_back(Filled(specs[1], {b, 0}));
    // s B A is 2 b everywhere.
    adapter.push->modules.push_back(
        {module.weight, 4.0 * b * b * static_cast<double>(module.out * module.in)});
  }
  return adapter;
}

rpc::Caller CallerWithSecret(const std::string& secret) {
  rpc::Caller caller;
  caller.UseSecret(secret);
  return caller;
}

class Worker {
 public:
  Worker(const std::vector<std::string>& addresses, const std::string& secret,
         const trainer::WeightPublisherOptions& options, std::vector<HostTensor> model,
         const ModelConfig* adapted)
      : adapted_(adapted),
        pool_(addresses, CallerWithSecret(secret)),
        publisher_(&pool_, "run", options),
        model_(std::move(model)) {}

  json Do(const std::string& what, int64_t number) {
    if (what == "claim") return Claim(static_cast<int>(number));
    if (what == "push") return Push(number);
    json answer;
    for (const int server : claimed_) {
      answer[std::to_string(server)] = publisher_.Verify(server).ToString();
    }
    return answer;
  }

 private:
  json Claim(int server) {
    const absl::Status status = publisher_.Claim(server);
    if (status.ok()) claimed_.insert(server);
    return status.ToString();
  }

  json Push(int64_t version) {
    absl::Status set;
    if (adapted_ != nullptr) {
      Adapter adapter = AdapterOf(*adapted_, model_, version);
      set = publisher_.SetWeights({version}, PresentAll(std::move(adapter.tensors)), nullptr,
                                  std::move(adapter.push));
    } else {
      set = publisher_.SetWeights({version}, PresentAll(WeightsOf(model_, version)));
    }
    if (!set.ok()) return set.ToString();
    json answer = json::object();
    for (const trainer::ServerPush& push : publisher_.Publish({claimed_.begin(), claimed_.end()})) {
      answer[std::to_string(push.server)] = {{"status", push.status.ToString()},
                                             {"over_group", push.over_group},
                                             {"is_delta", push.is_delta},
                                             {"seconds", push.seconds}};
      if (!push.status.ok()) claimed_.erase(push.server);
    }
    return answer;
  }

  const ModelConfig* const adapted_;  // null: versions are whole weights
  const trainer::ServerPool pool_;
  trainer::WeightPublisher publisher_;
  const std::vector<HostTensor> model_;
  std::set<int> claimed_;
};

int Run(int argc, char** argv) {
  if (argc < 7) return 2;
  trainer::WeightPublisherOptions options;
  options.transport = std::string(argv[2]) == "stream" ? trainer::PushTransport::kStream
                                                       : trainer::PushTransport::kCollective;
  options.delta = std::string(argv[3]) == "delta";
  options.group.bucket_bytes = 1 << 20;  // many, so that a kill finds some of them sent
  if (!absl::SimpleAtod(argv[4], &options.group.deadline_seconds)) return 2;
  options.timeout_seconds = options.group.deadline_seconds;
  std::vector<HostTensor> model = ReadBf16(argv[1]);
  if (model.empty()) return 3;
  const auto config = ReadModelConfig(argv[1]);
  const bool adapts = std::string(argv[3]) == "adapter";
  if (!config.ok()) return 3;
  Worker worker({argv + 6, argv + argc}, argv[5], options, std::move(model),
                adapts ? &*config : nullptr);
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line) && line != "end";) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    int64_t number = 0;
    if (words.size() > 1 && !absl::SimpleAtoi(words[1], &number)) return 2;
    std::cout << worker.Do(words[0], number).dump() << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) { return tandem::Run(argc, argv); }
