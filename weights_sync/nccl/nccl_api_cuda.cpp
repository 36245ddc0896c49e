// NcclApi on the CUDA runtime and libnccl.so.2.
#include <arpa/inet.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <nccl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "weights_sync/nccl/nccl_api.h"
#include "weights_sync/unique_fd.h"

namespace warproll {
namespace {

constexpr int kOldestNccl = NCCL_VERSION(2, 28, 0);
constexpr int kConnectMs = 200;

static_assert(static_cast<int>(NcclResult::kRemoteError) == ncclRemoteError);
static_assert(static_cast<int>(NcclResult::kInProgress) == ncclInProgress);

NcclResult of(ncclResult_t result) { return static_cast<NcclResult>(result); }

// NCCL's functions out of the shared library, which stays loaded: NCCL has threads of its own.
struct NcclLibrary {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclReduce) reduce = nullptr;
  decltype(&ncclMemAlloc) mem_alloc = nullptr;
  decltype(&ncclMemFree) mem_free = nullptr;
  decltype(&ncclCommRegister) comm_register = nullptr;
  decltype(&ncclCommDeregister) comm_deregister = nullptr;
  decltype(&ncclCommFinalize) comm_finalize = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  int version = 0;

  static Result<NcclLibrary> load();
};

Result<NcclLibrary> NcclLibrary::load() {
  void* const handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = dlerror();
    return not_found(std::string("NCCL is not on this machine: ") + (why ? why : "libnccl.so.2"));
  }
  NcclLibrary library;
  std::string missing;
  const auto find = [&](auto* function, const char* name) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(handle, name));
    if (*function == nullptr) missing += std::string(missing.empty() ? "" : ", ") + name;
  };
  find(&library.get_version, "ncclGetVersion");
  find(&library.get_unique_id, "ncclGetUniqueId");
  find(&library.comm_init_rank_config, "ncclCommInitRankConfig");
  find(&library.comm_get_async_error, "ncclCommGetAsyncError");
  find(&library.broadcast, "ncclBroadcast");
  find(&library.reduce, "ncclReduce");
  find(&library.mem_alloc, "ncclMemAlloc");
  find(&library.mem_free, "ncclMemFree");
  find(&library.comm_register, "ncclCommRegister");
  find(&library.comm_deregister, "ncclCommDeregister");
  find(&library.comm_finalize, "ncclCommFinalize");
  find(&library.comm_destroy, "ncclCommDestroy");
  find(&library.comm_abort, "ncclCommAbort");
  find(&library.get_error_string, "ncclGetErrorString");
  find(&library.get_last_error, "ncclGetLastError");
  if (!missing.empty()) return failed_precondition("libnccl.so.2 has no " + missing);
  if (library.get_version(&library.version) != ncclSuccess || library.version < kOldestNccl) {
    return failed_precondition("NCCL's version code is " + std::to_string(library.version) +
                               ", wanted at least " + std::to_string(kOldestNccl));
  }
  return library;
}

Status cuda_status(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return ok_status();
  const std::string text = what + ": " + cudaGetErrorString(error);
  (void)cudaGetLastError();  // said here, and not again by whoever asks next
  return error == cudaErrorMemoryAllocation ? resource_exhausted(text) : internal_error(text);
}

class CudaNcclApi final : public NcclApi {
 public:
  CudaNcclApi(const NcclLibrary& library, int32_t device) : nccl_(library), device_(device) {}

  [[nodiscard]] std::string version() const override {
    return std::to_string(nccl_.version / 10000) + "." + std::to_string(nccl_.version / 100 % 100) +
           "." + std::to_string(nccl_.version % 100);
  }

  Result<std::string> make_unique_id() override {
    ncclUniqueId id;
    const ncclResult_t result = nccl_.get_unique_id(&id);
    if (result != ncclSuccess) return unavailable("an NCCL id: " + explain(of(result), nullptr));
    return std::string(id.internal, sizeof id.internal);
  }

