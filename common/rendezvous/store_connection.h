// The c10d objects behind a Store, for code that makes process groups. Includes LibTorch.
#pragma once

#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace tandem::comm {

struct StoreConnection {
  c10::intrusive_ptr<c10d::Store> tcp;       // names without a prefix
  c10::intrusive_ptr<c10d::Store> prefixed;  // names below `prefix`; tcp if that is empty
  std::string prefix;
  std::string host;
  int port = 0;
};

}  // namespace tandem::comm
