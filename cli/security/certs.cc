// tandem certs: makes a certificate authority for development and a TLS directory per role.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/security/development_identities.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"

namespace tandem::cli {
namespace {

struct CertsFlags {
  std::string out;
  DevelopmentNames names;
  bool renew = false, new_ca = false, drop_old_ca = false;
};

void PrintMade(const CertsFlags& flags) {
  const char* const out = flags.out.c_str();
  std::printf(
      "FOR DEVELOPMENT: whoever reads %s/authority/ca.key can act as any role. A cluster has its "
      "own\nauthority (cert-manager, SPIRE): docs/security.md.\n\n"
      "  %s/rollout   of the rollout servers    server.tls\n"
      "  %s/trainer   of the trainer            trainer.tls\n"
      "  %s/client    samples and scores        --tls of tandem status, bench serve, drift "
      "capture\n"
      "  %s/viewer    reads states              --tls of tandem status\n\n"
      "Valid for %lld days. On one machine:\n"
      "  tandem run RUN.yaml --set server.tls=%s/rollout --set trainer.tls=%s/trainer\n"
      "  tandem status RUN_DIRECTORY --tls %s/viewer\n",
      out, out, out, out, out, static_cast<long long>(flags.names.days), out, out, out);
}

absl::Status Certs(const CertsFlags& flags) {
  if (flags.out.empty()) return absl::InvalidArgumentError("--out is required");
  if (flags.new_ca) {
    TANDEM_RETURN_IF_ERROR(NewAuthority(flags.out, flags.names));
    std::printf(
        "%s: a new authority, trusted beside the one in use (every ca.crt holds both).\n"
        "When every process has taken it (its log says so, within seconds): --renew, and after "
        "that --drop-old-ca.\n",
        flags.out.c_str());
  } else if (flags.drop_old_ca) {
    TANDEM_RETURN_IF_ERROR(DropAuthorityBefore(flags.out));
    std::printf("%s: only the new authority is trusted.\n", flags.out.c_str());
  } else if (flags.renew) {
    TANDEM_RETURN_IF_ERROR(RenewIdentities(flags.out, flags.names));
    std::printf("%s: new certificates for %lld days. Running processes take them by themselves.\n",
                flags.out.c_str(), static_cast<long long>(flags.names.days));
  } else {
    TANDEM_RETURN_IF_ERROR(MakeIdentities(flags.out, flags.names));
    PrintMade(flags);
  }
  return absl::OkStatus();
}

}  // namespace

void AddCertsCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<CertsFlags>();
  CLI::App* sub = app.add_subcommand(
      "certs", "A certificate authority for development, and certificates for mutual TLS by role");
  CLI::Option* const out = sub->add_option("--out", flags->out, "directory to make, or to change");
  // The former form of --out.
  sub->add_option("directory", flags->out)->group("")->excludes(out)->each([](const std::string&) {
    std::fputs("tandem certs: the directory is named by --out now\n", stderr);
  });
  AddRange(sub, "--days", flags->names.days, 1, 825, "validity of the certificates");
  sub->add_option("--dns", flags->names.dns,
                  "DNS name of the rollout servers, in addition to localhost");
  sub->add_option("--ip", flags->names.ips,
                  "address of the rollout servers, in addition to 127.0.0.1 and ::1");
  sub->add_option("--domain", flags->names.domain, "SPIFFE trust domain in every identity")
      ->capture_default_str();
  CLI::Option* const renew = sub->add_flag("--renew", flags->renew,
                                           "new certificates and keys, signed by the authority in "
                                           "--out; repeat --dns, --ip and --domain");
  CLI::Option* const new_ca = sub->add_flag(
      "--new-ca", flags->new_ca,
      "a new authority, trusted in addition to the current one; then --renew, then --drop-old-ca");
  sub->add_flag("--drop-old-ca", flags->drop_old_ca, "end the trust in the previous authority")
      ->excludes(renew)
      ->excludes(new_ca);
  renew->excludes(new_ca);
  EndHelp(
      *sub,
      "Clients such as Python's check the names of the rollout server; the project's own check the "
      "role\nin its certificate instead. docs/security.md explains all steps.",
      "tandem certs --out certs --dns rollout.example.org --days 30");
  SetAction(*sub, chosen, [flags] { return FinishUsage(Certs(*flags)); });
}

}  // namespace tandem::cli
