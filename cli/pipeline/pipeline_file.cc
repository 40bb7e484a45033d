#include "cli/pipeline/pipeline_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/options/nearest_name.h"
#include "common/options/options.h"

namespace tandem::cli {
namespace {

constexpr std::array<const char*, 1> kModel = {"model"};
constexpr std::array<const char*, 1> kData = {"data"};
constexpr std::array<const char*, 2> kRunOutputs = {"model", "run"};
constexpr std::array<const char*, 3> kSupervised = {"model", "data", "held-out-data"};
constexpr std::array<const char*, 4> kWithReference = {"model", "data", "held-out-data",
                                                       "reference"};
constexpr std::array<const char*, 2> kSampled = {"model", "data"};
// In the order of StageKind.
constexpr std::array<StageKindInfo, 5> kKinds = {{
    {StageKind::kSft, "sft", "sft", kSupervised, kModel},
    {StageKind::kRewardModel, "reward_model", "train-reward-model", kSupervised, kModel},
    {StageKind::kPreferences, "preferences", "train-preferences", kWithReference, kModel},
    {StageKind::kSamples, "samples", "sample", kSampled, kData},
    {StageKind::kRl, "rl", "run", {}, kRunOutputs},
}};

// Reads the YAML of one file. The lines of `text` are kept, because the options of an rl stage are
// read by the run file's reader, whose messages name their lines.
class Reader {
 public:
  Reader(std::string path, const std::string& text)
      : path_(std::move(path)), lines_(absl::StrSplit(text, '\n')) {}

  std::string Place(const YAML::Node& node) const {
    return node.Mark().is_null() ? path_ : absl::StrCat(path_, ":", node.Mark().line + 1);
  }

  template <typename... Parts>
  absl::Status Fail(const YAML::Node& node, const Parts&... message) const {
    return InvalidArgument(Place(node), ": ", message...);
  }

  //   INVALID_ARGUMENT  `node` is no mapping, or has a key that is not in `known` or is there twice
  absl::Status CheckKeys(const YAML::Node& node, const char* what,
                         const std::vector<std::string>& known) const {
    if (!node.IsMap()) return Fail(node, what, ": expected 'name: value' lines");
    std::set<std::string> seen;
    for (const auto& entry : node) {
      const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
      if (std::ranges::count(known, key) == 0) {
        const std::string nearest = NearestIfClose(key, known);
        return Fail(entry.first, "unknown key '", key, "' of ", what, "; there are ",
                    absl::StrJoin(known, ", "),
                    nearest.empty() ? "" : absl::StrCat("; the nearest is '", nearest, "'"));
      }
      if (!seen.insert(key).second) return Fail(entry.first, "'", key, "' is given twice");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Text(const YAML::Node& parent, const char* key,
                                   std::string otherwise) const {
    const YAML::Node node = parent[key];
    if (!node) return otherwise;
    if (!node.IsScalar()) return Fail(node, key, ": expected one text");
    return node.Scalar();
  }

  // The options of a command: a scalar; a list, for a flag that may be given several times; or a
  // mapping, which stands for a list of NAME=VALUE.
  absl::StatusOr<std::vector<StageOption>> Options(const YAML::Node& node) const {
    std::vector<StageOption> options;
    if (!node || node.IsNull()) return options;
    if (!node.IsMap()) return Fail(node, "options: expected 'name: value' lines");
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) return Fail(entry.first, "a key must be a plain name");
      StageOption option = {
          .name = absl::StrReplaceAll(entry.first.Scalar(), {{"_", "-"}, {".", "-"}}),
          .place = Place(entry.first)};
      if (Find(options, option.name) != nullptr) {
        return Fail(entry.first, "'", entry.first.Scalar(), "' is given twice");
      }
      const YAML::Node& value = entry.second;
      const auto plain = [](const YAML::Node& item) { return item.IsScalar(); };
      bool good = value.IsScalar() || value.IsSequence() || value.IsMap();
      if (value.IsScalar()) option.values = {value.Scalar()};
      for (const auto& item : value) {
        if (value.IsSequence()) {
          good = good && plain(item);
          if (good) option.values.push_back(item.Scalar());
        } else if (value.IsMap()) {
          good = good && plain(item.first) && plain(item.second);
          if (good) option.values.push_back(item.first.Scalar() + "=" + item.second.Scalar());
        }
      }
      if (!good) {
        return Fail(entry.first, option.name, ": expected a value, a list or a mapping of values");
      }
      options.push_back(std::move(option));
    }
    return options;
  }

