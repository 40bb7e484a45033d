// The toy's policy: one hidden layer of tanh units over three one-hot inputs (prompt, position,
// previous token), with 16 output tokens; 3 728 parameters at 8 positions. It is small enough for
// exact results: there are prompts x positions x previous tokens contexts and no more, so a
// distribution is a table, and everything in the toy works by context.
//
//   hidden = tanh(by_prompt[prompt] + by_position[position] + by_previous[previous] + bias)
//   logits = hidden out + out_bias,   log pi = log softmax(logits)
//
// Pure functions over plain values, in fp64, and a table of their results.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem::drift {

inline constexpr int kPrompts = 16;
inline constexpr int kTokens = 16;
inline constexpr int kHidden = 64;
inline constexpr int kStart = kTokens;  // the "previous token" of position 0

using Distribution = std::array<double, kTokens>;  // one number a token

// The input of the policy for one token.
struct Context {
  int prompt = 0;
  int position = 0;
  int previous = kStart;
};

// The contexts of completions of `length` tokens are numbered from 0.
int NumContexts(int length);
int ContextIndex(const Context& context);
Context ContextOf(int index);

using Parameters = std::vector<double>;

int64_t NumParameters(int length);

// Every element is uniform in +-1/sqrt(inputs of its layer). A function of the seed.
Parameters InitialParameters(int length, uint64_t seed);

struct Evaluation {
  std::array<double, kHidden> hidden;
  Distribution logits;
  Distribution logprobs;
};

// `length` is that of the policy, as in NumParameters.
void Evaluate(const Parameters& parameters, int length, const Context& context,
              Evaluation& evaluation);

// Backward pass: adds to `gradient` (shape of the parameters) the gradient of a loss whose gradient
// at the logits is `logit_gradient`.
void AddGradient(const Parameters& parameters, int length, const Context& context,
                 const Evaluation& evaluation, const Distribution& logit_gradient,
                 Parameters& gradient);

Distribution LogSoftmax(const Distribution& logits);

// -sum p log p, in nats.
double Entropy(const Distribution& logprobs);

// KL(p || q) in nats, exact over the vocabulary.
double KlDivergence(const Distribution& p_logprobs, const Distribution& q_logprobs);

// The token at which the running sum of probabilities first exceeds `uniform`, in [0, 1).
int DrawToken(const Distribution& logprobs, double uniform);

// The evaluations of a policy by context, each made when it is first asked for. A batch of 1 024
// tokens visits a few hundred contexts, most of them many times, so a train step costs as much as
// its different contexts. Thread-compatible.
class ContextTable {
 public:
  explicit ContextTable(int length)
      : length_(length),
        evaluations_(static_cast<size_t>(NumContexts(length))),
        made_for_(evaluations_.size(), 0) {}

  int length() const { return length_; }

  // Forgets everything. From now on, evaluates `parameters`, which must not change and must outlive
  // the results.
  void Use(const Parameters& parameters) {
    parameters_ = &parameters;
    ++use_;
  }

  const Parameters& parameters() const { return *parameters_; }

  // Valid until the next Use.
  const Evaluation& At(int context_index) {
    Evaluation& evaluation = evaluations_[static_cast<size_t>(context_index)];
    if (made_for_[static_cast<size_t>(context_index)] != use_) {
      Evaluate(*parameters_, length_, ContextOf(context_index), evaluation);
      made_for_[static_cast<size_t>(context_index)] = use_;
    }
    return evaluation;
  }

 private:
  const int length_;
  std::vector<Evaluation> evaluations_;
  std::vector<uint64_t> made_for_;  // the use to which an evaluation belongs
  uint64_t use_ = 0;
  const Parameters* parameters_ = nullptr;
};

}  // namespace tandem::drift
