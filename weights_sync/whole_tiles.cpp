#include "weights_sync/whole_tiles.h"

#include <map>
#include <tuple>

namespace warproll {
namespace {

// What one tensor brings, and another may bring the rest of.
struct Group {
  TileItem tiles;
  std::vector<PackRequest> requests;

  [[nodiscard]] bool is_whole() const {
    const auto has_all = [](const WeightView& w) {
      return w.data != nullptr && (!is_fp8(w.format) || w.scales != nullptr);
    };
    return has_all(tiles.rows) && (!tiles.to.gate_up || has_all(tiles.up));
  }
};

void put(const WeightView& rows, WeightView& into) {
  const std::byte* const data = into.data;
  const std::byte* const scales = into.scales;
  into = rows;
  if (rows.data == nullptr) into.data = data;
  if (rows.scales == nullptr) into.scales = scales;
}

}  // namespace

JoinedTiles join_tiles(std::span<const PackRequest> requests) {
  using Key = std::tuple<const std::byte*, int32_t, int32_t, int32_t, int32_t>;
  JoinedTiles joined;
  std::vector<Group> groups;
  std::map<Key, size_t> group_of;
  for (const PackRequest& request : requests) {
    const int32_t gate_rows = request.to.tiles.num_tiles * 8;
    const bool is_up = request.to.gate_up && request.to.first_row >= gate_rows;
    if (request.to.gate_up && !is_up && request.to.first_row + request.rows.rows > gate_rows) {
      joined.rest.push_back(request);  // gate and up in one
      continue;
    }
    TileTarget to = request.to;
    if (is_up) to.first_row -= gate_rows;
    const Key key = {to.out, to.first_matrix, request.rows.num_matrices, to.first_row,
                     request.rows.rows};
    const auto [found, is_new] = group_of.try_emplace(key, groups.size());
    if (is_new) groups.emplace_back().tiles.to = to;
    Group& group = groups[found->second];
    put(request.rows, is_up ? group.tiles.up : group.tiles.rows);
    group.requests.push_back(request);
  }
  for (const Group& group : groups) {
    if (group.is_whole()) {
      joined.whole.push_back(group.tiles);
    } else {
      joined.rest.insert(joined.rest.end(), group.requests.begin(), group.requests.end());
    }
  }
  return joined;
}

}  // namespace warproll
