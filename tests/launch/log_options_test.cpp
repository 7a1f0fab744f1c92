// The pure parts of logs, restarts and addresses.
#include "cli/launch/log_options.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cli/launch/local_address.h"
#include "cli/launch/log_folder.h"
#include "cli/launch/outcome.h"
#include "cli/launch/processors.h"
#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

namespace fs = std::filesystem;
using Console = Route::Console;

bool has(const std::string& text, int rank, Stream stream) {
  return parse_stream_choice("--tee", text).has(rank, stream);
}

TEST(StreamChoice, MeansAllRanksOrThoseNamed) {
  EXPECT_FALSE(has("0", 5, Stream::output));
  EXPECT_TRUE(has("1", 5, Stream::output));
  EXPECT_FALSE(has("1", 5, Stream::error));
  EXPECT_TRUE(has("2", 5, Stream::error));
  EXPECT_TRUE(has("3", 5, Stream::error));
  EXPECT_TRUE(has("0:3,2:1", 0, Stream::error));
  EXPECT_FALSE(has("0:3,2:1", 2, Stream::error));
  EXPECT_TRUE(has("0:3,2:1", 2, Stream::output));
  EXPECT_FALSE(has("0:3,2:1", 1, Stream::output));
  for (const char* text : {"4", "-1", "x", "", "0:4", "a:1", ":", "0:"}) {
    EXPECT_THROW((void)has(text, 0, Stream::output), InvalidArgument) << text;
  }
}

TEST(Route, SendsATeedStreamToBothAndARedirectedOneToItsFile) {
  LogOptions options;
  EXPECT_EQ(route_of(options, 0, Stream::output).console, Console::as_is);
  options.tee = parse_stream_choice("--tee", "1");
  options.redirects = parse_stream_choice("--redirects", "0:2");
  const Route teed = route_of(options, 0, Stream::output);
  EXPECT_TRUE(teed.file);
  EXPECT_EQ(teed.console, Console::tagged);
  const Route redirected = route_of(options, 0, Stream::error);
  EXPECT_TRUE(redirected.file);
  EXPECT_EQ(redirected.console, Console::none);
  EXPECT_FALSE(route_of(options, 1, Stream::error).file);
  options.output = OutputMode::tagged;
  EXPECT_EQ(route_of(options, 1, Stream::error).console, Console::tagged);
  EXPECT_EQ(route_of(options, 0, Stream::error).console, Console::none);
}

TEST(Route, LeavesARankThatIsNotShownItsFileAlone) {
  LogOptions options;
  options.tee = parse_stream_choice("--tee", "1");
  options.shown = parse_local_ranks("--local-ranks-filter", "0,2");
  EXPECT_EQ(route_of(options, 2, Stream::output).console, Console::tagged);
  EXPECT_EQ(route_of(options, 2, Stream::error).console, Console::as_is);
  EXPECT_EQ(route_of(options, 1, Stream::output).console, Console::none);
  EXPECT_TRUE(route_of(options, 1, Stream::output).file);
  EXPECT_EQ(route_of(options, 1, Stream::error).console, Console::none);
  EXPECT_FALSE(route_of(options, 1, Stream::error).file);
}

TEST(LastLines, AreThoseWithText) {
  EXPECT_EQ(last_lines("a\nb\nc\n\n", 2), "b\nc");
  EXPECT_EQ(last_lines("a\nb", 5), "a\nb");
  EXPECT_EQ(last_lines("a\n\nb\n", 2), "\nb");
  EXPECT_EQ(last_lines("\n\n", 2), "");
  EXPECT_EQ(last_lines("", 2), "");
}

class ErrorFiles : public testing::Test {
 protected:
  std::optional<RankError> read(const std::string& text) {
    std::ofstream(path_) << text;
    return read_error_file(path_);
  }
  void TearDown() override { fs::remove(path_); }
  fs::path path_ =
      testing::TempDir() + "/error_file_" + std::to_string(::getpid());
};

TEST_F(ErrorFiles, AreReadInBothFormsThatTorchWrites) {
  EXPECT_EQ(
      read(R"({"message": {"message": "A: b", "extraInfo": {}}})")->message,
      "A: b");
  EXPECT_EQ(read(R"({"message": "plain"})")->message, "plain");
}

TEST_F(ErrorFiles, AreNoneWhenTheyAreNotLegible) {
  EXPECT_FALSE(read("{\"message\": {\"mess").has_value());
  EXPECT_FALSE(read("[1]").has_value());
  EXPECT_FALSE(read("{}").has_value());
  EXPECT_FALSE(read_error_file("/no/such/file").has_value());
}

TEST(Outcome, ComesBackFromItsLine) {
  const Outcome outcome{Outcome::Kind::failed, 3, 0,
                        "rank 1 exited with code 3 on node 0"};
  const Outcome again = outcome_of_line(to_line(outcome));
  EXPECT_EQ(again.kind, outcome.kind);
  EXPECT_EQ(again.exit_code, 3);
  EXPECT_EQ(again.text, outcome.text);
  EXPECT_TRUE(again.may_restart());
  for (const char* line : {"", "x", "9 0 0 text", "-1 0 0 text"}) {
    EXPECT_THROW((void)outcome_of_line(line), InvalidArgument) << line;
  }
}

Endpoint endpoint(const std::string& text) {
  return parse_endpoint("--rdzv-endpoint", text, 29400);
}

TEST(Endpoint, HasTheUsualPortWhereNoneIsGiven) {
  EXPECT_EQ(endpoint("node-0").text(), "node-0:29400");
  EXPECT_EQ(endpoint("node-0:7").text(), "node-0:7");
  EXPECT_EQ(endpoint("localhost:0").port, 0);
  EXPECT_EQ(endpoint("[fe80::1]:7").host, "fe80::1");
  EXPECT_EQ(endpoint("[fe80::1]:7").text(), "[fe80::1]:7");
  EXPECT_EQ(endpoint("fe80::1").host, "fe80::1");
  for (const char* text : {"", ":7", "node:x", "node:70000", "node:-1"}) {
    EXPECT_THROW((void)endpoint(text), InvalidArgument) << text;
  }
}

TEST(Endpoint, IsThisMachinesWhenASocketCanBeBoundToIt) {
  EXPECT_TRUE(is_this_machine("127.0.0.1"));
  EXPECT_TRUE(is_this_machine("localhost"));
  EXPECT_FALSE(is_this_machine("192.0.2.1"));  // reserved for documents
}

TEST(CudaDevices, AreThoseMadeVisibleOrThoseOfTheDevFolder) {
  EXPECT_EQ(num_cuda_devices("0,1"), 2);
  EXPECT_EQ(num_cuda_devices("3,-1,2"), 1);
  EXPECT_EQ(num_cuda_devices(""), 0);
  EXPECT_EQ(num_cuda_devices("NoDevFiles"), 0);
  const fs::path dev =
      testing::TempDir() + "/dev_" + std::to_string(::getpid());
  fs::create_directories(dev);
  for (const char* name : {"nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm"}) {
    std::ofstream(dev / name) << "";
  }
  EXPECT_EQ(num_cuda_devices({}, dev), 2);
  EXPECT_EQ(num_cuda_devices({}, dev / "no_such"), 0);
  fs::remove_all(dev);
}

}  // namespace
}  // namespace tessera::launch
