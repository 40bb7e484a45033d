#include "common/hub/file_choice.h"

#include <fnmatch.h>

#include <algorithm>

namespace tandem::hub {
namespace {

bool MatchesAny(const std::vector<std::string>& globs, std::string_view path) {
  return std::ranges::any_of(globs,
                             [&](const std::string& glob) { return MatchesGlob(glob, path); });
}

bool IsModelFile(std::string_view path) {
  static const std::vector<std::string> kFiles = {"config.json",
                                                  "generation_config.json",
                                                  "tokenizer.json",
                                                  "tokenizer_config.json",
                                                  "special_tokens_map.json",
                                                  "added_tokens.json",
                                                  "vocab.json",
                                                  "vocab.txt",
                                                  "merges.txt",
                                                  "tokenizer.model",
                                                  "chat_template.jinja",
                                                  "chat_template.json",
                                                  "SOURCE.txt",
                                                  "*.safetensors",
                                                  "*.safetensors.index.json"};
  if (path.starts_with("additional_chat_templates/")) return path.ends_with(".jinja");
  // consolidated*.safetensors are the same weights under other names (Mistral's own format).
  const bool is_top = path.find('/') == std::string_view::npos;
  return is_top && !path.starts_with("consolidated") && MatchesAny(kFiles, path);
}

bool IsDataFile(std::string_view path) {
  static const std::vector<std::string> kFiles = {"*.parquet",  "*.json",   "*.jsonl", "*.json.gz",
                                                  "*.jsonl.gz", "*.csv",    "*.tsv",   "*.csv.gz",
                                                  "*.arrow",    "README.md"};
  return MatchesAny(kFiles, path);
}

}  // namespace

bool MatchesGlob(std::string glob, std::string_view path) {
  std::ranges::replace(glob, '\\', '/');
  if (glob.ends_with('/')) glob += '*';
  return fnmatch(glob.c_str(), std::string(path).c_str(), FNM_NOESCAPE) == 0;
}

bool IsPickle(std::string_view path) {
  static const std::vector<std::string> kGlobs = {"*.bin", "*.bin.index.json", "*.pt",  "*.pth",
                                                  "*.pkl", "*.pickle",         "*.ckpt"};
  return MatchesAny(kGlobs, path);
}

bool IsChosen(const FileChoice& choice, RepoType type, std::string_view path) {
  if (IsPickle(path) || MatchesAny(choice.exclude, path)) return false;
  if (!choice.include.empty()) return MatchesAny(choice.include, path);
  return type == RepoType::kModel ? IsModelFile(path) : IsDataFile(path);
}

}  // namespace tandem::hub
