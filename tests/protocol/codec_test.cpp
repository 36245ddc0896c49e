#include "protocol/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "protocol/frame.h"
#include "protocol/message_types.h"
#include "tests/protocol/random_records.h"

namespace warproll {
namespace {

using ::testing::HasSubstr;
using testing::Random;
constexpr uint64_t kSeed = 20261129;
constexpr int kRounds = 300;

Trajectory make_trajectory(uint64_t seed) {
  Random random(seed);
  return testing::random_trajectory(random);
}

TEST(Codec, EveryRandomTrajectoryIsValidAndComesBackEqual) {
  for (int i = 0; i < kRounds; ++i) {
    SCOPED_TRACE(kSeed + i);
    const Trajectory trajectory = make_trajectory(kSeed + i);
    ASSERT_EQ(validate(trajectory, 151'936).to_string(), "OK");
    Bytes record, tensors;
    ASSERT_EQ(encode_trajectory(trajectory, &record, &tensors).to_string(), "OK");
    const auto back = decode_trajectory(record, tensors);
    ASSERT_EQ(back.status().to_string(), "OK");
    EXPECT_TRUE(*back == trajectory);
  }
}

TEST(Codec, EveryRandomTaskIsValidAndComesBackEqual) {
  Random random(kSeed);
  for (int i = 0; i < kRounds; ++i) {
    SCOPED_TRACE(i);
    const Task task = testing::random_task(random);
    ASSERT_EQ(validate(task).to_string(), "OK");
    const auto record = encode_task(task);
    ASSERT_TRUE(record.ok());
    const auto back = decode_task(*record);
    ASSERT_EQ(back.status().to_string(), "OK");
    EXPECT_TRUE(*back == task);
  }
}

TEST(Codec, EveryKindOfMessageComesBackEqual) {
  Random random(kSeed);
  for (int i = 0; i < kRounds; ++i) {
    const auto messages = testing::random_messages(random);
    ASSERT_EQ(messages.size(), std::variant_size_v<Message>);
    for (size_t kind = 0; kind < messages.size(); ++kind) {
      ASSERT_EQ(messages[kind].index(), kind);
      SCOPED_TRACE(message_name(messages[kind]));
      const Envelope envelope = testing::random_envelope(random);
      const auto frame = encode_message(envelope, messages[kind]);
      ASSERT_EQ(frame.status().to_string(), "OK");
      const auto back = decode_message(*frame, {});
      ASSERT_EQ(back.status().to_string(), "OK");
      EXPECT_EQ(back->first, envelope);
      EXPECT_TRUE(back->second == messages[kind]);
    }
  }
}

TEST(Codec, EqualStructsGiveEqualBytesWhateverTheirHistory) {
  for (int i = 0; i < 50; ++i) {
    const Trajectory trajectory = make_trajectory(kSeed + i);
    Trajectory copy = trajectory;
    copy.token_ids.reserve(10'000);  // other capacities and addresses
    copy.text = std::string(trajectory.text.begin(), trajectory.text.end());
    Bytes first, second, tensors;
    ASSERT_TRUE(encode_trajectory(trajectory, &first, &tensors).ok());
    ASSERT_TRUE(encode_trajectory(copy, &second, &tensors).ok());
    EXPECT_EQ(first, second);
    // and decoding then encoding again is the identity on bytes
    const auto back = decode_trajectory(first, tensors);
    ASSERT_TRUE(back.ok());
    ASSERT_TRUE(encode_trajectory(*back, &second, &tensors).ok());
    EXPECT_EQ(first, second);
  }
}

TEST(Codec, TheBytesOfARecordDoNotDependOnTheSizeHint) {
  // Stop strings are not in the hint: this record needs a second, larger segment to be built.
  Trajectory trajectory = make_trajectory(kSeed);
  trajectory.sampling.stop_strings.assign(3000, std::string(1000, 's'));
  Bytes record, tensors;
  ASSERT_TRUE(encode_trajectory(trajectory, &record, &tensors).ok());
  uint32_t segments_less_one = 7;
  std::memcpy(&segments_less_one, record.data(), sizeof(segments_less_one));
  EXPECT_EQ(segments_less_one, 0u);
  const auto back = decode_trajectory(record, tensors);
  ASSERT_EQ(back.status().to_string(), "OK");
  EXPECT_TRUE(*back == trajectory);
}

TEST(Codec, AMillionTokensAreCarried) {
  Trajectory trajectory = make_trajectory(kSeed);
  trajectory.token_ids.assign(1'000'000, 7);
  Bytes record, tensors;
  ASSERT_TRUE(encode_trajectory(trajectory, &record, &tensors).ok());
  const auto back = decode_trajectory(record, tensors);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->token_ids, trajectory.token_ids);
}

// Over the 64 MiB at which a reader's default traversal limit stops.
TEST(Codec, ARecordOf80MebibytesIsCarriedAgainAndAgain) {
  Trajectory trajectory = make_trajectory(kSeed);
  trajectory.metadata.assign(size_t{80} << 20, 'm');
  Bytes record, tensors;
  ASSERT_TRUE(encode_trajectory(trajectory, &record, &tensors).ok());
  for (int i = 0; i < 3; ++i) {
    const auto back = decode_trajectory(record, tensors);
    ASSERT_TRUE(back.ok()) << back.status().to_string();
    EXPECT_TRUE(back->metadata == trajectory.metadata);
  }
}

TEST(Codec, PeekTellsWhatTheRecordSays) {
  for (int i = 0; i < 50; ++i) {
    const Trajectory t = make_trajectory(kSeed + i);
    Bytes record, tensors;
    ASSERT_TRUE(encode_trajectory(t, &record, &tensors).ok());
    const auto summary = peek_trajectory(record);
    ASSERT_TRUE(summary.ok());
    RecordSummary wanted;
    wanted.producer_id = t.producer_id;
    wanted.epoch = t.epoch;
    wanted.seq = t.seq;
    wanted.trajectory_id = t.trajectory_id;
    wanted.task_id = t.task_id;
    wanted.group_id = t.group_id;
    wanted.sample_index = t.sample_index;
    wanted.num_tokens = static_cast<int32_t>(t.token_ids.size());
    wanted.prompt_len = t.prompt_len;
    for (const auto& digest : t.version_digests) {
      wanted.weight_versions.push_back(digest.weight_version);
    }
    wanted.finish_reason = t.finish_reason;
    wanted.sealed_ns = t.timings.sealed_ns;
    wanted.has_reward = t.reward.has_value();
    wanted.reward_total = t.reward ? t.reward->total : 0.0;
    wanted.tensors_bytes = tensors.size();
    wanted.tensors_checksum = tensors.empty() ? 0 : checksum64(tensors);
    EXPECT_EQ(*summary, wanted);
    EXPECT_TRUE(check_tensors(*summary, tensors).ok());
  }
}

TEST(Codec, UnalignedInputDecodesTheSame) {
  const Trajectory trajectory = make_trajectory(kSeed);
  Bytes record, tensors;
  ASSERT_TRUE(encode_trajectory(trajectory, &record, &tensors).ok());
  for (size_t shift = 1; shift < 8; ++shift) {
    Bytes shifted(record.size() + shift);
    std::memcpy(shifted.data() + shift, record.data(), record.size());
    const auto back = decode_trajectory(std::span(shifted).subspan(shift), tensors);
    ASSERT_EQ(back.status().to_string(), "OK") << "shift " << shift;
    EXPECT_TRUE(*back == trajectory);
  }
}

TEST(Codec, EveryTruncationOfARecordIsRefused) {
  Bytes record, tensors;
  ASSERT_TRUE(encode_trajectory(make_trajectory(kSeed), &record, &tensors).ok());
  for (size_t size = 0; size < record.size(); ++size) {
    EXPECT_FALSE(decode_trajectory(std::span(record).first(size), tensors).ok()) << size;
  }
}

TEST(Codec, TrailingBytesOfARecordAreRefused) {
  Bytes record, tensors;
  ASSERT_TRUE(encode_trajectory(make_trajectory(kSeed), &record, &tensors).ok());
  const size_t size = record.size();
  record.resize(size + 8);
  const auto back = decode_trajectory(record, tensors);
  EXPECT_THAT(back.status().message(), HasSubstr("has " + std::to_string(size + 8) +
                                                 " bytes, wanted " + std::to_string(size)));
}

TEST(Codec, ARecordOfTwoMillionSegmentsIsRefusedByCount) {
  Bytes record(size_t{8} << 20);
  const uint32_t segments_less_one = 2'000'000 - 1;
  std::memcpy(record.data(), &segments_less_one, sizeof(segments_less_one));
  const auto back = decode_trajectory(record, {});
  EXPECT_THAT(back.status().message(), HasSubstr("has 2000000 Cap'n Proto segments, wanted 1"));
}

TEST(Codec, MutatedRecordsNeverCrashAndOftenFail) {
  Random random(kSeed);
  Bytes record, tensors;
  ASSERT_TRUE(encode_trajectory(make_trajectory(kSeed), &record, &tensors).ok());
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    Bytes mutant = record;
    for (int64_t flips = random.between(1, 8); flips > 0; --flips) {
      mutant[random.bits() % mutant.size()] = static_cast<std::byte>(random.bits());
    }
    if (!decode_trajectory(mutant, tensors).ok()) ++refused;
    (void)peek_trajectory(mutant).ok();
  }
  EXPECT_GT(refused, 300);
}

TEST(Codec, RoutedExpertsOfOtherLengthOrContentAreDataLoss) {
  Random random(kSeed);
  Trajectory trajectory = make_trajectory(kSeed);
  trajectory.routed_experts =
      testing::random_routes(random, static_cast<int32_t>(trajectory.token_ids.size()) - 1);
  Bytes record, tensors;
  ASSERT_TRUE(encode_trajectory(trajectory, &record, &tensors).ok());
  Bytes flipped = tensors;
  flipped.back() ^= std::byte{1};
  EXPECT_EQ(decode_trajectory(record, flipped).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(decode_trajectory(record, std::span(tensors).subspan(1)).status().code(),
            StatusCode::kDataLoss);
  EXPECT_EQ(decode_trajectory(record, {}).status().code(), StatusCode::kDataLoss);
}

TEST(Codec, TextThatIsNotUtf8IsNeverWritten) {
  Trajectory trajectory = make_trajectory(kSeed);
  trajectory.text = "caf\xC3";
  Bytes record, tensors;
  const Status status = encode_trajectory(trajectory, &record, &tensors);
  EXPECT_EQ(status.to_string(), "INVALID_ARGUMENT: Trajectory.text (4 bytes) is not UTF-8");
  EXPECT_TRUE(record.empty());
  EXPECT_FALSE(encode_message({}, Cancel{"t", "\xFF"}).ok());
}

TEST(Codec, TextThatIsNotUtf8IsNeverRead) {
  Trajectory trajectory = make_trajectory(kSeed);
  trajectory.text = "find me here";
  Bytes record, tensors;
  ASSERT_TRUE(encode_trajectory(trajectory, &record, &tensors).ok());
  auto* begin = reinterpret_cast<char*>(record.data());
  const size_t at = std::string_view(begin, record.size()).find(trajectory.text);
  ASSERT_NE(at, std::string_view::npos);
  begin[at] = '\xFF';
  EXPECT_THAT(decode_trajectory(record, tensors).status().message(),
              HasSubstr("Trajectory.text (12 bytes) is not UTF-8"));
}

TEST(Codec, EnumValuesPastTheLastAreErrorsBothWays) {
  TaskAck ack;
  ack.answer = static_cast<TaskAnswer>(5);
  EXPECT_THAT(encode_message({}, ack).status().message(),
              HasSubstr("TaskAck.answer is 5, wanted 0..4"));
  ack.answer = TaskAnswer::kBusy;
  const auto frame = encode_message({}, ack);
  ASSERT_TRUE(frame.ok());
  // TaskAck's data section: lease_id u64, then answer u16; after segment table and root pointer.
  Bytes body(frame->begin() + kFrameHeaderBytes, frame->end());
  ASSERT_EQ(body[24], std::byte{4});
  body[24] = std::byte{9};
  FrameHeader header;
  header.type = 17;
  EXPECT_THAT(decode_message(join_frame(header, body, {}), {}).status().message(),
              HasSubstr("TaskAck.answer is 9, wanted 0..4"));
}

TEST(Codec, AListLongerThanTheBoundIsRefusedBothWays) {
  Bye bye;
  bye.open_task_ids.resize(kMaxListItems + 1);
  EXPECT_THAT(encode_message({}, bye).status().message(), HasSubstr("wanted at most 1048576"));
  // A list of 2^29 - 1 zero-sized elements in a few words: root pointer, two pointers, tag.
  const uint64_t words[] = {
      uint64_t{5} << 32,                // one segment of 5 words
      uint64_t{2} << 48,                // root: Bye, 0 data words, 2 pointers
      0,                                // reason
      uint64_t{1} | uint64_t{7} << 32,  // openTaskIds: composite list of 0 words
      (uint64_t{(1u << 29) - 1} << 2),  // tag: 2^29 - 1 elements of size 0
      0,
  };
  Bytes body(sizeof(words));
  std::memcpy(body.data(), words, sizeof(words));
  FrameHeader header;
  header.type = 4;
  EXPECT_FALSE(decode_message(join_frame(header, body, {}), {}).ok());
}

TEST(Codec, AnEmptyBodyDecodesToTheSchemaDefaultsOfATask) {
  const uint64_t words[] = {uint64_t{1} << 32, 0};
  Bytes body(sizeof(words));
  std::memcpy(body.data(), words, sizeof(words));
  const auto task = decode_task(body);
  ASSERT_TRUE(task.ok());
  EXPECT_TRUE(*task == Task{});
}

TEST(Codec, TypeNumbersAndNamesAreUnique) {
  for (size_t i = 0; i < kMessageTypes.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_NE(kMessageTypes[i].type, kMessageTypes[j].type);
      EXPECT_NE(kMessageTypes[i].name, kMessageTypes[j].name);
    }
  }
  EXPECT_EQ(message_name(TaskMessage{}), "TASK");
  EXPECT_EQ(message_name(Data{}), "DATA");
  EXPECT_EQ(message_name(RollbackDone{}), "ROLLBACK_DONE");
}

}  // namespace
}  // namespace warproll
