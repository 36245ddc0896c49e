// The steps of nccl_one_gpu: what a trainer and workers do together, and what has to hold.
#pragma once

#include <string>
#include <vector>

#include "tests/gpu/nccl_ranks.h"

namespace warproll::gpu_test {

// Prints it, and counts it when it does not hold.
void expect(bool holds, const std::string& what);
int num_failures();
std::string in_s(double seconds);

inline constexpr int32_t kSilenceOfTwo_ms = 3'000;  // where there are two ranks

class Scenario {
 public:
  explicit Scenario(RankProcesses& ranks) : ranks_(ranks) {}

  // A group of the workers `members` (process numbers) receives `version`; they are begun only.
  void begin(uint64_t version, const std::vector<int>& members, Order order = {}, int special = 0);
  void transfer(const std::string& what, uint64_t version, const std::vector<int>& members,
                bool to_host = false);
  void bare(uint64_t version, const std::vector<int>& members);
  // One member of two gets a signal in the middle; the other and the trainer have to give up.
  void death(int victim, int witness, int signal, int32_t silence_ms, uint64_t version,
             uint64_t at_bytes);
  // The trainer and one worker: `victim` (0 = the trainer) is killed in the middle, the other has to
  // give up; then a new process takes its place and everything is sent.
  void death_of_two(int victim, uint64_t version, uint64_t at_bytes);
  void many_groups(int count);
  void missing_member();

 private:
  void begin_quietly(uint64_t version, const std::vector<int>& members);
  void print_usage(const std::string& when, const std::vector<int>& which,
                   std::vector<Report>* usage);
  void expect_no_growth(const std::vector<Report>& before, const std::vector<Report>& after,
                        int32_t known_fds = 0);

  RankProcesses& ranks_;
  Order order_;
  uint32_t attempt_ = 0;
};

}  // namespace warproll::gpu_test
