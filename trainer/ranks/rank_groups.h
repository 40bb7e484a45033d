// RankGroups: what the ranks that train together send over. Both groups have the same members under
// the same ranks. Free of LibTorch.
#ifndef TANDEM_TRAINER_RANKS_RANK_GROUPS_H_
#define TANDEM_TRAINER_RANKS_RANK_GROUPS_H_

namespace tandem::comm {
class Collective;
}

namespace tandem::trainer {

struct RankGroups {
  comm::Collective* values = nullptr;      // tensors in host memory; null: alone
  comm::Collective* parameters = nullptr;  // tensors where the parameters lie; null: as `values`
};

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_RANKS_RANK_GROUPS_H_
