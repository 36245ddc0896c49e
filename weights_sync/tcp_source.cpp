#include <atomic>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "weights_sync/offered_stream.h"
#include "weights_sync/tcp_transport.h"

namespace warproll {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPoll = std::chrono::seconds(1);  // the waker ends it sooner

}  // namespace

struct TcpSource::Impl {
  explicit Impl(ChunkServerSocket bound) : socket(std::move(bound)) {}

  ChunkServerSocket socket;  // of the server thread, from its start on
  TransportRoute route;
  Waker waker;
  std::atomic<bool> stopping{false};
  std::atomic<uint64_t> sent_bytes{0};
  std::mutex mutex;
  std::map<uint64_t, std::shared_ptr<const OfferedStream>> streams;  // by weight_version
  std::thread thread;

  void serve();
  void answer(const std::string& peer, const ChunkRequest& request,
              std::vector<std::byte>& scratch);
  [[nodiscard]] std::string refusal(const ChunkRequest& request, const OfferedStream* stream) const;
};

void TcpSource::Impl::serve() {
  std::vector<std::byte> scratch;
  while (!stopping.load(std::memory_order_acquire)) {
    auto received = socket.receive(Clock::now() + kPoll, &waker);
    // Malformed requests are dropped: their sender has its own deadline.
    if (!received.ok() || !*received || !(*received)->request.ok()) continue;
    answer((*received)->peer, *(*received)->request, scratch);
  }
}

std::string TcpSource::Impl::refusal(const ChunkRequest& request,
                                     const OfferedStream* stream) const {
  if (stream == nullptr) {
    return "weight version " + std::to_string(request.id.weight_version) + " is not offered";
  }
  const Manifest& manifest = stream->manifest();
  if (request.bucket_index >= manifest.num_buckets()) {
    return "bucket " + std::to_string(request.bucket_index) + ", there are " +
           std::to_string(manifest.num_buckets());
  }
  const uint64_t bucket = manifest.bytes_of_bucket(request.bucket_index);
  if (request.offset_bytes > bucket || request.length_bytes > bucket - request.offset_bytes) {
    return "bytes from " + std::to_string(request.offset_bytes) + ", " +
           std::to_string(request.length_bytes) + " of them, of a bucket of " +
           std::to_string(bucket);
  }
  return {};
}

void TcpSource::Impl::answer(const std::string& peer, const ChunkRequest& request,
                             std::vector<std::byte>& scratch) {
  std::shared_ptr<const OfferedStream> stream;
  {
    const std::lock_guard lock(mutex);
    const auto found = streams.find(request.id.weight_version);
    if (found != streams.end()) stream = found->second;
  }
  ChunkReply reply{
      request.id, request.bucket_index, request.offset_bytes, refusal(request, stream.get()), {}};
  std::span<const std::byte> bytes;
  if (reply.error.empty()) {
    const uint64_t offset =
        request.bucket_index * stream->manifest().bucket_bytes + request.offset_bytes;
    bytes = stream->range(offset, request.length_bytes, scratch);
  }
  // A peer that is gone or full asks again if it still wants it.
  if (socket.send(peer, reply, bytes).ok()) {
    sent_bytes.fetch_add(bytes.size(), std::memory_order_relaxed);
  }
}

TcpSource::TcpSource(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

TcpSource::~TcpSource() {
  impl_->stopping.store(true, std::memory_order_release);
  impl_->waker.wake();
  impl_->thread.join();
}

Result<std::unique_ptr<TcpSource>> TcpSource::start(ZmqContext& context, TcpSourceOptions options) {
  WARPROLL_TRY(check_endpoint(options.endpoint, options.curve.has_value(), options.insecure));
  SocketOptions socket_options;
  socket_options.max_message_bytes = uint64_t{1} << 20;  // requests are small
  socket_options.curve_server = options.curve;
  WARPROLL_TRY_ASSIGN(socket, ChunkServerSocket::bind(context, options.endpoint, socket_options));
  auto impl = std::make_unique<Impl>(std::move(socket));
  impl->route = {"tcp", options.advertise.empty() ? impl->socket.endpoint() : options.advertise,
                 options.curve ? options.curve->keys.public_key : ""};
  std::unique_ptr<TcpSource> source(new TcpSource(std::move(impl)));
  source->impl_->thread = std::thread([impl = source->impl_.get()] { impl->serve(); });
  return source;
}

Result<TransportRoute> TcpSource::offer(const OfferedCheckpoint& offered) {
  WARPROLL_TRY_ASSIGN(stream, OfferedStream::make(offered));
  const std::lock_guard lock(impl_->mutex);
  impl_->streams[offered.manifest->weight_version] = std::move(stream);
  return impl_->route;
}

void TcpSource::withdraw(uint64_t weight_version) {
  const std::lock_guard lock(impl_->mutex);
  impl_->streams.erase(weight_version);
}

uint64_t TcpSource::sent_bytes() const { return impl_->sent_bytes.load(std::memory_order_relaxed); }

}  // namespace warproll
