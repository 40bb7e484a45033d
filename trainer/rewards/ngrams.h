// Runs of words in completions: how much a text repeats itself, and how much it says that others
// of its group do not. Pure. Used by the components `repetition` and `diversity`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace tandem::trainer {

// Hashes of the runs of `words` words of `text`, sorted, repeated ones included. Words are what
// white space separates. A text of fewer words is one run; one without any has none.
std::vector<uint64_t> SortedNgrams(std::string_view text, int64_t words);

// -(1 - distinct / all) over the runs of words: 0 where none repeats, near -1 for a loop.
double Repetition(std::string_view text, int64_t words);

// For each text 1 - mean over the others of the similarity |both| / |either| (Jaccard) of their
// sets of runs. 1 for a group of one. Two texts without any word are the same.
std::vector<double> Diversity(const std::vector<std::string_view>& texts, int64_t words);

}  // namespace tandem::trainer
