#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <regex>

#include "tessera/base/error.h"
#include "tessera/train/failure.h"
#include "tessera/train/run_curves.h"
#include "tessera/train/svg_plot.h"
#include "tests/support/temporary_folder.h"

namespace tessera::train {
namespace {

using testing::message_of;
using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
using Points = std::vector<std::pair<double, double>>;

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != text.npos;
       at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

/// The places of each line of a picture.
std::vector<Points> lines_of(const std::string& svg) {
  std::vector<Points> lines;
  const std::regex line("<polyline[^>]*points=\"([^\"]*)\"");
  const std::regex place("([-0-9.]+),([-0-9.]+)");
  for (std::sregex_iterator it(svg.begin(), svg.end(), line), end; it != end;
       ++it) {
    const std::string text = (*it)[1];
    Points points;
    for (std::sregex_iterator p(text.begin(), text.end(), place); p != end;
         ++p) {
      points.emplace_back(std::stod((*p)[1]), std::stod((*p)[2]));
    }
    lines.push_back(points);
  }
  return lines;
}

std::vector<double> values_of(const std::vector<Tick>& ticks) {
  std::vector<double> values;
  for (const Tick& tick : ticks) values.push_back(tick.value);
  return values;
}

TEST(PlotAxis, HasRoundTicksInsideAtAnyRange) {
  for (double size = 1e-12; size < 1e15; size *= 3.7) {
    for (const double low : {-size, 0.0, size, 100 * size}) {
      const PlotAxis axis(low, low + size, Scale::linear);
      const auto ticks = axis.ticks();
      ASSERT_GE(ticks.size(), 3u) << low << " " << size;
      ASSERT_LE(ticks.size(), 9u) << low << " " << size;
      for (const Tick& tick : ticks) {
        EXPECT_GE(axis.place(tick.value), -1e-9);
        EXPECT_LE(axis.place(tick.value), 1 + 1e-9);
      }
    }
  }
}

TEST(PlotAxis, PlacesItsEndsALittleInside) {
  const PlotAxis axis(2, 12, Scale::linear);
  EXPECT_GT(axis.place(2), 0.0);
  EXPECT_LT(axis.place(2), 0.05);
  EXPECT_DOUBLE_EQ(axis.place(7), 0.5);
  EXPECT_LT(axis.place(12), 1.0);
  EXPECT_EQ(values_of(axis.ticks()), (std::vector<double>{2, 4, 6, 8, 10, 12}));
}

TEST(PlotAxis, EqualValuesStandInTheMiddle) {
  for (const double value : {0.0, 5.0, -3.0, 1e-9, 1e12}) {
    const PlotAxis axis(value, value, Scale::linear);
    EXPECT_NEAR(axis.place(value), 0.5, 1e-9);
    EXPECT_GE(axis.ticks().size(), 1u);
  }
  const PlotAxis one(1, 1, Scale::logarithmic);
  EXPECT_DOUBLE_EQ(one.place(1), 0.5);
}

TEST(PlotAxis, ALogarithmicAxisHasPowersOfTen) {
  const PlotAxis wide(1e-4, 1e3, Scale::logarithmic);
  EXPECT_NEAR(wide.place(std::pow(10, -0.5)), 0.5, 1e-12);
  const auto ticks = wide.ticks();
  ASSERT_EQ(ticks.size(), 8u);
  for (size_t i = 0; i < ticks.size(); ++i) {
    EXPECT_NEAR(ticks[i].value, std::pow(10, static_cast<int>(i) - 4),
                1e-9 * ticks[i].value);
  }
  EXPECT_EQ(PlotAxis(1, 60, Scale::logarithmic).ticks().size(), 6u);
  EXPECT_GE(PlotAxis(2.0, 2.4, Scale::logarithmic).ticks().size(), 3u);
  EXPECT_LE(PlotAxis(1e-30, 1e30, Scale::logarithmic).ticks().size(), 9u);
}

TEST(PlotAxis, LabelsAreShort) {
  EXPECT_EQ(tick_label(0), "0");
  EXPECT_EQ(tick_label(0.25), "0.25");
  EXPECT_EQ(tick_label(-2), "-2");
  EXPECT_EQ(tick_label(1000), "1000");
  EXPECT_EQ(tick_label(25000), "25k");
  EXPECT_EQ(tick_label(2.5e6), "2.5M");
  EXPECT_EQ(tick_label(3e9), "3G");
  EXPECT_EQ(tick_label(1e-5), "1e-05");
}

TEST(SvgPlot, DrawsEachSeriesAsOneLineWithItsName) {
  const std::string svg =
      svg_plot({{"a", {{0, 1}, {1, 2}, {2, 3}}}, {"b", {{0, 3}, {2, 1}}}},
               {.title = "T", .x_label = "x", .y_label = "y"});
  const auto lines = lines_of(svg);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].size(), 3u);
  // To the right, and upwards in the picture: smaller numbers.
  EXPECT_LT(lines[0][0].first, lines[0][2].first);
  EXPECT_GT(lines[0][0].second, lines[0][2].second);
  EXPECT_EQ(lines[0][0], lines[0].front());
  for (const char* text : {">a<", ">b<", ">T<", ">x<", ">y<"}) {
    EXPECT_EQ(count(svg, text), 1u) << text;
  }
  EXPECT_TRUE(svg.starts_with("<svg"));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

TEST(SvgPlot, EveryPointIsInsideTheFrame) {
  Points points;
  for (int i = 0; i < 50; ++i) points.emplace_back(i, std::sin(i) * 1e5);
  const auto lines = lines_of(svg_plot({{"", points}}));
  for (const auto& [x, y] : lines.at(0)) {
    EXPECT_GE(x, 70);
    EXPECT_LE(x, 820);
    EXPECT_GE(y, 44);
    EXPECT_LE(y, 428);
  }
}

TEST(SvgPlot, ValuesWithoutAPlaceBreakTheLine) {
  const std::string svg = svg_plot(
      {{"", {{0, 1}, {1, 2}, {2, kNan}, {3, 2}, {4, 1}, {5, kNan}, {6, 1}}}});
  EXPECT_EQ(lines_of(svg).size(), 2u);
  EXPECT_EQ(count(svg, "<circle"), 1u);
  EXPECT_EQ(svg.find("nan"), svg.npos);
  const std::string log = svg_plot({{"", {{0, 1}, {1, 2}, {2, 0}, {3, -1}}}},
                                   {.y_scale = Scale::logarithmic});
  EXPECT_EQ(lines_of(log).at(0).size(), 2u);
}

TEST(SvgPlot, KeepsThePeaksOfALongSeries) {
  Points points;
  for (int i = 0; i < 200000; ++i) points.emplace_back(i, i == 77777 ? 100 : 1);
  const auto line = lines_of(svg_plot({{"", points}})).at(0);
  EXPECT_LE(line.size(), 2u * 840);
  const auto highest = std::min_element(
      line.begin(), line.end(),
      [](const auto& a, const auto& b) { return a.second < b.second; });
  EXPECT_NEAR(highest->second, 44, 15);
  EXPECT_TRUE(std::is_sorted(
      line.begin(), line.end(),
      [](const auto& a, const auto& b) { return a.first < b.first; }));
}

TEST(SvgPlot, ASmoothLineStandsBeforeThePaleOne) {
  Points points;
  for (int i = 0; i < 100; ++i) points.emplace_back(i, i % 2 * 10);
  const auto lines = lines_of(svg_plot({{"", points}}, {.smooth = 0.5}));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0][0], lines[1][0]);
  EXPECT_GT(lines[1][1].second, lines[0][1].second);  // below the peak
  EXPECT_LT(lines[1][2].second, lines[0][2].second);
  points.pop_back();  // few points, as of a held-out loss, are not smoothed
  EXPECT_EQ(lines_of(svg_plot({{"", points}}, {.smooth = 0.5})).size(), 1u);
}

