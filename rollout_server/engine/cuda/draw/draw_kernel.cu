// Sampling without sorting. A call is five launches over a grid of (parts of a row, draws). Several
// thread blocks share a row while there are few draws; a block has whole segments of the row.
//
//   Largest   the largest logit of each part; the rank of a scored id; clears the bins
//   Sum       the sum of e^y over each segment; with top-k, top-p or listed ids also a histogram of
//             the logits: how many ids, and how much mass, lie in each 1/64 below the largest
//   Collect   finds the bins that hold the thresholds of top-k and top-p and the last listed id,
//   and
//             puts the ids of those bins into a list of at most kListed
//   Keep      with filters: the exact thresholds from that list; sums and bit set of the support
//   Finish    one block a draw: adds up the segments, finds the segment and then the id at which
//   the
//             cumulative mass passes the uniform (inverse CDF), and writes the records
//
// So a row is read twice without filters and four times with them. When the list is too short (many
// ids within 1/64 of a threshold, or top-k in the thousands), further passes over the row find the
// thresholds digit by digit (draw_cuts.h).
//
// Invariant: every sum is either over integers or in an order that the vocabulary size fixes, so no
// result depends on the number of blocks or on the order in which they run.
#include "rollout_server/engine/cuda/draw/draw_cuts.h"
#include "rollout_server/engine/cuda/draw/draw_kernel.h"

namespace tandem::rollout::cuda {
namespace {

// Philox4x32-10 and UniformDraw, the same as in philox.h.
__device__ double Uniform(uint64_t seed, uint32_t index, uint32_t position) {
  uint32_t c0 = position, c1 = index, c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const uint64_t bits = static_cast<uint64_t>(c0) << 32 | c1;
  return (static_cast<double>(bits >> 12) + 0.5) * 0x1.0p-52;
}

// One draw, with a member function for each launch.
class Row : public DrawCuts {
 public:
  using DrawCuts::DrawCuts;

  __device__ void Largest() {
    const auto allowed = [&](int id) { return Allowed(id); };
    const RowLargest largest = LargestBetween(logits_, size_, Begin(), End(), allowed, shared_.row);
    if (threadIdx.x == 0) space_.parts[blockIdx.x] = largest;
    if (draw_.scored_id >= 0) OrderOfPart();
    if (!Binned()) return;
    const int bins = (kBins + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
    const int first = bins * static_cast<int>(blockIdx.x);
    for (int i = first + static_cast<int>(threadIdx.x); i < min(kBins, first + bins);
         i += kRowThreads) {
      space_.weight[i] = 0;
      space_.count[i] = 0;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) space_.listed = 0;
  }

  __device__ void Sum() {
    if (!Settle()) return;
    for (int s = first_segment_ + Warp(); s < end_segment_; s += kRowWarps) {
      SegmentSums sums = {};
      if (!greedy_) {
        sums.allowed = SumSegment(logits_, size_, s, [&](float x, int id) { return Term(x, id); });
      }
      if (OfRaw()) {
        sums.raw = SumSegment(logits_, size_, s, [&](float x, int) { return raw_.Term(x); });
      }
      if (draw_.scored_id >= 0) {
        const float own = logits_[draw_.scored_id];
        const RowSums more = SumSegment(logits_, size_, s, [&](float x, int id) {
          const double e = Term(x, id).mass;
          return RowSums{__dmul_rn(e, e), x > own ? e : 0.0, 0.0};
        });
        sums.squared = more.mass;
        sums.above = more.first;
      }
      if (Lane() == 0) segments_[s] = sums;
    }
    if (Binned()) FillBins();
  }

  __device__ void Collect() {
    if (!Binned() || !Settle()) return;
    const Bounds bounds = FindBounds();
    Visit([&](float logit, int id) {
      if (!Listable(logit, id)) return;
      if (!bounds.Has(BinOf(logit))) return;
      const unsigned at = atomicAdd(&space_.listed, 1u);
      if (at < kListed) space_.list[at] = KeyOf(logit, id);
    });
  }

  __device__ void Keep() {
    if (!filtered_ || !Settle()) return;
    FindCuts();
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      space_.top_k = top_k_;
      space_.top_p = top_p_;
    }
    for (int s = first_segment_ + Warp(); s < end_segment_; s += kRowWarps) {
      const RowSums kept =
          SumSegment(logits_, size_, s, [&](float x, int id) { return KeptTerm(x, id); });
      double squared = 0;
      if (draw_.scored_id >= 0) {
        squared = SumSegment(logits_, size_, s, [&](float x, int id) {
                    const double e = KeptTerm(x, id).mass;
                    return RowSums{__dmul_rn(e, e), 0.0, 0.0};
                  }).mass;
      }
      if (Lane() != 0) continue;
      segments_[s].kept = kept;
      if (draw_.scored_id >= 0) segments_[s].squared = squared;
    }
    if (draw_.kept_row >= 0) WriteKept(task_.kept + draw_.kept_row * KeptWords(size_));
  }

