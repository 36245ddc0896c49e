// NcclApi: the calls of NCCL and of one GPU that the nccl transport makes, as an interface, so that
// tests can play every failure without either. open_nccl() is the real one (nccl_api_cuda.cpp): it
// loads libnccl.so.2 when it is first wanted, so a program that never uses the transport needs no
// NCCL to run.
//
// Communicators are non-blocking: except abort() and destroy() no call waits for another rank, and
// kInProgress means that async_error() says when it is done. One thread at a time inside the calls
// of one communicator.
// Thread: any, after bind_thread(). Lifetime: everything it made is given back before it dies.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "protocol/status.h"

namespace warproll {

enum class NcclResult : uint8_t {  // the values of ncclResult_t
  kSuccess,
  kUnhandledCudaError,
  kSystemError,
  kInternalError,
  kInvalidArgument,
  kInvalidUsage,
  kRemoteError,
  kInProgress,
};

using NcclComm = void*;
using NcclRegistration = void*;
using GpuStream = void*;
using GpuEvent = void*;

struct NcclMembership {
  std::string unique_id;
  int32_t rank = 0;
  int32_t num_ranks = 0;
  int32_t max_ctas = 0;  // thread blocks of a collective at most; 0 = NCCL decides
};

enum class StreamPriority : uint8_t { kLow, kHigh };

class NcclApi {
 public:
  virtual ~NcclApi() = default;

  // ---- NCCL ----
  [[nodiscard]] virtual std::string version() const = 0;  // "2.28.9"
  virtual Result<std::string> make_unique_id() = 0;
  // A group of this id will not form: ends what make_unique_id() left waiting for its ranks.
  virtual void forget_unique_id(const std::string& unique_id) = 0;
  virtual NcclResult init(const NcclMembership& membership, NcclComm* comm) = 0;
  virtual NcclResult async_error(NcclComm comm) = 0;
  // In place, from rank 0 to all.
  virtual NcclResult broadcast(NcclComm comm, void* buffer, uint64_t bytes, GpuStream stream) = 0;
  // One uint32, in place, summed to rank 0.
  virtual NcclResult reduce(NcclComm comm, void* word, GpuStream stream) = 0;
  // From here on other ranks may read and write `buffer`, of allocate(), themselves, where they can
  // reach this GPU; every rank of a group registers the buffer of a broadcast, or none does.
  // *registration: for deregister_buffer(); null where NCCL is told not to (NCCL_LOCAL_REGISTER=0).
  virtual NcclResult register_buffer(NcclComm comm, void* buffer, uint64_t bytes,
                                     NcclRegistration* registration) = 0;
  // Asks the ranks that had it, so before finalize(); abort() needs none.
  virtual NcclResult deregister_buffer(NcclComm comm, NcclRegistration registration) = 0;
  virtual NcclResult finalize(NcclComm comm) = 0;
  virtual NcclResult destroy(NcclComm comm) = 0;  // after finalize() has succeeded
  virtual NcclResult abort(NcclComm comm) = 0;
  // What the result means, and NCCL's last error text. comm may be null.
  [[nodiscard]] virtual std::string explain(NcclResult result, NcclComm comm) = 0;

  // ---- the GPU ----
  virtual Status bind_thread() = 0;
  virtual Result<void*> allocate(uint64_t bytes) = 0;  // in whole pages, of 2 MiB here
  virtual void free(void* memory) = 0;
  virtual Result<void*> allocate_pinned(uint64_t bytes) = 0;  // of the host
  virtual void free_pinned(void* memory) = 0;
  virtual Result<GpuStream> make_stream(StreamPriority priority) = 0;
  virtual void destroy_stream(GpuStream stream) = 0;
  virtual Result<GpuEvent> make_event() = 0;
  virtual void destroy_event(GpuEvent event) = 0;
  virtual Status record(GpuEvent event, GpuStream stream) = 0;
  virtual Status wait(GpuStream stream, GpuEvent event) = 0;  // on the device
  virtual Result<bool> done(GpuEvent event) = 0;
  virtual Status copy(void* to, const void* from, uint64_t bytes, GpuStream stream) = 0;
};

// kFailedPrecondition: this build has no CUDA; kNotFound: no NCCL or no such GPU here; both say what
// is wanted. Call it before other threads run: it sets NCCL_NVLS_ENABLE=0 unless it is set (weights
// gain nothing from NVLS, and its memory is not ours to spend).
Result<std::shared_ptr<NcclApi>> open_nccl(int32_t device_index);

}  // namespace warproll
