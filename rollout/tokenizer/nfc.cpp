#include "rollout/tokenizer/nfc.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>

namespace warproll {

Result<std::string> to_nfc(std::string_view text) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(error);
  std::string normalized;
  if (U_SUCCESS(error)) {
    icu::StringByteSink<std::string> sink(&normalized, static_cast<int32_t>(text.size()));
    nfc->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink,
                       nullptr, error);
  }
  if (U_FAILURE(error)) {
    return internal_error("normalising " + std::to_string(text.size()) +
                          " bytes to NFC: ICU says " + u_errorName(error));
  }
  return normalized;
}

}  // namespace warproll
