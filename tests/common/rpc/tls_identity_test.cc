#include "common/rpc/tls_identity.h"

#include <gmock/gmock.h>

#include <atomic>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/support/identities.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait_until.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::MakeAuthority;
using ::tandem::testing::RequestOf;
using ::tandem::testing::TempDir;
using ::tandem::testing::WaitUntil;
using ::tandem::testing::WriteIdentity;
using ::tandem::testing::WriteText;

constexpr auto kInvalidIdentity = absl::StatusCode::kInvalidArgument;

std::string Contents(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string Pair(const cli::CertifiedKey& identity) {
  return identity.key + "\n" + identity.certificate;
}

TEST(MemoryFile, IsReadWholeHoweverOftenItIsWritten) {
  const std::string one(5000, 'a'), other(100, 'b');
  MemoryFile file;
  ASSERT_THAT(file.Write(one), IsOk());
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (int i = 0; i < 2000; ++i) EXPECT_THAT(file.Write(i % 2 == 0 ? other : one), IsOk());
    done = true;
  });
  while (!done) {
    const std::string seen = Contents(file.path());
    EXPECT_TRUE(seen == one || seen == other) << seen.size() << " bytes";
  }
  writer.join();
}

class TlsIdentityTest : public ::testing::Test {
 protected:
  TlsIdentityTest() { ::testing::internal::CaptureStderr(); }
  ~TlsIdentityTest() override {
    if (!log_read_) ::testing::internal::GetCapturedStderr();
  }

  absl::StatusOr<std::shared_ptr<TlsIdentity>> Load() {
    return TlsIdentity::Load({.directory = path_, .token_file = token_file_}, needs_);
  }

  // Tokens are read after the files, so once the second token is in use, the files have been read
  // too.
  void LetItLook(const TlsIdentity& identity) {
    for (const char* token : {"1111111111111111", "2222222222222222"}) {
      WriteText(token_file_, token);
      ASSERT_TRUE(WaitUntil([&] { return identity.tokens()->front() == token; }));
    }
  }

  std::string Log() {
    log_read_ = true;
    return ::testing::internal::GetCapturedStderr();
  }

  TempDir directory_;
  const std::string path_ = directory_ / "tls";
  std::string token_file_;
  const cli::CertificateAuthority authority_ = MakeAuthority();
  const IdentityNeeds needs_ = {
      TlsUse::kCall, {Role::kTrainer}, "trainer.tls", "trainer.token_file"};
  bool log_read_ = false;
};

TEST_F(TlsIdentityTest, IsInUseAsItStandsInTheDirectory) {
  WriteIdentity(path_, authority_, RequestOf("trainer"));
  const auto identity = Load();
  ASSERT_THAT(identity, IsOk());
  EXPECT_EQ(Contents((*identity)->pair_path()),
            Contents(path_ + "/tls.key") + "\n" + Contents(path_ + "/tls.crt"));
  EXPECT_EQ(Contents((*identity)->authorities_path()), Contents(path_ + "/ca.crt"));
  EXPECT_EQ((*identity)->tokens(), nullptr);
}

TEST_F(TlsIdentityTest, ACertificateOfAnotherRoleIsRefusedByNameOfTheOption) {
  WriteIdentity(path_, authority_, RequestOf("viewer"));
  EXPECT_THAT(Load(),
              FailsWith(kInvalidIdentity,
                        "trainer.tls: " + path_ + "/tls.crt: of role viewer, must be of trainer"));
}

TEST_F(TlsIdentityTest, TakesARenewalByItself) {
  WriteIdentity(path_, authority_, RequestOf("trainer"));
  const auto identity = Load();
  ASSERT_THAT(identity, IsOk());
  const auto renewed = authority_.Sign(RequestOf("trainer"));
  WriteIdentity(path_, *renewed, authority_.certificate());
  EXPECT_TRUE(WaitUntil([&] { return Contents((*identity)->pair_path()) == Pair(*renewed); }));
}

TEST_F(TlsIdentityTest, KeepsWhatItHasWhileARenewalIsHalfDoneAndSaysSoOnce) {
  WriteIdentity(path_, authority_, RequestOf("trainer"));
  token_file_ = directory_ / "token";
  WriteText(token_file_, "0123456789abcdef\n");
  auto identity = Load();
  ASSERT_THAT(identity, IsOk());
  const std::string before = Contents((*identity)->pair_path());
  const auto renewed = authority_.Sign(RequestOf("trainer"));
  WriteText(path_ + "/tls.key", renewed->key);
  LetItLook(**identity);
  EXPECT_EQ(Contents((*identity)->pair_path()), before);
  WriteText(path_ + "/tls.crt", renewed->certificate);
  EXPECT_TRUE(WaitUntil([&] { return Contents((*identity)->pair_path()) == Pair(*renewed); }));
  identity->reset();  // its thread writes to the log after the files are in use
  const std::string log = Log();
  const std::string complaint = "not the key of tls.crt";
  const size_t first = log.find(complaint);
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find(complaint, first + 1), std::string::npos) << log;
  EXPECT_NE(log.find("TLS certificates changed"), std::string::npos) << log;
  EXPECT_EQ(log.find("2222222222222222"), std::string::npos) << log;
}

TEST_F(TlsIdentityTest, ARenewalOfAnotherRoleIsNotTaken) {
  WriteIdentity(path_, authority_, RequestOf("trainer"));
  token_file_ = directory_ / "token";
  WriteText(token_file_, "0123456789abcdef\n");
  const auto identity = Load();
  ASSERT_THAT(identity, IsOk());
  const std::string before = Contents((*identity)->pair_path());
  WriteIdentity(path_, authority_, RequestOf("viewer"));
  LetItLook(**identity);
  EXPECT_EQ(Contents((*identity)->pair_path()), before);
  EXPECT_NE(Log().find("of role viewer, must be of trainer"), std::string::npos);
}

TEST_F(TlsIdentityTest, WarnsOfAnEndThatIsNear) {
  auto request = RequestOf("trainer");
  request.not_before = absl::Now() - absl::Hours(40);
  request.not_after = absl::Now() + absl::Hours(2);
  WriteIdentity(path_, authority_, request);
  auto identity = Load();
  ASSERT_THAT(identity, IsOk());
  identity->reset();  // its thread has read the files once by the time it ends
  EXPECT_NE(Log().find("expires soon"), std::string::npos);
}

TEST_F(TlsIdentityTest, DoesNotWarnOfAShortLifeThatHasJustBegun) {
  auto request = RequestOf("trainer");
  request.not_before = absl::Now() - absl::Minutes(5);
  request.not_after = absl::Now() + absl::Minutes(55);
  WriteIdentity(path_, authority_, request);
  auto identity = Load();
  ASSERT_THAT(identity, IsOk());
  identity->reset();
  EXPECT_EQ(Log().find("expires soon"), std::string::npos);
}

TEST_F(TlsIdentityTest, WarnsOfAKeyThatEveryoneCanRead) {
  WriteIdentity(path_, authority_, RequestOf("trainer"));
  namespace fs = std::filesystem;
  fs::permissions(path_ + "/tls.key", fs::perms::owner_read | fs::perms::others_read);
  ASSERT_THAT(Load(), IsOk());
  EXPECT_NE(Log().find("every user of this machine can read the private key"), std::string::npos);
}

}  // namespace
}  // namespace tandem::rpc
