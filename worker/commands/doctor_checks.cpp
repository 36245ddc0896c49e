#include "worker/commands/doctor_checks.h"

#include <netdb.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>

#include "protocol/curve.h"
#include "rollout/model/weights.h"
#include "weights_sync/checkpoint.h"
#include "weights_sync/nccl/nccl_api.h"
#include "worker/node/model_device.h"
#include "worker/node/serving_model.h"
#include "worker/node/worker_memory.h"
#include "worker/terminal/progress.h"
#include "worker/trainer/task_source.h"

namespace warproll {
namespace {

constexpr int kConnectMs = 2000;
constexpr rlim_t kWantedFiles = 4096;  // RocksDB tables, sockets, shards

DoctorFinding finding_of(const std::string& check, const Status& status, const std::string& good) {
  if (status.ok()) return {DoctorVerdict::kOk, check, good};
  return {DoctorVerdict::kFail, check, status.message()};
}

Status connect_with_deadline(const addrinfo& address) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return unavailable(std::string("socket: ") + std::strerror(errno));
  int error = 0;
  if (connect(fd, address.ai_addr, address.ai_addrlen) != 0) {
    error = errno;
    pollfd poll_fd{fd, POLLOUT, 0};
    if (error == EINPROGRESS && poll(&poll_fd, 1, kConnectMs) == 1) {
      socklen_t size = sizeof error;
      getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }
  close(fd);
  if (error == 0) return ok_status();
  return unavailable(error == EINPROGRESS ? "no answer within 2 s" : std::strerror(error));
}

// tcp://host:port answers a TCP connection.
Status check_reachable(const std::string& endpoint) {
  if (!endpoint.starts_with("tcp://")) return ok_status();
  const size_t colon = endpoint.rfind(':');
  const std::string host = endpoint.substr(6, colon - 6);
  const std::string port = endpoint.substr(colon + 1);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* addresses = nullptr;
  const int resolved = getaddrinfo(host.c_str(), port.c_str(), &hints, &addresses);
  if (resolved != 0) return not_found(endpoint + ": " + gai_strerror(resolved));
  Status status = unavailable("no address");
  for (const addrinfo* address = addresses; address != nullptr && !status.ok();
       address = address->ai_next) {
    status = connect_with_deadline(*address);
  }
  freeaddrinfo(addresses);
  return status.with_context(endpoint);
}

// The directory, or the nearest existing folder above it, can be written to and has room.
DoctorFinding check_folder(const std::string& check, const std::string& directory,
                           int64_t min_free_mb) {
  std::filesystem::path existing = std::filesystem::absolute(directory);
  std::error_code error;
  while (!std::filesystem::exists(existing, error) && existing.has_parent_path()) {
    existing = existing.parent_path();
  }
  if (access(existing.c_str(), W_OK | X_OK) != 0) {
    return {DoctorVerdict::kFail, check, existing.string() + " cannot be written to"};
  }
  const auto space = std::filesystem::space(existing, error);
  const int64_t free_mb = static_cast<int64_t>(space.available >> 20);
  const std::string text =
      directory + ", " + format_bytes(static_cast<double>(space.available)) + " free";
  if (free_mb < min_free_mb) {
    return {DoctorVerdict::kFail, check, text + ", wanted " + std::to_string(min_free_mb) + " MiB"};
  }
  return {DoctorVerdict::kOk, check, text};
}

std::vector<DoctorFinding> check_checkpoint(const std::string& name, const std::string& directory,
                                            bool quantise) {
  const Result<Checkpoint> checkpoint = Checkpoint::open(directory);
  if (!checkpoint.ok()) return {finding_of(name, checkpoint.status(), "")};
  const Result<ArenaLayout> layout =
      make_layout_function(quantise, std::nullopt)(checkpoint->files(), checkpoint->tensors());
  if (!layout.ok()) return {finding_of(name, layout.status().with_context(directory), "")};
  std::vector<DoctorFinding> findings = {
      {DoctorVerdict::kOk, name,
       directory + ", two arenas of " + format_bytes(static_cast<double>(layout->total_bytes))}};
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (2.0 * static_cast<double>(layout->total_bytes) > memory) {
    findings.push_back(
        {DoctorVerdict::kFail, "memory", "two arenas do not fit into " + format_bytes(memory)});
  }
  return findings;
}

std::vector<DoctorFinding> check_curve_worker(const CurveConfig& curve) {
  if (curve.secret_key_file.empty()) return {};
  const Result<CurveKeys> keys = read_keypair(curve.secret_key_file);
  std::vector<DoctorFinding> findings = {
      finding_of("trainer.secret_key_file", keys.status(), curve.secret_key_file)};
  findings.push_back(
      finding_of("trainer.server_public_key",
                 check_curve_key("trainer.server_public_key", curve.server_public_key),
                 curve.server_public_key));
  return findings;
}

}  // namespace

std::string_view to_string(DoctorVerdict verdict) {
  switch (verdict) {
    case DoctorVerdict::kOk:
      return "ok";
    case DoctorVerdict::kWarn:
      return "warn";
    case DoctorVerdict::kFail:
      return "FAIL";
  }
  return "?";
}

std::vector<DoctorFinding> check_machine() {
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  std::vector<DoctorFinding> findings = {
      {DoctorVerdict::kOk, "machine",
       std::to_string(std::thread::hardware_concurrency()) + " cores, " + format_bytes(memory)}};
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  const bool enough = files.rlim_cur >= kWantedFiles;
  findings.push_back(
      {enough ? DoctorVerdict::kOk : DoctorVerdict::kWarn, "open files",
       std::to_string(files.rlim_cur) + (enough ? "" : "; raise it to 4096 or more (ulimit -n)")});
  return findings;
}

// The device that would run the model, and whether everything fits there.
std::vector<DoctorFinding> check_device(const WorkerConfig& config) {
  const Result<ModelDevice> device = open_model_device(device_options(config));
  if (!device.ok()) return {finding_of("engine.device", device.status(), "")};
  std::vector<DoctorFinding> findings = {
      {DoctorVerdict::kOk, "engine.device", device->description}};
  const Result<MemoryPlan> plan = plan_worker_memory(config, *device);
  if (!plan.ok()) {
    findings.push_back(finding_of("memory", plan.status(), ""));
  } else if (!plan->text.empty()) {
    findings.push_back({DoctorVerdict::kOk, "memory", plan->text});
  }
  return findings;
}

std::vector<DoctorFinding> check_worker(const WorkerConfig& config) {
  std::vector<DoctorFinding> findings = check_checkpoint(
      "model.checkpoint", config.model.checkpoint, config.model.quantise == "mxfp8");
  for (DoctorFinding& finding : check_device(config)) findings.push_back(std::move(finding));
  const Result<TextParts> text = load_text_parts(config.model.checkpoint, config.model.tokenizer);
  if (text.ok() && !text->note.empty()) {
    findings.push_back({DoctorVerdict::kWarn, "tokenizer", text->note});
  } else {
    findings.push_back(finding_of("tokenizer", text.status(), "text and chat work"));
  }
  findings.push_back(check_folder("log.directory", config.log.directory, config.log.min_free_mb));
  findings.push_back(finding_of("trainer.endpoint", check_reachable(config.trainer.endpoint),
                                config.trainer.endpoint + " answers"));
  for (DoctorFinding& finding : check_curve_worker(config.trainer.curve)) {
    findings.push_back(std::move(finding));
  }
  return findings;
}

// What two arenas of the largest checkpoint take of the GPU that sends, where the trainer packs them.
DoctorFinding check_packing(const TrainerConfig::Checkpoints& checkpoints) {
  constexpr const char* kCheck = "checkpoints.nccl_stream";
  const auto device = open_model_device(
      {.device = "cuda", .gpu_index = static_cast<int32_t>(checkpoints.nccl_device)});
  if (!device.ok()) return finding_of(kCheck, device.status(), "");
  const LayoutFunction layout_of =
      make_layout_function(checkpoints.quantise == "mxfp8", std::nullopt, /*on_gpu=*/true);
  uint64_t largest = 0;
  for (const std::string& directory : checkpoints.publish) {
    const Result<Checkpoint> checkpoint = Checkpoint::open(directory);
    if (!checkpoint.ok()) continue;  // said of itself
    const Result<ArenaLayout> layout = layout_of(checkpoint->files(), checkpoint->tensors());
    if (layout.ok()) largest = std::max(largest, layout->total_bytes);
  }
  const auto bytes = [](uint64_t value) { return format_bytes(static_cast<double>(value)); };
  const uint64_t free = free_gpu_bytes(*device);
  const std::string text = "two arenas of " + bytes(largest) + " each, " + bytes(free) +
                           " are free on " + device->description;
  return {2 * largest <= free ? DoctorVerdict::kOk : DoctorVerdict::kFail, kCheck, text};
}

// The GPU that sends.
std::vector<DoctorFinding> check_nccl_source(const TrainerConfig::Checkpoints& checkpoints) {
  if (checkpoints.transport != "nccl") return {};
  const auto api = open_nccl(static_cast<int32_t>(checkpoints.nccl_device));
  std::vector<DoctorFinding> findings = {
      finding_of("checkpoints.nccl_device", api.status(),
                 api.ok() ? "NCCL " + (*api)->version() : std::string())};
  if (api.ok() && checkpoints.nccl_stream == "arena") {
    findings.push_back(check_packing(checkpoints));
  }
  return findings;
}

std::vector<DoctorFinding> check_trainer(const TrainerConfig& config) {
  std::vector<DoctorFinding> findings;
  const CurveConfig& curve = config.curve;
  const bool has_curve = !curve.secret_key_file.empty();
  findings.push_back(finding_of(
      "trainer.bind", check_endpoint(config.bind, has_curve, curve.insecure), config.bind));
  if (!is_loopback_endpoint(config.bind) && config.checkpoints.transport == "tcp" &&
      is_loopback_endpoint(config.checkpoints.tcp_bind)) {
    findings.push_back({DoctorVerdict::kWarn, "checkpoints.tcp_bind",
                        config.checkpoints.tcp_bind +
                            " is loopback: workers on other hosts cannot fetch weights from it"});
  }
  if (has_curve) {
    findings.push_back(finding_of("trainer.secret_key_file",
                                  read_keypair(curve.secret_key_file).status(),
                                  curve.secret_key_file));
    const auto allowed = read_allow_list(curve.allowed_clients_file);
    findings.push_back(
        finding_of("trainer.allowed_clients_file", allowed.status(), curve.allowed_clients_file));
  }
  findings.push_back(check_folder("trainer.state_directory", config.state_directory, 1));
  for (const std::string& directory : config.checkpoints.publish) {
    for (DoctorFinding& finding : check_checkpoint("checkpoints.publish", directory,
                                                   config.checkpoints.quantise == "mxfp8")) {
      findings.push_back(std::move(finding));
    }
  }
  for (DoctorFinding& finding : check_nccl_source(config.checkpoints)) {
    findings.push_back(std::move(finding));
  }
  if (config.tasks.source != "none") {
    findings.push_back(finding_of("tasks", make_task_source(config).status(), config.tasks.source));
  }
  return findings;
}

}  // namespace warproll