  // The lines of a block mapping, at the places they have in the file.
  StageText TextOf(const YAML::Node& node) const {
    const auto first = static_cast<size_t>(node.Mark().line);
    const auto column = static_cast<size_t>(node.Mark().column);
    std::string yaml(first, '\n');
    if (node.Style() == YAML::EmitterStyle::Flow) return {yaml + YAML::Dump(node), path_};
    for (size_t i = first; i < lines_.size(); ++i) {
      const size_t indent = lines_[i].find_first_not_of(" \t\r");
      const bool is_blank = indent == std::string::npos || lines_[i][indent] == '#';
      if (!is_blank && indent < column) break;
      yaml += (is_blank ? "" : lines_[i].substr(column)) + "\n";
    }
    return {yaml, path_};
  }

  static StageOption* Find(std::vector<StageOption>& options, const std::string& name) {
    const auto found = std::ranges::find(options, name, &StageOption::name);
    return found == options.end() ? nullptr : &*found;
  }

 private:
  const std::string path_;
  const std::vector<std::string> lines_;
};

absl::StatusOr<YAML::Node> Parse(const std::string& path, const std::string& text) {
  try {
    return YAML::Load(text);
  } catch (const YAML::Exception& error) {
    return InvalidArgument(path, ":", error.mark.line + 1, ": syntax: ", error.msg);
  }
}

bool IsPlainName(const std::string& name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
  });
}

absl::Status ReadHead(const Reader& reader, const YAML::Node& root, PipelineFile& pipeline) {
  TANDEM_RETURN_IF_ERROR(reader.CheckKeys(root, "a pipeline", {"pipeline", "stages"}));
  const YAML::Node head = root["pipeline"];
  if (!head) return InvalidArgument(pipeline.path, ": no `pipeline:` with a name");
  TANDEM_RETURN_IF_ERROR(reader.CheckKeys(head, "pipeline", {"name", "out", "seed"}));
  TANDEM_ASSIGN_OR_RETURN(pipeline.name, reader.Text(head, "name", ""));
  TANDEM_ASSIGN_OR_RETURN(pipeline.out, reader.Text(head, "out", pipeline.out));
  TANDEM_ASSIGN_OR_RETURN(const std::string seed, reader.Text(head, "seed", "1"));
  if (!IsPlainName(pipeline.name)) {
    return reader.Fail(head, "pipeline.name '", pipeline.name,
                       "': expected letters, digits, - and _: it is a directory under out");
  }
  if (!absl::SimpleAtoi(seed, &pipeline.seed) || pipeline.seed < 0) {
    return reader.Fail(head["seed"], "pipeline.seed '", seed, "': expected an integer from 0 on");
  }
  return absl::OkStatus();
}

