#include "rollout_server/rollout_server.h"

#include <dlfcn.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/service_type.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/hub/hub_settings.h"
#include "common/hub/model_options.h"
#include "common/options/command_line.h"
#include "common/rendezvous/loopback.h"
#include "common/rpc/caller_channel.h"
#include "common/rpc/credentials.h"
#include "rollout_server/http/http_service.h"
#include "rollout_server/http/request_reader.h"
#include "rollout_server/service/injection_alarm.h"
#include "rollout_server/service/readiness.h"
#include "rollout_server/service/server_history.h"
#include "rollout_server/service/services.h"
#include "rollout_server/vllm/vllm_services.h"
#include "rollout_server/vllm/weight_control.h"

namespace tandem::rollout {
namespace {

constexpr int kMaxStreams = 4096;            // on one connection
constexpr int kMaxMetadataBytes = 16 << 10;  // in one call
// How long calls may go on when their connection has reached its age: longer than a group or a
// weight push takes.
constexpr int kGraceOfOldConnectionsMs = 3600 * 1000;

// Every server that this process builds from now on serves reflection. The library registers itself
// as it is loaded, which is why it is not linked: a program that links it always serves reflection.
//   NOT_FOUND  the library is not installed
absl::Status EnableReflection() {
  if (dlopen(TANDEM_GRPC_REFLECTION_LIBRARY, RTLD_NOW | RTLD_GLOBAL) != nullptr) {
    return absl::OkStatus();
  }
  return NotFound("server.reflection needs gRPC's ", TANDEM_GRPC_REFLECTION_LIBRARY, ": ",
                  dlerror());
}

std::unique_ptr<grpc::Server> Listen(const ServerOptions& options,
                                     const rpc::AccessControl& access_control,
                                     const std::vector<grpc::Service*>& services, int* port) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(options.listen, access_control.credentials(), port);
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  // A second server on the port is an error; with SO_REUSEPORT it would get half of the calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                             static_cast<int>(options.max_connection_age_seconds * 1e3));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kGraceOfOldConnectionsMs);
  // Keepalive finds clients behind dead connections, whose groups are then freed.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, rpc::kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, rpc::kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             rpc::kLeastPingDistanceMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  // gRPC from 1.54 on has two limits and refuses calls between them at random, so both are set to
  // one value. Earlier versions do not know this name.
  builder.AddChannelArgument("grpc.absolute_max_metadata_size", kMaxMetadataBytes);
  for (grpc::Service* service : services) builder.RegisterService(service);
  return builder.BuildAndStart();
}

absl::StatusOr<LoadedEngine> LoadUnlessStopped(const ServerOptions& options,
                                               const StopSignal& stop) {
  const EndWhileLoading end(stop, static_cast<ExitCode>(options.stopped_exit_code));
  return LoadEngine(options.model, options.engine);
}

}  // namespace

struct RolloutServer::Impl {
  Impl(const ServerOptions& server_options, LoadedEngine loaded, Observation* shown,
       const SecondsClock& seconds, std::unique_ptr<Tracer> spans, std::unique_ptr<History> record)
      : options(server_options),
        clock(seconds),
        tracer(std::move(spans)),
        history(std::move(record)),
        model(std::move(loaded.model)),
        observation(shown),
        metrics(observation->metrics(), model.limits),
        injection_alarm(observation->metrics(), DescribeFaults(model.options.faults)),
        ownership(seconds, options.lease_seconds),
        engine(std::move(loaded.engine), seconds),
        groups({[this](std::vector<GroupRequest> wanted) { engine.Submit(std::move(wanted)); },
                [this](GroupKey key) { engine.Abort(key); },
                [this](GroupKey key) { engine.StopEarly(key); },
                [this](std::vector<GroupKey> keys) { engine.PutLast(std::move(keys)); }},
               {options.max_queued_groups, options.remembered_groups, options.memory_bytes},
               seconds, [this](const GroupReport& report) { OnGroup(report); }),
        weights(
            &engine, model.tensors, {{}, 0, model.digests, {}, model.served_digests},
            [this] { return ReadServedWeights(model); }, model.stored),
        parts{&model,
              &engine,
              &groups,
              &ownership,
              &weights,
              &push_seat,
              &metrics,
              tracer.get(),
              &history,
              &draining,
              static_cast<int32_t>(options.stream_interval),
              options.max_queued_groups,
              options.max_deadline_seconds,
              options.liveness_seconds},
        rollout_service(MakeRolloutService(parts)),
        weight_service(MakeWeightService(parts, &worker, &push_worker)),
        control(parts, &worker) {}

