// A policy over sequences that is small enough to enumerate: a softmax of free logits for every
// prefix, a behaviour policy beside it, and the exact gradient of the expected reward. With it,
// tests compute the expectation and variance of estimators as sums over all sequences, without
// sampling.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "common/offpolicy/correction_method.h"

namespace tandem::testing {

using Gradient = std::vector<double>;  // one element per logit of the policy

inline double Dot(const Gradient& a, const Gradient& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

inline double Distance(const Gradient& a, const Gradient& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

inline void AddTo(Gradient& sum, double factor, const Gradient& x) {
  for (size_t i = 0; i < x.size(); ++i) sum[i] += factor * x[i];
}

// One sequence. Element t of each array belongs to token t.
struct ToySequence {
  std::vector<double> log_pi, log_mu;
  std::vector<Gradient> score;  // gradient of log_pi[t]
  double pi = 1, mu = 1;        // probabilities of the whole sequence
  double reward = 0;
};

// `gap` scales the distance of the behaviour policy's logits from the policy's; 0 makes them equal.
struct ToyPolicy {
  ToyPolicy(size_t vocabulary, size_t length, double gap, unsigned seed = 5) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    size_t prefixes = 0;
    for (size_t t = 0, n = 1; t < length; ++t, n *= vocabulary) prefixes += n;
    std::vector<double> logits(prefixes * vocabulary), others(logits.size());
    for (double& logit : logits) logit = normal(random);
    for (size_t i = 0; i < logits.size(); ++i) others[i] = logits[i] + gap * normal(random);
    Extend({}, 0, vocabulary, length, logits, others);
    for (ToySequence& sequence : sequences) sequence.reward = normal(random);
  }

  // E_pi[R grad log pi].
  Gradient ExactGradient() const {
    Gradient sum(sequences[0].score[0].size());
    for (const ToySequence& s : sequences) {
      for (const Gradient& score : s.score) AddTo(sum, s.pi * s.reward, score);
    }
    return sum;
  }

  std::vector<ToySequence> sequences;  // all of them

 private:
  void Extend(const ToySequence& prefix, size_t number, size_t vocabulary, size_t left,
              const std::vector<double>& logits, const std::vector<double>& others) {
    if (left == 0) {
      sequences.push_back(prefix);
      return;
    }
    const auto log_softmax = [&](const std::vector<double>& table, size_t a) {
      double sum = 0;
      for (size_t b = 0; b < vocabulary; ++b) sum += std::exp(table[number * vocabulary + b]);
      return table[number * vocabulary + a] - std::log(sum);
    };
    for (size_t a = 0; a < vocabulary; ++a) {
      ToySequence next = prefix;
      next.log_pi.push_back(log_softmax(logits, a));
      next.log_mu.push_back(log_softmax(others, a));
      next.pi *= std::exp(next.log_pi.back());
      next.mu *= std::exp(next.log_mu.back());
      Gradient score(logits.size());
      for (size_t b = 0; b < vocabulary; ++b) {
        score[number * vocabulary + b] = (a == b ? 1.0 : 0.0) - std::exp(log_softmax(logits, b));
      }
      next.score.push_back(score);
      Extend(next, number * vocabulary + a + 1, vocabulary, left - 1, logits, others);
    }
  }
};

// The moments of an estimator over samples of the behaviour policy.
struct Moments {
  Gradient mean;
  double variance = 0;       // trace of the covariance
  double second_moment = 0;  // mean of the squared norm
};

// The estimate of the policy gradient from one sequence with the given advantage: minus the
// gradient of the method's loss, divided by the number of sequences (1).
inline Gradient EstimateFrom(const ToySequence& s, double advantage,
                             offpolicy::MethodOptions method) {
  method.objective.normalisation = offpolicy::Normalisation::kConstant;
  method.objective.constant_length = 1;
  const size_t length = s.score.size();
  const std::vector<double> advantages(length, advantage);
  const std::vector<uint8_t> mask(length, 1);
  const std::vector<int64_t> completion(length);
  const offpolicy::MethodResult result =
      offpolicy::EvaluateMethod({s.log_mu, s.log_pi, s.log_pi, advantages, mask, completion},
                                method)
          .value();
  Gradient estimate(s.score[0].size());
  for (size_t t = 0; t < length; ++t) {
    AddTo(estimate, -result.coefficient[t] / result.denominator, s.score[t]);
  }
  return estimate;
}

// The moments over all sequences, weighted by their probability under the behaviour policy. The
// advantage is the reward.
inline Moments Enumerate(const ToyPolicy& policy, const offpolicy::MethodOptions& method) {
  Moments moments{.mean = Gradient(policy.sequences[0].score[0].size())};
  for (const ToySequence& s : policy.sequences) {
    const Gradient estimate = EstimateFrom(s, s.reward, method);
    AddTo(moments.mean, s.mu, estimate);
    moments.second_moment += s.mu * Dot(estimate, estimate);
  }
  moments.variance = moments.second_moment - Dot(moments.mean, moments.mean);
  return moments;
}

}  // namespace tandem::testing
