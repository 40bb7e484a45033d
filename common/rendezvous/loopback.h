// Recognises loopback addresses: servers accept plaintext there without being asked to, and stores
// listen only there when all their users are on one machine.
#pragma once

#include <string>

namespace tandem {

// True for HOST:PORT in 127.0.0.0/8, localhost and [::1], and for unix: addresses.
inline bool IsLoopback(const std::string& address) {
  if (address.starts_with("unix:")) return true;
  const std::string host = address.substr(0, address.rfind(':'));
  // A name such as 127.attacker.example is not a numeric address.
  const bool is_number = host.find_first_not_of("0123456789.") == std::string::npos;
  return host == "localhost" || host == "[::1]" || (is_number && host.starts_with("127."));
}

}  // namespace tandem
