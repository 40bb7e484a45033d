// PushSeatOffer: the place in a push group that the trainer offers a server. Free of LibTorch and
// gRPC.
#ifndef TANDEM_COMMON_COMM_PUSH_SEAT_OFFER_H_
#define TANDEM_COMMON_COMM_PUSH_SEAT_OFFER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/comm/backend.h"

namespace tandem::comm {

struct PushSeatOffer {
  std::string run_id;
  int64_t epoch = 0;
  int64_t membership = 0;
  Backend backend = Backend::kGloo;
  std::string store_host;  // empty: the address that the offer came from
  int store_port = 0;
  int rank = 0;                                         // at least 1; rank 0 is the trainer
  std::vector<std::string> members;                     // name of each rank, for messages
  absl::Duration deadline;                              // of each operation, and of connecting
  std::shared_ptr<const std::atomic<bool>> called_off;  // set: stop waiting
};

}  // namespace tandem::comm

#endif  // TANDEM_COMMON_COMM_PUSH_SEAT_OFFER_H_
