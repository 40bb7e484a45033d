// Runs command lines of `tandem` for tests that have hundreds of them: this process loads LibTorch once and forks for each.
// Standard input is a Unix socket of packets. A packet holds words, each ended by a null byte: the working directory, the
// number of environment variables, these variables, and the arguments. It carries three files, which become the child's
// standard input, output and error. The answer is the exit code in decimal digits, or -N after signal N. When this process is
// killed, so is the child. tests/support/python/forked_tandem.py is the other end.
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "cli/io/subcommand.h"
#include "common/base/check.h"
#include "common/process/libtorch_program.h"

namespace {

constexpr size_t kLongestPacket = 65536;
using Files = std::array<int, 3>;

// Returns false when the other end has gone.
bool Receive(std::string& packet, Files& files) {
  packet.resize(kLongestPacket);
  iovec bytes = {packet.data(), packet.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(Files))> control{};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t length = ::recvmsg(STDIN_FILENO, &message, 0);
  if (length <= 0) return false;
  TANDEM_CHECK((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0);
  packet.resize(length);
  std::memcpy(files.data(), CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(Files));
  return true;
}

int ExitCode(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status); }

}  // namespace

int main(int argc, char** argv) {
  tandem::EnsurePassiveThreads(argc, argv, environ);
  std::string packet;
  Files files{};
  while (Receive(packet, files)) {
    const pid_t child = ::fork();
    TANDEM_CHECK(child >= 0);
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (int i = 0; i < 3; ++i) ::dup2(files[i], i);
      for (const int file : files) ::close(file);
      packet.pop_back();
      const std::vector<std::string> words = absl::StrSplit(packet, '\0');
      TANDEM_CHECK(::chdir(words[0].c_str()) == 0);
      ::clearenv();
      const auto arguments = words.begin() + 2 + std::stoi(words[1]);
      for (auto variable = words.begin() + 2; variable != arguments; ++variable) {
        ::putenv(const_cast<char*>(variable->c_str()));
      }
      tandem::ExitWithoutDestructors(tandem::cli::RunTandem({arguments, words.end()}));
    }
    for (const int file : files) ::close(file);
    int status = 0;
    TANDEM_CHECK(::waitpid(child, &status, 0) == child);
    const std::string answer = std::to_string(ExitCode(status));
    if (::send(STDIN_FILENO, answer.data(), answer.size(), MSG_NOSIGNAL) < 0) return 1;
  }
  return 0;
}
