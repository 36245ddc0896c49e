// What a Broadcaster keeps of each worker and offer. Private to broadcaster*.cpp. Thread: its owner's.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "weights_sync/broadcaster.h"

namespace warproll {

inline constexpr uint32_t kMaxDoublings = 5;  // of the time between retries

struct Broadcaster::Offer {
  UpdateOffer offer;
  int64_t begun_ms = 0;
  int64_t decide_by_ms = 0;
  int64_t quorum_since_ms = -1;  // when the quorum was first there
  bool started = false;          // the first workers have their Start
  int64_t gather_since_ms = -1;  // when the first of a later group had accepted
  UpdateReport report;
};

struct Broadcaster::Group {
  UpdateId id;
  std::shared_ptr<Offer> offer;
  size_t route_index = 0;
  std::string unique_id;
  std::set<ProducerId> waiting;  // members that are not Ready yet
};

struct Broadcaster::Worker {
  ProducerId id{};
  uint64_t epoch = 0;  // of the process
  std::string name;
  std::vector<std::string> transports;
  HelloEnvironment environment;
  WeightStatus status;
  bool live = false;
  int64_t last_seen_ms = 0;

  Stage stage = Stage::kNone;
  std::shared_ptr<Offer> offer;  // what the stage is about
  UpdateId update;
  size_t route_index = 0;                 // of the offer's routes
  std::shared_ptr<Group> group;           // of its Start; null = none
  std::vector<std::string> participants;  // of its Start
  uint32_t attempts = 0;                  // for this offer
  bool rollback_tried = false;            // for this offer
  int64_t retry_at_ms = 0;
  int64_t restate_at_ms = 0;
};

}  // namespace warproll
