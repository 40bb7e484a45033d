#include "trainer/server_roster.h"

#include <algorithm>
#include <vector>

#include "common/base/check.h"
#include "common/base/log.h"

namespace tandem::trainer {

void ServerRoster::Update() {
  const std::vector<std::string> named = lookup_->Addresses();
  if (const std::string problems = lookup_->Problems(); problems != problems_) {
    problems_ = problems;
    if (!problems.empty()) {
      log::Warning("names of trainer.servers have no address", {{"names", problems}});
    }
  }
  for (const std::string& address : named) {
    const int before = client_->num_servers();
    if (client_->AddServer(address) < before) continue;
    TANDEM_CHECK(publisher_->AddServer(address) == before && scorer_->AddServer(address) == before);
  }
  for (int server = 0; server < client_->num_servers(); ++server) {
    if (client_->IsRetired(server)) continue;
    if (std::ranges::find(named, client_->address(server)) != named.end()) continue;
    client_->Retire(server);
    leaving_.insert(server);
  }
  std::erase_if(leaving_, [&](int server) {
    if (!client_->IsRetired(server)) return true;
    if (!client_->IsLost(server)) return false;
    publisher_->Forget(server);
    return true;
  });
}

}  // namespace tandem::trainer