  // What speaks in texts, for an engine that has a tokenizer. Call once the engine's thread runs.
  void MakeTextServices() {
    if (!engine.has_tokenizer()) return;
    const std::string& name = options.served_model_name;
    reader.emplace(&engine.tokenizer(),
                   FactsOf(parts, name.empty() ? options.model : name, options.model));
    vllm_inference = MakeVllmInference(parts, &reader->facts(), &reader->prompts(), &text_worker);
    vllm_control = MakeVllmControl(parts, &reader->facts(), &control);
  }

  std::vector<grpc::Service*> Services() const {
    std::vector<grpc::Service*> services = {rollout_service.get(), weight_service.get()};
    if (vllm_inference) services.push_back(vllm_inference.get());
    if (vllm_control) services.push_back(vllm_control.get());
    return services;
  }

  void StartEngine() {
    engine.Start({[this](std::vector<EngineEvent> events) {
                    injection_alarm.OnEvents(events);
                    RecordDrawn(events);
                    groups.OnEvents(std::move(events));
                  },
                  [this](GroupKey key, const absl::Status& why) { groups.OnRejected(key, why); },
                  [this](WeightVersion version) { history.Installed(version); },
                  [this] { groups.KeepWithinMemory(); },
                  [this](const EngineStats& stats) { metrics.OnStats(stats); },
                  [this](const absl::Status& why) { OnEngineFailure(why); },
                  [this] { groups.OnResumed(); }});
  }

  // Runs before the callers get the completions, so that a trainer never trains on a completion
  // that the history does not have yet.
  void RecordDrawn(const std::vector<EngineEvent>& events) {
    if (options.history.empty()) return;
    for (const EngineEvent& event : events) {
      const auto* finished = std::get_if<CompletionFinished>(&event);
      if (finished == nullptr) continue;
      const std::optional<GroupName> name = groups.FindName(finished->key);
      if (name) history.Drew(name->run_id, name->group_id, finished->completion);
    }
  }

  void OnGroup(const GroupReport& report) {
    metrics.OnGroup(report);
    if (tracer == nullptr) return;
    // Its callers were told first, so the group ended a moment ago.
    const auto since_ns = static_cast<int64_t>((clock() - report.ended) * 1e9);
    RecordSpans(report, UnixNanoseconds() - since_ns, tracer.get());
  }

  ProbeAnswer Readiness() {
    const std::shared_ptr<const WeightReceiver::Live> live = weights.live();
    return JudgeReadiness({.draining = draining.load(),
                           .failure = Failure(),
                           .claim = ownership.claim(),
                           .live = live->version,
                           .live_epoch = live->epoch});
  }

  // Whether requests are served: a load balancer asks by /health.
  ProbeAnswer Serves() {
    if (draining.load()) return {false, "the server is draining"};
    if (const absl::Status failed = Failure(); !failed.ok()) {
      return {false, absl::StrCat("the engine failed: ", failed.message())};
    }
    return JudgeLiveness(engine.SilentSeconds(), options.liveness_seconds);
  }

  // From here until HideHealth, probes and metrics read this object's parts.
  void ShowHealth() {
    Health* const health = observation->health();
    health->Set(Probe::kStarted, {true, "the model is loaded"});
    health->Set(Probe::kReady, [this] { return Readiness(); });
    health->Set(Probe::kLive,
                [this] { return JudgeLiveness(engine.SilentSeconds(), options.liveness_seconds); });
    observation->metrics()->BeforeRender(this, [this] {
      metrics.OnState({.owned = ownership.claim().has_value(),
                       .paused = engine.paused(),
                       .draining = draining.load(),
                       .ready = Readiness().yes,
                       .engine_silent_seconds = engine.SilentSeconds(),
                       .live_version = weights.live()->version.value,
                       .groups = groups.counts(),
                       .group_memory_bytes = groups.memory()->used()});
    });
  }

  void HideHealth() {
    observation->metrics()->Forget(this);
    observation->health()->Set(Probe::kReady, {false, "stopping"});
    observation->health()->Set(Probe::kLive, {true, "stopping"});
  }

  void OnEngineFailure(const absl::Status& why) {
    log::Error("the engine failed", {{"error", std::string(why.message())}});
    groups.FailAll(Internal("the engine failed: ", why.message()));
    MutexLock lock(&mu);
    failure = why;
  }

