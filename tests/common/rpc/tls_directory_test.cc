#include "common/rpc/tls_directory.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "common/rpc/caller_secret.h"
#include "tests/support/identities.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::Expired;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::MakeAuthority;
using ::tandem::testing::RequestOf;
using ::tandem::testing::TempDir;
using ::tandem::testing::WriteIdentity;
using ::tandem::testing::WriteText;

constexpr auto kInvalidDirectory = absl::StatusCode::kInvalidArgument;

class TlsDirectoryTest : public ::testing::Test {
 protected:
  absl::StatusOr<CertificateFacts> Check(TlsUse use = TlsUse::kCall) const {
    const auto files = ReadTlsFiles(path_);
    if (!files.ok()) return files.status();
    return CheckTlsFiles(path_, *files, use, absl::Now());
  }

  TempDir directory_;
  const std::string path_ = directory_ / "tls";
  const cli::CertificateAuthority authority_ = MakeAuthority();
};

TEST_F(TlsDirectoryTest, ReadsWhoTheCertificateIsAndUntilWhen) {
  auto request = RequestOf("trainer");
  // X.509 has whole seconds.
  request.not_after = absl::FromTimeT(absl::ToTimeT(absl::Now()) + 3600);
  WriteIdentity(path_, authority_, request);
  const auto facts = Check();
  ASSERT_THAT(facts, IsOk());
  EXPECT_EQ(facts->name.common_name, "tandem-trainer");
  EXPECT_THAT(facts->name.uris, ::testing::ElementsAre("spiffe://test/tandem/trainer"));
  EXPECT_EQ(facts->not_after, request.not_after);
}

TEST_F(TlsDirectoryTest, AFileThatIsNotThereIsNamedWithWhatToDo) {
  WriteIdentity(path_, authority_, RequestOf("trainer"));
  for (const char* file : {"tls.crt", "tls.key", "ca.crt"}) {
    std::filesystem::rename(path_ + "/" + file, path_ + "/away");
    EXPECT_THAT(Check(), FailsWith(kInvalidDirectory, path_ + "/" + file));
    EXPECT_THAT(Check(), FailsWith(kInvalidDirectory, "`tandem certs`"));
    WriteText(path_ + "/" + file, "");
    EXPECT_THAT(Check(), FailsWith(kInvalidDirectory, "has 0 bytes"));
    WriteText(path_ + "/" + file, "no PEM at all");
    EXPECT_THAT(Check(), FailsWith(kInvalidDirectory, path_ + "/" + file));
    EXPECT_THAT(Check(), FailsWith(kInvalidDirectory, "PEM form"));
    std::filesystem::rename(path_ + "/away", path_ + "/" + file);
  }
  EXPECT_THAT(Check(), IsOk());
}

TEST_F(TlsDirectoryTest, AFileThatIsTooLargeIsNotRead) {
  WriteIdentity(path_, authority_, RequestOf("trainer"));
  WriteText(path_ + "/ca.crt", std::string((1 << 20) + 1, '\n'));
  EXPECT_THAT(Check(), FailsWith(kInvalidDirectory, "has 1048577 bytes, must have 1 to 1048576"));
}

TEST_F(TlsDirectoryTest, AnExpiredCertificateIsNamedWithItsEnd) {
  WriteIdentity(path_, authority_, Expired(RequestOf("trainer")));
  EXPECT_THAT(Check(), FailsWith(kInvalidDirectory, path_ + "/tls.crt: expired at 2"));
  EXPECT_THAT(Check(), FailsWith(kInvalidDirectory, "--renew"));
}

TEST_F(TlsDirectoryTest, ACertificateOfTheFutureAsksForTheClock) {
  auto request = RequestOf("trainer");
  request.not_before = absl::Now() + absl::Hours(1);
  WriteIdentity(path_, authority_, request);
  EXPECT_THAT(Check(), FailsWith(kInvalidDirectory, "clock"));
}

TEST_F(TlsDirectoryTest, TheKeyMustBeThatOfTheCertificate) {
  WriteIdentity(path_, authority_, RequestOf("trainer"));
  WriteText(path_ + "/tls.key", authority_.Sign(RequestOf("trainer"))->key);
  EXPECT_THAT(Check(), FailsWith(kInvalidDirectory, path_ + "/tls.key: not the key of tls.crt"));
}

TEST_F(TlsDirectoryTest, TheCertificateMustBeOfAnAuthorityInTheBundle) {
  const auto other = MakeAuthority("another");
  WriteIdentity(path_, *other.Sign(RequestOf("trainer")), authority_.certificate());
  EXPECT_THAT(Check(), FailsWith(kInvalidDirectory, "not signed by an authority in ca.crt"));
  WriteText(path_ + "/ca.crt", authority_.certificate() + other.certificate());
  EXPECT_THAT(Check(), IsOk());
}

