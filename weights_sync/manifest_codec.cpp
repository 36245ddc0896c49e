// The wire form of a Manifest: its JSON in one zstd frame (manifest.h).
#include <zstd.h>

#include <array>
#include <memory>

#include "weights_sync/manifest.h"

namespace warproll {
namespace {

constexpr int kZstdLevel = 3;

struct StreamDeleter {
  void operator()(ZSTD_DCtx* stream) const { ZSTD_freeDCtx(stream); }
};

// Never holds more than kMaxManifestJsonBytes, whatever the frame claims.
Result<std::string> decompress(std::string_view packed) {
  const std::unique_ptr<ZSTD_DCtx, StreamDeleter> stream(ZSTD_createDCtx());
  if (!stream) return resource_exhausted("manifest: no memory for zstd");
  constexpr int kMaxWindowLog = 27;  // 128 MiB, zstd's own default limit
  ZSTD_DCtx_setParameter(stream.get(), ZSTD_d_windowLogMax, kMaxWindowLog);
  std::string text;
  std::array<char, size_t{1} << 16> block;
  ZSTD_inBuffer in{packed.data(), packed.size(), 0};
  size_t hint = 1;  // 0 = a frame just ended
  while (hint != 0) {
    ZSTD_outBuffer out{block.data(), block.size(), 0};
    hint = ZSTD_decompressStream(stream.get(), &out, &in);
    if (ZSTD_isError(hint) != 0) {
      return invalid_argument(std::string("manifest: not a zstd frame: ") +
                              ZSTD_getErrorName(hint));
    }
    text.append(block.data(), out.pos);
    if (text.size() > kMaxManifestJsonBytes) {
      return invalid_argument("manifest: unpacks to more than " +
                              std::to_string(kMaxManifestJsonBytes) + " bytes");
    }
    if (hint != 0 && in.pos == in.size && out.pos < out.size) {
      return invalid_argument("manifest: the zstd frame ends early, at byte " +
                              std::to_string(packed.size()));
    }
  }
  if (in.pos == in.size) return text;
  return invalid_argument("manifest: " + std::to_string(in.size - in.pos) +
                          " bytes after the zstd frame, wanted none");
}

}  // namespace

std::string encode_manifest(const Manifest& manifest) {
  const std::string json = manifest_to_json(manifest);
  std::string packed(ZSTD_compressBound(json.size()), '\0');
  const size_t size =
      ZSTD_compress(packed.data(), packed.size(), json.data(), json.size(), kZstdLevel);
  WARPROLL_CHECK(ZSTD_isError(size) == 0, ZSTD_getErrorName(size));
  packed.resize(size);
  return packed;
}

Result<Manifest> decode_manifest(std::string_view packed) {
  WARPROLL_TRY_ASSIGN(json, decompress(packed));
  return manifest_from_json(json);
}

}  // namespace warproll