  // A pause ends with the ownership of the run that paused, also when its lease runs out: else a
  // run that died in a pause would block everybody for good. A claim that comes meanwhile keeps its
  // own.
  void EndPauseThatNobodyOwns() {
    if (!engine.paused() || ownership.claim()) return;
    engine.ResumeIf([this] {
      if (ownership.claim()) return false;
      log::Warning("resumed: the lease of the run that paused this server has ended");
      return true;
    });
  }

  // For an alert before the certificate expires and nobody can connect any more.
  void ShowCertificate() {
    if (access_control.is_plaintext()) return;
    observation->metrics()
        ->GetGauge("tandem_server_certificate_expiry_timestamp_seconds",
                   "When the TLS certificate in use ends.")
        ->Set(static_cast<double>(absl::ToUnixSeconds(access_control.valid_until())));
  }

  // The engine's error, if it failed.
  absl::Status Failure() {
    MutexLock lock(&mu);
    return failure;
  }

  const ServerOptions options;
  const SecondsClock clock;
  const std::unique_ptr<Tracer> tracer;  // null: no spans
  ServerHistory history;
  const ServedModel model;
  Observation* const observation;
  ServerMetrics metrics;
  InjectionAlarm injection_alarm;
  Ownership ownership;
  std::atomic<bool> draining{false};
  EngineThread engine;
  GroupRegistry groups;
  WeightReceiver weights;
  PushSeat push_seat;
  WorkerThread worker, push_worker;
  const ServiceParts parts;
  const std::unique_ptr<grpc::Service> rollout_service;
  const std::unique_ptr<grpc::Service> weight_service;
  WeightControl control;
  std::optional<RequestReader> reader;  // none without a tokenizer
  WorkerThread text_worker{kMaxStreams};
  std::unique_ptr<grpc::Service> vllm_inference, vllm_control;  // null without a tokenizer
  rpc::AccessControl access_control;
  std::string address;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<HttpService> http;  // null: off

  Mutex mu;
  absl::Status failure ABSL_GUARDED_BY(mu);
};

RolloutServer::RolloutServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<RolloutServer>> RolloutServer::Create(const ServerOptions& options,
                                                                     LoadedEngine loaded,
                                                                     Observation* observation,
                                                                     SecondsClock clock) {
  TANDEM_RETURN_IF_ERROR(CheckOptions(options));
  if (options.reflection) TANDEM_RETURN_IF_ERROR(EnableReflection());
  std::unique_ptr<Tracer> tracer;
  if (!options.trace_file.empty()) {
    TANDEM_ASSIGN_OR_RETURN(tracer, Tracer::Open(options.trace_file, "tandem-rollout-server"));
  }
  std::unique_ptr<History> history;
  if (!options.history.empty()) {
    TANDEM_ASSIGN_OR_RETURN(history, History::Open(options.history, "rollout_server"));
  }
  auto impl = std::make_unique<Impl>(options, std::move(loaded), observation, clock,
                                     std::move(tracer), std::move(history));
  TANDEM_ASSIGN_OR_RETURN(impl->access_control, rpc::AccessControl::Load(options.tls));
  for (const auto& [what, listen] :
       {std::pair("gRPC", options.listen), {"HTTP", options.http_listen}}) {
    if (!impl->access_control.is_plaintext() || listen.empty() || IsLoopback(listen)) continue;
    log::Warning(absl::StrCat("PLAINTEXT ", what, " on an address others can reach: whoever ",
                              "reaches it can push weights"),
                 {{"listen", listen}});
  }
  TANDEM_RETURN_IF_ERROR(impl->weights.Reserve());
  impl->history.Started(InFlightName(impl->model.options.in_flight), impl->model.digests);
  impl->StartEngine();
  int port = 0;
  impl->MakeTextServices();
  impl->server = Listen(options, impl->access_control, impl->Services(), &port);
  if (!impl->server || port == 0) {
    impl->engine.Stop();
    return AlreadyExists(
        "cannot listen on ", options.listen,
        ": the port is in use, or the address is not of this machine; choose another "
        "--listen (port 0 picks a free one)");
  }
  impl->address = absl::StrCat(options.listen.substr(0, options.listen.rfind(':')), ":", port);
  impl->history.Listens(impl->address);
  if (!options.http_listen.empty()) {
    Impl* const self = impl.get();
    if (!impl->reader) return Unimplemented("server.http_listen needs a model with a tokenizer");
    auto http = HttpService::Listen(impl->parts, options,
                                    {.access_control = &impl->access_control,
                                     .metrics = observation->metrics(),
                                     .control = &impl->control,
                                     .reader = &*impl->reader,
                                     .health = [self] { return self->Serves(); }});
    if (!http.ok()) {
      impl->server->Shutdown();
      impl->engine.Stop();
      return absl::Status(http.status().code(),
                          absl::StrCat("server.http_listen: ", http.status().message()));
    }
    impl->http = *std::move(http);
  }
  auto server = std::unique_ptr<RolloutServer>(new RolloutServer(std::move(impl)));
  if (!options.http_port_file.empty()) {
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically(options.http_port_file,
                                               absl::StrCat(server->impl_->http->port(), "\n")));
  }
  if (!options.port_file.empty()) {
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically(options.port_file, absl::StrCat(port, "\n")));
  }
  server->impl_->ShowHealth();
  return server;
}

