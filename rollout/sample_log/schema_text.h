// The text of protocol/records.capnp, kept in every log's meta: a log explains itself.
// Defined by CMake from the file. Thread: any.
#pragma once

#include <string_view>

namespace warproll {

extern const std::string_view kRecordSchemaText;

}  // namespace warproll
