#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "protocol/curve.h"
#include "worker/commands/command.h"
#include "worker/terminal/exit_code.h"

namespace warproll {
namespace {

int run(const std::string& path) {
  const Result<CurveKeys> keys = generate_keypair();
  if (!keys.ok()) return report_failure(keys.status());
  const Status written = write_keypair(*keys, path);
  if (!written.ok()) return report_failure(written);
  std::printf("%s.secret  (keep it, mode 0600)\n%s.pub     %s\n", path.c_str(), path.c_str(),
              keys->public_key.c_str());
  return kExitOk;
}

}  // namespace

void add_keygen_command(CLI::App& app, CommandContext& context) {
  CLI::App* command =
      app.add_subcommand("keygen", "Make a CURVE key pair for a trainer or a worker");
  command->footer(footer_with_examples(
      "  warproll keygen keys/trainer      # keys/trainer.secret, keys/trainer.pub\n"
      "  warproll keygen keys/worker-1\n"
      "  cat keys/worker-*.pub > keys/allowed\n"
      "  warproll trainer --set trainer.bind=tcp://0.0.0.0:5600 \\\n"
      "    --set trainer.secret_key_file=keys/trainer --set "
      "trainer.allowed_clients_file=keys/allowed\n"
      "  warproll worker --set trainer.secret_key_file=keys/worker-1 \\\n"
      "    --set trainer.server_public_key=\"$(grep -v '^#' keys/trainer.pub)\"\n"));
  auto path = std::make_shared<std::string>();
  command->add_option("path", *path, "where the two files go, without ending")->required();
  command->callback([&context, path] { context.exit_code = run(*path); });
}

}  // namespace warproll
