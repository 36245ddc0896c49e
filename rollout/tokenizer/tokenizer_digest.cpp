#include "rollout/tokenizer/tokenizer_digest.h"

#include <xxhash.h>

#include <array>
#include <cstring>
#include <memory>
#include <new>
#include <string_view>

namespace warproll {
namespace {

class Hasher {
 public:
  Hasher() : state_(XXH3_createState()) {
    if (state_ == nullptr) throw std::bad_alloc();
    XXH3_128bits_reset(state_.get());
  }
  void integer(uint64_t value) {
    std::array<uint8_t, 8> bytes{};
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(value >> (8 * i));
    XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
  }
  void string(std::string_view text) {
    integer(text.size());
    XXH3_128bits_update(state_.get(), text.data(), text.size());
  }
  [[nodiscard]] Digest digest() const {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_.get()));
    Digest digest{};
    static_assert(sizeof(canonical.digest) == sizeof(digest));
    std::memcpy(digest.data(), canonical.digest, digest.size());
    return digest;
  }

 private:
  struct Freed {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Freed> state_;
};

}  // namespace

Digest tokenizer_digest(const TokenizerSpec& spec) {
  Hasher hasher;
  hasher.string("warproll tokenizer 1");
  hasher.integer(spec.vocab.size());
  for (const VocabEntry& entry : spec.vocab) {
    hasher.integer(static_cast<uint64_t>(entry.id));
    hasher.string(entry.spelling);
  }
  hasher.integer(spec.merges.size());
  for (const BpeMerge& merge : spec.merges) {
    for (const int32_t id : {merge.left, merge.right, merge.merged}) {
      hasher.integer(static_cast<uint64_t>(id));
    }
  }
  hasher.integer(spec.added.size());
  for (const AddedToken& token : spec.added) {
    hasher.integer(static_cast<uint64_t>(token.id));
    hasher.string(token.content);
    hasher.integer(token.special ? 1 : 0);
    hasher.integer(token.normalized ? 1 : 0);
  }
  hasher.integer(spec.splits.size());
  for (const std::string& pattern : spec.splits) hasher.string(pattern);
  hasher.integer(spec.nfc ? 1 : 0);
  hasher.integer(spec.ignore_merges ? 1 : 0);
  return hasher.digest();
}

}  // namespace warproll
