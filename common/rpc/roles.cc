#include "common/rpc/roles.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace tandem::rpc {
namespace {

constexpr std::array kNamed = {Role::kRollout, Role::kTrainer, Role::kClient, Role::kViewer};

constexpr Roles kTrainerOnly = {Role::kTrainer};
constexpr Roles kSamplers = {Role::kTrainer, Role::kClient};
constexpr Roles kReaders = {Role::kTrainer, Role::kClient, Role::kViewer};

constexpr MethodRoles kTable[] = {
    {"/tandem.rollout.v1.RolloutService/GenerateGroup", kSamplers},
    {"/tandem.rollout.v1.RolloutService/Score", kSamplers},
    {"/tandem.rollout.v1.RolloutService/AbortGroup", kSamplers},
    {"/tandem.rollout.v1.RolloutService/ContinueCompletion", kSamplers},
    {"/tandem.rollout.v1.RolloutService/GetInfo", kReaders},
    {"/tandem.weights.v1.WeightService/InitTransfer", kTrainerOnly},
    {"/tandem.weights.v1.WeightService/BeginUpdate", kTrainerOnly},
    {"/tandem.weights.v1.WeightService/PushChunks", kTrainerOnly},
    {"/tandem.weights.v1.WeightService/JoinPushGroup", kTrainerOnly},
    {"/tandem.weights.v1.WeightService/ReceiveBuckets", kTrainerOnly},
    {"/tandem.weights.v1.WeightService/CommitUpdate", kTrainerOnly},
    {"/tandem.weights.v1.WeightService/AbortUpdate", kTrainerOnly},
    {"/tandem.weights.v1.WeightService/Pause", kTrainerOnly},
    {"/tandem.weights.v1.WeightService/Resume", kTrainerOnly},
    {"/tandem.weights.v1.WeightService/GetWeightInfo", kReaders},
    {"/v1/models", kReaders},
    {"/v1/completions", kSamplers},
    {"/v1/chat/completions", kSamplers},
    {"/v1/chat/completions/tokens", kSamplers},
    {"/inference/v1/generate", kSamplers},
    {"/tokenize", kSamplers},
    {"/detokenize", kSamplers},
    {"/pause", kTrainerOnly},
    {"/resume", kTrainerOnly},
    {"/start_weight_update", kTrainerOnly},
    {"/update_weights", kTrainerOnly},
    {"/finish_weight_update", kTrainerOnly},
    {"/is_paused", kReaders},
    {"/weight_info", kReaders},
    {"/get_world_size", kReaders},
    {"/vllm.Inference/Generate", kSamplers},
    {"/vllm.Inference/GenerateStream", kSamplers},
    {"/vllm.Control/GetServerInfo", kReaders},
    {"/vllm.Control/GetModelInfo", kReaders},
    {"/vllm.Control/ListLoras", kReaders},
    {"/vllm.Control/IsPaused", kReaders},
    {"/vllm.Control/IsSleeping", kReaders},
    {"/vllm.Control/GetWeightVersion", kReaders},
    {"/vllm.Control/Shutdown", kTrainerOnly},
    {"/vllm.Control/Abort", kTrainerOnly},
    {"/vllm.Control/LoadLora", kTrainerOnly},
    {"/vllm.Control/UnloadLora", kTrainerOnly},
    {"/vllm.Control/PauseGeneration", kTrainerOnly},
    {"/vllm.Control/ResumeGeneration", kTrainerOnly},
    {"/vllm.Control/Sleep", kTrainerOnly},
    {"/vllm.Control/WakeUp", kTrainerOnly},
    {"/vllm.Control/InitWeightTransferEngine", kTrainerOnly},
    {"/vllm.Control/StartWeightUpdate", kTrainerOnly},
    {"/vllm.Control/UpdateWeights", kTrainerOnly},
    {"/vllm.Control/FinishWeightUpdate", kTrainerOnly},
    {"/vllm.Control/UpdateWeightVersion", kTrainerOnly},
    {"/health", kReaders},
    {"/ping", kReaders},
    {"/version", kReaders},
    {"/metrics", kReaders},
    {"/grpc.health.v1.Health/Check", kReaders},
    {"/grpc.health.v1.Health/Watch", kReaders},
    {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", kReaders},
};

// The role with this name; kNone for any other name.
Role RoleNamed(std::string_view name) {
  for (const Role role : kNamed) {
    if (name == RoleName(role)) return role;
  }
  return Role::kNone;
}

bool IsSpiffe(std::string_view uri) { return uri.substr(0, 9) == "spiffe://"; }

// spiffe://DOMAIN/tandem/ROLE[/...]
Role RoleInPath(std::string_view spiffe_id) {
  constexpr std::string_view kRoot = "/tandem/";
  const std::string_view rest = spiffe_id.substr(9);
  const size_t path = rest.find('/');
  if (path == 0 || path == std::string_view::npos) return Role::kNone;
  if (rest.substr(path, kRoot.size()) != kRoot) return Role::kNone;
  const std::string_view role = rest.substr(path + kRoot.size());
  return RoleNamed(role.substr(0, role.find('/')));
}

std::string Describe(const PeerName& peer) {
  if (peer.uris.empty()) return absl::StrCat("common name '", peer.common_name, "'");
  return absl::StrJoin(peer.uris, ", ");
}

}  // namespace

std::string_view RoleName(Role role) {
  constexpr std::string_view kNames[] = {"none", "rollout", "trainer", "client", "viewer"};
  return kNames[static_cast<size_t>(role)];
}

std::string Roles::ToString() const {
  std::vector<std::string> names;
  for (const Role role : kNamed) {
    if (Has(role)) names.emplace_back(RoleName(role));
  }
  return absl::StrJoin(names, ", ");
}

Role RoleOf(const PeerName& peer) {
  if (std::ranges::any_of(peer.uris, IsSpiffe)) {
    return peer.uris.size() == 1 ? RoleInPath(peer.uris[0]) : Role::kNone;
  }
  constexpr std::string_view kPrefix = "tandem-";
  const std::string_view name = peer.common_name;
  return name.substr(0, kPrefix.size()) == kPrefix ? RoleNamed(name.substr(kPrefix.size()))
                                                   : Role::kNone;
}

std::string IdentityOf(const PeerName& peer) {
  if (!peer.uris.empty()) return absl::StrJoin(peer.uris, " ");
  return peer.common_name.empty() ? "" : absl::StrCat("CN=", peer.common_name);
}

std::span<const MethodRoles> MethodTable() { return kTable; }

absl::Status CheckCall(const PeerName& peer, std::string_view path) {
  const auto* const entry = std::ranges::find(kTable, path, &MethodRoles::path);
  if (entry == std::end(kTable)) {
    return PermissionDenied("no role may call this method: it is not one of this server");
  }
  const Role role = RoleOf(peer);
  if (entry->roles.Has(role)) return absl::OkStatus();
  if (role == Role::kNone) {
    return PermissionDenied(
        "the certificate (", Describe(peer),
        ") names no role: spiffe://DOMAIN/tandem/ROLE or common name tandem-ROLE");
  }
  return PermissionDenied("role ", RoleName(role), " may not call this method; ",
                          entry->roles.ToString(), " may");
}

}  // namespace tandem::rpc
