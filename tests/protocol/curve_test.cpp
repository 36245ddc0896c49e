#include "protocol/curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "protocol/chunks.h"
#include "protocol/sockets.h"

namespace warproll {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
constexpr const char* kAnyPort = "tcp://127.0.0.1:*";
Clock::time_point within(int ms) { return Clock::now() + std::chrono::milliseconds(ms); }
constexpr int kSoonMs = 20'000;

class KeyFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(::testing::TempDir()) /
              (std::string("warproll_curve_") + test->name() + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }
  static void write(const std::string& file, const std::string& text) {
    std::ofstream(file) << text;
  }
  std::filesystem::path folder_;
};

TEST_F(KeyFiles, AKeyPairComesBackFromItsFiles) {
  const auto keys = generate_keypair();
  ASSERT_TRUE(keys.ok());
  ASSERT_EQ(write_keypair(*keys, path("trainer")).to_string(), "OK");
  const auto back = read_keypair(path("trainer"));
  ASSERT_EQ(back.status().to_string(), "OK");
  EXPECT_EQ(back->public_key, keys->public_key);
  EXPECT_EQ(back->secret_key, keys->secret_key);
  EXPECT_EQ(*read_public_key(path("trainer.pub")), keys->public_key);
}

TEST_F(KeyFiles, TheSecretFileIsMadeForItsOwnerOnly) {
  ASSERT_TRUE(write_keypair(*generate_keypair(), path("k")).ok());
  struct stat info {};
  ASSERT_EQ(stat(path("k.secret").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(KeyFiles, ASecretFileThatOthersCanReadIsRefusedWithTheCure) {
  ASSERT_TRUE(write_keypair(*generate_keypair(), path("k")).ok());
  ASSERT_EQ(chmod(path("k.secret").c_str(), 0640), 0);
  const auto keys = read_keypair(path("k"));
  EXPECT_EQ(keys.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(keys.status().message(), HasSubstr("has mode 0640, wanted 0600 (run: chmod 600"));
}

TEST_F(KeyFiles, ExistingKeysAreNeverOverwritten) {
  const auto keys = generate_keypair();
  ASSERT_TRUE(write_keypair(*keys, path("k")).ok());
  EXPECT_EQ(write_keypair(*generate_keypair(), path("k")).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(read_keypair(path("k"))->public_key, keys->public_key);
  // and no secret is left behind when only the public file stood in the way
  write(path("half.pub"), keys->public_key);
  EXPECT_EQ(write_keypair(*keys, path("half")).code(), StatusCode::kAlreadyExists);
  EXPECT_FALSE(std::filesystem::exists(path("half.secret")));
}

TEST_F(KeyFiles, APairThatDoesNotBelongTogetherIsRefused) {
  ASSERT_TRUE(write_keypair(*generate_keypair(), path("k")).ok());
  write(path("k.pub"), generate_keypair()->public_key + "\n");
  EXPECT_THAT(read_keypair(path("k")).status().message(), HasSubstr("is not the public key of"));
}

TEST_F(KeyFiles, AMissingFileIsNamed) {
  const auto keys = read_keypair(path("none"));
  EXPECT_EQ(keys.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(keys.status().message(), HasSubstr("none.secret"));
}

TEST_F(KeyFiles, AnAllowListMayHaveCommentsAndBlankLines) {
  const std::string first = generate_keypair()->public_key;
  const std::string second = generate_keypair()->public_key;
  write(path("list"), "# forty characters of comment, just as long as a key is..\n#\n\n" + first +
                          "\n  " + second + "  # worker 2\r\n");
  const auto keys = read_allow_list(path("list"));
  ASSERT_EQ(keys.status().to_string(), "OK");
  EXPECT_THAT(*keys, ::testing::ElementsAre(first, second));
}

TEST_F(KeyFiles, ALineThatIsNoKeyIsNamedByNumberAndNotPrinted) {
  write(path("list"), generate_keypair()->public_key + "\nSECRET-BUT-SHORT\n");
  const Status status = read_allow_list(path("list")).status();
  EXPECT_THAT(status.message(), HasSubstr("list:2 (16 characters) is not a CURVE key"));
  EXPECT_THAT(status.message(), ::testing::Not(HasSubstr("SECRET-BUT-SHORT")));
}

class Curve : public ::testing::Test {
 protected:
  void SetUp() override {
    allow_list_ = std::move(*CurveAllowList::start(context_, {client_.public_key}));
    server_options_.curve_server = CurveServer{server_, allow_list_.get()};
  }
  [[nodiscard]] SocketOptions client_options(const CurveKeys& keys,
                                             const std::string& server_key) const {
    SocketOptions options;
    options.curve_client = CurveClient{keys, server_key};
    return options;
  }
  // Whether a message of such a client reaches the trainer.
  bool gets_through(TrainerSocket& trainer, const SocketOptions& options, int wait_ms) {
    ZmqContext other_process;
    auto worker = WorkerSocket::connect(other_process, trainer.endpoint(), options);
    EXPECT_TRUE(worker.ok());
    const bool ready = worker->wait_ready(within(wait_ms)).ok();
    if (ready) (void)worker->send({}, Bye{"secret", {}}).ok();
    const auto received = trainer.receive(within(ready ? kSoonMs : 50));
    return received.ok() && received->has_value() && (*received)->message.ok();
  }

  CurveKeys server_ = *generate_keypair();
  CurveKeys client_ = *generate_keypair();
  ZmqContext context_;
  std::unique_ptr<CurveAllowList> allow_list_;
  SocketOptions server_options_;
};

TEST_F(Curve, AnAllowedClientTalksBothWays) {
  auto trainer = TrainerSocket::bind(context_, kAnyPort, server_options_);
  ASSERT_EQ(trainer.status().to_string(), "OK");
  auto worker = WorkerSocket::connect(context_, trainer->endpoint(),
                                      client_options(client_, server_.public_key));
  ASSERT_TRUE(worker.ok());
  ASSERT_EQ(worker->wait_ready(within(kSoonMs)).to_string(), "OK");
  ASSERT_TRUE(worker->send({}, Drain{}).ok());
  auto received = trainer->receive(within(kSoonMs));
  ASSERT_TRUE(received.ok() && received->has_value());
  ASSERT_TRUE(trainer->send((*received)->peer, {}, Pause{}).ok());
  auto answer = worker->receive(within(kSoonMs));
  ASSERT_TRUE(answer.ok() && answer->has_value());
  EXPECT_TRUE(std::holds_alternative<Pause>(*(*answer)->message));
  EXPECT_EQ(allow_list_->num_accepted(), 1u);
  EXPECT_EQ(allow_list_->num_refused(), 0u);
}

TEST_F(Curve, AClientThatIsNotOnTheListGetsNothingThrough) {
  auto trainer = TrainerSocket::bind(context_, kAnyPort, server_options_);
  ASSERT_TRUE(trainer.ok());
  const CurveKeys stranger = *generate_keypair();
  const auto deadline = within(kSoonMs);
  do {
    EXPECT_FALSE(gets_through(*trainer, client_options(stranger, server_.public_key), 500));
  } while (allow_list_->num_refused() == 0 && Clock::now() < deadline);
  EXPECT_GE(allow_list_->num_refused(), 1u);
  EXPECT_TRUE(gets_through(*trainer, client_options(client_, server_.public_key), kSoonMs));
}

TEST_F(Curve, AClientWithoutKeysGetsNothingThrough) {
  auto trainer = TrainerSocket::bind(context_, kAnyPort, server_options_);
  ASSERT_TRUE(trainer.ok());
  EXPECT_FALSE(gets_through(*trainer, SocketOptions{}, 300));
}

TEST_F(Curve, AClientOfAnotherServerKeyGetsNothingThrough) {
  auto trainer = TrainerSocket::bind(context_, kAnyPort, server_options_);
  ASSERT_TRUE(trainer.ok());
  EXPECT_FALSE(
      gets_through(*trainer, client_options(client_, generate_keypair()->public_key), 300));
}

TEST_F(Curve, AClientAddedLaterIsLetIn) {
  auto trainer = TrainerSocket::bind(context_, kAnyPort, server_options_);
  ASSERT_TRUE(trainer.ok());
  const CurveKeys late = *generate_keypair();
  EXPECT_FALSE(gets_through(*trainer, client_options(late, server_.public_key), 300));
  ASSERT_TRUE(allow_list_->set_allowed({late.public_key}).ok());
  EXPECT_TRUE(gets_through(*trainer, client_options(late, server_.public_key), kSoonMs));
}

TEST_F(Curve, ARefusedSocketIsLetInAfterReconnect) {
  auto trainer = TrainerSocket::bind(context_, kAnyPort, server_options_);
  ASSERT_TRUE(trainer.ok());
  const CurveKeys late = *generate_keypair();
  auto worker = WorkerSocket::connect(context_, trainer->endpoint(),
                                      client_options(late, server_.public_key));
  ASSERT_TRUE(worker.ok());
  const auto deadline = within(kSoonMs);
  while (allow_list_->num_refused() == 0 && Clock::now() < deadline) {
    EXPECT_FALSE(worker->wait_ready(within(20)).ok());
  }
  ASSERT_TRUE(allow_list_->set_allowed({late.public_key}).ok());
  ASSERT_TRUE(worker->reconnect().ok());
  EXPECT_EQ(worker->wait_ready(within(kSoonMs)).to_string(), "OK");
}

TEST_F(Curve, AServerWithoutAnAllowListIsRefused) {
  SocketOptions options;
  options.curve_server = CurveServer{server_, nullptr};
  EXPECT_THAT(TrainerSocket::bind(context_, kAnyPort, options).status().message(),
              HasSubstr("without an allow-list"));
}

TEST_F(Curve, ASecondAllowListOfOneContextIsRefused) {
  const auto second = CurveAllowList::start(context_, {});
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(Curve, AMalformedKeyIsRefusedWithoutPrintingIt) {
  auto options = client_options(client_, server_.public_key);
  options.curve_client->keys.secret_key = "too short";
  const auto worker = WorkerSocket::connect(context_, "tcp://127.0.0.1:9", options);
  EXPECT_EQ(worker.status().message(),
            "client secret key (9 characters) is not a CURVE key, wanted 40 characters of Z85");
}

TEST(Endpoint, LoopbackNeedsNoKeys) {
  for (const char* endpoint : {"tcp://127.0.0.1:5555", "tcp://127.8.8.8:*", "tcp://[::1]:5555",
                               "tcp://localhost:0", "tcp://lo:1", "ipc:///tmp/x", "inproc://x"}) {
    EXPECT_TRUE(is_loopback_endpoint(endpoint)) << endpoint;
    EXPECT_EQ(check_endpoint(endpoint, false, false).to_string(), "OK") << endpoint;
  }
}

TEST(Endpoint, ABindThatOthersCanReachNeedsCurveOrInsecure) {
  for (const char* endpoint :
       {"tcp://0.0.0.0:5555", "tcp://*:5555", "tcp://10.0.0.1:5555", "tcp://[::]:5555",
        "tcp://eth0:5555", "tcp://127.evil.org:1", "tcp://[::ffff:127.0.0.1]:1"}) {
    EXPECT_FALSE(is_loopback_endpoint(endpoint)) << endpoint;
    const Status status = check_endpoint(endpoint, false, false);
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << endpoint;
    EXPECT_THAT(status.message(), HasSubstr("warproll keygen"));
    EXPECT_THAT(status.message(), HasSubstr("insecure: true"));
    EXPECT_TRUE(check_endpoint(endpoint, true, false).ok()) << endpoint;
    EXPECT_TRUE(check_endpoint(endpoint, false, true).ok()) << endpoint;
  }
}

TEST(Endpoint, AMalformedEndpointIsRefusedEvenWhenInsecure) {
  for (const char* endpoint : {"", "5555", "tcp://", "tcp://host", "tcp://:5", "tcp://h:65536",
                               "tcp://h:x", "tcp://h:", "tcp://a;b:1", "udp://h:1", "ipc://"}) {
    EXPECT_EQ(check_endpoint(endpoint, true, true).code(), StatusCode::kInvalidArgument)
        << endpoint;
  }
}

}  // namespace
}  // namespace warproll
