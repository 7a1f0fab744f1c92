#include "tessera/base/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tessera/base/error.h"

namespace tessera {
namespace {

/// Sets a variable while it lives; null unsets it.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (value != nullptr) {
      setenv(name, value, 1);
    } else {
      unsetenv(name);
    }
  }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

TEST(Environment, TakesAnEmptyVariableForAnUnsetOne) {
  const Variable unset("TESSERA_TEST_A", nullptr);
  const Variable empty("TESSERA_TEST_B", "");
  const Variable full("TESSERA_TEST_C", "x");
  EXPECT_EQ(environment::text("TESSERA_TEST_A"), std::nullopt);
  EXPECT_EQ(environment::text("TESSERA_TEST_B"), std::nullopt);
  EXPECT_EQ(environment::text("TESSERA_TEST_C"), "x");
  EXPECT_EQ(environment::number("TESSERA_TEST_B"), std::nullopt);
}

TEST(Environment, KnowsTwoTransports) {
  for (const auto& [text, copies] :
       {std::pair<const char*, bool>{nullptr, false},
        {"nccl", false},
        {"copy_engines", true}}) {
    const Variable variable("TESSERA_TRANSPORT", text);
    EXPECT_EQ(environment::uses_copy_engines(), copies);
  }
  const Variable variable("TESSERA_TRANSPORT", "NCCL");
  EXPECT_THROW((void)environment::uses_copy_engines(), InvalidArgument);
}

TEST(Environment, KnowsTheSizeOfWindows) {
  const Variable unset("TESSERA_WINDOW_MIB", nullptr);
  EXPECT_EQ(environment::window_mib(), std::nullopt);
  const Variable variable("TESSERA_WINDOW_MIB", "16");
  EXPECT_EQ(environment::window_mib(), 16);
}

TEST(Environment, ReadsWholeNumbersOnly) {
  for (const char* text : {"0", "17", "-3"}) {
    const Variable variable("TESSERA_TEST_N", text);
    EXPECT_EQ(environment::number("TESSERA_TEST_N"), std::stoll(text));
  }
  for (const char* text :
       {"x", "1x", " 1", "1.5", "0x10", "99999999999999999999"}) {
    const Variable variable("TESSERA_TEST_N", text);
    try {
      (void)environment::number("TESSERA_TEST_N");
      FAIL() << text;
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(std::string(error.what()),
                str("environment: TESSERA_TEST_N is '", text,
                    "', which is not a whole number; set it to one, or unset "
                    "it."));
    }
  }
}

TEST(Environment, ReadsWhatTorchrunSets) {
  const Variable variables[] = {{"RANK", "3"},
                                {"WORLD_SIZE", "4"},
                                {"LOCAL_RANK", "1"},
                                {"LOCAL_WORLD_SIZE", "2"},
                                {"MASTER_ADDR", "node-0"},
                                {"MASTER_PORT", "29500"},
                                {"TORCHELASTIC_RUN_ID", "abc"},
                                {"TORCHELASTIC_RESTART_COUNT", "2"},
                                {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  const environment::Launch launch = environment::launch();
  EXPECT_EQ(launch.rank, 3);
  EXPECT_EQ(launch.world_size, 4);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_world_size, 2);
  EXPECT_EQ(launch.master_addr, "node-0");
  EXPECT_EQ(launch.master_port, 29500);
  EXPECT_EQ(launch.run_id, "abc");
  EXPECT_EQ(launch.restart_count, 2);
  EXPECT_TRUE(launch.agent_hosts_store);
}

TEST(Environment, ADifferentAgentFlagMeansRankZeroHosts) {
  for (const char* text : {"False", "true", "1", ""}) {
    const Variable variable("TORCHELASTIC_USE_AGENT_STORE", text);
    EXPECT_FALSE(environment::launch().agent_hosts_store) << text;
  }
}

TEST(Environment, SwitchesTheFlightRecorderOff) {
  const Variable variable("TORCH_FR_BUFFER_SIZE", "2000");
  environment::disable_flight_recorder();
  EXPECT_EQ(environment::text("TORCH_FR_BUFFER_SIZE"), "0");
}

}  // namespace
}  // namespace tessera
