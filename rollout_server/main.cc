// rollout_server: serves one model directory over gRPC, and HTTP where a port is given, until
// SIGTERM.
#include <CLI/CLI.hpp>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/exit_codes.h"
#include "common/base/version.h"
#include "common/options/command_line.h"
#include "common/options/options.h"
#include "rollout_server/rollout_server.h"

namespace tandem::rollout {
namespace {

int Main(int argc, char** argv) {
  ServerOptions options;
  OptionBinder binder;
  binder.Section("server", "rollout server", options);
  BindInjection(binder, options);
  binder.Ignore("trainer");
  binder.Ignore("launch");

  CLI::App app("Rollout server: samples groups of completions over gRPC.", "rollout_server");
  std::string config;
  std::vector<std::string> sets;
  bool help_config = false, version = false, reflection = false, insecure = false;
  app.add_option("--config", config, "run file; its sections `server` and `drift.inject` are read");
  AddSetFlag(app, sets, "after the file: server.engine.dtype=fp32");
  const auto shorthand = [&](const char* flag, const std::string& key, const char* help) {
    return app.add_option_function<std::string>(
        flag, [&sets, key](const std::string& v) { sets.push_back(absl::StrCat(key, "=", v)); },
        help);
  };
  shorthand("--model", "server.model", "Hugging Face directory, or a name on the Hub");
  CLI::Option* const listen =
      shorthand("--listen", "server.listen", "HOST:PORT; port 0 picks a free one");
  std::string host;
  int port = -1, http_port = -1;
  app.add_option("--host", host, "address to listen on, in place of that of server.listen")
      ->excludes(listen);
  app.add_option("--port", port,
                 "port to listen on, in place of that of server.listen; 0: a free one")
      ->check(CLI::Range(0, 65535))
      ->excludes(listen);
  CLI::Option* const http_listen = shorthand(
      "--http-listen", "server.http_listen",
      "HOST:PORT of HTTP: OpenAI's and vLLM's endpoints (docs/openai.md); off without it");
  app.add_option("--http-port", http_port, "the same, on the host of gRPC; 0: a free one")
      ->check(CLI::Range(0, 65535))
      ->excludes(http_listen);
  shorthand("--served-model-name", "server.served_model_name", "the model's name over HTTP");
  shorthand("--stream-interval", "server.stream_interval",
            "tokens of a completion in each event of a stream, after the first");
  shorthand("--dtype", "server.engine.dtype", "compute dtype")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  shorthand("--numerics", "server.engine.numerics", "how results depend on the batch")
      ->check(CLI::IsMember({"fast", "invariant", "exact"}));
  shorthand("--port-file", "server.port_file", "write the bound port here");
  shorthand("--http-port-file", "server.http_port_file", "write the bound HTTP port here");
  shorthand("--tls", "server.tls", "directory of tls.crt, tls.key and ca.crt: mutual TLS");
  shorthand("--token-file", "server.token_file", "bearer tokens that callers must show");
  shorthand("--log-format", "server.log.format", "form of log lines")
      ->check(CLI::IsMember({"text", "json"}));
  app.add_flag("--reflection", reflection, "serve gRPC reflection");
  app.add_flag(
      "--insecure-plaintext-open-to-the-network", insecure,
      "without TLS on an address that is not loopback: whoever reaches it can push weights");
  app.add_flag("--help-config", help_config, "print every option of `server` and `drift.inject`");
  app.add_flag("--version", version, "print the version");
  EndHelp(app, "", "rollout_server --model MODEL --port 50051");
  if (const std::optional<int> code = ParseCommandLine(app, argc, argv)) return *code;
  if (version) {
    std::cout << "rollout_server " << ProjectVersion() << " (" << GitCommit() << ")\n";
    return 0;
  }
  absl::Status status = config.empty() ? absl::OkStatus() : binder.LoadFile(config);
  for (const std::string& set : sets) status.Update(binder.Set(set));
  if (!status.ok()) return Fail(status, ExitCode::kUsage);
  if (help_config) {
    std::cout << binder.Help();
    return 0;
  }
  options.listen = WithHostAndPort(options.listen, host, port);
  if (http_port >= 0) options.http_listen = WithHostAndPort(options.listen, "", http_port);
  options.reflection |= reflection;
  options.insecure_plaintext_open_to_the_network |= insecure;
  return RunServer(std::move(options));
}

}  // namespace
}  // namespace tandem::rollout

int main(int argc, char** argv) { return tandem::rollout::Main(argc, argv); }
