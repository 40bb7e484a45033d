// The process groups of c10d that a Collective works on. Includes LibTorch. Errors are exceptions
// of c10d.
#ifndef TANDEM_COMMON_COMM_BACKENDS_H_
#define TANDEM_COMMON_COMM_BACKENDS_H_

#include <chrono>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace tandem::comm {

// Waits for all members; a connection between every two of them, over the interface that this
// host's name resolves to, or the one of GLOO_SOCKET_IFNAME.
c10::intrusive_ptr<c10d::Backend> MakeGloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                           int size, std::chrono::milliseconds deadline);

}  // namespace tandem::comm

#endif  // TANDEM_COMMON_COMM_BACKENDS_H_
