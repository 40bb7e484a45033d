// Records of a small made-up engine, for tests of the screening: tokens drawn from softmax
// distributions over 40 tokens, and a trainer whose logits differ by Gaussian noise.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "drift_lab/records/records.h"

namespace tandem::drift::testing {

struct MadeOptions {
  int64_t rows = 60;
  int64_t tokens = 40;  // drawn, of each row; every third row has half as many
  int64_t prompt = 5;
  uint64_t seed = 1;
  double noise = 0.01;     // standard deviation of the proximal logits' error
  double temperature = 1;  // of the draws and of behaviour_logprobs
  double proximal_temperature = 1;
  int64_t top_k = 0;  // of the draws and of behaviour_logprobs; 0: all
  double draw_temperature =
      0;  // of the draws alone, where they do not follow the record; 0: as recorded
  bool entropies = false;
  bool top = false;
};

Records MakeRecords(const MadeOptions& options = {});

// Rows of given values, one prompt token before each; ids are the positions.
Records RecordsOf(const std::vector<std::vector<float>>& behaviour,
                  const std::vector<std::vector<float>>& proximal);

// Calls `change` with the row's index and its drawn values of a column.
void ChangeRows(Records& records, Column column,
                const std::function<void(int64_t, std::vector<float>&)>& change);

}  // namespace tandem::drift::testing
