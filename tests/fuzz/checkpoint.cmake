# What reads checkpoints and manifests from outside. The sources are named, not the library: clang
# 14 need not compile the rest of weights_sync.
set(WARPROLL_FUZZ_CHECKPOINT_SOURCES
  tensor_check safetensors digest parallel manifest manifest_json manifest_codec checkpoint)
list(TRANSFORM WARPROLL_FUZZ_CHECKPOINT_SOURCES PREPEND "${CMAKE_SOURCE_DIR}/weights_sync/")
list(TRANSFORM WARPROLL_FUZZ_CHECKPOINT_SOURCES APPEND ".cpp")
add_library(warproll_fuzz_checkpoint STATIC ${WARPROLL_FUZZ_CHECKPOINT_SOURCES})
target_link_libraries(warproll_fuzz_checkpoint PUBLIC warproll_flags warproll_kernels warproll_protocol
  PkgConfig::XXHASH PkgConfig::ZSTD nlohmann_json::nlohmann_json Threads::Threads)
warproll_fuzz(safetensors LINK warproll_fuzz_checkpoint)
warproll_fuzz(manifest LINK warproll_fuzz_checkpoint)
