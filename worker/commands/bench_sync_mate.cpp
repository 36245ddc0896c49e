#include "worker/commands/bench_sync_mate.h"

#include <exception>
#include <span>
#include <utility>
#include <variant>

#include "protocol/codec.h"
#include "weights_sync/nccl/bare_broadcast.h"

namespace warproll {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
constexpr milliseconds kAnswer(30'000);
constexpr milliseconds kLoaded(300'000);
constexpr milliseconds kIdle(3'600'000);
constexpr std::chrono::seconds kBareLimit(120);

template <typename T>
std::string pack(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}
// The value at the front of `text`, which is cut off.
template <typename T>
Result<T> unpack(std::string& text) {
  if (text.size() < sizeof(T)) return data_loss("a frame that is too short");
  T value;
  text.copy(reinterpret_cast<char*>(&value), sizeof value);
  text.erase(0, sizeof value);
  return value;
}

Result<std::string> pack_messages(const Envelope& envelope, const std::vector<Message>& messages) {
  std::string text;
  for (const Message& message : messages) {
    WARPROLL_TRY_ASSIGN(frame, encode_message(envelope, message));
    text += pack(static_cast<uint64_t>(frame.size()));
    text.append(reinterpret_cast<const char*>(frame.data()), frame.size());
  }
  return text;
}

Result<std::vector<Message>> unpack_messages(std::string text) {
  std::vector<Message> messages;
  while (!text.empty()) {
    WARPROLL_TRY_ASSIGN(size, unpack<uint64_t>(text));
    if (size > text.size()) return data_loss("a frame that is too short");
    const auto frame = std::as_bytes(std::span(text)).first(size);
    WARPROLL_TRY_ASSIGN(message, decode_message(frame, CodecLimits{}));
    messages.push_back(std::move(message.second));
    text.erase(0, size);
  }
  return messages;
}

SyncFrame frame_of(SyncTask task, std::string text = {}) {
  SyncFrame frame;
  frame.task = task;
  frame.text = std::move(text);
  return frame;
}

Status perform(SyncFrame asked, SyncFrame& reply, SyncWorker& worker,
               const std::shared_ptr<NcclApi>& api) {
  const Envelope envelope = envelope_of(worker.index());
  switch (asked.task) {
    case SyncTask::kHello: {
      WARPROLL_TRY_ASSIGN(text, pack_messages(envelope, {worker.hello()}));
      reply.text = std::move(text);
      return ok_status();
    }
    case SyncTask::kTurn: {
      WARPROLL_TRY_ASSIGN(messages, unpack_messages(std::move(asked.text)));
      std::vector<Message> answers;
      WARPROLL_TRY(worker.take_turn(messages, answers));
      WARPROLL_TRY_ASSIGN(text, pack_messages(envelope, answers));
      reply.text = std::move(text);
      return ok_status();
    }
    case SyncTask::kDecode:
      return asked.number == 1 ? worker.start_decoding() : worker.stop_decoding();
    case SyncTask::kJoin: {
      WARPROLL_TRY_ASSIGN(order, unpack<BareOrder>(asked.text));
      if (!api) return failed_precondition("there is no NCCL");
      WARPROLL_TRY_ASSIGN(
          times,
          bare_broadcast(api, {asked.text, order.rank, order.num_ranks, order.max_ctas},
                         order.stream_bytes, order.bucket_bytes, {Clock::now() + kBareLimit}));
      reply.seconds = times.seconds;
      return ok_status();
    }
    case SyncTask::kRow: {
      WARPROLL_TRY_ASSIGN(order, unpack<SyncRowOrder>(asked.text));
      worker.settle();
      reply.text = pack(row_of(worker, order));
      return ok_status();
    }
    default:
      return invalid_argument("task " + std::to_string(static_cast<uint32_t>(asked.task)));
  }
}

}  // namespace

Result<Hello> SyncMate::hello() {
  WARPROLL_TRY_ASSIGN(answer, link_.ask(frame_of(SyncTask::kHello), kLoaded));
  WARPROLL_TRY_ASSIGN(messages, unpack_messages(answer.text));
  if (messages.size() != 1 || !std::holds_alternative<Hello>(messages.front())) {
    return data_loss("a further worker's HELLO is not one");
  }
  return std::get<Hello>(messages.front());
}

Result<std::vector<Message>> SyncMate::turn(const std::vector<Message>& messages) {
  WARPROLL_TRY_ASSIGN(text, pack_messages(envelope_, messages));
  WARPROLL_TRY_ASSIGN(answer, link_.ask(frame_of(SyncTask::kTurn, std::move(text)), kAnswer));
  return unpack_messages(std::move(answer.text));
}

Status SyncMate::decode(bool on) {
  SyncFrame frame = frame_of(SyncTask::kDecode);
  frame.number = on ? 1 : 0;
  return link_.ask(frame, kLoaded).status();
}

Status SyncMate::begin_bare(const BareOrder& order, const std::string& unique_id) {
  return link_.send(frame_of(SyncTask::kJoin, pack(order) + unique_id));
}

Result<double> SyncMate::end_bare(milliseconds limit) {
  WARPROLL_TRY_ASSIGN(answer, link_.answer(limit));
  return answer.seconds;
}

Result<SyncRow> SyncMate::row(const SyncRowOrder& order) {
  WARPROLL_TRY_ASSIGN(answer, link_.ask(frame_of(SyncTask::kRow, pack(order)), kAnswer));
  return unpack<SyncRow>(answer.text);
}

Status serve_sync_mate(SyncLink& link, SyncWorker& worker, std::shared_ptr<NcclApi> api) {
  while (true) {
    Result<SyncFrame> asked = link.receive(kIdle);
    if (asked.status().code() == StatusCode::kUnavailable) return ok_status();  // closed
    WARPROLL_TRY(asked.status());
    SyncFrame reply;
    reply.task = asked->task;
    Status status;
    try {
      status = perform(std::move(*asked), reply, worker, api);
    } catch (const std::exception& error) {  // CUDA's
      status = internal_error(error.what());
    }
    WARPROLL_TRY(link.send(status.ok() ? reply : failed_frame(reply.task, status)));
  }
}

}  // namespace warproll
