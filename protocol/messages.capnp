@0xeb1d4a7702c3f85b;
# Bodies of every message between worker (W) and trainer (T). The frame header's type says which
# struct a body is; the number is in each comment. docs/protocol.md says who answers what.
# "Hello" and the rest are roots of one-segment messages. A DATA body is a Trajectory record.

using Cxx = import "/capnp/c++.capnp";
using Records = import "records.capnp";
$Cxx.namespace("warproll::wire");

enum WorkerState { starting @0; serving @1; paused @2; draining @3; stopping @4; }
enum UpdateState { idle @0; receiving @1; verifying @2; ready @3; committed @4; aborted @5; }

struct WeightStatus {
  servingVersion @0 :UInt64;
  servingDigest @1 :Data;        # 16 bytes
  updateState @2 :UpdateState;
  updateVersion @3 :UInt64;      # of the update in progress or last ended, 0 = none
  updateAttempt @4 :UInt32;
  canRollback @5 :Bool;
  rollbackVersion @6 :UInt64;
}
struct KeyValue {
  key @0 :Text;
  value @1 :Text;
}

# ---- session ----
struct Hello {  # 1, W
  workerName @0 :Text;
  engineVersion @1 :Text;
  model @2 :Text;
  modelConfigDigest @3 :Data;    # 16 bytes
  tokenizerDigest @4 :Data;      # 16 bytes
  vocabSize @5 :Int32;           # tokens
  maxContextTokens @6 :Int32;    # tokens
  state @7 :WorkerState;
  weights @8 :WeightStatus;
  lastSeq @9 :UInt64;            # highest sealed, 0 = none
  commitUpto @10 :UInt64;        # as the worker knows it
  lineageId @11 :Text;           # of that commitUpto, empty = never welcomed
  transports @12 :List(Text);    # "tcp", "directory", "nccl"
  openTaskIds @13 :List(Text);   # tasks held and not sealed
  environment @14 :List(KeyValue);  # NCCL version and NCCL_*
}
struct Welcome {  # 2, T
  lineageId @0 :Text;
  trainerEpoch @1 :UInt64;
  commitUpto @2 :UInt64;         # seq
  creditSeq @3 :UInt64;          # may send up to this seq
  creditBytes @4 :UInt64;        # and this many uncommitted bytes
  maxMessageBytes @5 :UInt64;    # header, body and tensors of one message together
  heartbeatMs @6 :UInt32;        # milliseconds between heartbeats
  livenessMs @7 :UInt32;         # milliseconds; silent longer than this = gone
}
struct Heartbeat {  # 3, both
  state @0 :WorkerState;
  weights @1 :WeightStatus;
  lastSeq @2 :UInt64;
  queuedSamples @3 :UInt32;      # samples
  runningSamples @4 :UInt32;     # samples
  freeTaskSlots @5 :UInt32;      # samples the worker would take now
  trainerEpoch @6 :UInt64;       # T only
}
struct Bye {  # 4, W
  reason @0 :Text;
  openTaskIds @1 :List(Text);    # given back, to be reissued
}
struct NeedHello {  # 5, T
  reason @0 :Text;
}
struct Fenced {  # 6, T
  epoch @0 :UInt64;              # the newer one
}
struct Pause {  # 7, T
  paused @0 :Bool = true;        # true stops admission, false resumes
}
struct Drain {  # 8, T: finish what runs, send it, leave
}

# ---- tasks ----
struct TaskMessage {  # 16, T
  task @0 :Records.Task;
  leaseId @1 :UInt64;            # rises with every (re)issue
}
enum TaskAnswer { accepted @0; alreadyHeld @1; alreadySealed @2; rejected @3; busy @4; }
struct TaskAck {  # 17, W
  taskId @0 :Text;
  leaseId @1 :UInt64;
  answer @2 :TaskAnswer;
  reason @3 :Text;               # with rejected and busy
}
struct Cancel {  # 18, T
  taskId @0 :Text;
  reason @1 :Text;
}

