#include "drift_lab/importers/importer.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/options/nearest_name.h"
#include "drift_lab/importers/claims.h"
#include "drift_lab/importers/import_context.h"
#include "drift_lab/importers/importer_table.h"
#include "drift_lab/importers/item_fields.h"
#include "drift_lab/importers/mapped_rows.h"
#include "drift_lab/importers/source_items.h"
#include "nlohmann/json.hpp"

namespace tandem::drift {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// An importer with what the user says of the files.
struct Import {
  const Importer* importer = nullptr;
  std::optional<MappedRows> mapped;  // of `jsonl`
};

absl::Status SetClaims(const std::vector<std::string>& claims, RecordsHeader& header) {
  for (const std::string& claim : claims) {
    const size_t equals = claim.find('=');
    if (equals == std::string::npos) {
      return InvalidArgument("--claim ", claim, ": expected KEY=VALUE");
    }
    const absl::Status set = SetClaim(claim.substr(0, equals), claim.substr(equals + 1), header);
    if (!set.ok()) return InvalidArgument("--claim ", claim, ": ", set.message());
  }
  return absl::OkStatus();
}

absl::StatusOr<Import> CreateImport(const ImportOptions& options) {
  Import import{.importer = FindImporter(options.from)};
  if (import.importer == nullptr) {
    const std::string nearest = NearestIfClose(options.from, ImporterNames());
    return InvalidArgument("--from ", options.from, ": expected one of ",
                           absl::StrJoin(ImporterNames(), ", "),
                           nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?"));
  }
  if (options.from == "jsonl") {
    TANDEM_ASSIGN_OR_RETURN(import.mapped, MappedRows::Create(options.maps));
  } else if (!options.maps.empty()) {
    return InvalidArgument("--map ", options.maps.front(),
                           ": belongs to --from jsonl; the layout of ", options.from, " is known");
  }
  RecordsHeader unused;
  TANDEM_RETURN_IF_ERROR(SetClaims(options.claims, unused));
  return import;
}

// The framework whose pickles end like this.
const Importer* PickledBy(const std::string& path) {
  const fs::path file(path);
  const std::string extension = file.extension().string();
  if (extension == ".dp" || file.filename() == "tq_batch.pt") return FindImporter("verl");
  if (extension == ".pkl") return FindImporter("skyrl");
  if (extension == ".pt") return FindImporter("slime");
  return nullptr;
}

absl::Status RefusePickle(const std::string& path, const Importer& importer) {
  const Importer* by = std::string_view(importer.instead).empty() ? PickledBy(path) : &importer;
  return InvalidArgument(
      path,
      ": a pickle (Python's or PyTorch's), which the lab does not open, since opening it runs "
      "whatever program it holds; ",
      by == nullptr ? std::string("write JSON lines, Parquet or safetensors instead")
                    : std::string(by->instead));
}

// What the user should have named, or should do where the framework writes no such file.
std::string ExpectedFiles(const Importer& importer) {
  const bool is_read = importer.add != nullptr || std::string_view(importer.instead).empty();
  if (!is_read) return importer.instead;
  return absl::StrCat("expected ", importer.help,
                      " (docs/foreign_engines.md says how to get them)");
}

// Where nothing is, what should be there.
absl::StatusOr<std::vector<SourceFile>> FindFiles(const ImportOptions& options,
                                                  const Importer& importer) {
  absl::StatusOr<std::vector<SourceFile>> files = SourceFiles(options.paths);
  if (files.ok() || !absl::IsNotFound(files.status())) return files;
  return NotFound(files.status().message(), "; ", ExpectedFiles(importer));
}

// An error if the item is not what the importer reads.
absl::Status CheckItem(const json& item, const Importer& importer) {
  if (!item.is_object()) {
    return InvalidArgument("expected an object, found ", Described(item));
  }
  const std::string name = importer.name;
  if (name == "jsonl") return absl::OkStatus();
  if (importer.looks_like(item) && importer.add != nullptr) return absl::OkStatus();
  if (importer.looks_like(item) || importer.add == nullptr) {
    const Importer* other = LooksLike(item);
    const bool is_other = other != nullptr && other != &importer && other->add != nullptr;
    return InvalidArgument(
        importer.looks_like(item) ? "texts without token ids or log-probs; "
                                  : absl::StrCat("not what ", name, " writes; "),
        is_other ? absl::StrCat("it looks like ", other->name, ": --from ", other->name)
                 : std::string(importer.instead));
  }
  const Importer* other = LooksLike(item);
  return InvalidArgument(
      "expected ", importer.expected, " (", importer.help, "), found neither; ",
      other == nullptr
          ? std::string("it looks like none that the lab knows: --from jsonl with --map")
      : other->add != nullptr
          ? absl::StrCat("it looks like ", other->name, ": --from ", other->name)
          : absl::StrCat("it looks like ", other->name,
                         ", which has no token ids in it: ", other->instead));
}

// How a file ended. `is_other` is true where its first item, or its first bytes, are not what the
// importer reads.
struct FileEnd {
  absl::Status status;
  bool is_other = false;
};

FileEnd AddFile(const SourceFile& file, const Import& import, ImportContext& context) {
  const absl::StatusOr<SourceKind> kind = KindOfFile(file.path);
  if (!kind.ok()) return {kind.status(), /*is_other=*/true};
  if (*kind == SourceKind::kPickle) {
    return {RefusePickle(file.path, *import.importer), /*is_other=*/true};
  }
  if (*kind == SourceKind::kRecords) {
    return {
        InvalidArgument(file.path, ": is a records file already: tandem drift check ", file.path),
        /*is_other=*/true};
  }
  if (*kind == SourceKind::kEmpty || *kind == SourceKind::kOther) {
    return {InvalidArgument(file.path,
                            *kind == SourceKind::kEmpty
                                ? ": found an empty file: did its writer end early? "
                                : ": found a file that begins neither as JSON nor as Parquet or "
                                  "safetensors; ",
                            ExpectedFiles(*import.importer)),
            /*is_other=*/true};
  }
  context.set_step(file.step);
  bool is_first = true, is_other = false;
  const auto take = [&](const json& item, const std::string&) -> absl::Status {
    const absl::Status check = CheckItem(item, *import.importer);
    is_other = is_first && !check.ok();
    is_first = false;
    TANDEM_RETURN_IF_ERROR(check);
    return import.mapped ? import.mapped->Add(item, context) : import.importer->add(item, context);
  };
  const absl::Status status = ForEachItem(file.path, *kind, take);
  return {status, is_other};
}

// Files that a directory has beside those that are imported.
struct LeftOut {
  int64_t num_files = 0;
  absl::Status first;
};

// Adds all files. One that the user named must be what the importer reads; one that was found in a
// directory may be something else.
absl::Status AddFiles(const std::vector<SourceFile>& files, const Import& import,
                      const ImportProgress& progress, ImportContext& context) {
  LeftOut left_out;
  for (size_t i = 0; i < files.size(); ++i) {
    if (progress) {
      progress(files[i].path, static_cast<double>(i) / static_cast<double>(files.size()));
    }
    FileEnd end = AddFile(files[i], import, context);
    if (end.is_other && !files[i].is_named) {
      if (left_out.num_files++ == 0) left_out.first = std::move(end.status);
      continue;
    }
    TANDEM_RETURN_IF_ERROR(end.status);
  }
  if (left_out.num_files == 0) return absl::OkStatus();
  if (context.num_rows() == 0) return left_out.first;
  context.Note(absl::StrCat("left out ", left_out.num_files,
                            left_out.num_files == 1 ? " file" : " files, the first",
                            " for this reason: ", std::string(left_out.first.message())));
  return absl::OkStatus();
}

// prime-rl touches STABLE in a step's directory once all ranks have written theirs.
void LeaveOutUnstable(std::vector<SourceFile>& files, ImportContext& context) {
  std::erase_if(files, [&](const SourceFile& file) {
    const fs::path path(file.path);
    std::error_code error;
    if (path.filename() == "STABLE") return true;
    if (path.extension() != ".jsonl" || fs::exists(path.parent_path() / "STABLE", error)) {
      return false;
    }
    context.Note(absl::StrCat("left out, for it has no STABLE marker and may still be written: ",
                              path.parent_path().string()));
    return true;
  });
}

bool IsOneDirectory(const std::vector<std::string>& paths) {
  std::error_code error;
  return paths.size() == 1 && fs::is_directory(paths.front(), error);
}

// A side of which there is no column is not described.
absl::Status FinishHeader(const ImportOptions& options, Records& records) {
  for (size_t c = 0; c < kNumColumns; ++c) {
    if (!records.has(static_cast<Column>(c))) {
      records.header.columns.erase(ColumnName(static_cast<Column>(c)));
    }
  }
  if (!records.has(Column::kProximal) && !records.has(Column::kProximalEntropy)) {
    records.header.proximal = {};
  }
  records.header.created_by =
      absl::StrCat("tandem ", std::string(ProjectVersion()), " drift import --from ", options.from);
  return SetClaims(options.claims, records.header);
}

// Placeholders that frameworks write where they have no value.
void NoteConstantColumns(const Records& records, std::vector<std::string>& notes) {
  for (const Column column : {Column::kBehaviour, Column::kProximal}) {
    if (!records.has(column)) continue;
    const std::span<const float> values = records.column(column);
    bool any = false, all_zero = true;
    for (size_t n = 0; n < values.size() && all_zero; ++n) {
      if (records.drawn[n] == 0 || !HasValue(values[n])) continue;
      any = true;
      all_zero = values[n] == 0;
    }
    if (any && all_zero) {
      notes.push_back(absl::StrCat(ColumnName(column),
                                   " is 0 on every drawn token: a placeholder, not log-probs"));
    }
  }
}

}  // namespace

absl::Status CheckImportOptions(const ImportOptions& options) {
  return CreateImport(options).status();
}

absl::StatusOr<ImportedRecords> ImportRecords(const ImportOptions& options,
                                              const ImportProgress& progress) {
  TANDEM_ASSIGN_OR_RETURN(const Import import, CreateImport(options));
  RecordsHeader header;
  if (import.mapped) {
    import.mapped->Describe(header);
  } else if (import.importer->describe != nullptr) {
    import.importer->describe(header);
  }
  TANDEM_RETURN_IF_ERROR(SetClaims(options.claims, header));
  TANDEM_ASSIGN_OR_RETURN(std::vector<SourceFile> files, FindFiles(options, *import.importer));
  ImportContext context(absl::StrJoin(options.paths, " "), std::move(header));
  if (options.from == "prime-rl" && IsOneDirectory(options.paths)) {
    LeaveOutUnstable(files, context);
  }
  TANDEM_RETURN_IF_ERROR(AddFiles(files, import, progress, context));
  if (context.num_rows() == 0) {
    const std::vector<std::string> notes = context.Notes();
    return InvalidArgument(absl::StrJoin(options.paths, " "), ": expected rows, found none",
                           notes.empty() ? "" : absl::StrCat("; ", absl::StrJoin(notes, "; ")));
  }
  ImportedRecords imported;
  imported.records = context.Finish();
  imported.num_files = static_cast<int64_t>(files.size());
  imported.notes = context.Notes();
  TANDEM_RETURN_IF_ERROR(FinishHeader(options, imported.records));
  NoteConstantColumns(imported.records, imported.notes);
  return imported;
}

std::vector<std::string> ImporterNames() {
  std::vector<std::string> names;
  for (const Importer& importer : Importers()) names.emplace_back(importer.name);
  return names;
}

std::string ImporterHelp() {
  std::string help;
  for (const Importer& importer : Importers()) {
    const std::string name = importer.name;
    absl::StrAppend(&help, "  ", name, std::string(name.size() < 15 ? 15 - name.size() : 1, ' '),
                    importer.help, "\n");
  }
  return help;
}

}  // namespace tandem::drift
