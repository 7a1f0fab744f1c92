// Ranks in a grid with named axes: pure arithmetic, no communication.
//
//   shape {2, 3}, axes {"replicate", "shard"}, ranks row-major:
//
//                 shard 0   1   2
//   replicate 0         0   1   2
//   replicate 1         3   4   5
//
//   slice({"shard"}, 4)      {3, 4, 5}: the row of rank 4
//   slice({"replicate"}, 4)  {1, 4}:    its column
//   flatten("all")           {0, 1, 2, 3, 4, 5} along one axis
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

class RankGrid {
 public:
  static constexpr size_t kMaxAxes = 3;

  /// The world ranks 0 .. product - 1.
  /// Errors: InvalidArgument for no axis or more than three, a size below 1, a
  ///         name that is empty or twice there, or another count of names.
  RankGrid(std::vector<int64_t> shape, std::vector<std::string> axes);

  [[nodiscard]] const std::vector<int64_t>& shape() const { return shape_; }
  [[nodiscard]] const std::vector<std::string>& axes() const { return axes_; }
  /// Row-major: the last axis runs fastest.
  [[nodiscard]] const std::vector<int>& ranks() const { return ranks_; }
  [[nodiscard]] int64_t numel() const;
  [[nodiscard]] bool has_axis(std::string_view axis) const;

  /// Ranks along one axis. Errors: InvalidArgument for an unknown axis.
  [[nodiscard]] int64_t size(std::string_view axis) const;

  /// Where `rank` stands. Errors: InvalidArgument when it is not in the grid,
  ///                              or the axis is unknown.
  [[nodiscard]] std::vector<int64_t> coordinates(int rank) const;
  [[nodiscard]] int64_t coordinate(std::string_view axis, int rank) const;

  /// The sub-grid along `axes` that holds `rank`: every rank that differs from
  /// it along these axes alone.
  /// Errors: InvalidArgument for none, an unknown, or a repeated axis, or an
  ///         order other than this grid's.
  [[nodiscard]] RankGrid slice(const std::vector<std::string>& axes,
                               int rank) const;

  /// The same ranks along one axis. Errors: InvalidArgument for an empty name.
  [[nodiscard]] RankGrid flatten(std::string_view name) const;

  /// Of one axis of n * size ranks, the `size` neighbours that hold `rank`.
  /// Errors: InvalidArgument for more axes, or a size that does not divide.
  [[nodiscard]] RankGrid block(int64_t size, int rank) const;

  /// "(replicate: 2, shard: 3)"
  [[nodiscard]] std::string describe() const;

  bool operator==(const RankGrid& other) const = default;

 private:
  RankGrid(std::vector<int64_t> shape, std::vector<std::string> axes,
           std::vector<int> ranks);
  [[nodiscard]] size_t index_of(std::string_view axis) const;
  [[nodiscard]] std::vector<size_t> indices_of(
      const std::vector<std::string>& axes) const;

  std::vector<int64_t> shape_;
  std::vector<std::string> axes_;
  std::vector<int> ranks_;
};

}  // namespace tessera
