// A block of threads for each draw. Passes over the row: the largest; the sums of e^y, by segments
// of neighbouring ids; with filters the thresholds of top-k and top-p, found digit by digit, and
// the sums of what is left; then the ids of the segment in which the cumulative mass passes the
// uniform.
//
// Every sum is in an order fixed by the vocabulary, or of integers.
#include "common/cuda/device.h"
#include "rollout_server/engine/cuda/draw_kernel.h"

namespace tandem::rollout::cuda {
namespace {

using namespace tandem::cuda;  // device.h

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMaxSegments = 512;
constexpr int kDigits = 2048;  // 11 bits
constexpr float kInfinity = __builtin_huge_valf();

// Ids of a segment: a multiple of the warp, such that kMaxSegments of them are enough.
__host__ __device__ inline int SegmentSize(int64_t vocabulary) {
  constexpr int64_t kLeast = 1024;
  const int64_t each = kLeast * kMaxSegments;
  return static_cast<int>(kLeast * ((vocabulary + each - 1) / each));
}

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

// Of e^y, e^y y, e^y y^2. Without initialisers: shared memory has none.
struct Sums {
  double mass, first, second;
};

struct Shared {
  union {
    struct {
      unsigned long long weight[kDigits];
      unsigned int count[kDigits];
    } digits;
    double segment_mass[kMaxSegments];
  };
  Sums sums[kWarps];
  float largest[kWarps], allowed_largest[kWarps];
  int32_t id[kWarps];
  int32_t broken[kWarps];
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
        shared_(shared),
        inverse_temperature_(draw.temperature == 0 ? 1.0f : 1.0f / draw.temperature) {}

  __device__ void Run(Drawn& out) {
    FindLargest();
    if (broken_ || !isfinite(raw_largest_)) return Finish(out, DrawState::kBroken);
    if (largest_ == -kInfinity) return Finish(out, DrawState::kNothingLeft);
    if (draw_.temperature == 0) return Greedy(out);
    const bool filtered = draw_.top_k > 0 || draw_.top_p < 1 || draw_.min_p > 0;
    const bool untouched = !filtered && draw_.num_forbidden == 0 && draw_.temperature == 1.0f;
    const Sums whole = SumSegments([&](float logit, int id) { return AllowedTerm(logit, id); });
    Sums kept = whole;
    if (filtered) {
      FindCuts();
      kept = SumSegments([&](float logit, int id) { return KeptTerm(logit, id); });
    }
    const double target = Uniform(draw_.seed, draw_.index, draw_.position) * kept.mass;
    const int id =
        filtered ? Pick(target, [&](float logit, int i) { return KeptTerm(logit, i).mass; })
                 : Pick(target, [&](float logit, int i) { return AllowedTerm(logit, i).mass; });
    __syncthreads();
    double raw_mass = kept.mass;
    if (!untouched) raw_mass = SumSegments([&](float logit, int) { return RawTerm(logit); }).mass;
    if (threadIdx.x != 0) return;
    out.id = id;
    Describe(kept, inverse_temperature_, largest_, id, out);
    out.raw_logprob = untouched ? out.behaviour_logprob
                                : static_cast<float>(logits_[id] - raw_largest_ - log(raw_mass));
    out.kept_mass = filtered ? static_cast<float>(fmin(1.0, kept.mass / whole.mass)) : 1.0f;
    out.state = DrawState::kDrawn;
  }

 private:
  static __device__ void Finish(Drawn& out, DrawState state) {
    if (threadIdx.x == 0) out.state = state;
  }

  // The largest logit, the lowest id on ties; what is recorded is of the untouched distribution.
  __device__ void Greedy(Drawn& out) {
    const Sums raw = SumSegments([&](float logit, int) { return RawTerm(logit); });
    if (threadIdx.x != 0) return;
    out.id = largest_id_;
    Describe(raw, 1.0f, raw_largest_, largest_id_, out);
    out.raw_logprob = out.behaviour_logprob;
    out.kept_mass = 1;
    out.state = DrawState::kDrawn;
  }

  __device__ void Describe(const Sums& sums, float inverse_temperature, float largest, int id,
                           Drawn& out) const {
    const double log_mass = log(sums.mass), first = sums.first / sums.mass;
    out.behaviour_logprob = static_cast<float>(
        (logits_[id] - largest) * static_cast<double>(inverse_temperature) - log_mass);
    out.entropy = static_cast<float>(fmax(0.0, log_mass - first));
    out.logprob_second_moment = static_cast<float>(
        fmax(0.0, sums.second / sums.mass - 2 * log_mass * first + log_mass * log_mass));
  }

  __device__ bool Allowed(int id) const {
    for (int i = 0; i < draw_.num_forbidden; ++i) {
      if (forbidden_[i] == id) return false;
    }
    return true;
  }

