// Values on the host between forward and backward: the numbers of a backward
// without, no memory meanwhile, back one ahead.
#include "tessera/module/host_offload.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/module/offload_timeline.h"
#include "tessera/module/recompute.h"
#include "tests/memory/counting_allocator.h"

namespace tessera {
namespace {

using torch::Tensor;

/// Layers of a product and a sine, which keeps the product.
struct Chain {
  std::vector<Tensor> weights;
  std::vector<Tensor> kept;

  explicit Chain(int layers, int64_t width = 4) {
    torch::manual_seed(1);
    for (int i = 0; i < layers; ++i) {
      weights.push_back(torch::randn({width, width}).requires_grad_());
    }
  }

  /// `behind` sees each part's result.
  using Behind = std::function<void(const Tensor&)>;
  Tensor parts(const Tensor& x, HostOffload* offload,
               const Behind& behind = nullptr) {
    kept.clear();
    Tensor value = x;
    for (const Tensor& weight : weights) {
      const Tensor inner = torch::mm(value, weight);
      value = inner.sin();  // keeps `inner`
      kept.push_back(inner.detach());
      if (offload != nullptr) {
        offload->keep({inner}, {value});
        offload->end_part(value);
      }
      if (behind) behind(value);
    }
    return value;
  }

  Tensor forward(const Tensor& x, HostOffload* offload,
                 const Behind& behind = nullptr) {
    const Tensor value = parts(x, offload, behind);
    if (offload != nullptr) offload->end_forward(value);
    return value;
  }

  /// Of the weights, which have none afterwards.
  std::vector<Tensor> take_gradients() {
    std::vector<Tensor> gradients;
    for (const Tensor& weight : weights) {
      gradients.push_back(weight.grad().clone());
      weight.mutable_grad().reset();
    }
    return gradients;
  }

