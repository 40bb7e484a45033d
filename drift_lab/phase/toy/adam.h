// Adam (Kingma and Ba, 2015) with the gradient's global norm clipped first: the toy's optimizer.
//
//   g <- g min(1, max_norm / |g|)
//   m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2
//   theta <- theta - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem::drift {

struct AdamOptions {
  double learning_rate = 3e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double max_norm = 1;  // infinity: no clip
};

class Adam {
 public:
  Adam(size_t num_parameters, const AdamOptions& options)
      : options_(options), mean_(num_parameters), square_(num_parameters) {}

  // Makes one update. Returns the gradient's norm before clipping.
  double Update(const std::vector<double>& gradient, std::vector<double>& parameters);

 private:
  const AdamOptions options_;
  std::vector<double> mean_, square_;
  int64_t num_updates_ = 0;
};

}  // namespace tandem::drift