  __device__ void Finish() {
    Drawn& out = task_.drawn[index_];
    if (!Settle()) {
      if (threadIdx.x == 0)
        out.state = largest_.broken ? DrawState::kBroken : DrawState::kNothingLeft;
      return;
    }
    if (filtered_) {
      top_k_ = space_.top_k;
      top_p_ = space_.top_p;
    }
    for (int s = static_cast<int>(threadIdx.x); s < num_segments_; s += kRowThreads) {
      shared_.segment_mass[s] = filtered_ ? segments_[s].kept.mass : segments_[s].allowed.mass;
    }
    __syncthreads();
    RowSums sums = {};  // of the distribution that is sampled from
    if (Warp() == 0) sums = DrawAndDescribe(out);
    if (draw_.num_top == 0) return;
    if (threadIdx.x == 0) shared_.log_mass = log(sums.mass);
    __syncthreads();
    ListTop(shared_.log_mass, out);
  }

 private:
  // The order of the scored id among the part's logits.
  __device__ void OrderOfPart() {
    const float own = logits_[draw_.scored_id];
    Order order = {-kRowInfinity, -kRowInfinity, 0};
    Visit([&](float logit, int) {
      MergeOrder({logit, -kRowInfinity, logit > own ? 1 : 0}, order);
    });
    for (int step = kWarp / 2; step > 0; step /= 2) {
      MergeOrder({__shfl_xor_sync(kAllLanes, order.largest, step),
                  __shfl_xor_sync(kAllLanes, order.second, step),
                  __shfl_xor_sync(kAllLanes, order.larger, step)},
                 order);
    }
    if (Lane() == 0) shared_.orders[Warp()] = order;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < kRowWarps; ++w) MergeOrder(shared_.orders[w], order);
    space_.orders[blockIdx.x] = order;
  }
  static __device__ void MergeOrder(const Order& other, Order& order) {
    order.second = fmaxf(fminf(order.largest, other.largest), fmaxf(order.second, other.second));
    order.largest = fmaxf(order.largest, other.largest);
    order.larger += other.larger;
  }

  // Id i is bit i % 32 of word i / 32. A part begins with a word.
  __device__ void WriteKept(uint32_t* words) const {
    for (int first = Begin() + Warp() * kWarp; first < End(); first += kRowThreads) {
      const int id = first + Lane();
      const unsigned bits = __ballot_sync(kAllLanes, id < size_ && Kept(logits_[id], id));
      if (Lane() == 0) words[first / kWarp] = bits;
    }
  }

