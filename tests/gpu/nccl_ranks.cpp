#include "tests/gpu/nccl_ranks.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "weights_sync/checkpoint_writer.h"
#include "weights_sync/digest.h"
#include "weights_sync/nccl/nccl_communicator.h"
#include "weights_sync/nccl/nccl_source.h"
#include "weights_sync/nccl/nccl_terms.h"
#include "weights_sync/nccl/nccl_transport.h"
#include "weights_sync/nccl/staging_slots.h"

namespace warproll::gpu_test {
namespace {

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}
void check(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.to_string());
}

int32_t count_entries(const char* directory) {
  return static_cast<int32_t>(std::distance(std::filesystem::directory_iterator(directory),
                                            std::filesystem::directory_iterator()));
}

NcclLimits limits_of(int seconds) {
  return {std::chrono::steady_clock::now() + std::chrono::seconds(seconds)};
}

class Rank {
 public:
  Rank(const RankSetup& setup, int rank) : setup_(setup), rank_(rank) {
    int num_devices = 0;
    if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
      throw std::runtime_error("no GPU");
    }
    if (num_devices < setup.num_ranks) {
      setenv("NCCL_HOSTID", ("warproll-rank-" + std::to_string(rank)).c_str(), 1);
      setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    }
    auto opened = open_nccl(rank % num_devices);
    check(opened.status());
    api_ = *opened;
    terms_ = encode_nccl_terms(nccl_terms(api_->version(), setup.max_ctas, {}));
    if (rank == 0) {
      open_source();
    } else {
      uint64_t bytes = 0;
      for (const auto& each : setup.offered) bytes = std::max(bytes, each.manifest->stream_bytes());
      check(cudaMalloc(&arena_, bytes));
    }
  }

  Report handle(const Order& order) {
    switch (order.task) {
      case Task::kStartGroup:
        return start_group(order);
      case Task::kAwaitGroup:
        return await_group(order);
      case Task::kStopGroup:
        return stop_group(order);
      case Task::kReceive:
        return receive(order);
      case Task::kMakeId:
        return make_id();
      case Task::kBare:
        return bare_broadcasts(order);
      case Task::kUsage:
        return usage();
      case Task::kExit:
        break;
    }
    throw std::runtime_error("what?");
  }

 private:
  [[nodiscard]] const OfferedCheckpoint& offered(uint64_t version) const {
    for (const auto& each : setup_.offered) {
      if (each.manifest->weight_version == version % kFromDevice) return each;
    }
    throw std::runtime_error("no such version");
  }
  static UpdateId id_of(const Order& order) { return {1, order.version, order.attempt}; }

  void open_source() {
    source_ = std::make_unique<NcclSource>(
        api_, NcclSourceOptions{.max_ctas = setup_.max_ctas,
                                .silence = std::chrono::milliseconds(setup_.silence_ms)});
    for (const auto& each : setup_.offered) {
      route_ = source_->offer(each).value();
      std::byte* memory = nullptr;
      check(cudaMalloc(&memory, each.manifest->stream_bytes()));
      for (size_t i = 0; i < each.manifest->entries.size(); ++i) {  // entries in tensor order
        const auto bytes = each.checkpoint->bytes(i);
        check(cudaMemcpy(memory + each.manifest->stream_offset(each.manifest->entries[i]),
                         bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
      }
      auto manifest = std::make_shared<Manifest>(*each.manifest);
      manifest->weight_version += kFromDevice;
      source_->offer_device(manifest, [memory, manifest](const ManifestEntry& entry) {
        return Result<const void*>(memory + manifest->stream_offset(entry));
      });
    }
  }

  Report start_group(const Order& order) {
    Report report;
    std::vector<std::string> names(static_cast<size_t>(order.num_members), "member");
    const auto unique_id = route_.group->start(id_of(order), names, 60'000);
    check(unique_id.status());
    unique_id->copy(report.unique_id, sizeof report.unique_id);
    begun_s_ = now_s();
    report.ok = true;
    return report;
  }

  Report await_group(const Order& order) {
    Report report;
    Result<bool> progress = false;
    while (progress.ok() && !*progress) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      progress = route_.group->progress(id_of(order));
    }
    report.seconds = now_s() - begun_s_;
    report.ok = progress.ok();
    std::strncpy(report.text, progress.status().message().c_str(), sizeof report.text - 1);
    return stopped(order, report);
  }

  Report stop_group(const Order& order) { return stopped(order, Report{.ok = true}); }

  Report stopped(const Order& order, Report report) {
    route_.group->stop(id_of(order));
    while (source_->num_groups() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return report;
  }

  // Checks the bytes by the manifest's digests.
  bool holds(const OfferedCheckpoint& expected) {
    std::vector<std::byte> bytes;
    for (const ManifestEntry& entry : expected.manifest->entries) {
      bytes.resize(entry.tensor.bytes);
      check(cudaMemcpy(bytes.data(), arena_ + expected.manifest->stream_offset(entry), bytes.size(),
                       cudaMemcpyDeviceToHost));
      if (tensor_digest(bytes) != entry.digest) return false;
    }
    return true;
  }

  void end_somebody(const Order& order) {
    if (ended_somebody_) return;
    ended_somebody_ = true;
    setup_.note_death(order.signal_pid == 0 ? rank_ : order.signal_rank);
    kill(order.signal_pid == 0 ? getpid() : order.signal_pid, order.signal);
  }

  Report receive(const Order& order) {
    ended_somebody_ = false;
    const OfferedCheckpoint& expected = offered(order.version);
    const Manifest& manifest = *expected.manifest;
    check(cudaMemset(arena_, 0xee, manifest.stream_bytes()));
    check(cudaDeviceSynchronize());
    ReceiveRequest request{id_of(order), terms_, "", limits_of(60).deadline};
    request.participants.assign(static_cast<size_t>(order.num_members), "member");
    request.rank = order.rank;
    request.nccl_unique_id.assign(order.unique_id, sizeof order.unique_id);
    double first_s = 0, last_s = 0;
    uint64_t received = 0, first_bytes = 0;
    const auto note = [&](uint64_t bytes) {
      last_s = now_s();
      if (received == 0) first_s = last_s, first_bytes = bytes;
      received += bytes;
      if (order.signal != 0 && received >= order.signal_at_bytes) {
        end_somebody(order);
      }
    };
    const StreamSink sink = [&](uint64_t offset, std::span<const std::byte> bytes) {
      check(cudaMemcpy(arena_ + offset, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
      note(bytes.size());
      return ok_status();
    };
    if (!order.to_host) {
      request.device_sink = [&](uint64_t offset, std::span<const std::byte> bytes, void* stream) {
        check(cudaMemcpyAsync(arena_ + offset, bytes.data(), bytes.size(), cudaMemcpyDeviceToDevice,
                              static_cast<cudaStream_t>(stream)));
        note(bytes.size());
        return ok_status();
      };
    }
    NcclTransport own(api_, {.max_ctas = setup_.max_ctas,
                             .silence = std::chrono::milliseconds(order.silence_ms)});
    const Cancellation never;
    const double begun = now_s();
    const Status status = own.receive(request, manifest, sink, never);
    Report report;
    report.seconds = now_s() - begun;
    report.stream_seconds = last_s - first_s;
    report.stream_bytes = received - first_bytes;
    report.ok = status.ok() && holds(expected);
    std::string text = status.ok() && !report.ok ? "the bytes are wrong" : status.message();
    std::strncpy(report.text, text.c_str(), sizeof report.text - 1);
    return report;
  }

  // The same bytes in the same pieces, out of and into two buffers, with nothing else done.
  Report bare_broadcasts(const Order& order) {
    const Manifest& manifest = *offered(order.version).manifest;
    check(api_->bind_thread());
    std::string unique_id(order.unique_id, sizeof order.unique_id);
    auto slots = StagingSlots::make(api_, manifest.bucket_bytes, false);
    check(slots.status());
    auto group = NcclCommunicator::form(
        api_, {unique_id, order.rank, order.num_members + 1, setup_.max_ctas}, "bare",
        limits_of(60));
    check(group.status());
    const auto loop = [&](uint64_t num_buckets) {
      for (uint64_t i = 0; i < num_buckets; ++i) {
        check((*group)->broadcast((*slots)->slot_of(i).device, manifest.bytes_of_bucket(i),
                                  (*slots)->communication(), "bucket"));
      }
      check((*group)->meet((*slots)->word(), (*slots)->communication()));
      check(api_->record((*slots)->ended(), (*slots)->communication()));
      check((*group)->await((*slots)->ended(), "the end"));
    };
    loop(1);  // connects
    Report report;
    const double begun = now_s();
    loop(manifest.num_buckets());
    report.stream_seconds = now_s() - begun;
    report.stream_bytes = manifest.stream_bytes();
    report.ok = true;
    (*group)->close();
    return report;
  }

  Report usage() {
    check(cudaDeviceSynchronize());
    size_t free_bytes = 0, total_bytes = 0;
    check(cudaMemGetInfo(&free_bytes, &total_bytes));
    Report report;
    report.ok = true;
    report.free_device_bytes = free_bytes;
    report.fds = count_entries("/proc/self/fd");
    report.threads = count_entries("/proc/self/task");
    return report;
  }

  Report make_id() {  // for a group that is made by hand
    const auto unique_id = api_->make_unique_id();
    check(unique_id.status());
    Report report;
    unique_id->copy(report.unique_id, sizeof report.unique_id);
    report.ok = true;
    return report;
  }

  const RankSetup setup_;
  const int rank_;
  std::shared_ptr<NcclApi> api_;
  std::unique_ptr<NcclSource> source_;
  std::string terms_;
  TransportRoute route_;
  std::byte* arena_ = nullptr;
  double begun_s_ = 0;
  bool ended_somebody_ = false;
};

}  // namespace

OfferedCheckpoint make_checkpoint(const std::string& directory, uint64_t total_bytes,
                                  uint64_t version, uint64_t bucket_bytes) {
  const uint64_t tensor_bytes = std::min<uint64_t>(total_bytes / 4, uint64_t{24} << 20);
  std::vector<uint64_t> noise((tensor_bytes + 4096) / 8 + 1);
  std::mt19937_64 random(version);
  for (uint64_t& each : noise) each = random();
  CheckpointToWrite checkpoint;
  for (uint64_t done = 0, i = 0; done < total_bytes; ++i) {
    const auto bytes = static_cast<int64_t>(tensor_bytes - 7 * (i % 5));  // odd ends
    char name[16];
    std::snprintf(name, sizeof name, "t%05d", static_cast<int>(i));
    checkpoint.tensors.push_back({name, Dtype::kU8, {bytes}, static_cast<uint64_t>(bytes)});
    done += static_cast<uint64_t>(bytes);
  }
  checkpoint.bytes = [&](size_t i) {  // every tensor from another place of the noise
    return std::as_bytes(std::span(noise)).subspan(8 * (i % 512), checkpoint.tensors[i].bytes);
  };
  checkpoint.files.config_json = "{}";
  check(write_checkpoint(directory, checkpoint));
  auto opened = Checkpoint::open(directory);
  check(opened.status());
  auto manifest = make_manifest(*opened, version, bucket_bytes);
  check(manifest.status());
  return {std::make_shared<const Checkpoint>(std::move(*opened)),
          std::make_shared<const Manifest>(std::move(*manifest))};
}

RankProcesses::Handler make_rank(const RankSetup& setup, int rank) {
  auto made = std::make_shared<Rank>(setup, rank);
  return [made](const Order& order) { return made->handle(order); };
}

}  // namespace warproll::gpu_test
