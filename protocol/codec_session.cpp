#include <capnp/message.h>

#include "protocol/messages.capnp.h"
// After Cap'n Proto and the generated headers:
#include "protocol/codec_fields.h"

namespace warproll {
namespace {

void write_weights(wire::WeightStatus::Builder to, const WeightStatus& from, FieldWriter& w) {
  to.setServingVersion(from.serving_version);
  to.setServingDigest(w.data(from.serving_digest));
  to.setUpdateState(w.enumeration<wire::UpdateState>("WeightStatus.update_state", from.update_state,
                                                     UpdateState::kAborted));
  to.setUpdateVersion(from.update_version);
  to.setUpdateAttempt(from.update_attempt);
  to.setCanRollback(from.can_rollback);
  to.setRollbackVersion(from.rollback_version);
}
void read_weights(wire::WeightStatus::Reader from, WeightStatus* to, FieldReader& r) {
  to->serving_version = from.getServingVersion();
  r.digest("WeightStatus.serving_digest", from.getServingDigest(), &to->serving_digest);
  r.enumeration("WeightStatus.update_state", from.getUpdateState(), UpdateState::kAborted,
                &to->update_state);
  to->update_version = from.getUpdateVersion();
  to->update_attempt = from.getUpdateAttempt();
  to->can_rollback = from.getCanRollback();
  to->rollback_version = from.getRollbackVersion();
}

void write(wire::Hello::Builder to, const Hello& from, FieldWriter& w) {
  to.setWorkerName(w.text("Hello.worker_name", from.worker_name));
  to.setEngineVersion(w.text("Hello.engine_version", from.engine_version));
  to.setModel(w.text("Hello.model", from.model));
  to.setModelConfigDigest(w.data(from.model_config_digest));
  to.setTokenizerDigest(w.data(from.tokenizer_digest));
  to.setVocabSize(from.vocab_size);
  to.setMaxContextTokens(from.max_context_tokens);
  to.setState(w.enumeration<wire::WorkerState>("Hello.state", from.state, WorkerState::kStopping));
  write_weights(to.initWeights(), from.weights, w);
  to.setLastSeq(from.last_seq);
  to.setCommitUpto(from.commit_upto);
  to.setLineageId(w.text("Hello.lineage_id", from.lineage_id));
  const char* name = "Hello.transports";
  w.texts(name, from.transports, to.initTransports(w.count(name, from.transports.size())));
  name = "Hello.open_task_ids";
  w.texts(name, from.open_task_ids, to.initOpenTaskIds(w.count(name, from.open_task_ids.size())));
  name = "Hello.environment";
  auto environment = to.initEnvironment(w.count(name, from.environment.size()));
  for (unsigned i = 0; i < environment.size(); ++i) {
    environment[i].setKey(w.text(name, from.environment[i].first));
    environment[i].setValue(w.text(name, from.environment[i].second));
  }
}
void read(wire::Hello::Reader from, Hello* to, FieldReader& r) {
  r.text("Hello.worker_name", from.getWorkerName(), &to->worker_name);
  r.text("Hello.engine_version", from.getEngineVersion(), &to->engine_version);
  r.text("Hello.model", from.getModel(), &to->model);
  r.digest("Hello.model_config_digest", from.getModelConfigDigest(), &to->model_config_digest);
  r.digest("Hello.tokenizer_digest", from.getTokenizerDigest(), &to->tokenizer_digest);
  to->vocab_size = from.getVocabSize();
  to->max_context_tokens = from.getMaxContextTokens();
  r.enumeration("Hello.state", from.getState(), WorkerState::kStopping, &to->state);
  read_weights(from.getWeights(), &to->weights, r);
  to->last_seq = from.getLastSeq();
  to->commit_upto = from.getCommitUpto();
  r.text("Hello.lineage_id", from.getLineageId(), &to->lineage_id);
  r.texts("Hello.transports", from.getTransports(), &to->transports);
  r.texts("Hello.open_task_ids", from.getOpenTaskIds(), &to->open_task_ids);
  const auto environment = from.getEnvironment();
  to->environment.resize(r.count("Hello.environment", environment));
  for (unsigned i = 0; i < to->environment.size(); ++i) {
    r.text("Hello.environment", environment[i].getKey(), &to->environment[i].first);
    r.text("Hello.environment", environment[i].getValue(), &to->environment[i].second);
  }
}

void write(wire::Welcome::Builder to, const Welcome& from, FieldWriter& w) {
  to.setLineageId(w.text("Welcome.lineage_id", from.lineage_id));
  to.setTrainerEpoch(from.trainer_epoch);
  to.setCommitUpto(from.commit_upto);
  to.setCreditSeq(from.credit_seq);
  to.setCreditBytes(from.credit_bytes);
  to.setMaxMessageBytes(from.limits.max_message_bytes);
  to.setHeartbeatMs(from.limits.heartbeat_ms);
  to.setLivenessMs(from.limits.liveness_ms);
}
void read(wire::Welcome::Reader from, Welcome* to, FieldReader& r) {
  r.text("Welcome.lineage_id", from.getLineageId(), &to->lineage_id);
  to->trainer_epoch = from.getTrainerEpoch();
  to->commit_upto = from.getCommitUpto();
  to->credit_seq = from.getCreditSeq();
  to->credit_bytes = from.getCreditBytes();
  to->limits = {from.getMaxMessageBytes(), from.getHeartbeatMs(), from.getLivenessMs()};
}

void write(wire::Heartbeat::Builder to, const Heartbeat& from, FieldWriter& w) {
  to.setState(
      w.enumeration<wire::WorkerState>("Heartbeat.state", from.state, WorkerState::kStopping));
  write_weights(to.initWeights(), from.weights, w);
  to.setLastSeq(from.last_seq);
  to.setQueuedSamples(from.queued_samples);
  to.setRunningSamples(from.running_samples);
  to.setFreeTaskSlots(from.free_task_slots);
  to.setTrainerEpoch(from.trainer_epoch);
}
void read(wire::Heartbeat::Reader from, Heartbeat* to, FieldReader& r) {
  r.enumeration("Heartbeat.state", from.getState(), WorkerState::kStopping, &to->state);
  read_weights(from.getWeights(), &to->weights, r);
  to->last_seq = from.getLastSeq();
  to->queued_samples = from.getQueuedSamples();
  to->running_samples = from.getRunningSamples();
  to->free_task_slots = from.getFreeTaskSlots();
  to->trainer_epoch = from.getTrainerEpoch();
}

void write(wire::Bye::Builder to, const Bye& from, FieldWriter& w) {
  to.setReason(w.text("Bye.reason", from.reason));
  const char* name = "Bye.open_task_ids";
  w.texts(name, from.open_task_ids, to.initOpenTaskIds(w.count(name, from.open_task_ids.size())));
}
void read(wire::Bye::Reader from, Bye* to, FieldReader& r) {
  r.text("Bye.reason", from.getReason(), &to->reason);
  r.texts("Bye.open_task_ids", from.getOpenTaskIds(), &to->open_task_ids);
}

void write(wire::NeedHello::Builder to, const NeedHello& from, FieldWriter& w) {
  to.setReason(w.text("NeedHello.reason", from.reason));
}
void read(wire::NeedHello::Reader from, NeedHello* to, FieldReader& r) {
  r.text("NeedHello.reason", from.getReason(), &to->reason);
}

void write(wire::Fenced::Builder to, const Fenced& from, FieldWriter&) { to.setEpoch(from.epoch); }
void read(wire::Fenced::Reader from, Fenced* to, FieldReader&) { to->epoch = from.getEpoch(); }

void write(wire::Pause::Builder to, const Pause& from, FieldWriter&) { to.setPaused(from.paused); }
void read(wire::Pause::Reader from, Pause* to, FieldReader&) { to->paused = from.getPaused(); }

void write(wire::Drain::Builder, const Drain&, FieldWriter&) {}
void read(wire::Drain::Reader, Drain*, FieldReader&) {}

void write(wire::Gap::Builder to, const Gap& from, FieldWriter& w) {
  to.setFrom(from.from);
  to.setTo(from.to);
  to.setReason(w.text("Gap.reason", from.reason));
}
void read(wire::Gap::Reader from, Gap* to, FieldReader& r) {
  to->from = from.getFrom();
  to->to = from.getTo();
  r.text("Gap.reason", from.getReason(), &to->reason);
  if (to->from == 0 || to->from > to->to) {
    r.fail_if(invalid_argument("Gap is [" + std::to_string(to->from) + ", " +
                               std::to_string(to->to) + "], wanted 1 <= from <= to"));
  }
}

void write(wire::Ack::Builder to, const Ack& from, FieldWriter& w) {
  to.setLineageId(w.text("Ack.lineage_id", from.lineage_id));
  to.setRecvUpto(from.recv_upto);
  to.setCommitUpto(from.commit_upto);
  to.setCreditSeq(from.credit_seq);
  to.setCreditBytes(from.credit_bytes);
}
void read(wire::Ack::Reader from, Ack* to, FieldReader& r) {
  r.text("Ack.lineage_id", from.getLineageId(), &to->lineage_id);
  to->recv_upto = from.getRecvUpto();
  to->commit_upto = from.getCommitUpto();
  to->credit_seq = from.getCreditSeq();
  to->credit_bytes = from.getCreditBytes();
}

void write(wire::Nack::Builder to, const Nack& from, FieldWriter& w) {
  to.setSeq(from.seq);
  to.setCode(w.enumeration<wire::NackCode>("Nack.code", from.code, NackCode::kRetry));
  to.setReason(w.text("Nack.reason", from.reason));
}
void read(wire::Nack::Reader from, Nack* to, FieldReader& r) {
  to->seq = from.getSeq();
  r.enumeration("Nack.code", from.getCode(), NackCode::kRetry, &to->code);
  r.text("Nack.reason", from.getReason(), &to->reason);
}

}  // namespace

WARPROLL_DEFINE_BODY(Hello)
WARPROLL_DEFINE_BODY(Welcome)
WARPROLL_DEFINE_BODY(Heartbeat)
WARPROLL_DEFINE_BODY(Bye)
WARPROLL_DEFINE_BODY(NeedHello)
WARPROLL_DEFINE_BODY(Fenced)
WARPROLL_DEFINE_BODY(Pause)
WARPROLL_DEFINE_BODY(Drain)
WARPROLL_DEFINE_BODY(Gap)
WARPROLL_DEFINE_BODY(Ack)
WARPROLL_DEFINE_BODY(Nack)

}  // namespace warproll