RolloutServer::~RolloutServer() {
  impl_->HideHealth();
  StartDrain();
  impl_->groups.FailAll(Unavailable("the server stops"));
  impl_->push_seat.Close("the server stops");
  // Every RPC ends now, since groups have failed and commands are answered. The deadline is for
  // slow readers, whose calls are cancelled.
  if (impl_->server) {
    impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
  }
  if (impl_->http) impl_->http->Stop(absl::Seconds(2));
  impl_->engine.Stop();
}

const std::string& RolloutServer::address() const { return impl_->address; }

int RolloutServer::http_port() const { return impl_->http ? impl_->http->port() : 0; }

absl::Status RolloutServer::Run(const StopSignal& stop) {
  constexpr std::chrono::milliseconds kMoment(100);
  while (!stop.WaitFor(kMoment)) {
    impl_->ShowCertificate();
    impl_->EndPauseThatNobodyOwns();
    TANDEM_RETURN_IF_ERROR(impl_->Failure());
  }
  log::Info("draining", {{"signal", stop.signal()}});
  Drain();
  return impl_->Failure();
}

void RolloutServer::StartDrain() {
  if (impl_->draining.exchange(true)) return;
  impl_->groups.StartDrain();
  if (impl_->server) impl_->server->GetHealthCheckService()->SetServingStatus(false);
}

void RolloutServer::Drain() {
  StartDrain();
  impl_->engine.Resume(nullptr);  // a paused engine would never finish
  const auto deadline =
      std::chrono::steady_clock::now() +
      std::chrono::milliseconds(static_cast<int64_t>(impl_->options.drain_seconds * 1e3));
  if (!impl_->groups.WaitUntilIdle(deadline)) {
    const GroupRegistry::Counts left = impl_->groups.counts();
    log::Warning("groups are cut off by the end of the drain",
                 {{"queued", left.queued}, {"running", left.running}});
    impl_->groups.FailAll(Unavailable("the server stopped before the group ended"));
  }
  // Shutdown waits for every call, whatever its deadline, and a push group that forms would hold
  // it.
  impl_->push_seat.Close("the server stops");
  impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
  impl_->engine.Stop();
}

int Fail(const absl::Status& status, ExitCode code) {
  PrintFailure("rollout_server", status);
  return ToInt(code);
}

int RunServer(ServerOptions options) {
  options.log.role = "rollout_server";
  absl::Status bad = CheckOptions(options);
  bad.Update(rpc::AccessControl::Check(options.tls));  // before the model is loaded
  if (!bad.ok()) return Fail(bad, ExitCode::kUsage);
  if (options.served_model_name.empty()) options.served_model_name = options.model;
  bad = hub::FindModels({{"server.model", &options.model}}, hub::ReadHubSettings());
  if (!bad.ok()) return Fail(bad, ExitCode::kBadModelOrData);
  if (absl::Status log = log::Configure(options.log); !log.ok()) {
    return Fail(log, ExitCode::kStorage);
  }
  const StopSignal stop;
  Observation observation("rollout_server");
  if (absl::Status served = observation.Serve(options.observe_listen); !served.ok()) {
    return Fail(served, ExitCode::kUsage);
  }
  absl::StatusOr<LoadedEngine> engine = LoadUnlessStopped(options, stop);
  if (!engine.ok()) return Fail(engine.status(), ExitCode::kBadModelOrData);
  auto server = RolloutServer::Create(options, *std::move(engine), &observation);
  if (!server.ok()) return Fail(server.status(), ExitCodeFor(server.status()));
  std::printf("listening on %s\n", (*server)->address().c_str());
  std::fflush(stdout);
  const absl::Status ended = (*server)->Run(stop);
  return ended.ok() ? static_cast<int>(options.stopped_exit_code)
                    : Fail(ended, ExitCode::kInternal);
}

}  // namespace tandem::rollout
