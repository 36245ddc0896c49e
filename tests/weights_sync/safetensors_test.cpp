#include "weights_sync/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <random>

#include "protocol/utf8.h"
#include "tests/weights_sync/checkpoint_fixtures.h"

namespace warproll {
namespace {

using namespace checkpoint_fixtures;
using ::testing::HasSubstr;

constexpr char kGood[] =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
    R"("b":{"dtype":"F32","shape":[],"data_offsets":[12,16]}})";

std::string error_of(std::string_view file) {
  const auto header = parse_safetensors(bytes_of(file), "dir/x.safetensors");
  return header.ok() ? "no error" : header.status().message();
}
// With 16 bytes of data.
std::string error_of_header(std::string_view header) {
  return error_of(safetensors_bytes(header, std::string(16, '\0')));
}
std::string one_tensor(std::string_view entry) { return R"({"t":)" + std::string(entry) + "}"; }

TEST(Safetensors, reads_names_dtypes_shapes_and_bytes) {
  const TempDir dir;
  write_bytes(dir / "x.safetensors", safetensors_bytes(kGood, "0123456789abcdef"));
  auto file = SafetensorsFile::open(dir / "x.safetensors");
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  ASSERT_EQ(file->tensors().size(), 2u);
  EXPECT_EQ(file->tensors()[0].info.name, "a");
  EXPECT_EQ(file->tensors()[0].info.dtype, Dtype::kBf16);
  EXPECT_EQ(file->tensors()[0].info.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_TRUE(equal_bytes(file->bytes(0), bytes_of("0123456789ab")));
  EXPECT_EQ(file->tensors()[1].info.shape, std::vector<int64_t>{});
  EXPECT_TRUE(equal_bytes(file->bytes(1), bytes_of("cdef")));
  ASSERT_EQ(file->metadata().size(), 1u);
  EXPECT_EQ(file->metadata()[0].second, "pt");
}

TEST(Safetensors, every_dtype_of_ours_is_read_and_another_one_is_named) {
  for (const auto& [word, bytes] : std::vector<std::pair<std::string, size_t>>{{"F32", 4},
                                                                               {"F16", 2},
                                                                               {"BF16", 2},
                                                                               {"F8_E4M3", 1},
                                                                               {"F8_E8M0", 1},
                                                                               {"U8", 1},
                                                                               {"U16", 2},
                                                                               {"I32", 4},
                                                                               {"I64", 8}}) {
    const std::string header = R"({"t":{"dtype":")" + word + R"(","shape":[3],"data_offsets":[0,)" +
                               std::to_string(3 * bytes) + "]}}";
    EXPECT_EQ(error_of(safetensors_bytes(header, std::string(3 * bytes, 'x'))), "no error") << word;
  }
  EXPECT_THAT(error_of_header(one_tensor(R"({"dtype":"F7","shape":[16],"data_offsets":[0,16]})")),
              ::testing::AllOf(HasSubstr("dir/x.safetensors"), HasSubstr("'t'"),
                               HasSubstr("\"F7\""), HasSubstr("wanted F32")));
}

TEST(Safetensors, empty_tensors_and_files_without_tensors_are_fine) {
  EXPECT_EQ(error_of(safetensors_bytes(R"({"e":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},)"
                                       R"("t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                                       R"("z":{"dtype":"F32","shape":[0],"data_offsets":[2,2]}})",
                                       "ab")),
            "no error");
  EXPECT_EQ(error_of(safetensors_bytes("{}", "")), "no error");
}

TEST(Safetensors, a_header_padded_with_spaces_is_fine) {
  EXPECT_EQ(error_of_header(std::string(kGood) + "     "), "no error");
}

TEST(Safetensors, a_file_shorter_than_its_header_length_is_refused) {
  EXPECT_THAT(error_of(""), HasSubstr("has 0 bytes, wanted at least 8"));
  EXPECT_THAT(error_of("1234567"), HasSubstr("has 7 bytes, wanted at least 8"));
}

TEST(Safetensors, a_huge_or_negative_header_length_is_refused_with_both_values) {
  EXPECT_THAT(error_of(little_endian(UINT64_MAX) + "{}"),
              HasSubstr("header length is 18446744073709551615, wanted at most 2"));
  EXPECT_THAT(error_of(little_endian(3) + "{}"), HasSubstr("header length is 3, wanted at most 2"));
  EXPECT_THAT(error_of(little_endian(uint64_t{1} << 63) + "{}"), HasSubstr("9223372036854775808"));
}

TEST(Safetensors, truncating_a_good_file_anywhere_is_refused) {
  const std::string good = safetensors_bytes(kGood, std::string(16, 'x'));
  ASSERT_EQ(error_of(good), "no error");
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_NE(error_of(std::string_view(good).substr(0, size)), "no error") << size;
  }
}

TEST(Safetensors, bytes_after_the_last_tensor_are_refused) {
  EXPECT_THAT(error_of(safetensors_bytes(kGood, std::string(17, '\0'))),
              HasSubstr("the data section has 17 bytes, but the tensors end at 16"));
}

TEST(Safetensors, a_header_that_is_no_json_object_is_refused) {
  EXPECT_THAT(error_of_header(""), HasSubstr("wanted '{'"));
  EXPECT_THAT(error_of_header("[1]"), HasSubstr("the header starts with '[', wanted '{'"));
  EXPECT_THAT(error_of_header("{\"a\":"), HasSubstr("header: not JSON, at byte"));
  EXPECT_THAT(error_of_header("{} {}"), HasSubstr("not JSON"));
  EXPECT_THAT(error_of_header("{\"\xff\xfe\":1}"), HasSubstr("not JSON"));
}

TEST(Safetensors, a_nesting_bomb_is_refused_without_recursion) {
  EXPECT_THAT(error_of_header("{\"t\":" + std::string(5'000'000, '[')),
              HasSubstr("JSON nested deeper than 3"));
}

TEST(Safetensors, a_name_that_comes_twice_is_refused_by_name) {
  EXPECT_THAT(error_of_header(R"({"t":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                              R"("t":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}})"),
              HasSubstr("the key \"t\" comes twice"));
  EXPECT_THAT(error_of_header(
                  one_tensor(R"({"dtype":"U8","shape":[1],"shape":[16],"data_offsets":[0,16]})")),
              HasSubstr("the key \"shape\" comes twice"));
}

TEST(Safetensors, names_that_are_empty_long_or_unprintable_are_refused) {
  const std::string entry = R"(:{"dtype":"U8","shape":[16],"data_offsets":[0,16]}})";
  EXPECT_THAT(error_of_header("{\"\"" + entry), HasSubstr("has 0 bytes, wanted 1 to 1024"));
  EXPECT_THAT(error_of_header("{\"" + std::string(1025, 'n') + "\"" + entry),
              HasSubstr("has 1025 bytes"));
  EXPECT_THAT(error_of_header(R"({"a\u001bb")" + entry),
              HasSubstr("'a\\x1bb' has a control character"));
}

TEST(Safetensors, fields_that_are_missing_extra_or_of_a_wrong_type_are_refused) {
  EXPECT_THAT(error_of_header(one_tensor("7")), HasSubstr("tensor 't': is number"));
  EXPECT_THAT(error_of_header(one_tensor(R"({"dtype":"U8","shape":[16]})")),
              HasSubstr("has no data_offsets"));
  EXPECT_THAT(
      error_of_header(one_tensor(R"({"dtype":"U8","shape":[16],"data_offsets":[0,16],"x":1})")),
      HasSubstr("has 4 fields"));
  EXPECT_THAT(error_of_header(one_tensor(R"({"dtype":3,"shape":[16],"data_offsets":[0,16]})")),
              HasSubstr("dtype is 3"));
  EXPECT_THAT(error_of_header(one_tensor(R"({"dtype":"U8","shape":16,"data_offsets":[0,16]})")),
              HasSubstr("shape is number, wanted an array"));
  EXPECT_THAT(error_of_header(one_tensor(R"({"dtype":"U8","shape":[16],"data_offsets":[16]})")),
              HasSubstr("data_offsets is [16], wanted [begin, end]"));
  EXPECT_THAT(error_of_header(R"({"__metadata__":{"a":1}})"), HasSubstr("__metadata__ 'a'"));
  EXPECT_THAT(error_of_header(R"({"__metadata__":[]})"), HasSubstr("__metadata__ is array"));
}

TEST(Safetensors, shapes_that_are_negative_fractional_huge_or_of_absurd_rank_are_refused) {
  const auto with_shape = [](const std::string& shape) {
    return error_of_header(
        one_tensor(R"({"dtype":"F32","shape":)" + shape + R"(,"data_offsets":[0,16]})"));
  };
  EXPECT_THAT(with_shape("[-4]"), HasSubstr("a dimension of shape is -4"));
  EXPECT_THAT(with_shape("[4.0]"), HasSubstr("a dimension of shape is 4.0"));
  EXPECT_THAT(with_shape("[99999999999999999999]"), HasSubstr("a dimension of shape is"));
  EXPECT_THAT(with_shape("[9223372036854775808]"), HasSubstr("wanted less than 2^63"));
  EXPECT_THAT(with_shape("[4611686018427387904,4]"), HasSubstr("overflows"));
  EXPECT_THAT(with_shape("[0,4611686018427387904,4]"), HasSubstr("overflows"));
  EXPECT_THAT(with_shape("[1,1,1,1,1,1,1,1,4]"),
              HasSubstr("shape has 9 dimensions, wanted at most 8"));
}

TEST(Safetensors, offsets_outside_the_file_or_against_the_shape_are_refused) {
  const auto with_offsets = [](const std::string& offsets) {
    return error_of_header(
        one_tensor(R"({"dtype":"F32","shape":[4],"data_offsets":)" + offsets + "}"));
  };
  EXPECT_EQ(with_offsets("[0,16]"), "no error");
  EXPECT_THAT(with_offsets("[8,24]"),
              HasSubstr("data_offsets [8, 24] leave the data section, wanted begin <= end <= 16"));
  EXPECT_THAT(with_offsets("[16,0]"), HasSubstr("leave the data section"));
  EXPECT_THAT(with_offsets("[0,18446744073709551615]"), HasSubstr("leave the data section"));
  EXPECT_THAT(with_offsets("[-16,0]"), HasSubstr("data_offsets begin is -16"));
  EXPECT_THAT(with_offsets("[0,8]"), HasSubstr("span 8 bytes, but F32 [4] wants 16"));
}

TEST(Safetensors, overlaps_and_holes_are_refused_with_both_tensors) {
  EXPECT_THAT(error_of_header(R"({"a":{"dtype":"U8","shape":[10],"data_offsets":[0,10]},)"
                              R"("b":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}})"),
              HasSubstr("tensor 'b' starts at data offset 8 and overlaps tensor 'a', which ends at "
                        "10"));
  EXPECT_THAT(error_of_header(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                              R"("b":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}})"),
              HasSubstr("tensor 'b' starts at data offset 8 and leaves a hole, wanted 4"));
  EXPECT_THAT(error_of_header(R"({"b":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}})"),
              HasSubstr("leaves a hole, wanted 0"));
}

TEST(Safetensors, a_missing_file_and_a_directory_are_refused_by_path) {
  const TempDir dir;
  const auto missing = SafetensorsFile::open(dir / "none.safetensors");
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr("none.safetensors"));
  EXPECT_THAT(SafetensorsFile::open(dir.path()).status().message(),
              HasSubstr("not a regular file"));
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  EXPECT_THAT(SafetensorsFile::open(dir / "fifo").status().message(),
              HasSubstr("not a regular file"));
  write_bytes(dir / "empty.safetensors", "");
  EXPECT_THAT(SafetensorsFile::open(dir / "empty.safetensors").status().message(),
              HasSubstr("has 0 bytes"));
}

