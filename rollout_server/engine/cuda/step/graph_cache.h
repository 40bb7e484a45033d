// GraphCache: graphs by key, least recently used ones evicted. Pure; thread-compatible.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "rollout_server/engine/cuda/step/decode_step.h"

namespace tandem::rollout::cuda {

template <typename Graph>
class GraphCache {
 public:
  // An engine has memory for two versions of weights: the live one and the one before, which the
  // next version overwrites. Graphs of any other memory read memory that is freed.
  static constexpr size_t kPlaces = 2;

  explicit GraphCache(size_t most) : most_(most) {}

  // Null when there is none. Marks the key's weights as in use; when they are in a third memory,
  // drops the graphs of the one that was used longest ago.
  Graph* Find(const GraphKey& key) {
    Use(key.weights);
    const auto at = graphs_.find(key);
    if (at == graphs_.end()) return nullptr;
    at->second.last_use = ++uses_;
    return at->second.graph.get();
  }

  // Call after Find returned null. Evicts the least recently used graph when there are too many.
  void Add(const GraphKey& key, std::unique_ptr<Graph> graph) {
    if (graphs_.size() >= most_) {
      graphs_.erase(std::min_element(
          graphs_.begin(), graphs_.end(),
          [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; }));
    }
    graphs_[key] = {std::move(graph), ++uses_};
  }

  // Any graph, or null.
  const Graph* Any() const {
    return graphs_.empty() ? nullptr : graphs_.begin()->second.graph.get();
  }

  size_t size() const { return graphs_.size(); }

 private:
  struct Entry {
    std::unique_ptr<Graph> graph;
    uint64_t last_use = 0;
  };

  void Use(uint64_t weights) {
    std::erase(places_, weights);
    places_.push_back(weights);
    if (places_.size() <= kPlaces) return;
    std::erase_if(graphs_, [&](const auto& one) { return one.first.weights == places_.front(); });
    places_.erase(places_.begin());
  }

  const size_t most_;
  std::map<GraphKey, Entry> graphs_;
  std::vector<uint64_t> places_;  // the one used last is the last
  uint64_t uses_ = 0;
};

}  // namespace tandem::rollout::cuda
