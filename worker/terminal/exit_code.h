// The exit codes of every command, documented once (README and --help print them).
// Thread: pure functions.
#pragma once

#include "protocol/status.h"

namespace warproll {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,       // the work was done and the answer is no: verify found damage, bits differ
  kExitUsage = 2,        // command line or configuration is wrong
  kExitNotFound = 3,     // a file, directory or address is not there
  kExitBadInput = 4,     // a checkpoint, tokenizer, log or message is damaged or does not fit
  kExitUnavailable = 5,  // locked by another process, peer away, deadline passed, out of space
  kExitInternal = 70,    // a broken invariant of ours: please report
};

ExitCode exit_code_of(const Status& status);
// "exit codes: 0 ..., 1 ..." for --help.
const char* exit_code_help();

}  // namespace warproll