TEST(SvgPlot, TextIsEscaped) {
  const std::string svg =
      svg_plot({{"a<b>&\"c\"", {{0, 1}}}}, {.title = "x\x01y"});
  EXPECT_EQ(count(svg, ">a&lt;b&gt;&amp;&quot;c&quot;<"), 1u);
  EXPECT_EQ(count(svg, ">x y<"), 1u);
}

TEST(SvgPlot, NothingToShowIsAnError) {
  const std::vector<PlotSeries> none;
  EXPECT_THROW((void)svg_plot(none), InvalidArgument);
  EXPECT_THROW((void)svg_plot({{"", {}}}), InvalidArgument);
  EXPECT_THROW((void)svg_plot({{"", {{0, kNan}}}}), InvalidArgument);
  EXPECT_NE(
      message_of<InvalidArgument>([] {
        (void)svg_plot({{"", {{0, -1}}}}, {.y_scale = Scale::logarithmic});
      }).find("logarithmic"),
      std::string::npos);
  for (const double smooth : {-0.1, 1.0, kNan}) {
    EXPECT_THROW((void)svg_plot({{"", {{0, 1}}}}, {.smooth = smooth}),
                 InvalidArgument);
  }
}

class RunCurves : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder_ / "a");
    write_bytes(folder_ / "a/metrics.jsonl",
                "{\"step\":1,\"loss\":5,\"lr\":0.1}\n"
                "{\"step\":1,\"held_out_loss\":6}\n"
                "{\"step\":2,\"loss\":4}\n{\"step\":3,\"loss\":9}\n"
                "{\"step\":3,\"loss\":3}\n{\"step\":4,\"loss\":null}\n");
    write_bytes(folder_ / "b.jsonl", "{\"step\":1,\"loss\":7}\n");
  }

  TemporaryFolder folder_;
};

