// What `warproll log ls|show|stats|export` print. Each opens a snapshot of the log, so a running
// worker is not disturbed. The return value is the exit code. Thread: main.
#pragma once

#include <cstdint>
#include <string>

#include "worker/commands/command.h"
#include "worker/commands/log_query.h"

namespace warproll {

int list_samples(const std::string& directory, const LogSelection& selection, uint64_t limit);
int show_sample(const std::string& directory, uint64_t seq);
int print_stats(const std::string& directory, bool json);
// format "jsonl": one trajectory a line. "records": for each sample u64 little-endian record bytes,
// u64 little-endian tensors bytes, record, tensors: exactly what is stored and sent.
int export_samples(const std::string& directory, const LogSelection& selection,
                   const std::string& output, const std::string& format, CommandContext& context);
// The same of a stopped trainer's state directory: what it took, in that order.
int export_taken(const std::string& state_directory, const std::string& output,
                 const std::string& format, CommandContext& context);

}  // namespace warproll
