#include "common/rpc/roles.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/rollout.pb.h"
#include "proto/vllm/control.pb.h"
#include "proto/vllm/inference.pb.h"
#include "proto/weights.pb.h"
#include "tests/support/status_matchers.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

constexpr auto kDenied = absl::StatusCode::kPermissionDenied;

PeerName Spiffe(const std::string& path) { return {.uris = {"spiffe://lab.example" + path}}; }

TEST(RoleOfTest, ReadsTheRoleInASpiffeId) {
  EXPECT_EQ(RoleOf(Spiffe("/tandem/trainer")), Role::kTrainer);
  EXPECT_EQ(RoleOf(Spiffe("/tandem/rollout/pod-3")), Role::kRollout);
  EXPECT_EQ(RoleOf(Spiffe("/tandem/client/a/b")), Role::kClient);
  EXPECT_EQ(RoleOf(Spiffe("/tandem/viewer")), Role::kViewer);
}

TEST(RoleOfTest, TakesNoOtherPathForARole) {
  for (const char* path : {"", "/", "/tandem", "/tandem/", "/tandem/none", "/tandem/trainers",
                           "/trainer", "/x/tandem/trainer", "/tandem//trainer", "/TANDEM/trainer",
                           "/tandem/Trainer", "/tandem/trainer%2f"}) {
    EXPECT_EQ(RoleOf(Spiffe(path)), Role::kNone) << path;
  }
  EXPECT_EQ(RoleOf({.uris = {"spiffe:///tandem/trainer"}}), Role::kNone);
  EXPECT_EQ(RoleOf({.uris = {"https://lab.example/tandem/trainer"}}), Role::kNone);
}

TEST(RoleOfTest, ReadsTheCommonNameWhereThereIsNoSpiffeId) {
  EXPECT_EQ(RoleOf({.common_name = "tandem-trainer"}), Role::kTrainer);
  EXPECT_EQ(RoleOf({.common_name = "tandem-viewer", .uris = {"https://a"}}), Role::kViewer);
  for (const char* name :
       {"", "trainer", "tandem-", "tandem-trainer2", "xtandem-trainer", "tandem-none"}) {
    EXPECT_EQ(RoleOf({.common_name = name}), Role::kNone) << name;
  }
}

TEST(RoleOfTest, ASpiffeIdThatIsNoRoleIsNotMadeOneByTheCommonName) {
  EXPECT_EQ(RoleOf({.common_name = "tandem-trainer", .uris = {"spiffe://lab/ns/x/sa/y"}}),
            Role::kNone);
  EXPECT_EQ(RoleOf({.common_name = "tandem-trainer",
                    .uris = {"spiffe://lab/tandem/viewer", "spiffe://lab/tandem/trainer"}}),
            Role::kNone);
}

TEST(MethodTableTest, HasEveryMethodOfEveryServiceAndEveryPathOfHttpOnce) {
  std::set<std::string> served = {"/grpc.health.v1.Health/Check",
                                  "/grpc.health.v1.Health/Watch",
                                  "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                                  "/v1/models",
                                  "/v1/completions",
                                  "/v1/chat/completions",
                                  "/v1/chat/completions/tokens",
                                  "/inference/v1/generate",
                                  "/tokenize",
                                  "/detokenize",
                                  "/health",
                                  "/ping",
                                  "/version",
                                  "/metrics",
                                  "/pause",
                                  "/resume",
                                  "/is_paused",
                                  "/start_weight_update",
                                  "/update_weights",
                                  "/finish_weight_update",
                                  "/weight_info",
                                  "/get_world_size"};
  for (const auto* file : {tandem::rollout::v1::GenerateGroupRequest::descriptor()->file(),
                           tandem::weights::v1::BeginUpdateRequest::descriptor()->file(),
                           vllm::GenerateRequest::descriptor()->file(),
                           vllm::PauseGenerationRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      const auto* const service = file->service(s);
      for (int m = 0; m < service->method_count(); ++m) {
        served.insert(absl::StrCat("/", service->full_name(), "/", service->method(m)->name()));
      }
    }
  }
  EXPECT_EQ(served.size(), 58u);
  std::multiset<std::string> in_table;
  for (const MethodRoles& entry : MethodTable()) in_table.emplace(entry.path);
  EXPECT_EQ(in_table, std::multiset<std::string>(served.begin(), served.end()));
}

TEST(MethodTableTest, NoMethodIsForServersAndEveryMethodIsForTheTrainer) {
  for (const MethodRoles& entry : MethodTable()) {
    EXPECT_FALSE(entry.roles.Has(Role::kRollout)) << entry.path;
    EXPECT_FALSE(entry.roles.Has(Role::kNone)) << entry.path;
    EXPECT_TRUE(entry.roles.Has(Role::kTrainer)) << entry.path;
  }
}

TEST(CheckCallTest, SaysWhoMayCall) {
  const std::string push = "/tandem.weights.v1.WeightService/PushChunks";
  EXPECT_THAT(CheckCall(Spiffe("/tandem/trainer"), push), IsOk());
  EXPECT_THAT(CheckCall(Spiffe("/tandem/client"), push),
              FailsWith(kDenied, "role client may not call this method; trainer may"));
  EXPECT_THAT(CheckCall(Spiffe("/tandem/viewer"), "/tandem.rollout.v1.RolloutService/Score"),
              FailsWith(kDenied, "role viewer may not call this method; trainer, client may"));
  EXPECT_THAT(CheckCall({.common_name = "laptop"}, push),
              FailsWith(kDenied, "(common name 'laptop') names no role"));
}

TEST(CheckCallTest, AMethodThatIsNotInTheTableIsForNobody) {
  for (const char* path :
       {"", "/", "/tandem.weights.v1.WeightService/Shutdown",
        "/tandem.weights.v1.WeightService/pushchunks", "tandem.weights.v1.WeightService/PushChunks",
        "/tandem.weights.v1.WeightService/PushChunks/"}) {
    EXPECT_THAT(CheckCall(Spiffe("/tandem/trainer"), path), FailsWith(kDenied, "no role may"))
        << path;
  }
}

}  // namespace
}  // namespace tandem::rpc
