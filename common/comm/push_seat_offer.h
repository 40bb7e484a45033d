// PushSeatOffer: a server's place in a push group, as the trainer offers it. Free of LibTorch and
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
  std::string store_host;  // empty: where the server sees the offer come from
  int store_port = 0;
  int rank = 0;                                         // at least 1: 0 is the trainer
  std::vector<std::string> members;                     // of each rank, for messages
  absl::Duration deadline;                              // of an operation, and of meeting
  std::shared_ptr<const std::atomic<bool>> called_off;  // by who joins: set, nobody waits on
};

}  // namespace tandem::comm

#endif  // TANDEM_COMMON_COMM_PUSH_SEAT_OFFER_H_
