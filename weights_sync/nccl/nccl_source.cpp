#include "weights_sync/nccl/nccl_source.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "weights_sync/nccl/nccl_root.h"
#include "weights_sync/nccl/nccl_terms.h"
#include "weights_sync/offered_stream.h"

namespace warproll {
namespace {

using Clock = std::chrono::steady_clock;

struct Offer {
  std::shared_ptr<const Manifest> manifest;
  SlotFill fill = {};
  bool from_host = true;
  std::optional<PackedArena> packed = {};
  std::shared_ptr<std::byte> arena = {};  // of `packed`
};

// One group's thread and what came of it.
struct Transfer {
  uint64_t weight_version = 0;
  Cancellation cancellation;
  std::mutex mutex;
  std::optional<Status> outcome;
  std::thread thread;

  std::optional<Status> get() {
    const std::lock_guard lock(mutex);
    return outcome;
  }
};

SlotFill fill_from_host(std::shared_ptr<NcclApi> api, std::shared_ptr<const OfferedStream> stream) {
  return [api = std::move(api), stream = std::move(stream)](
             uint64_t offset, uint64_t bytes, StagingSlots::Slot& slot, StagingSlots& slots) {
    stream->copy(offset, {slot.pinned, bytes});
    return api->copy(slot.device, slot.pinned, bytes, slots.processing());
  };
}

SlotFill fill_from_device(std::shared_ptr<NcclApi> api, std::shared_ptr<const Manifest> manifest,
                          DeviceTensors tensors) {
  return [api = std::move(api), manifest = std::move(manifest), tensors = std::move(tensors)](
             uint64_t offset, uint64_t bytes, StagingSlots::Slot& slot,
             StagingSlots& slots) -> Status {
    const auto& entries = manifest->entries;
    auto entry = std::upper_bound(
        entries.begin(), entries.end(), offset,
        [&](uint64_t at, const ManifestEntry& each) { return at < manifest->stream_offset(each); });
    if (entry != entries.begin()) --entry;
    for (; entry != entries.end(); ++entry) {
      const uint64_t start = manifest->stream_offset(*entry);
      if (start >= offset + bytes) break;
      const uint64_t from = std::max(offset, start);
      const uint64_t end = std::min(offset + bytes, start + entry->tensor.bytes);
      if (from >= end) continue;
      WARPROLL_TRY_ASSIGN(tensor, tensors(*entry));
      WARPROLL_TRY(api->copy(slot.device + (from - offset),
                             static_cast<const std::byte*>(tensor) + (from - start), end - from,
                             slots.processing()));
    }
    return ok_status();
  };
}

}  // namespace

struct NcclSource::Impl : std::enable_shared_from_this<NcclSource::Impl> {
  Impl(std::shared_ptr<NcclApi> given_api, NcclSourceOptions given)
      : api(std::move(given_api)),
        options(std::move(given)),
        terms(nccl_terms(api->version(), options.max_ctas, options.nccl_variables)) {}

  const std::shared_ptr<NcclApi> api;
  const NcclSourceOptions options;
  const HelloEnvironment terms;
  std::mutex mutex;
  bool closed = false;
  std::map<uint64_t, Offer> offers;                      // by weight_version
  std::map<UpdateId, std::shared_ptr<Transfer>> groups;  // asked after
  std::vector<std::shared_ptr<Transfer>> ending;         // their threads are still to be joined

