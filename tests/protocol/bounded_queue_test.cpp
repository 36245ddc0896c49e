#include "protocol/bounded_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <thread>
#include <vector>

namespace warproll {
namespace {

using Queue = BoundedQueue<std::unique_ptr<int>>;
auto soon() { return Queue::Clock::now() + std::chrono::seconds(20); }

TEST(BoundedQueue, ItemsComeOutInOrder) {
  BoundedQueue<int> queue(3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(queue.try_push(i), QueueResult::kOk);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(queue.try_pop(), i);
  EXPECT_FALSE(queue.try_pop());
}

TEST(BoundedQueue, AFullQueueLeavesTheItemWithItsOwner) {
  Queue queue(1);
  auto first = std::make_unique<int>(1);
  auto second = std::make_unique<int>(2);
  EXPECT_EQ(queue.try_push(first), QueueResult::kOk);
  EXPECT_EQ(queue.try_push(second), QueueResult::kTimeout);
  ASSERT_TRUE(second);
  EXPECT_EQ(*second, 2);
}

TEST(BoundedQueue, AClosedQueueRefusesPushesAndDrains) {
  BoundedQueue<int> queue(2);
  int item = 5;
  ASSERT_EQ(queue.try_push(item), QueueResult::kOk);
  queue.close();
  EXPECT_EQ(queue.try_push(item), QueueResult::kClosed);
  EXPECT_EQ(queue.pop(soon()), 5);
  EXPECT_FALSE(queue.pop(soon()));
}

TEST(BoundedQueue, CloseWakesWhoeverWaits) {
  BoundedQueue<int> empty(1);
  BoundedQueue<int> full(1);
  int item = 1;
  ASSERT_EQ(full.try_push(item), QueueResult::kOk);
  std::thread popper([&] { EXPECT_FALSE(empty.pop(soon())); });
  std::thread pusher([&] {
    int other = 2;
    EXPECT_EQ(full.push(other, soon()), QueueResult::kClosed);
  });
  empty.close();
  full.close();
  popper.join();
  pusher.join();
}

TEST(BoundedQueue, ManyProducersAndConsumersMoveEveryItemOnce) {
  constexpr int kEach = 2000;
  BoundedQueue<int> queue(7);
  std::vector<std::thread> producers, consumers;
  std::vector<std::vector<int>> taken(3);
  for (int p = 0; p < 3; ++p) {
    producers.emplace_back([&queue, p] {
      for (int i = 0; i < kEach; ++i) {
        int item = p * kEach + i;
        ASSERT_EQ(queue.push(item, soon()), QueueResult::kOk);
      }
    });
    consumers.emplace_back([&queue, &mine = taken[static_cast<size_t>(p)]] {
      while (auto item = queue.pop(soon())) mine.push_back(*item);
    });
  }
  for (auto& producer : producers) producer.join();
  queue.close();
  for (auto& consumer : consumers) consumer.join();
  std::vector<int> seen(3 * kEach);
  for (const auto& items : taken) {
    for (const int item : items) ++seen[static_cast<size_t>(item)];
  }
  EXPECT_EQ(seen, std::vector<int>(3 * kEach, 1));
}

}  // namespace
}  // namespace warproll
