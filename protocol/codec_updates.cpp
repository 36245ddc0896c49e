#include <capnp/message.h>

#include "protocol/messages.capnp.h"
// After Cap'n Proto and the generated headers:
#include "protocol/codec_fields.h"

namespace warproll {
namespace {

void write(wire::UpdateBegin::Builder to, const UpdateBegin& from, FieldWriter& w) {
  write_id(to.initId(), from.id);
  to.setTransport(w.text("UpdateBegin.transport", from.transport));
  to.setSource(w.text("UpdateBegin.source", from.source));
  to.setServerKey(w.text("UpdateBegin.server_key", from.server_key));
  to.setManifest(w.data(from.manifest));
  to.setDeadlineMs(from.deadline_ms);
}
void read(wire::UpdateBegin::Reader from, UpdateBegin* to, FieldReader& r) {
  read_id(from.getId(), &to->id);
  r.text("UpdateBegin.transport", from.getTransport(), &to->transport);
  r.text("UpdateBegin.source", from.getSource(), &to->source);
  r.text("UpdateBegin.server_key", from.getServerKey(), &to->server_key);
  r.bytes(from.getManifest(), &to->manifest);
  to->deadline_ms = from.getDeadlineMs();
}

void write(wire::UpdateAccept::Builder to, const UpdateAccept& from, FieldWriter&) {
  write_id(to.initId(), from.id);
}
void read(wire::UpdateAccept::Reader from, UpdateAccept* to, FieldReader&) {
  read_id(from.getId(), &to->id);
}

void write(wire::UpdateReject::Builder to, const UpdateReject& from, FieldWriter& w) {
  write_id(to.initId(), from.id);
  to.setReason(w.text("UpdateReject.reason", from.reason));
}
void read(wire::UpdateReject::Reader from, UpdateReject* to, FieldReader& r) {
  read_id(from.getId(), &to->id);
  r.text("UpdateReject.reason", from.getReason(), &to->reason);
}

void write(wire::UpdateDefer::Builder to, const UpdateDefer& from, FieldWriter&) {
  write_id(to.initId(), from.id);
  to.setPinnedSequences(from.pinned_sequences);
  to.setRetryMs(from.retry_ms);
}
void read(wire::UpdateDefer::Reader from, UpdateDefer* to, FieldReader&) {
  read_id(from.getId(), &to->id);
  to->pinned_sequences = from.getPinnedSequences();
  to->retry_ms = from.getRetryMs();
}

void write(wire::UpdateStart::Builder to, const UpdateStart& from, FieldWriter& w) {
  write_id(to.initId(), from.id);
  const char* name = "UpdateStart.participants";
  w.texts(name, from.participants, to.initParticipants(w.count(name, from.participants.size())));
  to.setNcclUniqueId(w.data(from.nccl_unique_id));
}
void read(wire::UpdateStart::Reader from, UpdateStart* to, FieldReader& r) {
  read_id(from.getId(), &to->id);
  r.texts("UpdateStart.participants", from.getParticipants(), &to->participants);
  r.bytes(from.getNcclUniqueId(), &to->nccl_unique_id);
}

void write(wire::UpdateReady::Builder to, const UpdateReady& from, FieldWriter& w) {
  write_id(to.initId(), from.id);
  to.setWeightDigest(w.data(from.weight_digest));
  to.setLayoutDigest(w.data(from.layout_digest));
  to.setReceivedBytes(from.received_bytes);
  to.setReceiveMs(from.receive_ms);
}
void read(wire::UpdateReady::Reader from, UpdateReady* to, FieldReader& r) {
  read_id(from.getId(), &to->id);
  r.digest("UpdateReady.weight_digest", from.getWeightDigest(), &to->weight_digest);
  r.digest("UpdateReady.layout_digest", from.getLayoutDigest(), &to->layout_digest);
  to->received_bytes = from.getReceivedBytes();
  to->receive_ms = from.getReceiveMs();
}

void write(wire::UpdateFailed::Builder to, const UpdateFailed& from, FieldWriter& w) {
  write_id(to.initId(), from.id);
  to.setReason(w.text("UpdateFailed.reason", from.reason));
}
void read(wire::UpdateFailed::Reader from, UpdateFailed* to, FieldReader& r) {
  read_id(from.getId(), &to->id);
  r.text("UpdateFailed.reason", from.getReason(), &to->reason);
}

void write(wire::UpdateCommit::Builder to, const UpdateCommit& from, FieldWriter&) {
  write_id(to.initId(), from.id);
}
void read(wire::UpdateCommit::Reader from, UpdateCommit* to, FieldReader&) {
  read_id(from.getId(), &to->id);
}

void write(wire::UpdateAbort::Builder to, const UpdateAbort& from, FieldWriter& w) {
  write_id(to.initId(), from.id);
  to.setReason(w.text("UpdateAbort.reason", from.reason));
}
void read(wire::UpdateAbort::Reader from, UpdateAbort* to, FieldReader& r) {
  read_id(from.getId(), &to->id);
  r.text("UpdateAbort.reason", from.getReason(), &to->reason);
}

void write(wire::UpdateCommitted::Builder to, const UpdateCommitted& from, FieldWriter& w) {
  write_id(to.initId(), from.id);
  to.setWeightDigest(w.data(from.weight_digest));
  to.setStallUs(from.stall_us);
  to.setStallSteps(from.stall_steps);
  to.setInFlightSequences(from.in_flight_sequences);
}
void read(wire::UpdateCommitted::Reader from, UpdateCommitted* to, FieldReader& r) {
  read_id(from.getId(), &to->id);
  r.digest("UpdateCommitted.weight_digest", from.getWeightDigest(), &to->weight_digest);
  to->stall_us = from.getStallUs();
  to->stall_steps = from.getStallSteps();
  to->in_flight_sequences = from.getInFlightSequences();
}

void write(wire::Rollback::Builder to, const Rollback& from, FieldWriter&) {
  write_id(to.initId(), from.id);
}
void read(wire::Rollback::Reader from, Rollback* to, FieldReader&) {
  read_id(from.getId(), &to->id);
}

void write(wire::RollbackDone::Builder to, const RollbackDone& from, FieldWriter& w) {
  write_id(to.initId(), from.id);
  to.setDone(from.done);
  to.setReason(w.text("RollbackDone.reason", from.reason));
}
void read(wire::RollbackDone::Reader from, RollbackDone* to, FieldReader& r) {
  read_id(from.getId(), &to->id);
  to->done = from.getDone();
  r.text("RollbackDone.reason", from.getReason(), &to->reason);
}

}  // namespace

WARPROLL_DEFINE_BODY(UpdateBegin)
WARPROLL_DEFINE_BODY(UpdateAccept)
WARPROLL_DEFINE_BODY(UpdateReject)
WARPROLL_DEFINE_BODY(UpdateDefer)
WARPROLL_DEFINE_BODY(UpdateStart)
WARPROLL_DEFINE_BODY(UpdateReady)
WARPROLL_DEFINE_BODY(UpdateFailed)
WARPROLL_DEFINE_BODY(UpdateCommit)
WARPROLL_DEFINE_BODY(UpdateAbort)
WARPROLL_DEFINE_BODY(UpdateCommitted)
WARPROLL_DEFINE_BODY(Rollback)
WARPROLL_DEFINE_BODY(RollbackDone)

}  // namespace warproll
