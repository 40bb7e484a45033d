// Runs a fuzz target without a fuzzer, as a test: over its corpus, and over changed copies of it.
//
//   NAME CORPUS_DIR NUM_CHANGED
//
// An input that crashes is left in crash-NAME of the working directory.
// The copies are the same in every run: some bytes flipped, cut, doubled or taken from another
// file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

// What is being run lies in a file until it has ended: a crash leaves its cause behind.
void Run(const std::string& input, const std::string& running) {
  std::ofstream(running, std::ios::binary) << input;
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  std::filesystem::remove(running);
}

std::string Changed(std::string input, const std::vector<std::string>& corpus,
                    std::mt19937_64& random) {
  const auto below = [&](size_t n) { return n == 0 ? 0 : static_cast<size_t>(random() % n); };
  for (size_t i = 1 + below(4); i > 0; --i) {
    const size_t at = below(input.size()), count = 1 + below(16);
    switch (below(5)) {
      case 0:
        if (!input.empty()) input[at] = static_cast<char>(random());
        break;
      case 1:
        if (!input.empty()) input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
        break;
      case 2:
        input.erase(at, count);
        break;
      case 3:
        input.insert(at, input.substr(at, count));
        break;
      case 4: {
        const std::string& other = corpus[below(corpus.size())];
        input.replace(at, std::min(count, input.size() - at),
                      other.substr(below(other.size()), count));
        break;
      }
    }
  }
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s CORPUS_DIR NUM_CHANGED\n", argv[0]);
    return 2;
  }
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1]))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "%s has no files\n", argv[1]);
    return 1;
  }
  const std::string running = "crash-" + std::filesystem::path(argv[0]).filename().string();
  Run("", running);
  for (const std::string& input : corpus) Run(input, running);
  std::mt19937_64 random(1);
  const int num_changed = std::atoi(argv[2]);
  for (int i = 0; i < num_changed; ++i) {
    Run(Changed(corpus[random() % corpus.size()], corpus, random), running);
  }
  std::printf("%zu files and %d changed copies\n", corpus.size(), num_changed);
  return 0;
}
