// Roles of certificate holders, and the table of which role may call which gRPC method and which
// path of HTTP. Used by the
// server's auth processor and by the client's check of a server. Pure.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace tandem::rpc {

enum class Role : uint8_t {
  kNone,     // a trusted certificate without a role of this project
  kRollout,  // a rollout server; may call nothing
  kTrainer,  // pushes weights, owns servers, and may do what a client may
  kClient,   // samples and scores
  kViewer,   // reads states and metrics
};

std::string_view RoleName(Role role);

class Roles {
 public:
  constexpr Roles() = default;
  constexpr Roles(std::initializer_list<Role> roles) {
    for (const Role role : roles) bits_ |= Bit(role);
  }
  constexpr bool Has(Role role) const { return role != Role::kNone && (bits_ & Bit(role)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  std::string ToString() const;  // "trainer, client"

 private:
  static constexpr unsigned Bit(Role role) { return 1u << static_cast<unsigned>(role); }
  unsigned bits_ = 0;
};

// The names in a certificate.
struct PeerName {
  std::string common_name;
  std::vector<std::string> uris;  // URIs of the subject alternative names
};

// The role in a SPIFFE id, spiffe://DOMAIN/tandem/ROLE or .../tandem/ROLE/ANYTHING; without any
// SPIFFE id, the role in a common name tandem-ROLE. The SPIFFE standard allows exactly one URI
// beside a SPIFFE id, so a certificate with more, or with another path, has kNone, whatever its
// common name.
Role RoleOf(const PeerName& peer);

// A text that identifies the holder, equal for equal names: its URIs, else its common name; empty
// if it has neither.
std::string IdentityOf(const PeerName& peer);

struct MethodRoles {
  std::string_view path;  // as on the wire: /PACKAGE.SERVICE/METHOD, or the path of a URL
  Roles roles;
};

// All methods and paths of a rollout server.
std::span<const MethodRoles> MethodTable();

// Checks that the holder may call the method.
//   PERMISSION_DENIED  the holder has no role, or its role may not call the method, or the method
//                      is not in the table (named)
absl::Status CheckCall(const PeerName& peer, std::string_view path);

}  // namespace tandem::rpc