// The options of a stage: those of `file` first, then its own.
absl::Status ReadOptions(const Reader& reader, const YAML::Node& node, Stage& stage) {
  TANDEM_ASSIGN_OR_RETURN(const std::string file, reader.Text(node, "file", ""));
  const YAML::Node own = node["options"];
  if (own && !own.IsMap() && !own.IsNull()) {
    return reader.Fail(own, "options: expected 'name: value' lines");
  }
  if (stage.kind == StageKind::kRl) {
    if (!file.empty()) {
      TANDEM_ASSIGN_OR_RETURN(stage.texts.emplace_back().yaml, ReadOptionFile(file));
      stage.texts.back().origin = file;
    }
    if (own && own.IsMap()) stage.texts.push_back(reader.TextOf(own));
    return absl::OkStatus();
  }
  if (!file.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadOptionFile(file));
    TANDEM_ASSIGN_OR_RETURN(const YAML::Node root, Parse(file, text));
    TANDEM_ASSIGN_OR_RETURN(stage.options, Reader(file, text).Options(root));
  }
  TANDEM_ASSIGN_OR_RETURN(std::vector<StageOption> options, reader.Options(own));
  for (StageOption& option : options) {
    StageOption* const before = Reader::Find(stage.options, option.name);
    if (before != nullptr) {
      *before = std::move(option);
    } else {
      stage.options.push_back(std::move(option));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Stage> ReadStage(const Reader& reader, const YAML::Node& node) {
  TANDEM_RETURN_IF_ERROR(reader.CheckKeys(node, "a stage", {"name", "kind", "options", "file"}));
  Stage stage = {.place = reader.Place(node)};
  TANDEM_ASSIGN_OR_RETURN(stage.name, reader.Text(node, "name", ""));
  if (!IsPlainName(stage.name)) {
    return reader.Fail(node, "name '", stage.name,
                       "' of a stage: expected letters, digits, - and _");
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string kind, reader.Text(node, "kind", ""));
  const auto* const info =
      std::ranges::find_if(kKinds, [&](const StageKindInfo& each) { return kind == each.name; });
  if (info == kKinds.end()) {
    std::vector<std::string> names;
    for (const StageKindInfo& each : kKinds) names.emplace_back(each.name);
    const std::string nearest = NearestIfClose(kind, names);
    return reader.Fail(node, "stage ", stage.name, ": kind '", kind, "': expected one of ",
                       absl::StrJoin(names, ", "),
                       nearest.empty() ? "" : absl::StrCat("; the nearest is '", nearest, "'"));
  }
  stage.kind = info->kind;
  TANDEM_RETURN_IF_ERROR(ReadOptions(reader, node, stage));
  return stage;
}

absl::Status ApplySet(const std::string& assignment, PipelineFile& pipeline) {
  const size_t equals = assignment.find('='), dot = assignment.find('.');
  if (equals == std::string::npos || dot == std::string::npos || dot > equals) {
    return InvalidArgument("--set ", assignment, ": expected STAGE.KEY=VALUE, as in a pipeline");
  }
  const std::string name = assignment.substr(0, dot);
  const auto stage = std::ranges::find(pipeline.stages, name, &Stage::name);
  if (stage == pipeline.stages.end()) {
    std::vector<std::string> names;
    for (const Stage& each : pipeline.stages) names.push_back(each.name);
    return InvalidArgument("--set ", assignment, ": there is no stage '", name, "'; there are ",
                           absl::StrJoin(names, ", "));
  }
  if (stage->kind == StageKind::kRl) {
    stage->sets.push_back(assignment.substr(dot + 1));
    return absl::OkStatus();
  }
  StageOption option = {.name = absl::StrReplaceAll(assignment.substr(dot + 1, equals - dot - 1),
                                                    {{"_", "-"}, {".", "-"}}),
                        .values = {assignment.substr(equals + 1)},
                        .place = absl::StrCat("--set ", assignment)};
  StageOption* const before = Reader::Find(stage->options, option.name);
  if (before == nullptr) {
    stage->options.push_back(std::move(option));
  } else {
    *before = std::move(option);
  }
  return absl::OkStatus();
}

// Resolves the references of stage `index` in one text. `place` says where a byte of it is.
template <typename Place>
absl::Status ResolveIn(PipelineFile& pipeline, size_t index, std::string& text,
                       const Place& place) {
  constexpr std::string_view kOpen = "${";
  for (size_t begin = 0; (begin = text.find(kOpen, begin)) != std::string::npos;) {
    const size_t end = text.find('}', begin);
    const std::string inside =
        text.substr(begin + 2, end == std::string::npos ? end : end - begin - 2);
    const std::vector<std::string> parts = absl::StrSplit(inside, '.');
    const std::string where = place(begin);
    if (end == std::string::npos || parts.size() != 3 || parts[0] != "stages") {
      return InvalidArgument(where, ": ${", inside, "}: expected ${stages.NAME.OUTPUT}, as in ",
                             "${stages.sft.model}");
    }
    const auto found = std::ranges::find(pipeline.stages, parts[1], &Stage::name);
    const auto target = static_cast<size_t>(found - pipeline.stages.begin());
    if (target >= index) {
      std::vector<std::string> earlier;
      for (size_t i = 0; i < index; ++i) earlier.push_back(pipeline.stages[i].name);
      const std::string why = found == pipeline.stages.end() ? "there is no such stage"
                              : target == index              ? "this is the stage itself"
                                                             : "that stage runs later";
      return InvalidArgument(where, ": ${", inside, "}: ", why, "; earlier ones are ",
                             earlier.empty() ? "none" : absl::StrJoin(earlier, ", "));
    }
    const auto outputs = InfoOf(found->kind).outputs;
    if (std::ranges::count(outputs, parts[2]) == 0) {
      return InvalidArgument(where, ": ${", inside, "}: a stage of kind ", InfoOf(found->kind).name,
                             " has no output '", parts[2], "'; it has ",
                             absl::StrJoin(outputs, ", "));
    }
    const std::string path = pipeline.OutputPath(target, parts[2]);
    std::vector<std::string>& reads = pipeline.stages[index].reads;
    if (std::ranges::count(reads, path) == 0) reads.push_back(path);
    text.replace(begin, end + 1 - begin, path);
    begin += path.size();
  }
  return absl::OkStatus();
}

}  // namespace

const StageKindInfo& InfoOf(StageKind kind) { return kKinds.at(static_cast<size_t>(kind)); }

std::string PipelineFile::StageDirectory(size_t stage) const {
  return absl::StrCat(directory(), "/stages/", stage + 1, "_", stages[stage].name);
}

std::string PipelineFile::OutputPath(size_t stage, const std::string& output) const {
  return absl::StrCat(StageDirectory(stage), "/", output, output == "data" ? ".jsonl" : "");
}

bool IsPipelineFile(const std::string& path) {
  const auto text = ReadFile(path);
  if (!text.ok()) return false;
  const auto root = Parse(path, *text);
  return root.ok() && root->IsMap() && ((*root)["pipeline"] || (*root)["stages"]);
}

absl::StatusOr<PipelineFile> ReadPipelineFile(const std::string& path,
                                              const std::vector<std::string>& sets) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  TANDEM_ASSIGN_OR_RETURN(const YAML::Node root, Parse(path, text));
  const Reader reader(path, text);
  PipelineFile pipeline = {.path = path};
  TANDEM_RETURN_IF_ERROR(ReadHead(reader, root, pipeline));
  const YAML::Node stages = root["stages"];
  if (!stages || !stages.IsSequence() || stages.size() == 0) {
    return InvalidArgument(stages ? reader.Place(stages) : path,
                           ": stages: expected a list of stages, '- name: ..' each");
  }
  for (const auto& node : stages) {
    TANDEM_ASSIGN_OR_RETURN(Stage stage, ReadStage(reader, node));
    if (std::ranges::count(pipeline.stages, stage.name, &Stage::name) > 0) {
      return reader.Fail(node, "two stages have the name ", stage.name);
    }
    pipeline.stages.push_back(std::move(stage));
  }
  for (const std::string& assignment : sets) TANDEM_RETURN_IF_ERROR(ApplySet(assignment, pipeline));
  TANDEM_RETURN_IF_ERROR(ResolveReferences(pipeline));
  return pipeline;
}

absl::Status ResolveReferences(PipelineFile& pipeline) {
  for (size_t i = 0; i < pipeline.stages.size(); ++i) {
    Stage& stage = pipeline.stages[i];
    const auto stage_place = [&](const std::string& what) {
      return absl::StrCat(what, ": stage ", stage.name);
    };
    for (StageOption& option : stage.options) {
      for (std::string& value : option.values) {
        const std::string where = absl::StrCat(stage_place(option.place), ", ", option.name);
        TANDEM_RETURN_IF_ERROR(ResolveIn(pipeline, i, value, [&](size_t) { return where; }));
      }
    }
    for (StageText& text : stage.texts) {
      TANDEM_RETURN_IF_ERROR(ResolveIn(pipeline, i, text.yaml, [&](size_t begin) {
        const auto line =
            std::count(text.yaml.begin(), text.yaml.begin() + static_cast<long>(begin), '\n') + 1;
        return stage_place(absl::StrCat(text.origin, ":", line));
      }));
    }
    for (std::string& set : stage.sets) {
      TANDEM_RETURN_IF_ERROR(ResolveIn(pipeline, i, set, [&](size_t) {
        return stage_place("--set " + stage.name + "." + set);
      }));
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem::cli
