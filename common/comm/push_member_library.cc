// The shared library behind push_member.h: a member implemented with c10d.
#include <utility>

#include "common/base/status_macros.h"
#include "common/comm/group.h"
#include "common/comm/push_member.h"
#include "common/comm/push_seats.h"
#include "common/rendezvous/store.h"

namespace tandem::comm {
namespace {

class CollectiveMember : public PushMember {
 public:
  explicit CollectiveMember(std::shared_ptr<Collective> group) : group_(std::move(group)) {}

  Pending StartBroadcast(std::span<std::byte> bytes, Device where) override {
    return StartBroadcastBytes(*group_, bytes, /*root=*/0, where);
  }
  void Abort(const std::string& reason) override { AbortGroup(*group_, reason); }

 private:
  const std::shared_ptr<Collective> group_;
};

absl::Status Join(const PushSeatOffer& offer, std::unique_ptr<PushMember>* member) {
  auto store = Store::Connect(offer.store_host, offer.store_port, offer.deadline);
  if (!store.ok()) return Unavailable(store.status().message());
  const std::string name = PushGroupName(offer.run_id, offer.epoch, offer.membership);
  TANDEM_RETURN_IF_ERROR(
      PushSeats(*store, name).Take(offer.rank, offer.deadline, offer.called_off.get()));
  TANDEM_ASSIGN_OR_RETURN(
      std::shared_ptr<Collective> group,
      JoinGroup(offer.backend, *store, {name, offer.rank, offer.members, offer.deadline, {}}));
  *member = std::make_unique<CollectiveMember>(std::move(group));
  return absl::OkStatus();
}

}  // namespace
}  // namespace tandem::comm

extern "C" __attribute__((visibility("default"))) absl::Status TandemJoinPushGroup(
    const tandem::comm::PushSeatOffer& offer, std::unique_ptr<tandem::comm::PushMember>* member) {
  return tandem::comm::Join(offer, member);
}
