// A rollout server in which only the engine hangs, and the trainer's client. Its gRPC threads still
// answer GetInfo with the right weights, so it looks ready. The engine is scripted and the clock of
// the server is controlled; server, client and wire are real.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/rollout_server/server_fixture.h"
#include "trainer/rollouts/rollout_client.h"

namespace tandem {
namespace {

using ::tandem::testing::IsOk;

class HungEngineTest : public rollout::testing::ServerTest {
 protected:
  // The next finished group, if one arrives soon. Meanwhile it does what a trainer does: it pushes
  // weights to servers that answer, which are ready then.
  std::optional<trainer::FinishedGroup> Next() {
    for (const int server : client_->Behind(std::chrono::milliseconds(0))) {
      client_->MarkReady(server, 0, 0);
    }
    auto group = client_->Next(std::chrono::milliseconds(5));
    EXPECT_THAT(group, IsOk());
    return *std::move(group);
  }

  std::unique_ptr<trainer::ServerPool> pool_;
  std::unique_ptr<trainer::RolloutClient> client_;
};

TEST_F(HungEngineTest, AServerWhoseEngineHangsGetsNoGroupsUntilItMoves) {
  pool_ = std::make_unique<trainer::ServerPool>(std::vector<std::string>{server_->address()});
  client_ = std::make_unique<trainer::RolloutClient>(
      pool_.get(), "run",
      trainer::RolloutClientOptions{
          .groups_in_flight = 1, .call_timeout_seconds = 2, .max_attempts = 1000});
  client_->Submit(Request(1));
  while (client_->queues().servers_hung == 0) ASSERT_FALSE(Next().has_value());
  EXPECT_EQ(client_->TakeEvents().back().kind, "server_hung");
  EXPECT_TRUE(client_->Behind(std::chrono::milliseconds(0)).empty()) << "it is pushed no weights";
  EXPECT_FALSE(client_->IsReady(0));
  WaitForInfo([](const auto& info) { return info.num_groups_queued() == 0; });  // no client asks it
  gate_.Open();
  std::optional<trainer::FinishedGroup> group;
  while (!group) group = Next();
  EXPECT_THAT(group->status, IsOk());
  EXPECT_EQ(group->completions.size(), 2u);
  EXPECT_EQ(client_->queues().servers_hung, 0);
}

}  // namespace
}  // namespace tandem
