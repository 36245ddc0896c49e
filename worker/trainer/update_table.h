// UpdateTable: what each weight update of a run did, worker by worker. Thread: one.
#pragma once

#include <map>
#include <string>

#include "weights_sync/broadcaster.h"

namespace warproll {

class UpdateTable {
 public:
  // The latest report of an update replaces the earlier one of the same version.
  void note(const UpdateReport& report);
  [[nodiscard]] bool empty() const { return reports_.empty(); }
  [[nodiscard]] std::string table() const;
  [[nodiscard]] std::string json() const;  // an array, one object for each worker of each update

 private:
  std::map<uint64_t, UpdateReport> reports_;  // by weight_version
};

}  // namespace warproll
