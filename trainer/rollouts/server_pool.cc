#include "trainer/rollouts/server_pool.h"

#include <algorithm>

#include "common/base/check.h"

namespace tandem::trainer {

ServerPool::ServerPool(const std::vector<std::string>& addresses, const rpc::Caller& caller)
    : caller_(caller) {
  for (const std::string& address : addresses) Add(address);
}

int ServerPool::Add(const std::string& address) {
  MutexLock lock(&mu_);
  const auto known =
      std::ranges::find(servers_, address, [](const auto& server) { return server->address(); });
  const int number = static_cast<int>(known - servers_.begin());
  if (known == servers_.end()) {
    servers_.push_back(std::make_unique<ServerHandle>(address, caller_));
  }
  return number;
}

int ServerPool::size() const {
  MutexLock lock(&mu_);
  return static_cast<int>(servers_.size());
}

ServerHandle& ServerPool::at(int server) const {
  MutexLock lock(&mu_);
  TANDEM_CHECK(server >= 0 && static_cast<size_t>(server) < servers_.size());
  return *servers_[static_cast<size_t>(server)];
}

}  // namespace tandem::trainer
