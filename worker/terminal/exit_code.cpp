#include "worker/terminal/exit_code.h"

namespace warproll {

ExitCode exit_code_of(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return kExitOk;
    case StatusCode::kInvalidArgument:
    case StatusCode::kDataLoss:
      return kExitBadInput;
    case StatusCode::kNotFound:
      return kExitNotFound;
    case StatusCode::kAlreadyExists:
    case StatusCode::kAborted:
      return kExitFailed;
    case StatusCode::kFailedPrecondition:
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kResourceExhausted:
      return kExitUnavailable;
    case StatusCode::kInternal:
      return kExitInternal;
  }
  return kExitInternal;
}

const char* exit_code_help() {
  return "Exit codes: 0 done; 1 done, and the answer is no (damage found, bits differ); 2 usage or "
         "configuration;\n  3 not found; 4 damaged or unfitting input; 5 locked, unreachable, out "
         "of "
         "time or space; 70 internal fault.";
}

}  // namespace warproll
