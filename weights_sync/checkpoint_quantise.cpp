#include "weights_sync/checkpoint_quantise.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "protocol/strict_json.h"
#include "weights_sync/checkpoint_writer.h"
#include "weights_sync/parallel.h"
#include "weights_sync/quantise_tensor.h"
#include "weights_sync/tensor_scan.h"

namespace warproll {

namespace fs = std::filesystem;

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr char kIndexName[] = "model.safetensors.index.json";

// One source tensor and what it becomes.
struct Job {
  size_t source_index = 0;
  std::optional<QuantisedTensor> quantised;  // absent = copied
  Digest source_digest{};
  Digest digest{};         // of the copy or of the elements
  Digest scales_digest{};  // with quantised
};

Result<std::vector<Job>> plan_jobs(const Checkpoint& source, const QuantiseOptions& options) {
  std::vector<Job> jobs;
  bool any = false;
  for (size_t i = 0; i < source.tensors().size(); ++i) {
    Job job;
    job.source_index = i;
    if (options.select(source.tensors()[i])) {
      WARPROLL_TRY_ASSIGN(quantised, plan_quantise_mxfp8(source.tensors()[i]));
      job.quantised = std::move(quantised);
      any = true;
    }
    jobs.push_back(std::move(job));
  }
  if (any) return jobs;
  return invalid_argument(source.directory() +
                          ": no tensor is selected for quantisation, wanted at least one");
}

Status quantise_one(const Checkpoint& source, SafetensorsWriter& writer, Job& job) {
  const TensorInfo& info = source.tensors()[job.source_index];
  const auto bytes = source.bytes(job.source_index);
  job.source_digest = tensor_digest(bytes);
  if (!job.quantised) {
    const Dtype dtype = scan_dtype(info);
    if (const auto bad = find_not_finite(dtype, bytes)) {
      const uint64_t size = dtype_bytes(dtype);
      return not_finite_error(info.name, dtype, *bad, bytes.subspan(*bad * size, size));
    }
    job.digest = job.source_digest;
    return writer.write(info.name, bytes);
  }
  std::vector<std::byte> elements(job.quantised->elements.bytes);
  std::vector<std::byte> scales(job.quantised->scales.bytes);
  WARPROLL_TRY(quantise_mxfp8(info, bytes, elements, scales));
  job.digest = tensor_digest(elements);
  job.scales_digest = tensor_digest(scales);
  WARPROLL_TRY(writer.write(job.quantised->elements.name, elements));
  return writer.write(job.quantised->scales.name, scales);
}

// What the export holds, tensor by tensor.
struct Export {
  std::vector<TensorInfo> tensors;
  std::vector<Digest> digests;
  std::vector<std::string> shards;

  void add(const Checkpoint& source, const Job& job) {
    const std::string shard(source.shard_of(job.source_index));
    tensors.push_back(job.quantised ? job.quantised->elements : source.tensors()[job.source_index]);
    digests.push_back(job.digest);
    shards.push_back(shard);
    if (!job.quantised) return;
    tensors.push_back(job.quantised->scales);
    digests.push_back(job.scales_digest);
    shards.push_back(shard);
  }
};

class Progress {
 public:
  Progress(const ByteProgress& report, uint64_t total_bytes)
      : report_(report), total_bytes_(total_bytes) {}
  void add(uint64_t bytes) { done_bytes_ += bytes; }
  void report() const {
    if (report_) report_(done_bytes_, total_bytes_);
  }