TEST_F(RunCurves, ShowsLossAndHeldOutLossWhereThereIsOne) {
  const auto all = run_curves({.runs = {folder_ / "a", folder_ / "b.jsonl"}});
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].name, "a loss");
  EXPECT_EQ(all[1].name, "a held_out_loss");
  EXPECT_EQ(all[2].name, "b.jsonl loss");
  EXPECT_EQ(all[1].points, (Points{{1, 6}}));
}

TEST_F(RunCurves, AStepThatCameTwiceHasItsLastValue) {
  const auto all = run_curves({.runs = {folder_ / "a"}, .keys = {"loss"}});
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].name, "a");
  EXPECT_EQ(all[0].points, (Points{{1, 5}, {2, 4}, {3, 3}}));
}

TEST_F(RunCurves, ARunHasTheNameOfItsFolder) {
  for (const char* path : {"a", "a/", "a/metrics.jsonl", "./a/."}) {
    EXPECT_EQ(run_curves({.runs = {folder_ / path}, .keys = {"lr"}}).at(0).name,
              "a")
        << path;
  }
}

TEST_F(RunCurves, AKeyThatARunLacksIsNamedWithTheNearest) {
  const std::string error = message_of<Failure>([&] {
    (void)run_curves({.runs = {folder_ / "a"}, .keys = {"held_out_los"}});
  });
  EXPECT_NE(error.find("did you mean 'held_out_loss'? it has held_out_loss, "
                       "loss, lr, step."),
            std::string::npos)
      << error;
}

TEST_F(RunCurves, RunsThatAreNotThereAreNamed) {
  EXPECT_NE(message_of<Failure>([&] {
              (void)run_curves({.runs = {folder_ / "none"}});
            }).find("none' cannot be read"),
            std::string::npos);
  EXPECT_THROW((void)run_curves({}), InvalidArgument);
}

TEST_F(RunCurves, WritesThePicture) {
  const std::string out = folder_ / "x.svg";
  write_curves({.runs = {folder_ / "a"}, .output = out});
  EXPECT_EQ(count(read_bytes(out), ">a loss<"), 1u);
  try {
    write_curves({.runs = {folder_ / "a"}, .output = folder_ / "no/x.svg"});
    ADD_FAILURE() << "no failure";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), ExitCode::cannot_write);
  }
}

}  // namespace
}  // namespace tessera::train
