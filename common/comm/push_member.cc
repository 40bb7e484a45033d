#include "common/comm/push_member.h"

#include <dlfcn.h>
#include <unistd.h>

#include "common/base/status_macros.h"

namespace tandem::comm {
namespace {

// The directory of this program; empty if the system does not tell.
std::string ProgramFolder() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  const std::string program(path, length > 0 ? static_cast<size_t>(length) : 0);
  return program.substr(0, program.rfind('/') + 1);
}

absl::StatusOr<JoinPushGroupFunction> Load() {
  const std::string beside = ProgramFolder() + kPushMemberLibrary;
  void* library = dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL);
  // Tests are not beside the library; they use the path from the build.
  if (library == nullptr) library = dlopen(TANDEM_PUSH_MEMBER_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return NotFound("a push group needs ", beside, " (built with the rollout server): ", dlerror());
  }
  void* const symbol = dlsym(library, kJoinPushGroupSymbol);
  if (symbol == nullptr) {
    return NotFound(kPushMemberLibrary, ": ", dlerror());
  }
  return reinterpret_cast<JoinPushGroupFunction>(symbol);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PushMember>> JoinPushGroup(const PushSeatOffer& offer) {
  static const absl::StatusOr<JoinPushGroupFunction> join = Load();
  TANDEM_RETURN_IF_ERROR(join.status());
  std::unique_ptr<PushMember> member;
  TANDEM_RETURN_IF_ERROR((*join)(offer, &member));
  return member;
}

}  // namespace tandem::comm