TEST(Safetensors, any_flipped_bit_of_a_header_gives_an_error_or_a_consistent_file) {
  const std::string good = safetensors_bytes(kGood, std::string(16, 'x'));
  for (size_t bit = 0; bit < (good.size() - 16) * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    const auto header = parse_safetensors(bytes_of(bad), "x");
    if (!header.ok()) continue;
    uint64_t bytes = 0;
    for (const auto& tensor : header->tensors) {
      bytes += tensor.info.bytes;
      EXPECT_LE(tensor.offset_bytes + tensor.info.bytes, bad.size());
    }
    EXPECT_EQ(bytes, 16u) << "bit " << bit;
  }
}

TEST(Safetensors, errors_stay_utf8_when_long_names_are_cut) {
  std::string name;
  while (name.size() < 500) name += "\xc3\xa9";
  for (const std::string& lead : {std::string(), std::string("x")}) {
    const std::string error = error_of_header("{\"" + lead + name + "\":1}");
    EXPECT_TRUE(is_valid_utf8(error)) << error;
    EXPECT_THAT(error, HasSubstr("... (" + std::to_string(lead.size() + 500) + " bytes)"));
  }
}

TEST(Safetensors, moved_files_keep_their_bytes) {
  const TempDir dir;
  write_bytes(dir / "x.safetensors", safetensors_bytes(kGood, "0123456789abcdef"));
  auto opened = SafetensorsFile::open(dir / "x.safetensors");
  ASSERT_TRUE(opened.ok());
  SafetensorsFile first = std::move(opened).value();
  SafetensorsFile second = std::move(first);
  EXPECT_TRUE(equal_bytes(second.bytes(0), bytes_of("0123456789ab")));
}

}  // namespace
}  // namespace warproll
