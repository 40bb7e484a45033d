// A block of threads for each draw. Passes over the row: the largest; the sums of e^y, by segments
// of neighbouring ids; with filters the thresholds of top-k and top-p, found digit by digit, and
// the sums of what is left; then the ids of the segment in which the cumulative mass passes the
// uniform.
//
// Every sum is in an order fixed by the vocabulary, or of integers.
#include "common/cuda/row_distribution.h"
#include "rollout_server/engine/cuda/draw_kernel.h"

namespace tandem::rollout::cuda {
namespace {

using namespace tandem::cuda;  // row_distribution.h, device.h

constexpr int kDigits = 2048;  // 11 bits

// Philox4x32-10 and UniformDraw, as philox.h.
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

// Larger floats have larger keys.
__device__ uint32_t Ordered(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

struct Shared {
  union {
    struct {
      unsigned long long weight[kDigits];
      unsigned int count[kDigits];
    } digits;
    double segment_mass[kMaxRowSegments];
  };
  RowShared row;
  int found;  // digit
  unsigned long long above;
};

// Which ids a filter left: those whose key, shifted, is at least `least`.
struct Cut {
  int shift = 0;
  uint64_t least = 0;
  __device__ bool keeps(uint64_t key) const { return key >> shift >= least; }
};

class Row {
 public:
  __device__ Row(const float* logits, int64_t vocabulary, const Draw& draw,
                 const int32_t* forbidden, Shared& shared)
      : logits_(logits),
        size_(static_cast<int>(vocabulary)),
        draw_(draw),
        forbidden_(forbidden + draw.first_forbidden),
        shared_(shared) {}

  __device__ void Run(uint32_t* kept_words, Drawn& out) {
    const RowLargest largest = FindLargest(
        logits_, size_, [&](int id) { return Allowed(id); }, shared_.row);
    if (largest.broken) return Finish(out, DrawState::kBroken);
    if (largest.of_allowed == -kRowInfinity) return Finish(out, DrawState::kNothingLeft);
    raw_ = {largest.of_all, 1.0f};
    if (draw_.temperature == 0) return Greedy(largest.id, out);
    scale_ = {largest.of_allowed, 1.0f / draw_.temperature};
    const bool filtered = draw_.top_k > 0 || draw_.top_p < 1 || draw_.min_p > 0;
    const bool untouched = !filtered && draw_.num_forbidden == 0 && draw_.temperature == 1.0f;
    const RowSums whole = Sum([&](float logit, int id) { return AllowedTerm(logit, id); });
    RowSums kept = whole;
    if (filtered) {
      FindCuts();
      kept = Sum([&](float logit, int id) { return KeptTerm(logit, id); });
      if (draw_.kept_row >= 0) WriteKept(kept_words + draw_.kept_row * KeptWords(size_));
    }
    const double target = Uniform(draw_.seed, draw_.index, draw_.position) * kept.mass;
    const int id =
        filtered ? Pick(target, [&](float logit, int i) { return KeptTerm(logit, i).mass; })
                 : Pick(target, [&](float logit, int i) { return AllowedTerm(logit, i).mass; });
    __syncthreads();
    double raw_mass = kept.mass;
    if (!untouched) raw_mass = Sum([&](float logit, int) { return raw_.Term(logit); }).mass;
    if (threadIdx.x != 0) return;
    out.id = id;
    Describe(kept, scale_, id, out);
    out.raw_logprob = untouched ? out.behaviour_logprob : raw_.LogProb(logits_[id], log(raw_mass));
    out.kept_mass = filtered ? static_cast<float>(fmin(1.0, kept.mass / whole.mass)) : 1.0f;
    out.state = DrawState::kDrawn;
  }

 private:
  static __device__ void Finish(Drawn& out, DrawState state) {
    if (threadIdx.x == 0) out.state = state;
  }

  // The largest logit, the lowest id on ties; what is recorded is of the untouched distribution.
  __device__ void Greedy(int id, Drawn& out) {
    const RowSums raw = Sum([&](float logit, int) { return raw_.Term(logit); });
    if (threadIdx.x != 0) return;
    out.id = id;
    Describe(raw, raw_, id, out);
    out.raw_logprob = out.behaviour_logprob;
    out.kept_mass = 1;
    out.state = DrawState::kDrawn;
  }

  __device__ void Describe(const RowSums& sums, const RowScale& scale, int id, Drawn& out) const {
    const double log_mass = log(sums.mass), first = sums.first / sums.mass;
    out.behaviour_logprob = scale.LogProb(logits_[id], log_mass);
    out.entropy = EntropyOf(sums, log_mass);
    out.logprob_second_moment = static_cast<float>(
        fmax(0.0, sums.second / sums.mass - 2 * log_mass * first + log_mass * log_mass));
  }

  __device__ bool Allowed(int id) const {
    for (int i = 0; i < draw_.num_forbidden; ++i) {
      if (forbidden_[i] == id) return false;
    }
    return true;
  }

  template <typename TermOf>
  __device__ RowSums Sum(const TermOf& term_of) const {
    return SumRow(logits_, size_, term_of, shared_.segment_mass, shared_.row);
  }
  __device__ RowSums AllowedTerm(float logit, int id) const {
    const RowSums term = scale_.Term(logit);
    return term.mass > 0 && Allowed(id) ? term : RowSums{};
  }

  __device__ bool Kept(float logit, int id) const {
    const uint64_t key = static_cast<uint64_t>(Ordered(logit)) << 32 | static_cast<uint32_t>(id);
    return logit > -kRowInfinity && top_k_.keeps(key) && top_p_.keeps(key) &&
           scale_.Y(logit) >= least_ && Allowed(id);
  }
  __device__ RowSums KeptTerm(float logit, int id) const {
    return Kept(logit, id) ? scale_.WideTerm(logit) : RowSums{};
  }

  // Id i is bit i % 32 of word i / 32.
  __device__ void WriteKept(uint32_t* words) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int first = static_cast<int>(threadIdx.x) - lane; first < size_; first += kRowThreads) {
      const int id = first + lane;
      const unsigned bits = __ballot_sync(kAllLanes, id < size_ && Kept(logits_[id], id));
      if (lane == 0) words[first / kWarp] = bits;
    }
  }

