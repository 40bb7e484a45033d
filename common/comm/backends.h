// The process groups of c10d that a Collective works on. Includes LibTorch. Errors are exceptions
// of c10d.
#ifndef TANDEM_COMMON_COMM_BACKENDS_H_
#define TANDEM_COMMON_COMM_BACKENDS_H_

#include <chrono>
#include <stdexcept>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "common/rendezvous/store.h"

namespace tandem::comm {

// Waits for all members; a connection between every two of them, over the interface of
// GLOO_SOCKET_IFNAME, else within a machine over loopback, else over the one that this host's name
// resolves to.
c10::intrusive_ptr<c10d::Backend> MakeGloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                           int size, Reach reach,
                                           std::chrono::milliseconds deadline);

// There is no device for the backend to work on.
class NoDevice : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Waits for all members. On this thread's current CUDA device; operations run on a stream of the
// backend's own, behind what the current stream has been given, and a wait holds the caller until
// the device has finished. c10d's watchdog aborts what passes the deadline; its flight recorder
// keeps the operations. Throws NoDevice.
c10::intrusive_ptr<c10d::Backend> MakeNccl(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                           int size, const std::string& name,
                                           std::chrono::milliseconds deadline);

// As FlightRecord (group.h), of NCCL's operations, which c10d records apart. Empty without NCCL.
std::string NcclFlightRecord();

}  // namespace tandem::comm

#endif  // TANDEM_COMMON_COMM_BACKENDS_H_
