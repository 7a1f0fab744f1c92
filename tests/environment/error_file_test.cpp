#include "tessera/comm/error_file.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

namespace tessera {
namespace {

// In a process of its own: the file is written once a process.
nlohmann::json written_by(const std::function<void()>& body) {
  const std::string path =
      testing::TempDir() + "/error_" + std::to_string(::getpid()) + ".json";
  ::setenv("TORCHELASTIC_ERROR_FILE", path.c_str(), 1);
  const pid_t process = ::fork();
  if (process == 0) {
    body();
    ::_exit(0);
  }
  ::waitpid(process, nullptr, 0);
  ::unsetenv("TORCHELASTIC_ERROR_FILE");
  std::ifstream file(path);
  auto json = file ? nlohmann::json::parse(file) : nlohmann::json();
  ::unlink(path.c_str());
  return json;
}

TEST(ErrorFile, HasTheFormThatTorchrunReads) {
  const auto json = written_by([] {
    write_error_file("tessera::CommError", "rank \"1\"\n\tis\x01 gone\\");
  });
  const auto& message = json.at("message");
  EXPECT_EQ(message.at("message"),
            "tessera::CommError: rank \"1\"\n\tis\x01 gone\\");
  const auto& extra = message.at("extraInfo");
  EXPECT_EQ(extra.at("py_callstack"), "");
  const int64_t now = ::time(nullptr);
  const int64_t then = std::stoll(extra.at("timestamp").get<std::string>());
  EXPECT_LE(then, now);
  EXPECT_GE(then, now - 60);
}

TEST(ErrorFile, KeepsTheFirstError) {
  const auto json = written_by([] {
    write_error_file("A", "first");
    write_error_file("B", "second");
  });
  EXPECT_EQ(json.at("message").at("message"), "A: first");
}

TEST(ErrorFile, IsNotWrittenWithoutALauncherThatAsksForIt) {
  const auto json = written_by([] {
    ::unsetenv("TORCHELASTIC_ERROR_FILE");
    write_error_file("A", "first");
  });
  EXPECT_TRUE(json.is_null());
}

}  // namespace
}  // namespace tessera
