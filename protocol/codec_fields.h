// Field lists that several codec_*.cpp share, and how a struct becomes a message body.
// Internal to protocol/; include after the generated headers. Thread: any.
#pragma once

#include "protocol/capnp_flat.h"
#include "protocol/messages.h"

namespace warproll {

// Specialised in the codec_*.cpp by WARPROLL_DEFINE_BODY.
template <typename M>
Result<Bytes> encode_body(const M& from);
template <typename M>
Status decode_body(std::span<const std::byte> body, M* to);

template <typename Builder>
void write_sampling(Builder to, const SamplingParams& from, FieldWriter& w) {
  to.setTemperature(from.temperature);
  to.setTopP(from.top_p);
  to.setTopK(from.top_k);
  to.setMinP(from.min_p);
  to.setMaxTokens(from.max_tokens);
  to.setStopTokenIds(w.data(from.stop_token_ids));
  const char* name = "SamplingParams.stop_strings";
  w.texts(name, from.stop_strings, to.initStopStrings(w.count(name, from.stop_strings.size())));
  to.setIgnoreEos(from.ignore_eos);
  to.setSeed(from.seed);
}

template <typename Reader>
void read_sampling(const Reader& from, SamplingParams* to, FieldReader& r) {
  to->temperature = from.getTemperature();
  to->top_p = from.getTopP();
  to->top_k = from.getTopK();
  to->min_p = from.getMinP();
  to->max_tokens = from.getMaxTokens();
  r.array("SamplingParams.stop_token_ids", from.getStopTokenIds(), &to->stop_token_ids);
  r.texts("SamplingParams.stop_strings", from.getStopStrings(), &to->stop_strings);
  to->ignore_eos = from.getIgnoreEos();
  to->seed = from.getSeed();
}

template <typename Builder>
void write_id(Builder to, const UpdateId& from) {
  to.setTrainerEpoch(from.trainer_epoch);
  to.setWeightVersion(from.weight_version);
  to.setAttempt(from.attempt);
}

template <typename Reader>
void read_id(const Reader& from, UpdateId* to) {
  to->trainer_epoch = from.getTrainerEpoch();
  to->weight_version = from.getWeightVersion();
  to->attempt = from.getAttempt();
}

}  // namespace warproll

// encode_body and decode_body of struct M over write(wire::M::Builder, ...) and
// read(wire::M::Reader, ...) of the same file.
#define WARPROLL_DEFINE_BODY(M)                                                     \
  template <>                                                                       \
  Result<Bytes> encode_body(const M& from) {                                        \
    return build_flat(#M, 0, [&](capnp::MessageBuilder& message, FieldWriter& w) {  \
      write(message.initRoot<wire::M>(), from, w);                                  \
    });                                                                             \
  }                                                                                 \
  template <>                                                                       \
  Status decode_body(std::span<const std::byte> body, M* to) {                      \
    return read_flat(#M, body, [&](capnp::MessageReader& message, FieldReader& r) { \
      read(message.getRoot<wire::M>(), to, r);                                      \
    });                                                                             \
  }
