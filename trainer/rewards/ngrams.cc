#include "trainer/rewards/ngrams.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "absl/strings/ascii.h"
#include "common/base/stable_random.h"

namespace tandem::trainer {
namespace {

std::vector<uint64_t> WordHashes(std::string_view text) {
  std::vector<uint64_t> words;
  size_t at = 0;
  while (at < text.size()) {
    while (at < text.size() && absl::ascii_isspace(text[at])) ++at;
    size_t end = at;
    while (end < text.size() && !absl::ascii_isspace(text[end])) ++end;
    if (end > at) words.push_back(std::hash<std::string_view>{}(text.substr(at, end - at)));
    at = end;
  }
  return words;
}

std::vector<uint64_t> DistinctNgrams(std::string_view text, int64_t words) {
  std::vector<uint64_t> ngrams = SortedNgrams(text, words);
  ngrams.erase(std::unique(ngrams.begin(), ngrams.end()), ngrams.end());
  return ngrams;
}

double Similarity(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
  size_t both = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i] == b[j])
      ++both, ++i, ++j;
    else if (a[i] < b[j])
      ++i;
    else
      ++j;
  }
  const size_t either = a.size() + b.size() - both;
  return either == 0 ? 1 : static_cast<double>(both) / static_cast<double>(either);
}

}  // namespace

std::vector<uint64_t> SortedNgrams(std::string_view text, int64_t words) {
  const std::vector<uint64_t> hashes = WordHashes(text);
  const size_t length = std::min(static_cast<size_t>(words), hashes.size());
  std::vector<uint64_t> ngrams;
  for (size_t begin = 0; length > 0 && begin + length <= hashes.size(); ++begin) {
    uint64_t ngram = length;
    for (size_t i = begin; i < begin + length; ++i) ngram = StableHash({ngram, hashes[i]});
    ngrams.push_back(ngram);
  }
  std::ranges::sort(ngrams);
  return ngrams;
}

double Repetition(std::string_view text, int64_t words) {
  const std::vector<uint64_t> all = SortedNgrams(text, words);
  if (all.empty()) return 0;
  size_t distinct = 1;
  for (size_t i = 1; i < all.size(); ++i) distinct += all[i] != all[i - 1];
  return static_cast<double>(distinct) / static_cast<double>(all.size()) - 1;
}

std::vector<double> Diversity(const std::vector<std::string_view>& texts, int64_t words) {
  std::vector<std::vector<uint64_t>> ngrams;
  for (const std::string_view text : texts) ngrams.push_back(DistinctNgrams(text, words));
  std::vector<double> similarities(texts.size(), 0);
  for (size_t i = 0; i < texts.size(); ++i) {
    for (size_t j = i + 1; j < texts.size(); ++j) {
      const double similarity = Similarity(ngrams[i], ngrams[j]);
      similarities[i] += similarity;
      similarities[j] += similarity;
    }
  }
  const double others = texts.empty() ? 0 : static_cast<double>(texts.size() - 1);
  for (double& value : similarities) value = others == 0 ? 1 : 1 - value / others;
  return similarities;
}

}  // namespace tandem::trainer