  [[nodiscard]] std::string places() const {
    std::string text;
    for (const Tensor& value : kept) {
      text += value.storage().data() == nullptr ? 'h' : 'd';
    }
    return text;
  }
};

Tensor input(int64_t rows = 3) {
  torch::manual_seed(2);
  return torch::randn({rows, 4});
}

void expect_equal(const std::vector<Tensor>& got,
                  const std::vector<Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(got[i].equal(want[i])) << i;
  }
}

std::vector<Tensor> gradients(Chain& chain, const Tensor& x,
                              HostOffload* offload) {
  chain.forward(x, offload).sum().backward();
  return chain.take_gradients();
}

TEST(HostOffload, GivesTheBitsOfABackwardWithout) {
  for (const int layers : {1, 2, 3, 4, 7}) {
    Chain chain(layers);
    const auto want = gradients(chain, input(), nullptr);
    HostOffload offload;
    for (int step = 0; step < 3; ++step) {
      expect_equal(gradients(chain, input(), &offload), want);
    }
  }
}

TEST(HostOffload, ValuesHaveMemoryWhenTheirGradientHasCome) {
  Chain chain(5);
  HostOffload offload;
  std::vector<std::string> places;
  const Tensor out = chain.forward(input(), &offload, [&](const Tensor& value) {
    value.register_hook(
        [&](const Tensor&) { places.push_back(chain.places()); });
  });
  EXPECT_EQ(chain.places(), "hhhhh");
  out.sum().backward();
  // What comes ahead has memory of its own until it is needed.
  EXPECT_EQ(places, (std::vector<std::string>{"hhhhd", "hhhdd", "hhddd",
                                              "hdddd", "ddddd"}));
}

/// What has memory behind each of six parts.
std::vector<std::string> places_in_forward(double parts_of_a_copy) {
  Chain chain(6);
  HostOffload offload(parts_of_a_copy);
  std::vector<std::string> places;
  const Tensor out = chain.parts(input(), &offload, [&](const Tensor&) {
    places.push_back(chain.places());
  });
  // What was not settled needs no copy back.
  out.sum().backward();
  EXPECT_EQ(chain.places(), "dddddd");
  return places;
}

TEST(HostOffload, ValuesHaveMemoryAsLongAsTheirCopiesTake) {
  EXPECT_EQ(
      places_in_forward(1),
      (std::vector<std::string>{"d", "hd", "hhd", "hhhd", "hhhhd", "hhhhhd"}));
  EXPECT_EQ(
      places_in_forward(1.5),
      (std::vector<std::string>{"d", "dd", "hdd", "hhdd", "hhddd", "hhhddd"}));
  EXPECT_EQ(
      places_in_forward(2),
      (std::vector<std::string>{"d", "dd", "hdd", "hddd", "hhddd", "hhdddd"}));
}

TEST(HostOffload, HostMemoryIsUsedAgain) {
  Chain chain(3);
  HostOffload offload;
  EXPECT_EQ(offload.host_bytes(), 0);
  (void)gradients(chain, input(), &offload);
  const int64_t bytes = offload.host_bytes();
  EXPECT_EQ(bytes, 3 * 512) << "a part is aligned to that";
  for (int step = 0; step < 3; ++step) {
    (void)gradients(chain, input(), &offload);
    // A forward without backward gives its memory back as well.
    (void)chain.forward(input(), &offload);
  }
  EXPECT_EQ(offload.host_bytes(), bytes);
}

TEST(HostOffload, MemoryOfLongerValuesReplacesThatOfShorterOnes) {
  Chain chain(3);
  HostOffload offload;
  (void)gradients(chain, input(3), &offload);
  const auto want = gradients(chain, input(100), nullptr);
  expect_equal(gradients(chain, input(100), &offload), want);
  const int64_t bytes = offload.host_bytes();
  EXPECT_EQ(bytes, 3 * 2048) << "100 rows of 16 bytes, aligned";
  (void)gradients(chain, input(3), &offload);
  EXPECT_EQ(offload.host_bytes(), bytes) << "they fit there";
}

TEST(HostOffload, SeveralForwardsMayComeBeforeABackward) {
  Chain chain(3);
  HostOffload offload;
  std::vector<Tensor> want;
  for (const int64_t rows : {3, 5}) {
    (void)chain.forward(input(rows), nullptr).sum().backward();
  }
  want = chain.take_gradients();
  const Tensor first = chain.forward(input(3), &offload);
  const Tensor second = chain.forward(input(5), &offload);
  first.sum().backward();
  second.sum().backward();
  expect_equal(chain.take_gradients(), want);
  // In one backward, and in the other order.
  const Tensor third = chain.forward(input(3), &offload);
  const Tensor fourth = chain.forward(input(5), &offload);
  (fourth.sum() + third.sum()).backward();
  const auto got = chain.take_gradients();
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(got[i].allclose(want[i])) << "added in another order";
  }
}

TEST(HostOffload, AGraphThatIsKeptGoesTwice) {
  Chain chain(4);
  const auto want = gradients(chain, input(), nullptr);
  HostOffload offload;
  const Tensor loss = chain.forward(input(), &offload).sum();
  loss.backward({}, /*keep_graph=*/true);
  expect_equal(chain.take_gradients(), want);
  loss.backward();
  expect_equal(chain.take_gradients(), want);
}

TEST(HostOffload, AGraphMayOutliveIt) {
  Chain chain(4);
  const auto want = gradients(chain, input(), nullptr);
  Tensor loss;
  {
    HostOffload offload;
    loss = chain.forward(input(), &offload).sum();
  }
  loss.backward();
  expect_equal(chain.take_gradients(), want);
}

TEST(HostOffload, CopiesNothingWithoutAGraph) {
  Chain chain(5);
  HostOffload offload;
  const torch::NoGradGuard no_grad;
  (void)chain.forward(input(), &offload);
  EXPECT_EQ(offload.host_bytes(), 0);
  EXPECT_EQ(chain.places(), "ddddd");
}

TEST(HostOffload, ARecomputedRegionIsNotCopiedInItsSecondRun) {
  Chain chain(3);
  const auto want = gradients(chain, input(), nullptr);
  HostOffload offload;
  const Tensor out = recompute(
      [&](const Tensor& x) { return chain.forward(x, &offload); }, input());
  out.sum().backward();
  expect_equal(chain.take_gradients(), want);
  EXPECT_EQ(offload.host_bytes(), 0);
}

