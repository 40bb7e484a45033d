#include "common/tokenizer/tokenizer.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/tokenizer/ffi/tandem_tokenizer.h"
#include "common/weights/digest.h"

namespace tandem {
namespace {

// Owns one result of the Rust crate.
class Result {
 public:
  explicit Result(TandemResult result) : result_(result) {}
  ~Result() { tandem_tokenizer_free_result(result_); }
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;

  std::string text() const {
    return std::string(reinterpret_cast<const char*>(result_.data), result_.size);
  }

  std::vector<int32_t> ids() const {
    std::vector<int32_t> ids(result_.size / sizeof(int32_t));
    if (!ids.empty()) std::memcpy(ids.data(), result_.data, result_.size);
    return ids;
  }

  // The message starts with `subject`, if it is not empty.
  absl::Status status(const std::string& subject = "") const {
    const std::string prefix = subject.empty() ? "" : subject + ": ";
    switch (result_.status) {
      case TANDEM_TOKENIZER_OK:
        return absl::OkStatus();
      case TANDEM_TOKENIZER_INVALID:
        return InvalidArgument(prefix + text());
      case TANDEM_TOKENIZER_NO_TEMPLATE:
        return Unimplemented(
            prefix +
            "the model directory has no chat template; add a chat_template.jinja, or, where "
            "prompts shall be taken as they are, leave out --chat or set trainer.data.chat false");
      default:
        return Internal(prefix + "the tokenizer crate panicked: " + text());
    }
  }

 private:
  const TandemResult result_;
};

TandemBytes Borrow(std::string_view text) {
  return {.data = reinterpret_cast<const uint8_t*>(text.data()), .size = text.size()};
}

// The text of the file, or "" if it does not exist.
absl::StatusOr<std::string> ReadOptionalFile(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path);
  if (absl::IsNotFound(text.status())) return std::string();
  return text;
}

const TandemTokenizer* Handle(const void* handle) {
  return static_cast<const TandemTokenizer*>(handle);
}

}  // namespace

Tokenizer::Tokenizer(void* handle) : handle_(handle) {}

Tokenizer::~Tokenizer() { tandem_tokenizer_delete(static_cast<TandemTokenizer*>(handle_)); }

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& directory) {
  TANDEM_ASSIGN_OR_RETURN(const std::string json,
                          ReadFile(absl::StrCat(directory, "/tokenizer.json")));
  TANDEM_ASSIGN_OR_RETURN(const std::string config,
                          ReadOptionalFile(absl::StrCat(directory, "/tokenizer_config.json")));
  TANDEM_ASSIGN_OR_RETURN(const std::string chat_template,
                          ReadOptionalFile(absl::StrCat(directory, "/chat_template.jinja")));
  TandemTokenizer* handle = nullptr;
  const Result result(
      tandem_tokenizer_new(Borrow(json), Borrow(config), Borrow(chat_template), &handle));
  TANDEM_RETURN_IF_ERROR(result.status(directory));
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer(handle));
  tokenizer->hash_ = Digest128(std::as_bytes(std::span(json)));
  return tokenizer;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                                       bool add_special_tokens) const {
  const Result result(tandem_tokenizer_encode(Handle(handle_), Borrow(text), add_special_tokens));
  TANDEM_RETURN_IF_ERROR(result.status());
  return result.ids();
}

absl::StatusOr<std::string> Tokenizer::Decode(std::span<const int32_t> ids,
                                              bool skip_special_tokens) const {
  const Result result(
      tandem_tokenizer_decode(Handle(handle_), ids.data(), ids.size(), skip_special_tokens));
  TANDEM_RETURN_IF_ERROR(result.status());
  return result.text();
}

absl::StatusOr<std::string> Tokenizer::RenderChat(std::string_view messages_json,
                                                  bool add_generation_prompt,
                                                  std::string_view tools_json,
                                                  std::string_view variables_json) const {
  const Result result(tandem_tokenizer_render_chat(Handle(handle_), Borrow(messages_json),
                                                   Borrow(tools_json), Borrow(variables_json),
                                                   add_generation_prompt));
  TANDEM_RETURN_IF_ERROR(result.status());
  return result.text();
}

bool Tokenizer::has_chat_template() const {
  return tandem_tokenizer_has_chat_template(Handle(handle_)) != 0;
}

int64_t Tokenizer::vocab_size() const { return tandem_tokenizer_vocab_size(Handle(handle_)); }

int32_t Tokenizer::eos_token_id() const { return tandem_tokenizer_eos_token_id(Handle(handle_)); }

absl::StatusOr<std::string> Tokenizer::TrainByteLevelBpe(std::string_view text,
                                                         int64_t vocab_size) {
  const Result result(tandem_tokenizer_train(Borrow(text), vocab_size));
  TANDEM_RETURN_IF_ERROR(result.status());
  return result.text();
}

}  // namespace tandem
