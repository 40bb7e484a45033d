#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/comm/backends.h"
#include "common/comm/group.h"
#include "common/comm/leave_behind.h"

namespace tandem::comm {

bool HasNccl() { return true; }

c10::intrusive_ptr<c10d::Backend> MakeNccl(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                           int size, const std::string& name,
                                           std::chrono::milliseconds deadline) {
  if (c10::cuda::device_count() == 0) throw NoDevice("this machine has no CUDA device");
  // A member that never came is found here, before NCCL starts, and can be named in the error.
  std::vector<std::string> present;
  for (int r = 0; r < size; ++r) present.push_back("present/" + std::to_string(r));
  store->set(present[static_cast<size_t>(rank)], std::string("1"));
  store->wait(present, deadline);
  // 2 is CleanUpOnly: when an operation passes its deadline or NCCL reports an error, the watchdog
  // aborts the communicator and lets the process live, so that Wait can name the culprits. With
  // c10d's default (3), it ends the process.
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", /*overwrite=*/0);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = deadline;
  options->group_name = name;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
  // A barrier has no tensor from which c10d could tell the device.
  const at::Device device(at::kCUDA, c10::cuda::current_device());
  backend->setBoundDeviceId(device);
  // Connects here instead of in the first operation, because enqueueing an operation blocks those
  // of other groups in this process (collective.cc). Connecting has no deadline of its own, and a
  // member that dies in the middle of it would block the others forever. A backend that is
  // abandoned during this step is used by nobody else and ends with its thread.
  const absl::Status met =
      RunOrLeaveBehind("NCCL's meeting of group " + name, absl::FromChrono(deadline),
                       [backend, device] { backend->eagerConnectSingleDevice(device); });
  if (!met.ok()) throw std::runtime_error(std::string(met.message()));
  return backend;
}

std::string NcclFlightRecord() {
  return c10d::dump_nccl_trace_json(/*includeCollectives=*/true, /*onlyActive=*/false);
}

}  // namespace tandem::comm
