// BoundedQueue<T>: the only hand-over between threads. Many producers, many consumers.
// close() wakes everybody: push then fails, pop drains what is left and then fails.
// Every wait takes a deadline. Thread: any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace warproll {

enum class QueueResult { kOk, kTimeout, kClosed };

template <typename T>
class BoundedQueue {
 public:
  using Clock = std::chrono::steady_clock;

  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  // Waits for room until `deadline`. On failure `item` is left untouched.
  QueueResult push(T& item, Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    const bool ready = not_full_.wait_until(
        lock, deadline, [this] { return closed_ || items_.size() < capacity_; });
    if (closed_) return QueueResult::kClosed;
    if (!ready) return QueueResult::kTimeout;
    items_.push_back(std::move(item));
    lock.unlock();
    not_empty_.notify_one();
    return QueueResult::kOk;
  }
  QueueResult try_push(T& item) { return push(item, Clock::time_point::min()); }

  // Waits for an item until `deadline`. Empty when timed out, or closed and drained.
  std::optional<T> pop(Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    not_empty_.wait_until(lock, deadline, [this] { return closed_ || !items_.empty(); });
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    lock.unlock();
    not_full_.notify_one();
    return item;
  }
  std::optional<T> try_pop() { return pop(Clock::time_point::min()); }

  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    not_empty_.notify_all();
    not_full_.notify_all();
  }

  [[nodiscard]] bool closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
  }
  [[nodiscard]] size_t size() const {
    std::lock_guard lock(mutex_);
    return items_.size();
  }
  [[nodiscard]] size_t capacity() const { return capacity_; }

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable not_empty_;
  std::condition_variable not_full_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace warproll
