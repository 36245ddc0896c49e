@0xc2c5d0b6c1f1a9e4;
# The two records of warproll: Task (trainer -> worker) and Trajectory (worker -> trainer).
# A record on the wire, in the log and in a file is one Cap'n Proto message of exactly one segment.
# Axis letters: T tokens of the whole trajectory (prompt + response), L MoE layers, K experts a token.
# "LE" = array as raw little-endian Data; its length in bytes is elements x element size.
# Every Text is UTF-8. Data fields called opaque are carried unchanged and never looked into.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("warproll::wire");

enum InFlightPolicy {  # what a sequence does when new weights are committed while it runs
  keep @0;       # goes on under the new weights, old KV stays
  recompute @1;  # KV is computed anew under the new weights
  abort @2;      # ends as abort with what it has
  pin @3;        # finishes on the weights it started with
}
enum FinishReason { stop @0; length @1; abort @2; error @3; }
enum EventKind { flipKeep @0; flipRecompute @1; preemptRecompute @2; }
enum Role { system @0; user @1; assistant @2; tool @3; }

struct SamplingParams {
  temperature @0 :Float32 = 1.0;  # >= 0; 0 = greedy
  topP @1 :Float32 = 1.0;         # (0, 1]
  topK @2 :Int32;                 # tokens, 0 = off
  minP @3 :Float32;               # [0, 1]
  maxTokens @4 :Int32 = 256;      # sampled tokens, >= 1
  stopTokenIds @5 :Data;          # LE i32 [n]
  stopStrings @6 :List(Text);     # each 1..1024 bytes
  ignoreEos @7 :Bool;
  seed @8 :UInt64;                # Philox key, with sample_index
}

struct ChatMessage {
  role @0 :Role;
  content @1 :Text;
}

struct Task {  # exactly one of promptIds, promptText, messages is non-empty
  taskId @0 :Text;                 # 1..256 bytes, unique in a run
  groupId @1 :Text;                # empty = taskId
  groupSize @2 :Int32 = 1;         # samples, 1..65536; sample_index is 0..groupSize-1
  promptIds @3 :Data;              # LE i32 [n]
  promptText @4 :Text;
  messages @5 :List(ChatMessage);
  sampling @6 :SamplingParams;
  env @7 :Text = "single_turn";
  inFlight @8 :InFlightPolicy = keep;
  deadlineMs @9 :UInt32;           # milliseconds from receipt, 0 = none
  returnRoutes @10 :Bool;          # also return the routed experts
  metadata @11 :Data;              # opaque
  sampleIndices @12 :Data;         # LE i32 [m], unique, each < groupSize; empty = all samples
}

struct VersionRun {
  start @0 :Int32;           # index into tokenIds; the run ends where the next one starts, or at T
  weightVersion @1 :UInt64;
}
struct VersionDigest {
  weightVersion @0 :UInt64;
  weightDigest @1 :Data;     # 16 bytes, XXH3-128 big-endian
}
struct TrajectoryEvent {
  atToken @0 :Int32;         # index into tokenIds of the first token sampled after the event
  kind @1 :EventKind;
  weightVersion @2 :UInt64;
}
struct RoleSpan {
  start @0 :Int32;           # index into tokenIds
  end @1 :Int32;             # exclusive
  role @2 :Role;
}
struct RoutedExperts {  # the ids themselves travel beside the record (third frame, own log family)
  numTokens @0 :Int32;       # T - 1: the last token is never forwarded
  numLayers @1 :Int32;       # L, MoE layers only
  topK @2 :Int32;            # K
  bytesPerId @3 :UInt8;      # 1 (u8) or 2 (LE u16)
  lengthBytes @4 :UInt64;    # numTokens x numLayers x topK x bytesPerId; layout [T-1, L, K]
  xxh3 @5 :UInt64;           # XXH3-64 of those bytes
}
struct RewardComponent {
  name @0 :Text;
  value @1 :Float64;
}
struct Reward {
  total @0 :Float64;
  components @1 :List(RewardComponent);
}
struct Timings {  # wall-clock nanoseconds since the Unix epoch, 0 = did not happen
  taskReceivedNs @0 :Int64;
  admittedNs @1 :Int64;      # first scheduled
  firstTokenNs @2 :Int64;
  sealedNs @3 :Int64;
}

struct Trajectory {
  trajectoryId @0 :Text;       # "<producer hex>-<seq>"
  producerId @1 :Data;         # 16 bytes
  epoch @2 :UInt64;            # of the worker process that sealed it
  seq @3 :UInt64;              # position in the producer's log, from 1, gap-free
  taskId @4 :Text;
  groupId @5 :Text;
  sampleIndex @6 :Int32;

  tokenIds @7 :Data;           # LE i32 [T], prompt + response
  promptLen @8 :Int32;         # tokens
  lossMask @9 :Data;           # u8 [T], 1 = sampled by the policy
  logprobs @10 :Data;          # LE f32 [T], ln p of the token under the sampling distribution
  rawLogprobs @11 :Data;       # LE f32 [T], ln p under the model at temperature 1, untruncated
  supportLogmass @12 :Data;    # LE f32 [T], ln of the model mass of the kept support
  versionRuns @13 :List(VersionRun);        # tile [promptLen, T)
  versionDigests @14 :List(VersionDigest);  # one for each version in runs or events
  events @15 :List(TrajectoryEvent);        # by atToken
  routedExperts @16 :RoutedExperts;         # null = absent
  roleSpans @17 :List(RoleSpan);

  finishReason @18 :FinishReason;
  text @19 :Text;              # decoded response, cut at the stop string
  reward @20 :Reward;          # null = absent, which is not 0
  errorType @21 :Text;         # with error and abort
  errorMessage @22 :Text;
  sampling @23 :SamplingParams;  # as used
  inFlight @24 :InFlightPolicy;
  timings @25 :Timings;
  model @26 :Text;             # architecture and name, for people
  activationDtype @27 :Text;   # "f32" | "bf16" | "f16"
  tokenizerDigest @28 :Data;   # 16 bytes
  engineVersion @29 :Text;
  metadata @30 :Data;          # the task's, opaque
}
