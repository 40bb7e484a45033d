#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>

#include "common/comm/backends.h"

namespace tandem::comm {

c10::intrusive_ptr<c10d::Backend> MakeGloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                           int size, Reach reach,
                                           std::chrono::milliseconds deadline) {
  using Gloo = c10d::ProcessGroupGloo;
  auto options = Gloo::Options::create(deadline);
  const char* const interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr && *interface != '\0') {
    options->devices = {Gloo::createDeviceForInterface(interface)};
  } else if (reach == Reach::kMachine) {
    options->devices = {Gloo::createDeviceForHostname("127.0.0.1")};
  } else {
    options->devices = {Gloo::createDefaultDevice()};
  }
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
}

}  // namespace tandem::comm