TEST(HostOffload, ViewsOfOneStorageAreCopiedOnce) {
  HostOffload offload;
  const Tensor weight = torch::randn({4, 4}).requires_grad_();
  const Tensor inner = torch::mm(input(128), weight);
  const Tensor result = inner.sin();
  offload.keep({inner, inner.view({-1})}, {result});
  EXPECT_EQ(offload.host_bytes(), 128 * 4 * 4);
}

TEST(HostOffload, RefusesWhatIsNotTheWholeOfItsStorage) {
  HostOffload offload;
  const Tensor x = torch::randn({4, 4}).requires_grad_();
  const Tensor y = x * 2;
  EXPECT_THROW(offload.keep({y.t()}, {y}), InvalidArgument);
  EXPECT_THROW(offload.keep({y[1]}, {y}), InvalidArgument);
  EXPECT_THROW(offload.keep({Tensor()}, {y}), InvalidArgument);
  EXPECT_NE(y.storage().data(), nullptr);
}

// What the plan counts is what happens
// -----------------------------------------

TEST(OffloadTimeline, CountsWhatLeavesInForward) {
  for (int layers = 0; layers < 8; ++layers) {
    Chain chain(layers);
    HostOffload offload(1.3);
    OffloadTimeline timeline(1.3);
    int64_t now = 0;
    const auto expect_now = [&](const std::string& when) {
      int64_t there = 0;
      for (const Tensor& each : chain.kept) {
        there += each.storage().data() == nullptr ? 0 : 48;
      }
      EXPECT_EQ(there, now) << when << ", layers: " << layers;
    };
    (void)chain.forward(input(), &offload, [&](const Tensor& value) {
      now += 48 - timeline.keep(48);
      expect_now("a part");
      offload.end_part(value);
      now -= timeline.keep(0);
      expect_now("a part that keeps nothing");
    });
    now -= timeline.end_forward();
    EXPECT_EQ(now, 0);
    expect_now("end of forward");
  }
}

/// How many of the wide values have memory when backward comes to each part,
/// from the last on. Part i keeps one where `keeps` says so.
std::vector<int64_t> wide_values_in_backward(const std::vector<bool>& keeps) {
  constexpr int64_t kRows = 64, kCopies = 50;
  constexpr int64_t kBytes = kRows * 4 * kCopies * 4;
  test::CountingAllocator counting;
  test::Bytes bytes;
  const test::CountingAllocator::Scope scope(bytes);
  HostOffload offload;
  const Tensor weight = torch::randn({4, 4}).requires_grad_();
  std::vector<int64_t> counts;
  int64_t begin = 0;
  for (int step = 0; step < 2; ++step) {  // the first makes the host's memory
    counts.clear();
    Tensor value = torch::randn({kRows, 4});
    std::vector<Tensor> outputs;
    for (const bool keep : keeps) {
      const Tensor wide =
          torch::mm(value, weight).unsqueeze(-1).repeat({1, 1, kCopies});
      value = keep ? wide.sin().sum(-1) : wide.sum(-1);
      if (keep) offload.keep({wide}, {value});
      offload.end_part(value);
      outputs.push_back(value);
    }
    offload.end_forward(value);
    for (const Tensor& output : outputs) {
      output.register_hook([&](const Tensor&) {
        // To the nearest: narrow values come and go.
        counts.push_back((bytes.now() - begin + kBytes / 2) / kBytes);
      });
    }
    outputs.clear();
    begin = bytes.now();
    value.sum().backward();
  }
  return counts;
}

TEST(OffloadTimeline, CountsWhatComesBackInBackward) {
  for (const auto& keeps : std::vector<std::vector<bool>>{
           {true},
           {true, true},
           {true, true, true, true, true, true},
           {true, false, true, false, true, false, true},
           {true, false, false, false, false, true, false, false, false},
           {false, false, false}}) {
    OffloadTimeline timeline(2);
    for (const bool keep : keeps) (void)timeline.keep(keep ? 1 : 0);
    (void)timeline.end_forward();
    std::vector<int64_t> want;
    int64_t now = 0;
    for (size_t i = keeps.size(); i-- > 0;) {
      now += timeline.come_back(i);
      want.push_back(now);
      now -= keeps[i] ? 1 : 0;
    }
    EXPECT_EQ(now, 0) << "all came back";
    EXPECT_EQ(wide_values_in_backward(keeps), want) << keeps.size();
  }
}

}  // namespace
}  // namespace tessera
