#include "worker/trainer/update_table.h"

#include <nlohmann/json.hpp>

#include "worker/terminal/progress.h"
#include "worker/terminal/table.h"

namespace warproll {

void UpdateTable::note(const UpdateReport& report) {
  if (report.weight_version != 0) reports_[report.weight_version] = report;
}

std::string UpdateTable::table() const {
  Table table({"weight_version", "worker", "outcome", "bytes", "receive ms", "decided ms",
               "stall ms", "stall steps", "in flight"});
  for (const auto& [version, report] : reports_) {
    for (const WorkerUpdateReport& worker : report.workers) {
      table.add({std::to_string(version), worker.worker_name,
                 worker.committed ? "serves it" : (worker.reason.empty() ? "-" : worker.reason),
                 format_bytes(static_cast<double>(worker.received_bytes)),
                 std::to_string(worker.receive_ms), std::to_string(report.decision_ms),
                 format_number(static_cast<double>(worker.stall_us) / 1000.0, 2),
                 std::to_string(worker.stall_steps), std::to_string(worker.in_flight_sequences)});
    }
  }
  return table.to_string();
}

std::string UpdateTable::json() const {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const auto& [version, report] : reports_) {
    for (const WorkerUpdateReport& worker : report.workers) {
      rows.push_back({{"weight_version", version},
                      {"worker", worker.worker_name},
                      {"committed", worker.committed},
                      {"reason", worker.reason},
                      {"received_bytes", worker.received_bytes},
                      {"receive_ms", worker.receive_ms},
                      {"decision_ms", report.decision_ms},
                      {"converged_ms", report.converged_ms},
                      {"stall_us", worker.stall_us},
                      {"stall_steps", worker.stall_steps},
                      {"in_flight_sequences", worker.in_flight_sequences}});
    }
  }
  return rows.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace warproll
