// Which files of a repository Tandem needs, by the globs of Python's fnmatch, which huggingface_hub
// uses for allow_patterns and ignore_patterns: * also matches a slash. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/hub/repo_name.h"

namespace tandem::hub {

struct FileChoice {
  std::vector<std::string> include;  // globs; empty: what Tandem reads
  std::vector<std::string> exclude;  // globs
};

// True for a file that `choice` asks for. Without include it is, for a model: the configuration,
// the tokenizer's files, chat templates and safetensors at the top of the repository; for a data
// set: parquet, JSON, CSV, TSV and Arrow files and the page that names its splits. Files of pickle
// (IsPickle) are never chosen: whoever reads one runs what is in it.
bool IsChosen(const FileChoice& choice, RepoType type, std::string_view path);

// True for *.bin, *.pt, *.pth, *.pkl, *.pickle, *.ckpt and their indexes.
bool IsPickle(std::string_view path);

// True if the glob matches the whole path. A glob that ends with a slash means all below it.
bool MatchesGlob(std::string glob, std::string_view path);

}  // namespace tandem::hub
