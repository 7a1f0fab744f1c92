#include "tessera/mesh/rank_grid.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

template <class T>
std::string list(const std::vector<T>& items) {
  std::string text;
  for (const T& item : items) text += str(text.empty() ? "" : ", ", item);
  return text;
}

int64_t product(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1},
                         std::multiplies<>());
}

// The coordinates of the n-th element, row-major.
std::vector<int64_t> unravel(int64_t n, const std::vector<int64_t>& shape) {
  std::vector<int64_t> coordinates(shape.size());
  for (size_t axis = shape.size(); axis-- > 0;) {
    coordinates[axis] = n % shape[axis];
    n /= shape[axis];
  }
  return coordinates;
}

int64_t ravel(const std::vector<int64_t>& coordinates,
              const std::vector<int64_t>& shape) {
  int64_t n = 0;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    n = n * shape[axis] + coordinates[axis];
  }
  return n;
}

void check_shape(const std::vector<int64_t>& shape) {
  const bool ok =
      !shape.empty() && shape.size() <= RankGrid::kMaxAxes &&
      std::all_of(shape.begin(), shape.end(), [](int64_t n) { return n >= 1; });
  require<InvalidArgument>(ok, [&] {
    return str("mesh: got shape {", list(shape),
               "}; expected 1 to 3 axes of 1 rank or more each.");
  });
}

void check_names(const std::vector<int64_t>& shape,
                 const std::vector<std::string>& axes) {
  require<InvalidArgument>(axes.size() == shape.size(), [&] {
    return str("mesh: got ", axes.size(), " axis names {", list(axes),
               "} for shape {", list(shape), "}; give one name per axis.");
  });
  const std::set<std::string> distinct(axes.begin(), axes.end());
  require<InvalidArgument>(
      distinct.size() == axes.size() && !distinct.contains(""), [&] {
        return str("mesh: got axis names {", list(axes),
                   "}; expected distinct names, none empty.");
      });
}

std::vector<int> first_ranks(const std::vector<int64_t>& shape) {
  check_shape(shape);
  std::vector<int> ranks(product(shape));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

RankGrid::RankGrid(std::vector<int64_t> shape, std::vector<std::string> axes)
    : RankGrid(shape, std::move(axes), first_ranks(shape)) {}

RankGrid::RankGrid(std::vector<int64_t> shape, std::vector<std::string> axes,
                   std::vector<int> ranks)
    : shape_(std::move(shape)),
      axes_(std::move(axes)),
      ranks_(std::move(ranks)) {
  check_shape(shape_);
  check_names(shape_, axes_);
}

int64_t RankGrid::numel() const { return product(shape_); }

bool RankGrid::has_axis(std::string_view axis) const {
  return std::find(axes_.begin(), axes_.end(), axis) != axes_.end();
}

size_t RankGrid::index_of(std::string_view axis) const {
  const auto found = std::find(axes_.begin(), axes_.end(), axis);
  require<InvalidArgument>(found != axes_.end(), [&] {
    return str("mesh: no axis '", axis, "'; this mesh is ", describe(), ".");
  });
  return static_cast<size_t>(found - axes_.begin());
}

int64_t RankGrid::size(std::string_view axis) const {
  return shape_[index_of(axis)];
}

std::vector<int64_t> RankGrid::coordinates(int rank) const {
  const auto found = std::find(ranks_.begin(), ranks_.end(), rank);
  require<InvalidArgument>(found != ranks_.end(), [&] {
    return str("mesh: rank ", rank, " is not in the mesh ", describe(),
               " of ranks {", list(ranks_), "}.");
  });
  return unravel(found - ranks_.begin(), shape_);
}

int64_t RankGrid::coordinate(std::string_view axis, int rank) const {
  return coordinates(rank)[index_of(axis)];
}

std::vector<size_t> RankGrid::indices_of(
    const std::vector<std::string>& axes) const {
  std::vector<size_t> indices;
  for (const std::string& axis : axes) indices.push_back(index_of(axis));
  const bool ascending =
      std::adjacent_find(indices.begin(), indices.end(),
                         std::greater_equal<>()) == indices.end();
  require<InvalidArgument>(!indices.empty() && ascending, [&] {
    return str("mesh: cannot slice {", list(axes), "} out of ", describe(),
               "; name one axis or more, each once, in the mesh's order.");
  });
  return indices;
}

RankGrid RankGrid::slice(const std::vector<std::string>& axes, int rank) const {
  const std::vector<size_t> indices = indices_of(axes);
  std::vector<int64_t> shape;
  for (const size_t index : indices) shape.push_back(shape_[index]);
  std::vector<int64_t> position = coordinates(rank);
  std::vector<int> ranks;
  for (int64_t n = 0; n < product(shape); ++n) {
    const std::vector<int64_t> inner = unravel(n, shape);
    for (size_t i = 0; i < indices.size(); ++i) position[indices[i]] = inner[i];
    ranks.push_back(ranks_[ravel(position, shape_)]);
  }
  return {std::move(shape), axes, std::move(ranks)};
}

RankGrid RankGrid::flatten(std::string_view name) const {
  return {{numel()}, {std::string(name)}, ranks_};
}

RankGrid RankGrid::block(int64_t size, int rank) const {
  require<InvalidArgument>(
      shape_.size() == 1 && size >= 1 && numel() % size == 0, [&] {
        return str("mesh: cannot take blocks of ", size, " ranks out of ",
                   describe(), "; expected one axis and a size that divides ",
                   numel(), ".");
      });
  const int64_t first = coordinates(rank)[0] / size * size;
  return {{size},
          {str(axes_[0], "/", size)},
          {ranks_.begin() + first, ranks_.begin() + first + size}};
}

std::string RankGrid::describe() const {
  std::string text;
  for (size_t i = 0; i < axes_.size(); ++i) {
    text += str(i == 0 ? "(" : ", ", axes_[i], ": ", shape_[i]);
  }
  return text + ")";
}

}  // namespace tessera
