#include <capnp/message.h>

#include "protocol/messages.capnp.h"
#include "protocol/records.capnp.h"
// After Cap'n Proto and the generated headers:
#include "protocol/codec_fields.h"

namespace warproll {
namespace {

void write(wire::Task::Builder to, const Task& from, FieldWriter& w) {
  to.setTaskId(w.text("Task.task_id", from.task_id));
  to.setGroupId(w.text("Task.group_id", from.group_id));
  to.setGroupSize(from.group_size);
  to.setPromptIds(w.data(from.prompt_ids));
  to.setPromptText(w.text("Task.prompt_text", from.prompt_text));
  auto messages = to.initMessages(w.count("Task.messages", from.messages.size()));
  for (unsigned i = 0; i < messages.size(); ++i) {
    messages[i].setRole(
        w.enumeration<wire::Role>("Task.messages.role", from.messages[i].role, Role::kTool));
    messages[i].setContent(w.text("Task.messages.content", from.messages[i].content));
  }
  write_sampling(to.initSampling(), from.sampling, w);
  to.setEnv(w.text("Task.env", from.env));
  to.setInFlight(
      w.enumeration<wire::InFlightPolicy>("Task.in_flight", from.in_flight, InFlightPolicy::kPin));
  to.setDeadlineMs(from.deadline_ms);
  to.setReturnRoutes(from.return_routes);
  to.setMetadata(w.data(from.metadata));
  to.setSampleIndices(w.data(from.sample_indices));
}

void read(wire::Task::Reader from, Task* to, FieldReader& r) {
  r.text("Task.task_id", from.getTaskId(), &to->task_id);
  r.text("Task.group_id", from.getGroupId(), &to->group_id);
  to->group_size = from.getGroupSize();
  r.array("Task.prompt_ids", from.getPromptIds(), &to->prompt_ids);
  r.text("Task.prompt_text", from.getPromptText(), &to->prompt_text);
  const auto messages = from.getMessages();
  to->messages.resize(r.count("Task.messages", messages));
  for (unsigned i = 0; i < to->messages.size(); ++i) {
    r.enumeration("Task.messages.role", messages[i].getRole(), Role::kTool, &to->messages[i].role);
    r.text("Task.messages.content", messages[i].getContent(), &to->messages[i].content);
  }
  read_sampling(from.getSampling(), &to->sampling, r);
  r.text("Task.env", from.getEnv(), &to->env);
  r.enumeration("Task.in_flight", from.getInFlight(), InFlightPolicy::kPin, &to->in_flight);
  to->deadline_ms = from.getDeadlineMs();
  to->return_routes = from.getReturnRoutes();
  r.bytes(from.getMetadata(), &to->metadata);
  r.array("Task.sample_indices", from.getSampleIndices(), &to->sample_indices);
}

void write(wire::TaskMessage::Builder to, const TaskMessage& from, FieldWriter& w) {
  write(to.initTask(), from.task, w);
  to.setLeaseId(from.lease_id);
}
void read(wire::TaskMessage::Reader from, TaskMessage* to, FieldReader& r) {
  read(from.getTask(), &to->task, r);
  to->lease_id = from.getLeaseId();
}

void write(wire::TaskAck::Builder to, const TaskAck& from, FieldWriter& w) {
  to.setTaskId(w.text("TaskAck.task_id", from.task_id));
  to.setLeaseId(from.lease_id);
  to.setAnswer(w.enumeration<wire::TaskAnswer>("TaskAck.answer", from.answer, TaskAnswer::kBusy));
  to.setReason(w.text("TaskAck.reason", from.reason));
}
void read(wire::TaskAck::Reader from, TaskAck* to, FieldReader& r) {
  r.text("TaskAck.task_id", from.getTaskId(), &to->task_id);
  to->lease_id = from.getLeaseId();
  r.enumeration("TaskAck.answer", from.getAnswer(), TaskAnswer::kBusy, &to->answer);
  r.text("TaskAck.reason", from.getReason(), &to->reason);
}

void write(wire::Cancel::Builder to, const Cancel& from, FieldWriter& w) {
  to.setTaskId(w.text("Cancel.task_id", from.task_id));
  to.setReason(w.text("Cancel.reason", from.reason));
}
void read(wire::Cancel::Reader from, Cancel* to, FieldReader& r) {
  r.text("Cancel.task_id", from.getTaskId(), &to->task_id);
  r.text("Cancel.reason", from.getReason(), &to->reason);
}

}  // namespace

WARPROLL_DEFINE_BODY(Task)
WARPROLL_DEFINE_BODY(TaskMessage)
WARPROLL_DEFINE_BODY(TaskAck)
WARPROLL_DEFINE_BODY(Cancel)

Result<Bytes> encode_task(const Task& task) { return encode_body(task); }

Result<Task> decode_task(std::span<const std::byte> record) {
  Task task;
  WARPROLL_TRY(decode_body(record, &task));
  return task;
}

}  // namespace warproll
