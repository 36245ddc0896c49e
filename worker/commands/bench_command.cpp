#include <CLI/CLI.hpp>

#include "worker/commands/bench_decode.h"
#include "worker/commands/bench_sync.h"
#include "worker/commands/command.h"

namespace warproll {

void add_bench_command(CLI::App& app, CommandContext& context) {
  CLI::App* bench = app.add_subcommand("bench", "Measure parts of the worker");
  bench->require_subcommand(1);
  bench->footer(footer_with_examples(
      "  warproll bench decode --checkpoint ckpt/arith-v3 --batch 1,8,32 --context 64\n"
      "  warproll bench decode --random configs/models/qwen3-30b-a3b.json --batch 1,8,32,64 "
      "--context 1024 --routing uniform\n"
      "  warproll bench sync --random configs/models/qwen3-30b-a3b.json --layers 3 --max-ctas 1,4\n"
      "  warproll bench moe --dtype mxfp8 --batch 1,8,64 --check\n"));
  add_bench_decode_command(*bench, context);
  add_bench_sync_command(*bench, context);
  add_bench_sync_trainer_command(*bench, context);
  add_bench_sync_worker_command(*bench, context);
  add_bench_moe_command(*bench, context);
}

}  // namespace warproll
