#include "trainer/rewards/external/grpc_reward.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cmath>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/rendezvous/loopback.h"
#include "proto/reward.grpc.pb.h"

namespace tandem::trainer {
namespace {

using reward::v1::Result;
using reward::v1::RewardService;
using reward::v1::ScoreRequest;
using reward::v1::ScoreResponse;

constexpr char kGrpcService[] = "reward service";
constexpr std::chrono::milliseconds kLookAtEnd(100);
constexpr int kMostGrpcBytes = 64 << 20;  // of a message

absl::StatusOr<std::string> FirstLineOf(const std::string& file) {
  TANDEM_ASSIGN_OR_RETURN(const std::string contents, ReadFile(file));
  return contents.substr(0, contents.find_first_of("\r\n"));
}

std::shared_ptr<grpc::ChannelCredentials> CredentialsOf(const GrpcRewardOptions& options) {
  if (!options.tls) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions ssl;
  if (!options.ca_file.empty()) ssl.pem_root_certs = ReadFile(options.ca_file).value_or("");
  return grpc::SslCredentials(ssl);
}

ScoreRequest RequestOf(std::span<const RewardQuestion> questions) {
  ScoreRequest request;
  for (const RewardQuestion& question : questions) {
    const RewardInput& asked = question.input();
    reward::v1::Input* const input = request.add_inputs();
    input->set_prompt(asked.prompt.data(), asked.prompt.size());
    input->set_completion(asked.text.data(), asked.text.size());
    input->set_answer(asked.answer.data(), asked.answer.size());
    input->set_source_json(asked.source_json.data(), asked.source_json.size());
    input->set_truncated(asked.truncated);
  }
  return request;
}

RewardAnswer AnswerOf(const Result& result, std::string_view text) {
  if (!result.error().empty()) {
    return Aborted(kGrpcService, " reports: ", result.error().substr(0, 200));
  }
  ExternalAnswer answer = {.value = result.value()};
  for (const reward::v1::Step& step : result.steps()) {
    answer.steps.push_back({.end_byte = step.end(), .value = step.reward()});
  }
  // The form of the other components, so that all answers are held to the same checks. A value that
  // is not finite has no JSON and becomes null.
  return ParseAnswer(AnswerJson(answer), kGrpcService, text);
}

// What trailing metadata "retry-after-ms" asks for, in seconds.
double PushbackSeconds(const grpc::ClientContext& context) {
  const auto& trailing = context.GetServerTrailingMetadata();
  const auto found = trailing.find("retry-after-ms");
  double milliseconds = 0;
  if (found == trailing.end() ||
      !absl::SimpleAtod({found->second.data(), found->second.size()}, &milliseconds) ||
      !std::isfinite(milliseconds)) {
    return 0;
  }
  return std::max(0.0, milliseconds / 1000);
}

bool MayRepeat(grpc::StatusCode code) {
  return code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::RESOURCE_EXHAUSTED ||
         code == grpc::StatusCode::DEADLINE_EXCEEDED || code == grpc::StatusCode::ABORTED ||
         code == grpc::StatusCode::INTERNAL;
}

}  // namespace

void BindOptions(OptionBinder& binder, GrpcRewardOptions& options) {
  binder.Text("address", &options.address,
              "component grpc: HOST:PORT of a service of proto/reward.proto");
  binder.Flag("tls", &options.tls, "verified TLS; off: plaintext");
  binder.Text("ca_file", &options.ca_file,
              "PEM of the authorities that the service is verified by; empty: the system's");
  binder.Text("token_file", &options.token_file,
              "bearer token: the first line of this file, read for each call; empty: none");
  binder.Integer("batch_size", &options.batch_size, {.min = 1, .max = 4096}, "completions",
                 "most of one call");
  BindOptions(binder, options.service);
}

absl::Status CheckGrpcRewardOptions(const GrpcRewardOptions& options) {
  if (options.address.empty()) return InvalidArgument("reward.grpc.address is empty");
  if (!options.tls && !options.token_file.empty()) {
    return InvalidArgument(
        "reward.grpc.token_file without reward.grpc.tls: a bearer token never travels in "
        "plaintext");
  }
  for (const std::string& file : {options.ca_file, options.token_file}) {
    if (file.empty()) continue;
    const auto contents = ReadFile(file);
    if (contents.ok()) continue;
    return WithExitCode(InvalidArgument("reward.grpc: ", contents.status().message()),
                        ExitCode::kBadModelOrData);
  }
  return absl::OkStatus();
}

struct GrpcReward::Impl {
  Attempt Call(const ScoreRequest& request, ScoreResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(
        std::chrono::system_clock::now() +
        std::chrono::milliseconds(static_cast<int64_t>(options.service.timeout_seconds * 1e3)));
    if (!options.token_file.empty()) {
      const auto token = FirstLineOf(options.token_file);
      if (!token.ok()) return {.status = InvalidArgument(token.status().message())};
      context.AddMetadata("authorization", "Bearer " + *token);
    }
    grpc::CompletionQueue queue;
    grpc::Status status;
    const auto call = stub->AsyncScore(&context, request, &queue);
    call->Finish(response, &status, nullptr);
    bool cancelled = false;
    for (;;) {
      void* tag = nullptr;
      bool is_ok = false;
      const auto next =
          queue.AsyncNext(&tag, &is_ok, std::chrono::system_clock::now() + kLookAtEnd);
      if (next == grpc::CompletionQueue::GOT_EVENT) break;
      if (!cancelled && end->WaitFor(std::chrono::milliseconds(0))) {
        cancelled = true;
        context.TryCancel();
      }
    }
    if (cancelled) return {.status = Cancelled("the run ends")};
    if (status.ok()) return {};
    return {.status = {static_cast<absl::StatusCode>(status.error_code()),
                       absl::StrCat(options.address, ": ", status.error_message())},
            .may_repeat = MayRepeat(status.error_code()),
            .is_busy = status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED,
            .retry_after_seconds = PushbackSeconds(context)};
  }

  const GrpcRewardOptions options;
  ServiceCaller* const caller;
  EndSign* const end;
  std::unique_ptr<RewardService::Stub> stub;
};

GrpcReward::GrpcReward(const GrpcRewardOptions& options, ServiceCaller* caller, EndSign* end)
    : impl_(new Impl{options, caller, end, nullptr}) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMostGrpcBytes);
  if (IsLoopback(options.address)) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Workers do not share a connection: one that breaks fails one batch.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  impl_->stub = RewardService::NewStub(
      grpc::CreateCustomChannel(options.address, CredentialsOf(options), arguments));
}

GrpcReward::~GrpcReward() = default;

std::vector<RewardAnswer> GrpcReward::Ask(std::span<const RewardQuestion> questions) {
  const ScoreRequest request = RequestOf(questions);
  ScoreResponse response;
  absl::Status called = impl_->caller->Call(
      [&] {
        response.Clear();
        return impl_->Call(request, &response);
      },
      PauseUntil(impl_->end));
  if (called.ok() && response.results_size() != std::ssize(questions)) {
    called = InvalidArgument(kGrpcService, " gave ", response.results_size(), " results for ",
                             questions.size(), " completions: want one for each, in order");
  }
  if (!called.ok()) return std::vector<RewardAnswer>(questions.size(), called);
  std::vector<RewardAnswer> answers;
  for (size_t i = 0; i < questions.size(); ++i) {
    answers.push_back(AnswerOf(response.results(static_cast<int>(i)), questions[i].input().text));
  }
  return answers;
}

}  // namespace tandem::trainer
