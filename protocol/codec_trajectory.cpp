#include <capnp/message.h>

#include "protocol/records.capnp.h"
// After Cap'n Proto and the generated headers:
#include "protocol/codec_fields.h"

namespace warproll {
namespace {

std::span<const std::byte> bytes_of(const RoutedExperts& routes) {
  return std::as_bytes(std::span(routes.data));
}

void write_arrays(wire::Trajectory::Builder to, const Trajectory& from, FieldWriter& w) {
  to.setTokenIds(w.data(from.token_ids));
  to.setPromptLen(from.prompt_len);
  to.setLossMask(w.data(from.loss_mask));
  to.setLogprobs(w.data(from.logprobs));
  to.setRawLogprobs(w.data(from.raw_logprobs));
  to.setSupportLogmass(w.data(from.support_logmass));
}

void write_lists(wire::Trajectory::Builder to, const Trajectory& from, FieldWriter& w) {
  auto runs = to.initVersionRuns(w.count("Trajectory.version_runs", from.version_runs.size()));
  for (unsigned i = 0; i < runs.size(); ++i) {
    runs[i].setStart(from.version_runs[i].start);
    runs[i].setWeightVersion(from.version_runs[i].weight_version);
  }
  auto digests =
      to.initVersionDigests(w.count("Trajectory.version_digests", from.version_digests.size()));
  for (unsigned i = 0; i < digests.size(); ++i) {
    digests[i].setWeightVersion(from.version_digests[i].weight_version);
    digests[i].setWeightDigest(w.data(from.version_digests[i].weight_digest));
  }
  auto events = to.initEvents(w.count("Trajectory.events", from.events.size()));
  for (unsigned i = 0; i < events.size(); ++i) {
    events[i].setAtToken(from.events[i].at_token);
    events[i].setKind(w.enumeration<wire::EventKind>("Trajectory.events.kind", from.events[i].kind,
                                                     EventKind::kPreemptRecompute));
    events[i].setWeightVersion(from.events[i].weight_version);
  }
  auto spans = to.initRoleSpans(w.count("Trajectory.role_spans", from.role_spans.size()));
  for (unsigned i = 0; i < spans.size(); ++i) {
    spans[i].setStart(from.role_spans[i].start);
    spans[i].setEnd(from.role_spans[i].end);
    spans[i].setRole(w.enumeration<wire::Role>("Trajectory.role_spans.role",
                                               from.role_spans[i].role, Role::kTool));
  }
}

void write_routes(wire::RoutedExperts::Builder to, const RoutedExperts& from) {
  to.setNumTokens(from.num_tokens);
  to.setNumLayers(from.num_layers);
  to.setTopK(from.top_k);
  to.setBytesPerId(from.bytes_per_id);
  to.setLengthBytes(from.data.size());
  to.setXxh3(checksum64(bytes_of(from)));
}

void write_reward(wire::Reward::Builder to, const Reward& from, FieldWriter& w) {
  to.setTotal(from.total);
  auto components = to.initComponents(w.count("Reward.components", from.components.size()));
  for (unsigned i = 0; i < components.size(); ++i) {
    components[i].setName(w.text("Reward.components.name", from.components[i].first));
    components[i].setValue(from.components[i].second);
  }
}

void write(wire::Trajectory::Builder to, const Trajectory& from, FieldWriter& w) {
  to.setTrajectoryId(w.text("Trajectory.trajectory_id", from.trajectory_id));
  to.setProducerId(w.data(from.producer_id));
  to.setEpoch(from.epoch);
  to.setSeq(from.seq);
  to.setTaskId(w.text("Trajectory.task_id", from.task_id));
  to.setGroupId(w.text("Trajectory.group_id", from.group_id));
  to.setSampleIndex(from.sample_index);
  write_arrays(to, from, w);
  write_lists(to, from, w);
  if (from.routed_experts) write_routes(to.initRoutedExperts(), *from.routed_experts);
  to.setFinishReason(w.enumeration<wire::FinishReason>("Trajectory.finish_reason",
                                                       from.finish_reason, FinishReason::kError));
  to.setText(w.text("Trajectory.text", from.text));
  if (from.reward) write_reward(to.initReward(), *from.reward, w);
  to.setErrorType(w.text("Trajectory.error_type", from.error_type));
  to.setErrorMessage(w.text("Trajectory.error_message", from.error_message));
  write_sampling(to.initSampling(), from.sampling, w);
  to.setInFlight(w.enumeration<wire::InFlightPolicy>("Trajectory.in_flight", from.in_flight,
                                                     InFlightPolicy::kPin));
  auto timings = to.initTimings();
  timings.setTaskReceivedNs(from.timings.task_received_ns);
  timings.setAdmittedNs(from.timings.admitted_ns);
  timings.setFirstTokenNs(from.timings.first_token_ns);
  timings.setSealedNs(from.timings.sealed_ns);
  to.setModel(w.text("Trajectory.model", from.model));
  to.setActivationDtype(w.text("Trajectory.activation_dtype", from.activation_dtype));
  to.setTokenizerDigest(w.data(from.tokenizer_digest));
  to.setEngineVersion(w.text("Trajectory.engine_version", from.engine_version));
  to.setMetadata(w.data(from.metadata));
}

void read_producer(wire::Trajectory::Reader from, ProducerId* to, FieldReader& r) {
  r.fail_if(
      FieldReader::check_size("Trajectory.producer_id", from.getProducerId().size(), to->size()));
  r.digest("Trajectory.producer_id", from.getProducerId(), to);
}

void read_arrays(wire::Trajectory::Reader from, Trajectory* to, FieldReader& r) {
  r.array("Trajectory.token_ids", from.getTokenIds(), &to->token_ids);
  to->prompt_len = from.getPromptLen();
  r.array("Trajectory.loss_mask", from.getLossMask(), &to->loss_mask);
  r.array("Trajectory.logprobs", from.getLogprobs(), &to->logprobs);
  r.array("Trajectory.raw_logprobs", from.getRawLogprobs(), &to->raw_logprobs);
  r.array("Trajectory.support_logmass", from.getSupportLogmass(), &to->support_logmass);
}

void read_lists(wire::Trajectory::Reader from, Trajectory* to, FieldReader& r) {
  const auto runs = from.getVersionRuns();
  to->version_runs.resize(r.count("Trajectory.version_runs", runs));
  for (unsigned i = 0; i < to->version_runs.size(); ++i) {
    to->version_runs[i] = {runs[i].getStart(), runs[i].getWeightVersion()};
  }
  const auto digests = from.getVersionDigests();
  to->version_digests.resize(r.count("Trajectory.version_digests", digests));
  for (unsigned i = 0; i < to->version_digests.size(); ++i) {
    to->version_digests[i].weight_version = digests[i].getWeightVersion();
    r.digest("Trajectory.version_digests", digests[i].getWeightDigest(),
             &to->version_digests[i].weight_digest);
  }
  const auto events = from.getEvents();
  to->events.resize(r.count("Trajectory.events", events));
  for (unsigned i = 0; i < to->events.size(); ++i) {
    to->events[i].at_token = events[i].getAtToken();
    r.enumeration("Trajectory.events.kind", events[i].getKind(), EventKind::kPreemptRecompute,
                  &to->events[i].kind);
    to->events[i].weight_version = events[i].getWeightVersion();
  }
  const auto spans = from.getRoleSpans();
  to->role_spans.resize(r.count("Trajectory.role_spans", spans));
  for (unsigned i = 0; i < to->role_spans.size(); ++i) {
    to->role_spans[i].start = spans[i].getStart();
    to->role_spans[i].end = spans[i].getEnd();
    r.enumeration("Trajectory.role_spans.role", spans[i].getRole(), Role::kTool,
                  &to->role_spans[i].role);
  }
}

void read_reward(wire::Reward::Reader from, Reward* to, FieldReader& r) {
  to->total = from.getTotal();
  const auto components = from.getComponents();
  to->components.resize(r.count("Reward.components", components));
  for (unsigned i = 0; i < to->components.size(); ++i) {
    r.text("Reward.components.name", components[i].getName(), &to->components[i].first);
    to->components[i].second = components[i].getValue();
  }
}

// All but the routed experts' bytes.
void read(wire::Trajectory::Reader from, Trajectory* to, FieldReader& r) {
  r.text("Trajectory.trajectory_id", from.getTrajectoryId(), &to->trajectory_id);
  read_producer(from, &to->producer_id, r);
  to->epoch = from.getEpoch();
  to->seq = from.getSeq();
  r.text("Trajectory.task_id", from.getTaskId(), &to->task_id);
  r.text("Trajectory.group_id", from.getGroupId(), &to->group_id);
  to->sample_index = from.getSampleIndex();
  read_arrays(from, to, r);
  read_lists(from, to, r);
  if (from.hasRoutedExperts()) {
    const auto routes = from.getRoutedExperts();
    to->routed_experts.emplace(RoutedExperts{routes.getNumTokens(),
                                             routes.getNumLayers(),
                                             routes.getTopK(),
                                             routes.getBytesPerId(),
                                             {}});
  }
  r.enumeration("Trajectory.finish_reason", from.getFinishReason(), FinishReason::kError,
                &to->finish_reason);
  r.text("Trajectory.text", from.getText(), &to->text);
  if (from.hasReward()) read_reward(from.getReward(), &to->reward.emplace(), r);
  r.text("Trajectory.error_type", from.getErrorType(), &to->error_type);
  r.text("Trajectory.error_message", from.getErrorMessage(), &to->error_message);
  read_sampling(from.getSampling(), &to->sampling, r);
  r.enumeration("Trajectory.in_flight", from.getInFlight(), InFlightPolicy::kPin, &to->in_flight);
  const auto timings = from.getTimings();
  to->timings = {timings.getTaskReceivedNs(), timings.getAdmittedNs(), timings.getFirstTokenNs(),
                 timings.getSealedNs()};
  r.text("Trajectory.model", from.getModel(), &to->model);
  r.text("Trajectory.activation_dtype", from.getActivationDtype(), &to->activation_dtype);
  r.digest("Trajectory.tokenizer_digest", from.getTokenizerDigest(), &to->tokenizer_digest);
  r.text("Trajectory.engine_version", from.getEngineVersion(), &to->engine_version);
  r.bytes(from.getMetadata(), &to->metadata);
}

void read_summary(wire::Trajectory::Reader from, RecordSummary* to, FieldReader& r) {
  read_producer(from, &to->producer_id, r);
  to->epoch = from.getEpoch();
  to->seq = from.getSeq();
  r.text("Trajectory.trajectory_id", from.getTrajectoryId(), &to->trajectory_id);
  r.text("Trajectory.task_id", from.getTaskId(), &to->task_id);
  r.text("Trajectory.group_id", from.getGroupId(), &to->group_id);
  to->sample_index = from.getSampleIndex();
  to->num_tokens = static_cast<int32_t>(from.getTokenIds().size() / sizeof(int32_t));
  to->prompt_len = from.getPromptLen();
  const auto digests = from.getVersionDigests();
  to->weight_versions.resize(r.count("Trajectory.version_digests", digests));
  for (unsigned i = 0; i < to->weight_versions.size(); ++i) {
    to->weight_versions[i] = digests[i].getWeightVersion();
  }
  r.enumeration("Trajectory.finish_reason", from.getFinishReason(), FinishReason::kError,
                &to->finish_reason);
  to->sealed_ns = from.getTimings().getSealedNs();
  to->has_reward = from.hasReward();
  if (to->has_reward) to->reward_total = from.getReward().getTotal();
  if (from.hasRoutedExperts()) {
    to->tensors_bytes = from.getRoutedExperts().getLengthBytes();
    to->tensors_checksum = from.getRoutedExperts().getXxh3();
  }
}

size_t hint_bytes(const Trajectory& t) {
  return 18 * t.token_ids.size() + t.text.size() + t.metadata.size() + 4096;
}

}  // namespace

Status encode_trajectory(const Trajectory& trajectory, Bytes* record, Bytes* tensors) {
  record->clear();
  tensors->clear();
  auto bytes = build_flat("Trajectory", hint_bytes(trajectory),
                          [&](capnp::MessageBuilder& message, FieldWriter& w) {
                            write(message.initRoot<wire::Trajectory>(), trajectory, w);
                          });
  if (!bytes.ok()) return bytes.status();
  *record = std::move(*bytes);
  if (trajectory.routed_experts) {
    const auto routes = bytes_of(*trajectory.routed_experts);
    tensors->assign(routes.begin(), routes.end());
  }
  return {};
}

Result<RecordSummary> peek_trajectory(std::span<const std::byte> record) {
  RecordSummary summary;
  WARPROLL_TRY(read_flat("Trajectory", record, [&](capnp::MessageReader& message, FieldReader& r) {
    read_summary(message.getRoot<wire::Trajectory>(), &summary, r);
  }));
  return summary;
}

Status check_tensors(const RecordSummary& summary, std::span<const std::byte> tensors) {
  if (tensors.size() != summary.tensors_bytes) {
    return data_loss("routed experts of seq " + std::to_string(summary.seq) + " have " +
                     std::to_string(tensors.size()) + " bytes, wanted " +
                     std::to_string(summary.tensors_bytes));
  }
  if (!tensors.empty() && checksum64(tensors) != summary.tensors_checksum) {
    return data_loss("routed experts of seq " + std::to_string(summary.seq) +
                     ": checksum does not match");
  }
  return {};
}

Result<Trajectory> decode_trajectory(std::span<const std::byte> record,
                                     std::span<const std::byte> tensors) {
  Trajectory trajectory;
  RecordSummary summary;
  WARPROLL_TRY(read_flat("Trajectory", record, [&](capnp::MessageReader& message, FieldReader& r) {
    const auto root = message.getRoot<wire::Trajectory>();
    read(root, &trajectory, r);
    read_summary(root, &summary, r);
  }));
  WARPROLL_TRY(check_tensors(summary, tensors));
  if (trajectory.routed_experts) {
    const auto* begin = reinterpret_cast<const uint8_t*>(tensors.data());
    trajectory.routed_experts->data.assign(begin, begin + tensors.size());
  }
  return trajectory;
}

}  // namespace warproll