TEST_F(TlsDirectoryTest, ACertificateForTheOtherUseIsRefused) {
  auto request = RequestOf("rollout");
  request.calls = false;
  WriteIdentity(path_, authority_, request);
  EXPECT_THAT(Check(TlsUse::kServe), IsOk());
  EXPECT_THAT(Check(TlsUse::kCall), FailsWith(kInvalidDirectory, "clientAuth"));
}

TEST_F(TlsDirectoryTest, NoMessageHoldsAnyOfTheKey) {
  const auto leaf = authority_.Sign(RequestOf("trainer"));
  WriteIdentity(path_, *leaf, authority_.certificate());
  const std::string secret = leaf->key.substr(leaf->key.find('\n') + 1, 40);
  WriteText(path_ + "/tls.key", "damaged " + leaf->key.substr(30));
  EXPECT_EQ(Check().status().message().find(secret), absl::string_view::npos);
  EXPECT_THAT(Check(), FailsWith(kInvalidDirectory, "without a passphrase"));
}

TEST_F(TlsDirectoryTest, SeesAKeyThatEveryoneCanRead) {
  WriteIdentity(path_, authority_, RequestOf("trainer"));
  namespace fs = std::filesystem;
  fs::permissions(path_ + "/tls.key", fs::perms::owner_read | fs::perms::group_read);
  EXPECT_FALSE(KeyIsOpenToOthers(path_));
  fs::permissions(path_ + "/tls.key", fs::perms::owner_read | fs::perms::others_read);
  EXPECT_TRUE(KeyIsOpenToOthers(path_));
}

TEST(CertificateAuthorityTest, TakesNoNameThatWouldBeMoreThanAName) {
  const auto authority = MakeAuthority();
  auto request = RequestOf("rollout");
  request.dns = {"a,URI:spiffe://test/tandem/trainer"};
  EXPECT_THAT(authority.Sign(request), FailsWith(kInvalidDirectory, "is not a DNS name"));
  request.dns = {};
  request.ips = {"127.0.0.1,DNS:x"};
  EXPECT_THAT(authority.Sign(request), FailsWith(kInvalidDirectory, "is not an IP address"));
  request.ips = {};
  request.uris = {"spiffe://a/tandem/trainer,DNS:x"};
  EXPECT_THAT(authority.Sign(request), FailsWith(kInvalidDirectory, "is not a URI"));
}

TEST(BearerTokensTest, AreTheLinesOfTheFile) {
  const TempDir directory;
  const std::string path = directory / "token";
  WriteText(path, "  0123456789abcdef\n\nfedcba9876543210  \n");
  const auto tokens = ReadTokens(path);
  ASSERT_THAT(tokens, IsOk());
  EXPECT_THAT(*tokens, ::testing::ElementsAre("0123456789abcdef", "fedcba9876543210"));
}

TEST(BearerTokensTest, AShortOrMissingTokenIsRefusedWithoutShowingIt) {
  const TempDir directory;
  const std::string path = directory / "token";
  EXPECT_THAT(ReadTokens(path), FailsWith(kInvalidDirectory, path));
  WriteText(path, "\n \n");
  EXPECT_THAT(ReadTokens(path), FailsWith(kInvalidDirectory, "no token"));
  for (const char* bad : {"hunter2", "has a space in it!", "\x01\x02 0123456789abcdef"}) {
    WriteText(path, bad);
    EXPECT_THAT(ReadTokens(path), FailsWith(kInvalidDirectory, "at least 16 characters")) << bad;
    EXPECT_EQ(ReadTokens(path).status().message().find(bad), absl::string_view::npos);
  }
}

TEST(BearerTokensTest, OnlyAWholeTokenOfTheFileIsRight) {
  const std::vector<std::string> tokens = {"0123456789abcdef", "fedcba9876543210"};
  EXPECT_TRUE(TokenIsRight(tokens, "Bearer 0123456789abcdef"));
  EXPECT_TRUE(TokenIsRight(tokens, "Bearer fedcba9876543210"));
  for (const char* bad : {"", "Bearer ", "Bearer 0123456789abcde", "Bearer 0123456789abcdeF",
                          "Bearer 0123456789abcdef0", "0123456789abcdef", "bearer 0123456789abcdef",
                          "Basic 0123456789abcdef"}) {
    EXPECT_FALSE(TokenIsRight(tokens, bad)) << bad;
  }
}

}  // namespace
}  // namespace tandem::rpc
