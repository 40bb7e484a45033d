// The toy's policy: one hidden layer of tanh units over three one-hot inputs (prompt, position,
// previous token), 16 tokens out; 3 728 parameters at 8 positions. Small enough that everything the
// lab asks of it is exact: there are prompts x positions x previous tokens contexts and no more, so
// a distribution is a table, and every tool of the toy works by context.
//
//   hidden = tanh(by_prompt[prompt] + by_position[position] + by_previous[previous] + bias)
//   logits = hidden out + out_bias,   log pi = log softmax(logits)
//
// Pure functions over plain values, fp64.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace tandem::drift {

inline constexpr int kPrompts = 16;
inline constexpr int kTokens = 16;
inline constexpr int kHidden = 64;
inline constexpr int kStart = kTokens;  // the "previous token" of position 0

using Distribution = std::array<double, kTokens>;  // one number a token

// What the policy sees before it draws one token.
struct Context {
  int prompt = 0;
  int position = 0;
  int previous = kStart;
};

// Contexts of completions of `length` tokens, numbered from 0.
int NumContexts(int length);
int ContextIndex(const Context& context);
Context ContextOf(int index);

using Parameters = std::vector<double>;

int64_t NumParameters(int length);

// Every element uniform in +-1/sqrt(inputs of its layer); a function of the seed.
Parameters InitialParameters(int length, uint64_t seed);

struct Evaluation {
  std::array<double, kHidden> hidden;
  Distribution logits;
  Distribution logprobs;
};

// `length` is that of the policy, as NumParameters took it.
void Evaluate(const Parameters& parameters, int length, const Context& context,
              Evaluation& evaluation);

// Adds to `gradient` (shape of the parameters) what a loss with this gradient at the logits gives.
void AddGradient(const Parameters& parameters, int length, const Context& context,
                 const Evaluation& evaluation, const Distribution& logit_gradient,
                 Parameters& gradient);

// log softmax, in place of logits.
Distribution LogSoftmax(const Distribution& logits);

// H = -sum p log p and sum p (log p)^2.
struct SurpriseMoments {
  double entropy = 0;
  double second_moment = 0;
};
SurpriseMoments Moments(const Distribution& logprobs);

// KL(p || q) in nats, exact over the vocabulary.
double KlDivergence(const Distribution& p_logprobs, const Distribution& q_logprobs);

// The token where the running sum of probabilities first exceeds `uniform`, in [0, 1).
int DrawToken(const Distribution& logprobs, double uniform);

}  // namespace tandem::drift
