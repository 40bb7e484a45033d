#include "trainer/rollouts/server_lookup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "common/base/mutex.h"
#include "tests/support/status_matchers.h"
#include "tests/support/wait_until.h"

namespace tandem::trainer {
namespace {

using std::chrono::milliseconds;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::WaitUntil;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Names and their addresses, as they stand.
class Names {
 public:
  void Set(const std::string& name, absl::StatusOr<std::vector<std::string>> addresses) {
    MutexLock lock(&mu_);
    names_[name] = std::move(addresses);
  }
  Resolver AsResolver() {
    return [this](const std::string& name) -> absl::StatusOr<std::vector<std::string>> {
      MutexLock lock(&mu_);
      const auto found = names_.find(name);
      if (found == names_.end()) return absl::NotFoundError("no such name");
      return found->second;
    };
  }

 private:
  Mutex mu_;
  std::map<std::string, absl::StatusOr<std::vector<std::string>>> names_ ABSL_GUARDED_BY(mu_);
};

TEST(ServerLookup, EntriesThatAreAddressesAreTheServers) {
  const ServerLookup lookup({"b:2", "[::1]:7", "b:2"}, milliseconds(1));
  EXPECT_THAT(lookup.Addresses(), ElementsAre("b:2", "[::1]:7"));
  EXPECT_EQ(lookup.Problems(), "");
}

TEST(ServerLookup, EveryAddressOfANameIsAServerSortedAndOnce) {
  Names names;
  names.Set("rollout", std::vector<std::string>{"10.0.0.9", "10.0.0.3", "[fd00::1]", "10.0.0.9"});
  const ServerLookup lookup({"a:1", "dns:rollout:50051"}, milliseconds(1), names.AsResolver());
  ASSERT_TRUE(WaitUntil([&] { return lookup.Addresses().size() == 4; }));
  EXPECT_THAT(lookup.Addresses(),
              ElementsAre("a:1", "10.0.0.3:50051", "10.0.0.9:50051", "[fd00::1]:50051"));
}

TEST(ServerLookup, ServersComeAndGoWithTheirAddresses) {
  Names names;
  const ServerLookup lookup({"dns:r:5"}, milliseconds(1), names.AsResolver());
  ASSERT_TRUE(WaitUntil([&] { return lookup.Problems() == "r: no such name"; }));
  EXPECT_THAT(lookup.Addresses(), IsEmpty());
  names.Set("r", std::vector<std::string>{"10.0.0.1"});
  ASSERT_TRUE(
      WaitUntil([&] { return lookup.Addresses() == std::vector<std::string>{"10.0.0.1:5"}; }));
  EXPECT_EQ(lookup.Problems(), "");
  names.Set("r", std::vector<std::string>{"10.0.0.2"});
  ASSERT_TRUE(
      WaitUntil([&] { return lookup.Addresses() == std::vector<std::string>{"10.0.0.2:5"}; }));
  names.Set("r", absl::NotFoundError("no such name"));
  ASSERT_TRUE(WaitUntil([&] { return lookup.Addresses().empty(); }));
}

TEST(ServerLookup, ANameServerThatDoesNotAnswerTakesNoServerAway) {
  Names names;
  names.Set("r", std::vector<std::string>{"10.0.0.1"});
  names.Set("s", std::vector<std::string>{"10.0.0.7"});
  const ServerLookup lookup({"dns:r:5", "dns:s:5"}, milliseconds(1), names.AsResolver());
  ASSERT_TRUE(WaitUntil([&] { return lookup.Addresses().size() == 2; }));
  names.Set("r", absl::UnavailableError("try again"));
  names.Set("s", std::vector<std::string>{"10.0.0.8"});  // seen in the round after r's failure
  ASSERT_TRUE(WaitUntil([&] { return lookup.Addresses().back() == "10.0.0.8:5"; }));
  EXPECT_THAT(lookup.Addresses(), ElementsAre("10.0.0.1:5", "10.0.0.8:5"));
}

TEST(ServerLookup, TheSystemKnowsLocalhostAndNotWhatIsReservedToBeUnknown) {
  const auto local = ResolveHost("localhost");
  ASSERT_THAT(local, IsOk());
  EXPECT_THAT(*local, ::testing::Contains("127.0.0.1"));
  EXPECT_FALSE(ResolveHost("no-such-host.invalid").ok());
}

TEST(ServerLookup, EntriesOfAnotherFormAreNamed) {
  EXPECT_THAT(CheckServerEntries({"a:1", "dns:b:2", "[::1]:3", "unix:/tmp/s", "vllm://c:8000"}),
              IsOk());
  for (const char* bad : {"host", "host:", ":5", "host:0", "host:70000", "dns:host", "dns::5",
                          "vllm://c", "vllm://c:8000/v1", "http://c:8000", "sglang://c:8000"}) {
    EXPECT_THAT(CheckServerEntries({bad}),
                FailsWith(absl::StatusCode::kInvalidArgument, std::string("'") + bad + "'"));
  }
  EXPECT_TRUE(HasNames({"a:1", "dns:b:2"}));
  EXPECT_FALSE(HasNames({"a:1"}));
}

TEST(ServerLookup, AForeignServerIsNamedByItsEntryAndReachedAtItsPlace) {
  const ServerLookup lookup({"a:1", "vllm://c:8000"}, milliseconds(1));
  EXPECT_THAT(lookup.Addresses(), ElementsAre("a:1", "vllm://c:8000"));
  EXPECT_EQ(ForeignHostPort("vllm://c:8000"), "c:8000");
  EXPECT_EQ(ForeignHostPort("a:1"), "");
}

}  // namespace
}  // namespace tandem::trainer
