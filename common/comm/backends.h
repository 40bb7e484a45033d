// The c10d process groups under a Collective. Includes LibTorch. Errors are exceptions of c10d.
#pragma once

#include <chrono>
#include <stdexcept>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "common/rendezvous/store.h"

namespace tandem::comm {

// Connects every pair of members and waits until all are there. Gloo uses the interface named by
// GLOO_SOCKET_IFNAME; without that variable, it uses loopback within a machine, and otherwise the
// interface that this host's name resolves to.
c10::intrusive_ptr<c10d::Backend> MakeGloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                           int size, Reach reach,
                                           std::chrono::milliseconds deadline);

// Thrown when this machine has no device for the backend.
class NoDevice : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Waits until all members are there. The group works on this thread's current CUDA device.
// Operations run on a stream of the backend, after what is already on the current stream, and a
// wait blocks the caller until the device has finished. c10d's watchdog aborts operations that pass
// the deadline, and its flight recorder keeps a record of them. Throws NoDevice.
c10::intrusive_ptr<c10d::Backend> MakeNccl(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                           int size, const std::string& name,
                                           std::chrono::milliseconds deadline);

// Like FlightRecord (group.h), for NCCL's operations, which c10d records separately. Empty without
// NCCL.
std::string NcclFlightRecord();

}  // namespace tandem::comm
