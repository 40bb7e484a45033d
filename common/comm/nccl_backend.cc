#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cstdlib>
#include <string>
#include <vector>

#include "common/comm/backends.h"
#include "common/comm/group.h"

namespace tandem::comm {

bool HasNccl() { return true; }

c10::intrusive_ptr<c10d::Backend> MakeNccl(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                           int size, const std::string& name,
                                           std::chrono::milliseconds deadline) {
  if (c10::cuda::device_count() == 0) throw NoDevice("this machine has no CUDA device");
  // NCCL's own meeting has no deadline; this has one.
  std::vector<std::string> present;
  for (int r = 0; r < size; ++r) present.push_back("present/" + std::to_string(r));
  store->set(present[static_cast<size_t>(rank)], std::string("1"));
  store->wait(present, deadline);
  // 2 is CleanUpOnly: when an operation passes its deadline, or NCCL reports an error, the watchdog
  // aborts the communicator and lets the process live, so that Wait can say who is to blame. c10d's
  // own choice (3) ends the process.
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", /*overwrite=*/0);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = deadline;
  options->group_name = name;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
  // A barrier carries no tensor that would say which device it is on.
  const at::Device device(at::kCUDA, c10::cuda::current_device());
  backend->setBoundDeviceId(device);
  // The meeting takes place here and not in the first operation: beginning one keeps those of other
  // groups of this process waiting.
  backend->eagerConnectSingleDevice(device);
  return backend;
}

std::string NcclFlightRecord() {
  return c10d::dump_nccl_trace_json(/*includeCollectives=*/true, /*onlyActive=*/false);
}

}  // namespace tandem::comm