 private:
  const ByteProgress& report_;
  uint64_t total_bytes_;
  std::atomic<uint64_t> done_bytes_{0};
};

Status write_shard(const Checkpoint& source, const std::string& path, std::span<Job*> jobs,
                   int num_threads, Progress& progress) {
  std::vector<TensorInfo> tensors;
  for (const Job* job : jobs) {
    tensors.push_back(job->quantised ? job->quantised->elements
                                     : source.tensors()[job->source_index]);
    if (job->quantised) tensors.push_back(job->quantised->scales);
  }
  WARPROLL_TRY_ASSIGN(writer, SafetensorsWriter::create(path, std::move(tensors)));
  std::vector<Status> outcomes(jobs.size());
  std::atomic<bool> stop{false};
  for_each_index(
      jobs.size(), num_threads,
      [&](size_t i) {
        if (stop) return;
        outcomes[i] = quantise_one(source, writer, *jobs[i]);
        if (!outcomes[i].ok()) stop = true;
        progress.add(source.tensors()[jobs[i]->source_index].bytes);
      },
      [&] { progress.report(); });
  for (const Status& outcome : outcomes) WARPROLL_TRY(outcome.with_context(source.directory()));
  return writer.finish();
}

// Tokenizer, generation config and the like go along; other weights and what is written anew do not.
Status copy_other_files(const Checkpoint& source, const fs::path& target) {
  const std::set<std::string> weights = {".safetensors", ".bin", ".pt",   ".pth",
                                         ".gguf",        ".h5",  ".onnx", ".msgpack"};
  std::error_code error;
  fs::directory_iterator files(source.directory(), error);
  if (error) return unavailable(source.directory() + ": cannot list: " + error.message());
  for (; files != fs::directory_iterator(); files.increment(error)) {
    const fs::directory_entry& file = *files;
    const fs::path name = file.path().filename();
    const bool written_anew = name == "config.json" || name == kIndexName;
    std::error_code ignored;  // what cannot be looked at is no regular file
    if (written_anew || !file.is_regular_file(ignored) || weights.contains(name.extension())) {
      continue;
    }
    fs::copy_file(file.path(), target / name, error);
    if (error) return unavailable(file.path().string() + ": cannot copy: " + error.message());
    WARPROLL_TRY(sync_path((target / name).string()));
  }
  if (error) return unavailable(source.directory() + ": cannot list: " + error.message());
  return ok_status();
}

QuantiseSummary summarise(const Checkpoint& source, std::span<const Job> jobs,
                          const Export& exported) {
  QuantiseSummary summary;
  std::vector<Digest> source_digests;
  for (const Job& job : jobs) {
    ++(job.quantised ? summary.num_quantised : summary.num_copied);
    summary.source_bytes += source.tensors()[job.source_index].bytes;
    source_digests.push_back(job.source_digest);
  }
  for (const TensorInfo& tensor : exported.tensors) summary.result_bytes += tensor.bytes;
  summary.source_digest = weight_digest(source.tensors(), source_digests);
  summary.weight_digest = weight_digest(exported.tensors, exported.digests);
  return summary;
}

}  // namespace

Result<std::string> add_mxfp8_config(std::string_view config_json) {
  WARPROLL_TRY(check_json(config_json, "config.json", {}));
  OrderedJson config = OrderedJson::parse(config_json);
  if (!config.is_object()) {
    return invalid_argument("config.json is " + std::string(config.type_name()) +
                            ", wanted an object");
  }
  if (config.contains("quantization_config") && !config["quantization_config"].is_null()) {
    return invalid_argument("config.json has a quantization_config, wanted an unquantised model");
  }
  config.erase("quantization_config");
  config["quantization_config"] = {{"quant_method", "mxfp8"},
                                   {"activation_scheme", "dynamic"},
                                   {"fmt", "e4m3"},
                                   {"weight_block_size", {1, 32}},
                                   {"scale_fmt", "ue8m0"}};
  return config.dump(2);
}

Result<QuantiseSummary> quantise_checkpoint(const Checkpoint& source,
                                            const std::string& target_directory,
                                            const QuantiseOptions& options) {
  if (!source.files().hf_quant_config_json.empty()) {
    return invalid_argument(source.directory() +
                            ": has hf_quant_config.json, wanted an unquantised model");
  }
  Result<std::string> config = add_mxfp8_config(source.files().config_json);
  if (!config.ok()) return config.status().with_context(source.directory());
  WARPROLL_TRY_ASSIGN(jobs, plan_jobs(source, options));
  WARPROLL_TRY_ASSIGN(staged, StagedDirectory::create(target_directory));
  const fs::path root(staged.path());

  uint64_t total_bytes = 0;
  std::map<std::string, std::vector<Job*>> shards;
  for (Job& job : jobs) {
    shards[std::string(source.shard_of(job.source_index))].push_back(&job);
    total_bytes += source.tensors()[job.source_index].bytes;
  }
  Progress progress(options.progress, total_bytes);
  for (auto& [name, shard_jobs] : shards) {
    WARPROLL_TRY(
        write_shard(source, (root / name).string(), shard_jobs, options.num_threads, progress));
  }
  Export exported;
  for (const Job& job : jobs) exported.add(source, job);
  if (shards.size() > 1 || !shards.contains(shard_file_name(0, 1))) {
    WARPROLL_TRY(write_text_file((root / kIndexName).string(),
                                 make_index_json(exported.tensors, exported.shards)));
  }
  WARPROLL_TRY(copy_other_files(source, root));
  WARPROLL_TRY(write_text_file((root / "config.json").string(), *config));
  WARPROLL_TRY(staged.commit());
  progress.report();
  return summarise(source, jobs, exported);
}

}  // namespace warproll
