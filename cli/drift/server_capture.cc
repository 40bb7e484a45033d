#include "cli/drift/server_capture.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <span>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/stable_random.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/files/file_system.h"
#include "common/model/model_config.h"
#include "common/rpc/grpc_call.h"
#include "common/weights/digest.h"
#include "proto/experience.pb.h"
#include "proto/rollout.grpc.pb.h"
#include "proto/weights.grpc.pb.h"
#include "trainer/experience/group_capture.h"
#include "trainer/experience/group_check.h"

namespace tandem::cli {
namespace {

using experience::v1::ScoredGroup;
using RolloutStub = rollout::v1::RolloutService::Stub;

constexpr int kMaxCaptureBytes = 256 << 20;
constexpr double kCaptureInfoSeconds = 10;

rollout::v1::GenerateGroupRequest MakeRequest(const CaptureRequest& request, size_t g) {
  rollout::v1::GenerateGroupRequest group;
  // A training run on this server counts its groups from 0, so these ids are far from its own.
  group.set_group_id((int64_t{1} << 41) + static_cast<int64_t>(g));
  const std::vector<int32_t>& prompt = request.prompts[g];
  group.mutable_prompt_token_ids()->Add(prompt.begin(), prompt.end());
  group.set_prompt_hash(HashTokenIds(prompt));
  group.set_num_completions(request.completions);
  rollout::v1::SamplingParams* const sampling = group.mutable_sampling();
  sampling->set_temperature(request.sampling.temperature);
  sampling->set_top_k(request.sampling.top_k);
  sampling->set_top_p(request.sampling.top_p);
  sampling->set_min_p(request.sampling.min_p);
  sampling->set_max_new_tokens(request.sampling.max_new_tokens);
  sampling->set_return_support(true);
  sampling->set_packed_support(true);
  sampling->set_seed(StableHash({request.seed, g}));
  return group;
}

absl::StatusOr<ScoredGroup> Sample(RolloutStub& stub, const CaptureRequest& request, size_t g) {
  const rollout::v1::GenerateGroupRequest asked = MakeRequest(request, g);
  grpc::ClientContext context;
  rpc::SetDeadline(context, absl::Seconds(request.timeout_seconds));
  const auto reader = stub.GenerateGroup(&context, asked);
  std::vector<rollout::v1::Completion> completions;
  rollout::v1::GenerateGroupResponse response;
  while (reader->Read(&response)) {
    if (response.has_completion()) completions.push_back(std::move(*response.mutable_completion()));
  }
  TANDEM_RETURN_IF_ERROR(rpc::FromGrpc(reader->Finish(), request.address));
  for (const rollout::v1::Completion& completion : completions) {
    TANDEM_RETURN_IF_ERROR(trainer::CheckCompletion(asked, completion));
  }
  TANDEM_RETURN_IF_ERROR(trainer::CheckGroup(asked, &completions));
  ScoredGroup group;
  group.set_group_id(static_cast<int64_t>(g));
  group.set_server(request.address);
  *group.mutable_prompt()->mutable_token_ids() = asked.prompt_token_ids();
  for (rollout::v1::Completion& completion : completions) {
    *group.add_completions()->mutable_completion() = std::move(completion);
  }
  return group;
}

// Samples all groups, with one thread per group in flight. The first error ends it.
absl::StatusOr<std::vector<ScoredGroup>> SampleAll(RolloutStub& stub, const CaptureRequest& request,
                                                   const std::function<void(int64_t)>& progress) {
  std::vector<ScoredGroup> groups(request.prompts.size());
  std::atomic<size_t> next = 0;
  Mutex mutex;
  absl::Status status;  // guarded by `mutex`, as `done`
  int64_t done = 0;
  const auto work = [&] {
    for (size_t g; (g = next.fetch_add(1)) < groups.size();) {
      auto group = Sample(stub, request, g);
      MutexLock lock(&mutex);
      status.Update(group.status());
      if (!status.ok()) return;
      groups[g] = *std::move(group);
      progress(++done);
    }
  };
  std::vector<std::thread> threads;
  const auto wanted =
      std::min<int64_t>(request.groups_in_flight, static_cast<int64_t>(groups.size()));
  for (int64_t i = 0; i < wanted; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  TANDEM_RETURN_IF_ERROR(status);
  return groups;
}

struct ServerFacts {
  rollout::v1::GetInfoResponse info;
  weights::v1::GetWeightInfoResponse weights;
};

absl::StatusOr<ServerFacts> AskFacts(const std::shared_ptr<grpc::Channel>& channel,
                                     RolloutStub& stub, const CaptureRequest& request) {
  ServerFacts facts;
  grpc::ClientContext info, weights;
  rpc::SetDeadline(info, absl::Seconds(kCaptureInfoSeconds));
  rpc::SetDeadline(weights, absl::Seconds(kCaptureInfoSeconds));
  TANDEM_RETURN_IF_ERROR(rpc::FromGrpc(stub.GetInfo(&info, {}, &facts.info), request.address));
  TANDEM_RETURN_IF_ERROR(rpc::FromGrpc(
      weights::v1::WeightService::NewStub(channel)->GetWeightInfo(&weights, {}, &facts.weights),
      request.address));
  return facts;
}

absl::StatusOr<offpolicy::CaptureManifest> Describe(const CaptureRequest& request,
                                                    const ServerFacts& facts) {
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(request.model));
  TANDEM_ASSIGN_OR_RETURN(const std::string config_file, ReadFile(request.model + "/config.json"));
  TANDEM_ASSIGN_OR_RETURN(const std::string tokenizer, ReadFile(request.model + "/tokenizer.json"));
  const std::string tokenizer_hash = Digest128(std::as_bytes(std::span(tokenizer)));
  if (tokenizer_hash != facts.info.tokenizer_hash() ||
      config.vocab_size != facts.info.vocab_size()) {
    return FailedPrecondition(request.address, " serves ", facts.info.model_path(),
                              " with another tokenizer or vocabulary than ", request.model,
                              ": name the model it was started with");
  }
  offpolicy::CapturedWeights weights{.version = facts.weights.live_version()};
  const bool adapted = !facts.weights.merged_digests().empty();
  for (const auto& tensor :
       adapted ? facts.weights.merged_digests() : facts.weights.live_digests()) {
    weights.served[tensor.name()] = tensor.xxh3_128();
  }
  offpolicy::CaptureManifest manifest = {
      .created_at = Rfc3339Now(),
      .source = "server",
      .tandem_version = std::string(ProjectVersion()),
      .run_id = facts.info.owner_run_id(),
      .proximal_version = weights.version,
      .model_path = request.model,
      .model_type = config.model_type,
      .tokenizer_hash = tokenizer_hash,
      .model_config_digest = Digest128(std::as_bytes(std::span(config_file))),
      .sampling = request.sampling};
  manifest.servers.push_back(trainer::DescribeServer(request.address, facts.info));
  manifest.weights.push_back(std::move(weights));
  for (const std::string& fault : facts.info.injected()) {
    manifest.injected.push_back(absl::StrCat(request.address, ": ", fault));
  }
  return manifest;
}

}  // namespace

absl::StatusOr<offpolicy::Capture> CaptureServer(const CaptureRequest& request,
                                                 const std::function<void(int64_t)>& progress) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxCaptureBytes);
  const auto channel =
      grpc::CreateCustomChannel(request.address, request.caller.credentials(), arguments);
  const auto stub = rollout::v1::RolloutService::NewStub(channel);
  TANDEM_ASSIGN_OR_RETURN(const ServerFacts facts, AskFacts(channel, *stub, request));
  TANDEM_ASSIGN_OR_RETURN(offpolicy::CaptureManifest manifest, Describe(request, facts));
  TANDEM_ASSIGN_OR_RETURN(const auto groups, SampleAll(*stub, request, progress));
  offpolicy::Capture capture = trainer::CaptureGroups(groups, {});
  const int64_t version = manifest.proximal_version;
  const bool changed = std::ranges::any_of(
      capture.weight_version, [&](int64_t sampled_by) { return sampled_by != version; });
  if (changed) {
    return FailedPrecondition(
        request.address, " installed other weights than version ", version,
        " while it was sampled: capture again, or let the run capture (trainer.capture)");
  }
  capture.manifest = std::move(manifest);
  return capture;
}

}  // namespace tandem::cli