  // Called by warp 0. Returns the sums of the recorded distribution.
  __device__ RowSums DrawAndDescribe(Drawn& out) {
    const RowSums whole = SumSegments(size_, [&](int s) { return segments_[s].allowed; });
    const RowSums kept = SumSegments(size_, [&](int s) { return segments_[s].kept; });
    const RowSums raw = SumSegments(size_, [&](int s) { return segments_[s].raw; });
    const RowSums sums = greedy_ ? raw : filtered_ ? kept : whole;
    int id = draw_.scored_id;
    if (id < 0 && greedy_) id = largest_.id;
    if (id < 0) {
      const double target = Uniform(draw_.seed, draw_.index, draw_.position) * sums.mass;
      id = filtered_ ? Pick(target, [&](float x, int i) { return KeptTerm(x, i).mass; })
                     : Pick(target, [&](float x, int i) { return Term(x, i).mass; });
    }
    if (draw_.scored_id >= 0) DescribeScore(id, whole, sums);
    if (Lane() != 0) return sums;
    const double log_mass = log(sums.mass), first = sums.first / sums.mass;
    const bool left = !filtered_ || Kept(logits_[id], id);
    out.id = id;
    out.behaviour_logprob = left ? scale_.LogProb(logits_[id], log_mass) : -kRowInfinity;
    out.entropy = EntropyOf(sums, log_mass);
    out.logprob_second_moment = static_cast<float>(
        fmax(0.0, sums.second / sums.mass - 2 * log_mass * first + log_mass * log_mass));
    const RowSums& untouched = OfRaw() ? raw : whole;
    out.raw_logprob = !filtered_ && !OfRaw() ? out.behaviour_logprob
                                             : raw_.LogProb(logits_[id], log(untouched.mass));
    out.kept_mass = filtered_ ? static_cast<float>(fmin(1.0, kept.mass / whole.mass)) : 1.0f;
    out.state = DrawState::kDrawn;
    out.num_top = 0;
    return sums;
  }

  // Called by warp 0.
  __device__ void DescribeScore(int id, const RowSums& whole, const RowSums& sums) {
    const RowSums more = SumSegments(size_, [&](int s) {
      return RowSums{segments_[s].squared, segments_[s].above, 0.0};
    });
    if (Lane() != 0) return;
    Order order = space_.orders[0];
    for (int p = 1; p < parts_; ++p) MergeOrder(space_.orders[p], order);
    Scored& out = task_.scored[index_];
    out.squared_probs = static_cast<float>(more.mass / (sums.mass * sums.mass));
    out.margin = order.largest - order.second;
    out.gap = order.largest - logits_[id];
    out.mass_above = static_cast<float>(more.first / whole.mass);
    out.rank = order.larger;
  }

  // The first id at which the cumulative mass passes `target`, else the last id with mass. Called
  // by warp 0.
  template <typename MassOf>
  __device__ int Pick(double target, const MassOf& mass_of) const {
    const int segment = SegmentSize(size_), lane = Lane();
    double cumulative = 0;
    int s = 0, last_with_mass = 0;
    for (int i = 0; i < num_segments_; ++i) {
      const double mass = shared_.segment_mass[i];
      if (mass <= 0) continue;
      last_with_mass = i;
      s = i;
      if (cumulative + mass > target) break;
      cumulative += mass;
      s = -1;
    }
    if (s < 0) {
      s = last_with_mass;
      target = kRowInfinity;
    }
    int last = s * segment;
    for (int begin = s * segment; begin < min(size_, (s + 1) * segment); begin += kWarp) {
      const int id = begin + lane;
      const double mass = id < size_ ? mass_of(logits_[id], id) : 0.0;
      double up_to = mass;  // of this lane and those before it
      for (int step = 1; step < kWarp; step *= 2) {
        const double before = __shfl_up_sync(kAllLanes, up_to, step);
        if (lane >= step) up_to += before;
      }
      const unsigned passed = __ballot_sync(kAllLanes, mass > 0 && cumulative + up_to > target);
      if (passed != 0) return begin + __ffs(static_cast<int>(passed)) - 1;
      const unsigned with_mass = __ballot_sync(kAllLanes, mass > 0);
      if (with_mass != 0) last = begin + kWarp - 1 - __clz(static_cast<int>(with_mass));
      cumulative += __shfl_sync(kAllLanes, up_to, kWarp - 1);
    }
    return last;
  }

  // A key that orders ids by rising likelihood, and equal ones by falling id.
  __device__ static Wide TopKeyOf(float logit, int id) {
    return static_cast<Wide>(Ordered(logit)) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
  }
  __device__ void PutTop(int at, int id, double log_mass) const {
    task_.top[index_ * kMostTop + at] = {id, scale_.LogProb(logits_[id], log_mass)};
  }

