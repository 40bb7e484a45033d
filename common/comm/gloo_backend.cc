#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>

#include "common/comm/backends.h"

namespace tandem::comm {

c10::intrusive_ptr<c10d::Backend> MakeGloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                           int size, std::chrono::milliseconds deadline) {
  auto options = c10d::ProcessGroupGloo::Options::create(deadline);
  const char* const interface = std::getenv("GLOO_SOCKET_IFNAME");
  options->devices = {interface == nullptr || *interface == '\0'
                          ? c10d::ProcessGroupGloo::createDefaultDevice()
                          : c10d::ProcessGroupGloo::createDeviceForInterface(interface)};
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
}

}  // namespace tandem::comm
