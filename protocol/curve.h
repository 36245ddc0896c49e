// CURVE: key pairs, key files and the allow-list of clients (ZeroMQ's ZAP handler).
// A key is 40 characters of Z85. A secret key file must be readable by its owner only.
// Errors name the file and never print a key. Thread: functions from any; classes say theirs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/status.h"

namespace warproll {

class ZmqContext;

struct CurveKeys {
  std::string public_key;  // Z85, 40 characters
  std::string secret_key;  // Z85, 40 characters
};
Result<CurveKeys> generate_keypair();
Status check_curve_key(std::string_view what, std::string_view key);

// Two files, one key a line: `<path>.secret` (made with mode 0600) and `<path>.pub`.
// Refuses to overwrite (kAlreadyExists).
Status write_keypair(const CurveKeys& keys, const std::string& path);
// Reads `<path>.secret` and `<path>.pub`; refuses a secret that group or others can read or write,
// and a pair that does not belong together.
Result<CurveKeys> read_keypair(const std::string& path);
// One public key (a `.pub` file). '#' starts a comment.
Result<std::string> read_public_key(const std::string& file);
// Any number of public keys, one a line. '#' starts a comment.
Result<std::vector<std::string>> read_allow_list(const std::string& file);

// Answers ZeroMQ's question "may this client key in?" for every CURVE server of one context.
// One per context. Lifetime: made before the server sockets, destroyed after them (without it
// libzmq lets every client in that knows the server's key). Thread: owns one; set_allowed and the
// counters from any thread.
class CurveAllowList {
 public:
  static Result<std::unique_ptr<CurveAllowList>> start(ZmqContext& context,
                                                       const std::vector<std::string>& public_keys);
  CurveAllowList(const CurveAllowList&) = delete;
  CurveAllowList& operator=(const CurveAllowList&) = delete;
  ~CurveAllowList();  // stops and joins the thread

  Status set_allowed(const std::vector<std::string>& public_keys);  // for new connections
  [[nodiscard]] uint64_t num_accepted() const;                      // handshakes
  [[nodiscard]] uint64_t num_refused() const;

 private:
  struct Impl;
  explicit CurveAllowList(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct CurveServer {
  CurveKeys keys;
  const CurveAllowList* allow_list = nullptr;  // required, outlives the socket
};
struct CurveClient {
  CurveKeys keys;          // of this client
  std::string server_key;  // public key of the server
};

// Refuses a bind that everybody on the network could reach: non-loopback TCP without CURVE, unless
// `insecure`. Also refuses endpoints that are not tcp://host:port, ipc://path or inproc://name.
Status check_endpoint(std::string_view endpoint, bool curve_enabled, bool insecure);
[[nodiscard]] bool is_loopback_endpoint(std::string_view endpoint);

}  // namespace warproll