  __device__ void ListTop(double log_mass, Drawn& out) {
    if (space_.listed > kListed) return ListTopByPasses(log_mass, out);
    const int listed = static_cast<int>(space_.listed);
    for (int i = static_cast<int>(threadIdx.x); i < listed; i += kRowThreads) {
      const int id = IdOf(space_.list[i]);
      const bool left = !filtered_ || Kept(logits_[id], id);
      shared_.list.keys[i] = left ? TopKeyOf(logits_[id], id) : 0;
    }
    __syncthreads();
    int num = 0;
    for (int i = 0; i < listed; ++i) num += shared_.list.keys[i] != 0;
    for (int i = static_cast<int>(threadIdx.x); i < listed; i += kRowThreads) {
      const Wide key = shared_.list.keys[i];
      if (key == 0) continue;
      int likelier = 0;
      for (int j = 0; j < listed; ++j) likelier += shared_.list.keys[j] > key;
      if (likelier < draw_.num_top) {
        PutTop(likelier, static_cast<int>(0xffffffffu - static_cast<uint32_t>(key)), log_mass);
      }
    }
    if (threadIdx.x == 0) out.num_top = min(num, draw_.num_top);
  }

  // Without the list: one pass over the row for each id.
  __device__ void ListTopByPasses(double log_mass, Drawn& out) {
    Wide before = ~0ull;
    int num = 0;
    for (; num < draw_.num_top; ++num) {
      Wide best = 0;
      for (int id = static_cast<int>(threadIdx.x); id < size_; id += kRowThreads) {
        const float logit = logits_[id];
        const Wide key = TopKeyOf(logit, id);
        if (key >= before || key <= best || !Listable(logit, id)) continue;
        if (!filtered_ || Kept(logit, id)) best = key;
      }
      best = ~BlockLeast(~best, shared_);
      if (best == 0) break;
      before = best;
      if (threadIdx.x == 0) {
        PutTop(num, static_cast<int>(0xffffffffu - static_cast<uint32_t>(best)), log_mass);
      }
    }
    if (threadIdx.x == 0) out.num_top = num;
  }
};

#define TANDEM_DRAW_KERNEL(name)                                   \
  __global__ void __launch_bounds__(kRowThreads)                   \
      name##Kernel(DrawTask task, int64_t first_draw, int parts) { \
    __shared__ Shared shared;                                      \
    if (task.draws[first_draw + blockIdx.y].row < 0) return;       \
    Row(task, first_draw, parts, shared).name();                   \
  }
TANDEM_DRAW_KERNEL(Largest)
TANDEM_DRAW_KERNEL(Sum)
TANDEM_DRAW_KERNEL(Collect)
TANDEM_DRAW_KERNEL(Keep)
TANDEM_DRAW_KERNEL(Finish)
#undef TANDEM_DRAW_KERNEL

}  // namespace

void DrawTokens(const DrawTask& task, tandem::cuda::Stream stream) {
  for (int64_t first = 0; first < task.num_draws; first += kDrawsTogether) {
    const auto draws = static_cast<int>(std::min(kDrawsTogether, task.num_draws - first));
    const int most = std::max(1, NumSegments(task.vocabulary) / kLeastPart);
    const int parts = std::min({std::max(1, kBlocksWanted / draws), most, kMostParts});
    const dim3 shared_rows(static_cast<unsigned>(parts), static_cast<unsigned>(draws));
    const dim3 whole_rows(1, static_cast<unsigned>(draws));
    TANDEM_LAUNCH(LargestKernel, shared_rows, kRowThreads, stream, task, first, parts);
    TANDEM_LAUNCH(SumKernel, shared_rows, kRowThreads, stream, task, first, parts);
    TANDEM_LAUNCH(CollectKernel, shared_rows, kRowThreads, stream, task, first, parts);
    TANDEM_LAUNCH(KeepKernel, shared_rows, kRowThreads, stream, task, first, parts);
    TANDEM_LAUNCH(FinishKernel, whole_rows, kRowThreads, stream, task, first, parts);
  }
}

}  // namespace tandem::rollout::cuda