# ---- trajectories (DATA is type 32, its body is Records.Trajectory) ----
struct Gap {  # 33, W: seqs [from, to] will never come
  from @0 :UInt64;
  to @1 :UInt64;                 # inclusive
  reason @2 :Text;
}
struct Ack {  # 34, T: absolute, restated with every heartbeat
  lineageId @0 :Text;
  recvUpto @1 :UInt64;           # seq: need not be sent again over this connection
  commitUpto @2 :UInt64;         # seq: durable at the trainer
  creditSeq @3 :UInt64;          # may send up to this seq
  creditBytes @4 :UInt64;        # and this many uncommitted bytes
}
enum NackCode { malformed @0; invalid @1; conflict @2; tooLarge @3; outOfOrder @4; retry @5; }
struct Nack {  # 35, T: permanent unless outOfOrder or retry
  seq @0 :UInt64;
  code @1 :NackCode;
  reason @2 :Text;
}

# ---- weight updates ----
struct UpdateId {
  trainerEpoch @0 :UInt64;
  weightVersion @1 :UInt64;
  attempt @2 :UInt32;
}
struct UpdateBegin {  # 48, T
  id @0 :UpdateId;
  transport @1 :Text;            # "tcp" | "directory" | "nccl"
  source @2 :Text;               # tcp: endpoint of the byte server; directory: version folder
  serverKey @3 :Text;            # CURVE public key of that endpoint (Z85), empty = none
  manifest @4 :Data;             # zstd-compressed manifest JSON
  deadlineMs @5 :UInt32;         # milliseconds from receipt
}
struct UpdateAccept {  # 49, W
  id @0 :UpdateId;
}
struct UpdateReject {  # 50, W
  id @0 :UpdateId;
  reason @1 :Text;
}
struct UpdateDefer {  # 51, W
  id @0 :UpdateId;
  pinnedSequences @1 :UInt32;    # sequences
  retryMs @2 :UInt32;            # milliseconds
}
struct UpdateStart {  # 52, T
  id @0 :UpdateId;
  participants @1 :List(Text);   # producer ids, 32 hex digits; rank = index + 1, root = 0
  ncclUniqueId @2 :Data;         # 128 bytes, empty without NCCL
}
struct UpdateReady {  # 53, W
  id @0 :UpdateId;
  weightDigest @1 :Data;         # 16 bytes
  layoutDigest @2 :Data;         # 16 bytes
  receivedBytes @3 :UInt64;      # bytes
  receiveMs @4 :UInt32;          # milliseconds
}
struct UpdateFailed {  # 54, W
  id @0 :UpdateId;
  reason @1 :Text;
}
struct UpdateCommit {  # 55, T
  id @0 :UpdateId;
}
struct UpdateAbort {  # 56, T
  id @0 :UpdateId;
  reason @1 :Text;
}
struct UpdateCommitted {  # 57, W
  id @0 :UpdateId;
  weightDigest @1 :Data;         # 16 bytes
  stallUs @2 :UInt64;            # microseconds
  stallSteps @3 :UInt32;         # decode steps
  inFlightSequences @4 :UInt32;  # sequences
}
struct Rollback {  # 58, T
  id @0 :UpdateId;               # weightVersion = the version to go back to
}
struct RollbackDone {  # 59, W
  id @0 :UpdateId;
  done @1 :Bool;
  reason @2 :Text;               # when not done
}

# ---- weight bytes of the tcp transport (own sockets; the bytes are the third frame) ----
struct ChunkRequest {  # 64, W
  id @0 :UpdateId;
  bucketIndex @1 :UInt32;
  offsetBytes @2 :UInt64;        # within the bucket
  lengthBytes @3 :UInt64;        # 1..16 MiB
}
struct ChunkReply {  # 65, T: the bytes asked for, or an error
  id @0 :UpdateId;
  bucketIndex @1 :UInt32;
  offsetBytes @2 :UInt64;        # within the bucket
  xxh3 @3 :UInt64;               # XXH3-64 of the bytes
  error @4 :Text;                # not empty = no bytes
}
