// RankCollectives: the collectives by which the ranks of one trainer exchange tensors. Both have
// the same members under the same ranks. Free of LibTorch.
#pragma once

namespace tandem::comm {
class Collective;
}

namespace tandem::trainer {

// Borrowed: they outlive what is made with them.
struct RankCollectives {
  comm::Collective* values = nullptr;      // tensors in host memory; null: one rank, alone
  comm::Collective* parameters = nullptr;  // tensors where the parameters lie; null: as `values`
};

}  // namespace tandem::trainer
