#include "rollout_server/http/answer_writer.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rollout_server/completions/completion_run.h"
#include "rollout_server/http/http_error.h"

namespace tandem::rollout {
namespace {

constexpr int kPieceItems = 1024;  // tokens and completions in a piece of a stream, at most

std::string EventOf(const Json& json) { return absl::StrCat("data: ", JsonText(json), "\n\n"); }

int64_t CharactersIn(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

class Writer : public std::enable_shared_from_this<Writer> {
 public:
  Writer(const ServiceParts& parts, std::shared_ptr<HttpCall> call, AnswerContext context,
         const AnswerForm& form)
      : parts_(parts), call_(std::move(call)), context_(std::move(context)), form_(form) {
    for (const std::vector<int32_t>& prompt : context_.job.prompts) {
      num_prompt_tokens_ += std::ssize(prompt);
    }
  }

  // On the call's thread, as all that follows but Wake.
  void Start(CallerProof who) {
    // What runs holds the writer; the writer is let go when the answer ends or the client goes.
    auto run = CompletionRun::Start(parts_, context_.job, std::move(who),
                                    [self = shared_from_this()] { self->Wake(); });
    if (!run.ok()) return call_->Answer(ErrorReply(run.status(), parts_.groups->retry_after_ms()));
    run_ = *std::move(run);
    call_->WhenGone([self = shared_from_this()] { self->EndRun(); });
    Advance();
  }

 private:
  struct Stream {
    explicit Stream(const TextRules* rules) : text(rules) {}
    ChoiceText text;
    HeldCalls calls;                    // used where calls of tools are read
    bool begun = false, waits = false;  // for the next piece
    ShownChoice shown;                  // then
    CompletionPtr last;                 // what it shows, once it has ended
    int64_t num_characters = 0;
  };

  // On any thread.
  void Wake() {
    if (woken_.exchange(true)) return;
    call_->Post([self = shared_from_this()] { self->Advance(); });
  }

  void EndRun() {
    if (const auto run = std::exchange(run_, nullptr)) run->Cancel();
  }

  void Advance() {
    if (run_ == nullptr || writing_) return;
    woken_.store(false);
    for (int i = 0; run_ != nullptr && (i < kPieceItems || !context_.rules.stream); ++i) {
      CompletionRun::Item item = run_->Next();
      if (std::holds_alternative<CompletionRun::Nothing>(item)) break;
      std::visit([this](auto& one) { Take(one); }, item);
    }
    Flush();
  }

  void Take(CompletionRun::Nothing&) {}

  void Take(CompletionRun::Scored& scored) { context_.prompt_scores = std::move(scored.prompts); }

  void Take(CompletionRun::Drawn& drawn) {
    Stream& stream = StreamOf(drawn.choice);
    ShownChoice more;
    for (const DrawnToken& token : drawn.tokens->tokens) {
      const absl::StatusOr<std::string> text = stream.text.Add(token.id);
      if (!text.ok()) return Fail(text.status());
      more.text += context_.rules.tool_calls ? stream.calls.Add(*text) : *text;
      more.tokens.push_back(
          {token.id, context_.rules.raw_logprobs ? token.raw_logprob : token.behaviour_logprob,
           token.top});
      ++num_drawn_tokens_;
    }
    Show(drawn.choice, stream, std::move(more));
  }

  void Take(CompletionRun::Completed& completed) {
    const FinishedCompletion& completion = *completed.completion;
    if (context_.rules.stream) {
      Stream& stream = StreamOf(completed.choice);
      stream.last = completed.completion;
      absl::StatusOr<std::string> text = stream.text.Finish(completion);
      if (!text.ok()) return Fail(text.status());
      ShownChoice more = {.text = *std::move(text), .finished = &completion};
      if (context_.rules.tool_calls) {
        more.text = stream.calls.Add(more.text);
        CallingTurn turn = stream.calls.Finish();
        more.text += turn.content;
        more.calls = std::move(turn.calls);
      }
      return Show(completed.choice, stream, std::move(more));
    }
    num_drawn_tokens_ += completion.num_tokens();
    completions_[completed.choice] = completed.completion;
  }

  void Take(CompletionRun::Finished& finished) {
    const Json usage =
        UsageJson(num_prompt_tokens_, num_drawn_tokens_, finished.num_prompt_tokens_cached);
    EndRun();
    if (!context_.rules.stream) return AnswerWhole(usage);
    ShowAll();
    if (context_.rules.include_usage) {
      piece_ += EventOf(form_.Piece(context_, Json::array(), usage, false));
    }
    piece_ += "data: [DONE]\n\n";
    ended_ = true;
  }

  void Take(absl::Status& error) { Fail(error); }

  void Fail(const absl::Status& error) {
    EndRun();
    if (!begun_) {
      to_show_.clear();
      return call_->Answer(ErrorReply(error, parts_.groups->retry_after_ms()));
    }
    ShowAll();
    piece_ += EventOf(ErrorJson(error)) + "data: [DONE]\n\n";
    ended_ = true;
  }

  Stream& StreamOf(size_t choice) {
    return streams_.try_emplace(choice, &context_.text).first->second;
  }

  // What is shown of a choice until the next piece is sent goes together.
  void Show(size_t choice, Stream& stream, ShownChoice more) {
    ShownChoice& shown = stream.shown;
    if (!std::exchange(stream.waits, true)) {
      shown = {.choice = choice,
               .is_first = !std::exchange(stream.begun, true),
               .num_characters_before = stream.num_characters};
      to_show_.push_back(&stream);
    }
    stream.num_characters += CharactersIn(more.text);
    shown.text += more.text;
    for (ShownToken& token : more.tokens) shown.tokens.push_back(std::move(token));
    shown.calls = std::move(more.calls);
    shown.finished = more.finished;
  }

  void ShowAll() {
    for (Stream* const stream : to_show_) {
      Json usage;
      if (context_.rules.continuous_usage) {
        usage = UsageJson(num_prompt_tokens_, num_drawn_tokens_, 0);
      }
      piece_ += EventOf(form_.Piece(context_, Json::array({form_.Delta(context_, stream->shown)}),
                                    std::move(usage), !std::exchange(shown_any_, true)));
      stream->waits = false;
      stream->last = nullptr;
    }
    to_show_.clear();
  }

  void AnswerWhole(const Json& usage) {
    Json choices = Json::array();
    for (size_t choice = 0; choice < context_.job.num_choices(); ++choice) {
      ShownChoice shown = {.choice = choice};
      const auto completion = completions_.find(choice);
      FinishedCompletion nothing;  // of a job that draws nothing
      nothing.finish_reason = FinishReason::kLength;
      shown.finished = &nothing;
      if (completion != completions_.end()) {
        shown.finished = completion->second.get();
        shown.tokens = TokensOf(context_.rules, *shown.finished);
        absl::StatusOr<std::string> text = TextOf(context_.text, *shown.finished);
        if (!text.ok()) return Fail(text.status());
        shown.text = *std::move(text);
        if (context_.rules.tool_calls) {
          CallingTurn turn = ReadToolCalls(shown.text);
          shown.text = std::move(turn.content);
          shown.calls = std::move(turn.calls);
        }
      }
      choices.push_back(form_.Choice(context_, shown));
    }
    call_->Answer({.body = JsonText(form_.Whole(context_, std::move(choices), usage))});
  }

  void Flush() {
    if (!context_.rules.stream) return;
    ShowAll();
    if (piece_.empty()) return;
    if (!std::exchange(begun_, true)) {
      call_->Begin({.headers = {{"Cache-Control", "no-cache"}},
                    .content_type = "text/event-stream; charset=utf-8"});
    }
    writing_ = true;
    call_->Write(std::exchange(piece_, ""), [self = shared_from_this()] {
      self->writing_ = false;
      if (!self->ended_) return self->Advance();
    });
    if (ended_) call_->End();
  }

  const ServiceParts parts_;
  const std::shared_ptr<HttpCall> call_;
  AnswerContext context_;
  const AnswerForm& form_;
  std::atomic<bool> woken_{false};
  std::shared_ptr<CompletionRun> run_;  // null when it has ended
  std::map<size_t, CompletionPtr> completions_;
  std::map<size_t, Stream> streams_;
  std::vector<Stream*> to_show_;
  std::string piece_;  // to be sent next
  int64_t num_prompt_tokens_ = 0, num_drawn_tokens_ = 0;
  bool begun_ = false, shown_any_ = false, writing_ = false, ended_ = false;
};

}  // namespace

void WriteAnswer(const ServiceParts& parts, std::shared_ptr<HttpCall> call, CallerProof who,
                 AnswerContext context, const AnswerForm& form) {
  std::make_shared<Writer>(parts, std::move(call), std::move(context), form)->Start(std::move(who));
}

}  // namespace tandem::rollout
