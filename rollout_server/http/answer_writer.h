// AnswerWriter: one request for completions, from its job to the last byte of its answer, whole or
// as server-sent events. It owns itself until the answer is given or the client has gone.
#pragma once

#include <memory>

#include "common/http/http_server.h"
#include "rollout_server/groups/ownership.h"
#include "rollout_server/http/answer_form.h"
#include "rollout_server/service/services.h"

namespace tandem::rollout {

// Starts the job of `context` and answers `call`, on whose thread this is called. `form` lives for
// ever. What follows runs on the call's thread too, so that the engine's thread does no more than
// tell it.
void WriteAnswer(const ServiceParts& parts, std::shared_ptr<HttpCall> call, CallerProof who,
                 AnswerContext context, const AnswerForm& form);

}  // namespace tandem::rollout