  // ncclGetUniqueId leaves a thread that waits until all ranks have called on it, with a socket
  // whose address the id begins with: 8 bytes that callers have to say, then a sockaddr. A caller
  // that says them and then nothing to the point ends it.
  void forget_unique_id(const std::string& unique_id) override {
    sockaddr_storage address{};
    socklen_t length = sizeof(sockaddr_in6);
    if (unique_id.size() < sizeof(uint64_t) + length) return;
    std::memcpy(&address, unique_id.data() + sizeof(uint64_t), length);
    if (address.ss_family == AF_INET) length = sizeof(sockaddr_in);
    if (address.ss_family != AF_INET && address.ss_family != AF_INET6) return;
    const UniqueFd fd(::socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd.valid()) return;
    (void)::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length);
    pollfd ready{fd.get(), POLLOUT, 0};
    if (::poll(&ready, 1, kConnectMs) != 1) return;
    std::string words = unique_id.substr(0, sizeof(uint64_t));
    words.append(sizeof(int32_t), '\xff');  // no kind of socket it knows
    (void)::send(fd.get(), words.data(), words.size(), MSG_NOSIGNAL);
  }

  NcclResult init(const NcclMembership& membership, NcclComm* comm) override {
    ncclUniqueId id;
    if (membership.unique_id.size() != sizeof id.internal) return NcclResult::kInvalidArgument;
    std::memcpy(id.internal, membership.unique_id.data(), sizeof id.internal);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (membership.max_ctas > 0) {
      config.minCTAs = 1;
      config.maxCTAs = membership.max_ctas;
    }
    return of(nccl_.comm_init_rank_config(reinterpret_cast<ncclComm_t*>(comm), membership.num_ranks,
                                          id, membership.rank, &config));
  }

  NcclResult async_error(NcclComm comm) override {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = nccl_.comm_get_async_error(static_cast<ncclComm_t>(comm), &state);
    return of(asked == ncclSuccess ? state : asked);
  }
  NcclResult broadcast(NcclComm comm, void* buffer, uint64_t bytes, GpuStream stream) override {
    return of(nccl_.broadcast(buffer, buffer, bytes, ncclUint8, 0, static_cast<ncclComm_t>(comm),
                              static_cast<cudaStream_t>(stream)));
  }
  NcclResult reduce(NcclComm comm, void* word, GpuStream stream) override {
    return of(nccl_.reduce(word, word, 1, ncclUint32, ncclSum, 0, static_cast<ncclComm_t>(comm),
                           static_cast<cudaStream_t>(stream)));
  }
  NcclResult register_buffer(NcclComm comm, void* buffer, uint64_t bytes,
                             NcclRegistration* registration) override {
    return of(nccl_.comm_register(static_cast<ncclComm_t>(comm), buffer, bytes, registration));
  }
  NcclResult deregister_buffer(NcclComm comm, NcclRegistration registration) override {
    return of(nccl_.comm_deregister(static_cast<ncclComm_t>(comm), registration));
  }
  NcclResult finalize(NcclComm comm) override {
    return of(nccl_.comm_finalize(static_cast<ncclComm_t>(comm)));
  }
  NcclResult destroy(NcclComm comm) override {
    return of(nccl_.comm_destroy(static_cast<ncclComm_t>(comm)));
  }
  NcclResult abort(NcclComm comm) override {
    return of(nccl_.comm_abort(static_cast<ncclComm_t>(comm)));
  }
  [[nodiscard]] std::string explain(NcclResult result, NcclComm comm) override {
    std::string text = nccl_.get_error_string(static_cast<ncclResult_t>(result));
    const char* const last = nccl_.get_last_error(static_cast<ncclComm_t>(comm));
    if (last != nullptr && *last != '\0') text += std::string(" (") + last + ")";
    return text;
  }

  Status bind_thread() override {
    return cuda_status(cudaSetDevice(device_), "GPU " + std::to_string(device_));
  }
  Result<void*> allocate(uint64_t bytes) override {
    void* memory = nullptr;
    const ncclResult_t result = nccl_.mem_alloc(&memory, bytes);
    if (result == ncclSuccess) return memory;
    (void)cudaGetLastError();
    return resource_exhausted(std::to_string(bytes) +
                              " bytes of GPU memory: " + explain(of(result), nullptr));
  }
  void free(void* memory) override { (void)nccl_.mem_free(memory); }
  Result<void*> allocate_pinned(uint64_t bytes) override {
    void* memory = nullptr;
    WARPROLL_TRY(cuda_status(cudaMallocHost(&memory, bytes),
                             std::to_string(bytes) + " bytes of pinned memory"));
    return memory;
  }
  void free_pinned(void* memory) override { (void)cudaFreeHost(memory); }
  Result<GpuStream> make_stream(StreamPriority priority) override {
    int least = 0;
    int greatest = 0;
    WARPROLL_TRY(cuda_status(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities"));
    cudaStream_t stream = nullptr;
    WARPROLL_TRY(cuda_status(
        cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                     priority == StreamPriority::kLow ? least : greatest),
        "a stream"));
    return static_cast<GpuStream>(stream);
  }
  void destroy_stream(GpuStream stream) override {
    (void)cudaStreamDestroy(static_cast<cudaStream_t>(stream));
  }
  Result<GpuEvent> make_event() override {
    cudaEvent_t event = nullptr;
    WARPROLL_TRY(cuda_status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event"));
    return static_cast<GpuEvent>(event);
  }
  void destroy_event(GpuEvent event) override {
    (void)cudaEventDestroy(static_cast<cudaEvent_t>(event));
  }
  Status record(GpuEvent event, GpuStream stream) override {
    return cuda_status(
        cudaEventRecord(static_cast<cudaEvent_t>(event), static_cast<cudaStream_t>(stream)),
        "recording an event");
  }
  Status wait(GpuStream stream, GpuEvent event) override {
    return cuda_status(
        cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event), 0),
        "waiting for an event");
  }
  Result<bool> done(GpuEvent event) override {
    const cudaError_t state = cudaEventQuery(static_cast<cudaEvent_t>(event));
    if (state == cudaErrorNotReady) return false;
    WARPROLL_TRY(cuda_status(state, "the work before an event"));
    return true;
  }
  Status copy(void* to, const void* from, uint64_t bytes, GpuStream stream) override {
    return cuda_status(
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)),
        "a copy of " + std::to_string(bytes) + " bytes");
  }

 private:
  const NcclLibrary nccl_;
  const int32_t device_;
};

}  // namespace

Result<std::shared_ptr<NcclApi>> open_nccl(int32_t device_index) {
  int num_devices = 0;
  const cudaError_t counted = cudaGetDeviceCount(&num_devices);
  if (counted != cudaSuccess || device_index < 0 || device_index >= num_devices) {
    (void)cudaGetLastError();
    return not_found(
        "GPU " + std::to_string(device_index) + ": this machine has " +
        std::to_string(counted == cudaSuccess ? num_devices : 0) +
        (counted == cudaSuccess ? "" : std::string(" (") + cudaGetErrorString(counted) + ")"));
  }
  (void)::setenv("NCCL_NVLS_ENABLE", "0", 0);
  WARPROLL_TRY_ASSIGN(library, NcclLibrary::load());
  std::shared_ptr<NcclApi> api = std::make_shared<CudaNcclApi>(library, device_index);
  WARPROLL_TRY(api->bind_thread());
  return api;
}

}  // namespace warproll
