// Who may call what: the roles of certificate holders and the one table of every gRPC method. Used
// by the server's auth processor and by the client's check of a server. Pure.
#ifndef TANDEM_COMMON_RPC_ROLES_H_
#define TANDEM_COMMON_RPC_ROLES_H_

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace tandem::rpc {

enum class Role : uint8_t {
  kNone,     // a certificate of our authority without a role of this project
  kRollout,  // a rollout server; calls nobody
  kTrainer,  // pushes weights, owns servers, and whatever a client may
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

// What a certificate says about its holder.
struct PeerName {
  std::string common_name;
  std::vector<std::string> uris;  // of its subject alternative names
};

// The role in a SPIFFE id, spiffe://DOMAIN/tandem/ROLE or .../tandem/ROLE/ANYTHING; without any
// SPIFFE id, the role in a common name tandem-ROLE. A certificate with a SPIFFE id has just that
// one URI (the SPIFFE standard): with more, or with a path that is none of ours, kNone, whatever
// the common name says.
Role RoleOf(const PeerName& peer);

// One word for the holder, equal for equal names: its URIs, else its common name; empty for nobody.
std::string IdentityOf(const PeerName& peer);

struct MethodRoles {
  std::string_view path;  // as on the wire: /PACKAGE.SERVICE/METHOD
  Roles roles;
};

// Every method a rollout server answers.
std::span<const MethodRoles> MethodTable();

// May the holder call the method?
//   PERMISSION_DENIED  its role may not, or it has none; a method that is not in the table (named)
absl::Status CheckCall(const PeerName& peer, std::string_view path);

}  // namespace tandem::rpc

#endif  // TANDEM_COMMON_RPC_ROLES_H_