  // The first id at which the cumulative mass passes `target`, else the last one with mass. Of warp
  // 0.
  template <typename MassOf>
  __device__ int Pick(double target, const MassOf& mass_of) const {
    if (threadIdx.x >= kWarp) return 0;
    const int segment = SegmentSize(size_), lane = static_cast<int>(threadIdx.x);
    double cumulative = 0;
    int s = 0, last_with_mass = 0;
    for (int i = 0; i * segment < size_; ++i) {
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

  __device__ void FindCuts() {
    top_k_ = top_p_ = Cut{};
    least_ = -static_cast<double>(kRowInfinity);
    if (draw_.top_k > 0 && draw_.top_k < size_) {
      // Ties stay: the last digits are those of the logit.
      const auto one = [&](float logit, int id) -> unsigned long long {
        return logit > -kRowInfinity && Allowed(id);
      };
      top_k_ = FindCut(one, static_cast<double>(draw_.top_k), /*last_shift=*/32);
    }
    if (draw_.top_p < 1) {
      // Integers, so that any order gives the same sum: 2^-40 of the largest is the smallest mass.
      const auto mass = [&](float logit, int id) -> unsigned long long {
        const uint64_t key = static_cast<uint64_t>(Ordered(logit)) << 32;
        return top_k_.keeps(key)
                   ? static_cast<unsigned long long>(AllowedTerm(logit, id).mass * 0x1p40)
                   : 0ull;
      };
      unsigned long long total = 0;
      for (int id = static_cast<int>(threadIdx.x); id < size_; id += kRowThreads) {
        total += mass(logits_[id], id);
      }
      total = BlockSum(total, &shared_.digits.weight[0]);
      __syncthreads();
      top_p_ = FindCut(mass, static_cast<double>(draw_.top_p) * static_cast<double>(total), 0);
    }
    if (draw_.min_p > 0) least_ = log(static_cast<double>(draw_.min_p));
  }

  // Of ids from the largest key (logit, then id) down: keeps each that has less than `wanted`
  // weight above it. Narrows the last kept key down by 11 bits a pass.
  template <typename WeightOf>
  __device__ Cut FindCut(const WeightOf& weight_of, double wanted, int last_shift) {
    uint64_t prefix = 0;
    int prefix_shift = 64;
    unsigned long long above = 0;
    while (prefix_shift > last_shift) {
      const int shift = max(last_shift, prefix_shift - 11);
      const int bins = 1 << (prefix_shift - shift);
      for (int i = static_cast<int>(threadIdx.x); i < kDigits; i += kRowThreads) {
        shared_.digits.weight[i] = 0;
        shared_.digits.count[i] = 0;
      }
      __syncthreads();
      for (int id = static_cast<int>(threadIdx.x); id < size_; id += kRowThreads) {
        const float logit = logits_[id];
        const uint64_t key =
            static_cast<uint64_t>(Ordered(logit)) << 32 | static_cast<uint32_t>(id);
        if (prefix_shift < 64 && key >> prefix_shift != prefix) continue;
        const unsigned long long weight = weight_of(logit, id);
        if (weight == 0) continue;
        const auto digit = static_cast<unsigned>(key >> shift) & static_cast<unsigned>(bins - 1);
        atomicAdd(&shared_.digits.weight[digit], weight);
        atomicAdd(&shared_.digits.count[digit], 1u);
      }
      __syncthreads();
      FindDigit(bins, above, wanted);
      __syncthreads();
      const int found = shared_.found;
      if (found < 0) return {};  // less than `wanted` in all: nothing is cut
      above = shared_.above;
      const unsigned count = shared_.digits.count[found];
      prefix =
          (prefix_shift < 64 ? prefix << (prefix_shift - shift) : 0) | static_cast<unsigned>(found);
      prefix_shift = shift;
      __syncthreads();
      if (count == 1) break;
    }
    return {prefix_shift, prefix};
  }

  // The digit at which the weight from the largest digit down reaches `wanted`, and what lies above
  // it. Of warp 0; lane 31 has the largest digits.
  __device__ void FindDigit(int bins, unsigned long long above, double wanted) {
    if (threadIdx.x >= kWarp) return;
    const int lane = static_cast<int>(threadIdx.x), each = (bins + kWarp - 1) / kWarp;
    unsigned long long own = 0;
    for (int i = lane * each; i < min(bins, (lane + 1) * each); ++i)
      own += shared_.digits.weight[i];
    unsigned long long from_here = own;  // of this lane and those above it
    for (int step = 1; step < kWarp; step *= 2) {
      const unsigned long long more = __shfl_down_sync(kAllLanes, from_here, step);
      if (lane + step < kWarp) from_here += more;
    }
    const bool reached = static_cast<double>(above + from_here) >= wanted && from_here > 0;
    const unsigned lanes = __ballot_sync(kAllLanes, reached);
    if (lanes == 0) {
      if (lane == 0) shared_.found = -1;
      return;
    }
    if (lane != kWarp - 1 - __clz(static_cast<int>(lanes))) return;
    above += from_here - own;
    for (int i = min(bins, (lane + 1) * each) - 1; i >= lane * each; --i) {
      const unsigned long long weight = shared_.digits.weight[i];
      if (weight > 0 && static_cast<double>(above + weight) >= wanted) {
        shared_.found = i;
        shared_.above = above;
        return;
      }
      above += weight;
    }
  }

  const float* const logits_;
  const int size_;
  const Draw& draw_;
  const int32_t* const forbidden_;
  Shared& shared_;
  RowScale raw_ = {}, scale_ = {};  // of the untouched logits; of those allowed, tempered
  Cut top_k_, top_p_;
  double least_ = 0;  // of y, by min-p
};

__global__ void __launch_bounds__(kRowThreads)
    DrawKernel(const float* logits, int64_t vocabulary, const Draw* draws, const int32_t* forbidden,
               Drawn* drawn, uint32_t* kept) {
  __shared__ Shared shared;
  const Draw draw = draws[blockIdx.x];
  if (draw.row < 0) return;
  Row row(logits + draw.row * vocabulary, vocabulary, draw, forbidden, shared);
  row.Run(kept, drawn[blockIdx.x]);
}

}  // namespace

void DrawTokens(const float* logits, int64_t vocabulary, const Draw* draws, int64_t num_draws,
                const int32_t* forbidden, Drawn* drawn, uint32_t* kept,
                tandem::cuda::Stream stream) {
  if (num_draws == 0) return;
  TANDEM_LAUNCH(DrawKernel, GridOf(num_draws), kRowThreads, stream, logits, vocabulary, draws,
                forbidden, drawn, kept);
}

}  // namespace tandem::rollout::cuda