  TransportRoute put(Offer offer);
  Result<std::string> start(const UpdateId& id, const std::vector<std::string>& participants,
                            uint32_t deadline_ms);
  Result<bool> progress(const UpdateId& id);
  void stop(const UpdateId& id);
  void end(std::map<UpdateId, std::shared_ptr<Transfer>>::iterator group);  // locked
  void join_ended();                                                        // locked
};

TransportRoute NcclSource::Impl::put(Offer offer) {
  HelloEnvironment offered = terms;
  if (offer.packed) add_packed_arena(offered, *offer.packed);
  TransportRoute route{"nccl", encode_nccl_terms(offered), ""};
  route.suits = [mine = std::move(offered)](const HelloEnvironment& worker) {
    return check_nccl_terms(mine, worker);
  };
  const std::weak_ptr<Impl> weak = weak_from_this();
  const auto gone = [] { return failed_precondition("the weight source is closed"); };
  route.group =
      GroupTransfers{[weak, gone](const UpdateId& id, const std::vector<std::string>& participants,
                                  uint32_t deadline_ms) -> Result<std::string> {
                       const auto self = weak.lock();
                       return self ? self->start(id, participants, deadline_ms) : gone();
                     },
                     [weak, gone](const UpdateId& id) -> Result<bool> {
                       const auto self = weak.lock();
                       return self ? self->progress(id) : gone();
                     },
                     [weak](const UpdateId& id) {
                       if (const auto self = weak.lock()) self->stop(id);
                     }};
  const std::lock_guard lock(mutex);
  offers[offer.manifest->weight_version] = std::move(offer);
  return route;
}

Result<std::string> NcclSource::Impl::start(const UpdateId& id,
                                            const std::vector<std::string>& participants,
                                            uint32_t deadline_ms) {
  WARPROLL_TRY(api->bind_thread());
  const std::lock_guard lock(mutex);
  join_ended();
  const auto offer = offers.find(id.weight_version);
  if (closed || offer == offers.end()) {
    return not_found("weight version " + std::to_string(id.weight_version) + " is not offered");
  }
  WARPROLL_TRY_ASSIGN(unique_id, api->make_unique_id());
  auto transfer = std::make_shared<Transfer>();
  transfer->weight_version = id.weight_version;
  RootTask task{
      {unique_id, 0, static_cast<int32_t>(participants.size()) + 1, options.max_ctas},
      "version " + std::to_string(id.weight_version) + ", attempt " + std::to_string(id.attempt),
      {Clock::now() + std::chrono::milliseconds(deadline_ms), &transfer->cancellation,
       options.silence, options.ending},
      buckets_of(*offer->second.manifest, offer->second.packed),
      offer->second.fill,
      offer->second.from_host,
      offer->second.arena.get()};
  transfer->thread = std::thread(
      [api = api, task = std::move(task), raw = transfer.get(), arena = offer->second.arena] {
        const Status status = send_to_group(api, task);
        const std::lock_guard outcome_lock(raw->mutex);
        raw->outcome = status;
      });
  groups[id] = std::move(transfer);
  return unique_id;
}

Result<bool> NcclSource::Impl::progress(const UpdateId& id) {
  const std::lock_guard lock(mutex);
  join_ended();
  const auto found = groups.find(id);
  if (found == groups.end()) return not_found("the trainer has no such group");
  const std::optional<Status> outcome = found->second->get();
  if (!outcome) return false;
  WARPROLL_TRY(*outcome);
  return true;
}

void NcclSource::Impl::stop(const UpdateId& id) {
  const std::lock_guard lock(mutex);
  const auto found = groups.find(id);
  if (found != groups.end()) end(found);
  join_ended();
}

void NcclSource::Impl::end(std::map<UpdateId, std::shared_ptr<Transfer>>::iterator group) {
  group->second->cancellation.cancel();
  ending.push_back(group->second);
  groups.erase(group);
}

void NcclSource::Impl::join_ended() {
  std::erase_if(ending, [](const std::shared_ptr<Transfer>& transfer) {
    if (!transfer->get()) return false;
    transfer->thread.join();
    return true;
  });
}

NcclSource::NcclSource(std::shared_ptr<NcclApi> api, NcclSourceOptions options)
    : impl_(std::make_shared<Impl>(std::move(api), std::move(options))) {}

NcclSource::~NcclSource() {
  std::vector<std::shared_ptr<Transfer>> ending;
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->closed = true;
    while (!impl_->groups.empty()) impl_->end(impl_->groups.begin());
    ending = std::exchange(impl_->ending, {});
  }
  for (const std::shared_ptr<Transfer>& transfer : ending) transfer->thread.join();
}

Result<TransportRoute> NcclSource::offer(const OfferedCheckpoint& offered) {
  WARPROLL_TRY_ASSIGN(stream, OfferedStream::make(offered));
  return impl_->put({.manifest = offered.manifest, .fill = fill_from_host(impl_->api, stream)});
}

TransportRoute NcclSource::offer_device(std::shared_ptr<const Manifest> manifest,
                                        DeviceTensors tensors) {
  SlotFill fill = fill_from_device(impl_->api, manifest, std::move(tensors));
  return impl_->put({.manifest = std::move(manifest), .fill = std::move(fill), .from_host = false});
}

TransportRoute NcclSource::offer_arena(OfferedArena offered) {
  return impl_->put({.manifest = std::move(offered.manifest),
                     .from_host = false,
                     .packed = offered.packed,
                     .arena = std::move(offered.bytes)});
}

void NcclSource::withdraw(uint64_t weight_version) {
  const std::lock_guard lock(impl_->mutex);
  impl_->offers.erase(weight_version);
  for (auto group = impl_->groups.begin(); group != impl_->groups.end();) {
    const auto each = group++;
    if (each->second->weight_version == weight_version) impl_->end(each);
  }
  impl_->join_ended();
}

size_t NcclSource::num_groups() const {
  const std::lock_guard lock(impl_->mutex);
  impl_->join_ended();
  return impl_->groups.size() + impl_->ending.size();
}

}  // namespace warproll
