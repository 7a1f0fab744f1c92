// Init methods and names of backends, as text.
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/comm/backend_name.h"
#include "tessera/comm/init_method.h"

namespace tessera {
namespace {

template <class E, class Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "no such error";
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(InitMethod, IsTheEnvironmentByDefault) {
  for (const char* url : {"", "env://"}) {
    EXPECT_EQ(parse_init_method(url).place, MeetingPlace::environment);
    EXPECT_FALSE(parse_init_method(url).rank.has_value());
  }
  EXPECT_EQ(parse_init_method("env://?world_size=4&rank=3").rank, 3);
}

TEST(InitMethod, ReadsAnAddress) {
  const auto method =
      parse_init_method("tcp://node-1.example:29500?rank=1&world_size=4");
  EXPECT_EQ(method.place, MeetingPlace::tcp);
  EXPECT_EQ(method.host, "node-1.example");
  EXPECT_EQ(method.port, 29500);
  EXPECT_EQ(method.rank, 1);
  EXPECT_EQ(method.world_size, 4);
  EXPECT_FALSE(parse_init_method("tcp://10.0.0.1:80").world_size.has_value());
}

TEST(InitMethod, ReadsAnAddressInBrackets) {
  const auto method = parse_init_method("tcp://[fe80::1]:29500/?use_libuv=0");
  EXPECT_EQ(method.host, "fe80::1");
  EXPECT_EQ(method.port, 29500);
}

TEST(InitMethod, ReadsAPath) {
  const auto method =
      parse_init_method("file:///shared/job 7?world_size=2&rank=0");
  EXPECT_EQ(method.place, MeetingPlace::file);
  EXPECT_EQ(method.path, "/shared/job 7");
  EXPECT_EQ(method.rank, 0);
  EXPECT_EQ(method.world_size, 2);
}

TEST(InitMethod, SaysWhatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"tcp://host", "the port is missing"},
      {"tcp://[fe80::1]", "the port is missing"},
      {"tcp://:80", "the host is missing"},
      {"tcp://host:0", "the port is 0"},
      {"tcp://host:70000", "the port is 70000"},
      {"tcp://host:8x", "the port is '8x'"},
      {"tcp://host:80?rank=-1", "rank is '-1'"},
      {"tcp://host:80?rank=", "rank is ''"},
      {"tcp://host:80?size=2", "no argument 'size'"},
      {"file://shared/job", "three slashes"},
      {"file:///", "three slashes"},
      {"env://host", "names no place"},
      {"mpi://", "no way 'mpi://'"},
      {"host:80", "no '://'"},
  };
  for (const auto& [url, part] : cases) {
    const std::string message = message_of<InvalidArgument>(
        [&] { static_cast<void>(parse_init_method(url)); });
    EXPECT_TRUE(contains(message, part)) << message;
    EXPECT_TRUE(contains(message, "'" + url + "'")) << message;
  }
}

using Choices = std::vector<BackendChoice>;

TEST(BackendName, FollowsTheWorldByDefault) {
  EXPECT_EQ(choose_backends("", "cpu", {"gloo"}), (Choices{{"cpu", "gloo"}}));
  EXPECT_EQ(choose_backends("", "cuda", {"gloo", "nccl"}),
            (Choices{{"cuda", "nccl"}}));
}

TEST(BackendName, OneNameServesTheDevicesItTakes) {
  EXPECT_EQ(choose_backends("Gloo", "cpu", {"gloo"}),
            (Choices{{"cpu", "gloo"}, {"cuda", "gloo"}}));
  EXPECT_EQ(choose_backends("NCCL", "cuda", {"gloo", "nccl"}),
            (Choices{{"cuda", "nccl"}}));
}

TEST(BackendName, CanDifferByDevice) {
  EXPECT_EQ(choose_backends("cuda:nccl,cpu:gloo", "cuda", {"gloo", "nccl"}),
            (Choices{{"cpu", "gloo"}, {"cuda", "nccl"}}));
  EXPECT_EQ(choose_backends("cpu:mine", "cpu", {"gloo", "mine"}),
            (Choices{{"cpu", "mine"}}));
}

TEST(BackendName, NamesWhatIsHereInsteadOfWhatIsNot) {
  for (const char* name : {"mpi", "ucc", "xccl", "nccl", "cpu:mpi"}) {
    const std::string message = message_of<Unsupported>([&] {
      static_cast<void>(choose_backends(name, "cpu", {"gloo", "mine"}));
    });
    EXPECT_TRUE(contains(message, "is not in this build")) << message;
    EXPECT_TRUE(contains(message, "here are: gloo, mine")) << message;
  }
  EXPECT_TRUE(contains(message_of<Unsupported>([&] {
                         static_cast<void>(
                             choose_backends("glue", "cpu", {"gloo"}));
                       }),
                       "'glue' is unknown"));
}

TEST(BackendName, RefusesBrokenPairs) {
  for (const char* name :
       {"cpu:", ":gloo", "xpu:gloo", "cpu:gloo,gloo", "cpu:gloo,cpu:gloo"}) {
    EXPECT_THROW(static_cast<void>(choose_backends(name, "cpu", {"gloo"})),
                 InvalidArgument)
        << name;
  }
}

}  // namespace
}  // namespace tessera