  __device__ void FindLargest() {
    float raw = -kInfinity, largest = -kInfinity;
    int id = size_;
    int broken = 0;
    for (int i = static_cast<int>(threadIdx.x); i < size_; i += kThreads) {
      const float logit = logits_[i];
      broken |= isnan(logit);
      raw = fmaxf(raw, logit);
      if (logit > largest && Allowed(i)) {  // ids rise, so the first of equals stays
        largest = logit;
        id = i;
      }
    }
    for (int step = kWarp / 2; step > 0; step /= 2) {
      raw = fmaxf(raw, __shfl_xor_sync(kAllLanes, raw, step));
      broken |= __shfl_xor_sync(kAllLanes, broken, step);
      const float other = __shfl_xor_sync(kAllLanes, largest, step);
      const int other_id = __shfl_xor_sync(kAllLanes, id, step);
      if (other > largest || (other == largest && other_id < id)) {
        largest = other;
        id = other_id;
      }
    }
    if (threadIdx.x % kWarp == 0) {
      const unsigned warp = threadIdx.x / kWarp;
      shared_.largest[warp] = raw;
      shared_.allowed_largest[warp] = largest;
      shared_.id[warp] = id;
      shared_.broken[warp] = broken;
    }
    __syncthreads();
    raw_largest_ = largest_ = -kInfinity;
    largest_id_ = size_;
    broken_ = false;
    for (int w = 0; w < kWarps; ++w) {
      raw_largest_ = fmaxf(raw_largest_, shared_.largest[w]);
      broken_ = broken_ || shared_.broken[w] != 0;
      const float other = shared_.allowed_largest[w];
      if (other > largest_ || (other == largest_ && shared_.id[w] < largest_id_)) {
        largest_ = other;
        largest_id_ = shared_.id[w];
      }
    }
  }

  // Below e^-87 a term is nothing next to the largest, which is 1.
  static __device__ Sums Term(float y) {
    if (!(y >= -87.0f)) return {};
    const float e = expf(y);
    return {e, e * y, e * y * y};
  }
  __device__ Sums RawTerm(float logit) const { return Term(logit - raw_largest_); }
  __device__ Sums AllowedTerm(float logit, int id) const {
    const Sums term = Term((logit - largest_) * inverse_temperature_);
    return term.mass > 0 && Allowed(id) ? term : Sums{};
  }

  __device__ bool Kept(float logit, int id) const {
    const uint64_t key = static_cast<uint64_t>(Ordered(logit)) << 32 | static_cast<uint32_t>(id);
    return logit > -kInfinity && top_k_.keeps(key) && top_p_.keeps(key) &&
           Tempered(logit) >= least_ && Allowed(id);
  }
  __device__ double Tempered(float logit) const {
    return (logit - largest_) * static_cast<double>(inverse_temperature_);
  }
  __device__ Sums KeptTerm(float logit, int id) const {
    if (!Kept(logit, id)) return {};
    const double y = Tempered(logit), e = exp(y);
    return {e, e * y, e * y * y};
  }

  // Of all ids, and segment by segment into shared_.segment_mass. A warp takes whole segments.
  template <typename TermOf>
  __device__ Sums SumSegments(const TermOf& term_of) {
    const int segment = SegmentSize(size_), lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    Sums all = {};
    for (int s = warp; s * segment < size_; s += kWarps) {
      const int end = min(size_, (s + 1) * segment);
      Sums sums = {};
      for (int id = s * segment + lane; id < end; id += kWarp) {
        const Sums term = term_of(logits_[id], id);
        sums.mass += term.mass;
        sums.first += term.first;
        sums.second += term.second;
      }
      const double mass = WarpSum(sums.mass);
      all.mass += mass;
      all.first += WarpSum(sums.first);
      all.second += WarpSum(sums.second);
      if (lane == 0) shared_.segment_mass[s] = mass;
    }
    if (lane == 0) shared_.sums[warp] = all;
    __syncthreads();
    all = {};
    for (int w = 0; w < kWarps; ++w) {
      all.mass += shared_.sums[w].mass;
      all.first += shared_.sums[w].first;
      all.second += shared_.sums[w].second;
    }
    __syncthreads();
    return all;
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
      target = kInfinity;
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
    least_ = -static_cast<double>(kInfinity);
    if (draw_.top_k > 0 && draw_.top_k < size_) {
      // Ties stay: the last digits are those of the logit.
      const auto one = [&](float logit, int id) -> unsigned long long {
        return logit > -kInfinity && Allowed(id);
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
      for (int id = static_cast<int>(threadIdx.x); id < size_; id += kThreads) {
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
      for (int i = static_cast<int>(threadIdx.x); i < kDigits; i += kThreads) {
        shared_.digits.weight[i] = 0;
        shared_.digits.count[i] = 0;
      }
      __syncthreads();
      for (int id = static_cast<int>(threadIdx.x); id < size_; id += kThreads) {
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
  const float inverse_temperature_;
  float raw_largest_ = 0, largest_ = 0;  // of all ids; of those allowed
  int largest_id_ = 0;
  bool broken_ = false;
  Cut top_k_, top_p_;
  double least_ = 0;  // of y, by min-p
};

__global__ void __launch_bounds__(kThreads)
    DrawKernel(const float* logits, int64_t vocabulary, const Draw* draws, const int32_t* forbidden,
               Drawn* drawn) {
  __shared__ Shared shared;
  const Draw draw = draws[blockIdx.x];
  if (draw.row < 0) return;
  Row row(logits + draw.row * vocabulary, vocabulary, draw, forbidden, shared);
  row.Run(drawn[blockIdx.x]);
}

}  // namespace

void DrawTokens(const float* logits, int64_t vocabulary, const Draw* draws, int64_t num_draws,
                const int32_t* forbidden, Drawn* drawn, tandem::cuda::Stream stream) {
  if (num_draws == 0) return;
  TANDEM_LAUNCH(DrawKernel, GridOf(num_draws), kThreads, stream, logits, vocabulary, draws,
                forbidden, drawn);
}

}  // namespace tandem::rollout::cuda
