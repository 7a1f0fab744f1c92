#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <functional>
#include <limits>

#include "tessera/train/failure.h"
#include "tessera/train/metrics_file.h"
#include "tessera/train/progress_line.h"
#include "tessera/train/tensorboard_writer.h"
#include "tests/support/temporary_folder.h"

namespace tessera::train {
namespace {

using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

ExitCode code_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Failure& failure) {
    return failure.code();
  }
  return ExitCode::done;
}

/// What `act` returns in a process whose files end at `bytes`: a full disk.
int on_full_disk(rlim_t bytes, const std::function<int()>& act) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{bytes, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::signal(SIGXFSZ, SIG_IGN);
    _exit(act());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void lift_limit() {
  const rlimit none{RLIM_INFINITY, RLIM_INFINITY};
  ::setrlimit(RLIMIT_FSIZE, &none);
}

TEST(MetricsFile, ALineIsOneJsonObject) {
  const std::vector<Metric> line = {
      {"step", 10}, {"loss", 0.1}, {"whole", 2.0}, {"split", "train"}};
  EXPECT_EQ(to_json(line),
            R"({"step":10,"loss":0.1,"whole":2.0,"split":"train"})");
  EXPECT_EQ(to_json({}), "{}");
}

TEST(MetricsFile, WhatJsonDoesNotHaveIsNull) {
  const std::vector<Metric> line = {
      {"a", std::nan("")}, {"b", kInfinity}, {"c", -kInfinity}};
  EXPECT_EQ(to_json(line), R"({"a":null,"b":null,"c":null})");
}

TEST(MetricsFile, TextIsEscaped) {
  const std::vector<Metric> line = {{"t", "a\"b\\c\n\x01\xff"}};
  EXPECT_EQ(to_json(line), "{\"t\":\"a\\\"b\\\\c\\n\\u0001\xef\xbf\xbd\"}");
}

TEST(MetricsFile, EveryLineIsInTheFileWhenWriteReturns) {
  const TemporaryFolder folder;
  MetricsWriter writer(folder / "m", OpenFile::anew);
  for (int64_t step = 0; step < 3; ++step) {
    writer.write({{"step", step}, {"loss", 1.0 / 3}});
    const auto rows = read_metrics(folder / "m");
    ASSERT_EQ(rows.size(), static_cast<size_t>(step + 1));
    EXPECT_EQ(rows.back().at("step"), static_cast<double>(step));
    EXPECT_EQ(rows.back().at("loss"), 1.0 / 3);
  }
}

TEST(MetricsFile, BeginsAnewOrGoesOn) {
  const TemporaryFolder folder;
  MetricsWriter(folder / "m", OpenFile::anew).write({{"step", 1}});
  MetricsWriter(folder / "m", OpenFile::append).write({{"step", 2}});
  EXPECT_EQ(read_bytes(folder / "m"), "{\"step\":1}\n{\"step\":2}\n");
  MetricsWriter(folder / "m", OpenFile::anew).write({{"step", 3}});
  EXPECT_EQ(read_bytes(folder / "m"), "{\"step\":3}\n");
}

TEST(MetricsFile, GoesOnBehindTheLastWholeLine) {
  const TemporaryFolder folder;
  for (const char* rest : {"", "{\"st", "{\"step\":2}", "x"}) {
    write_bytes(folder / "m", std::string("{\"step\":1}\n") + rest);
    EXPECT_EQ(read_metrics(folder / "m").size(), 1u);
    MetricsWriter(folder / "m", OpenFile::append).write({{"step", 5}});
    EXPECT_EQ(read_bytes(folder / "m"), "{\"step\":1}\n{\"step\":5}\n");
  }
}

TEST(MetricsFile, StepsThatARunDoesAgainAreTakenOut) {
  const TemporaryFolder folder;
  const std::string kept =
      "{\"step\":1,\"loss\":2.5}\n{\"note\":\"x\"}\n{\"step\":2}\n";
  write_bytes(folder / "m", kept + "{\"step\":3}\n\n{\"step\":4}\n{\"st");
  drop_metrics_after(folder / "m", 2);
  EXPECT_EQ(read_bytes(folder / "m"), kept);
  drop_metrics_after(folder / "none", 2);
  EXPECT_FALSE(std::filesystem::exists(folder / "none"));
}

TEST(MetricsFile, AFullDiskLeavesWholeLinesAndTheWriterUsable) {
  const TemporaryFolder folder;
  const int failed_at = on_full_disk(100, [&] {
    MetricsWriter writer(folder / "m", OpenFile::anew);
    int step = 0;
    while (step < 50 && code_of([&] {
                          writer.write({{"step", step}});
                        }) == ExitCode::done) {
      ++step;
    }
    if (!read_bytes(folder / "m").ends_with('\n')) return 200;
    lift_limit();
    return code_of([&] {
             writer.write({{"step", 77}});
           }) == ExitCode::done
               ? step
               : -1;
  });
  EXPECT_EQ(failed_at, 9);  // of 11 bytes each
  const auto rows = read_metrics(folder / "m");
  ASSERT_EQ(rows.size(), 10u);
  EXPECT_EQ(rows.back().at("step"), 77.0);
}

TEST(MetricsFile, ReadsNumbersAndLeavesTheRestOut) {
  const TemporaryFolder folder;
  write_bytes(folder / "m", "{\"a\":1,\"b\":null,\"c\":\"x\",\"d\":-2.5}\n\n");
  const auto rows = read_metrics(folder / "m");
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0], (MetricsRow{{"a", 1}, {"d", -2.5}}));
}

TEST(MetricsFile, ALineThatIsNoObjectIsNamed) {
  const TemporaryFolder folder;
  for (const char* bad : {"nonsense", "[1]", "{\"a\":}"}) {
    write_bytes(folder / "m", std::string("{}\n") + bad + "\n{}\n");
    try {
      (void)read_metrics(folder / "m");
      ADD_FAILURE() << "no failure";
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.code(), ExitCode::damaged_data);
      EXPECT_NE(std::string(failure.what()).find("line 2"), std::string::npos);
    }
  }
}

TEST(MetricsFile, FilesThatCannotBeOpenedAreNamed) {
  const TemporaryFolder folder;
  EXPECT_EQ(code_of([&] { (void)read_metrics(folder / "none"); }),
            ExitCode::missing_data);
  EXPECT_EQ(code_of([&] { MetricsWriter(folder / "none/m", OpenFile::anew); }),
            ExitCode::cannot_write);
}

TEST(TensorBoard, MasksItsChecksumsAsTensorFlowDoes) {
  // crc32c("123456789") is e3069283: turned right by 15, plus a282ead8.
  EXPECT_EQ(masked_crc32c("123456789"), 0xc78ab0e5u);
  EXPECT_EQ(masked_crc32c(""), 0xa282ead8u);
}

TEST(TensorBoard, AScalarIsTheseBytes) {
  const std::string event = scalar_event("l", 1.0, 300, 2.0);
  const std::string expected(
      "\x09\0\0\0\0\0\0\0\x40"  // wall_time: 2.0
      "\x10\xac\x02"            // step: 300
      "\x2a\x0a\x0a\x08"        // summary { value {
      "\x0a\x01l\x15\0\0\x80\x3f",
      24);  // tag: "l", simple_value: 1.0
  EXPECT_EQ(event, expected);
}

TEST(TensorBoard, ARunThatGoesOnBeginsWithTheseBytes) {
  const std::string event = start_event(300, 2.0);
  const std::string expected(
      "\x09\0\0\0\0\0\0\0\x40"  // wall_time: 2.0
      "\x10\xac\x02"            // step: 300
      "\x3a\x02\x08\x01",       // session_log { status: START }
      16);
  EXPECT_EQ(event, expected);
  const TemporaryFolder folder;
  const TensorBoardWriter anew(folder.path()), on(folder.path(), 299);
  EXPECT_EQ(read_bytes(on.path()).size(),
            read_bytes(anew.path()).size() + 12 + event.size() + 4);
}

TEST(TensorBoard, TwoWritersInOneSecondHaveTheirOwnFiles) {
  const TemporaryFolder folder;
  const TensorBoardWriter a(folder.path()), b(folder.path());
  EXPECT_NE(a.path(), b.path());
  EXPECT_EQ(read_bytes(a.path()).size(), read_bytes(b.path()).size());
}

TEST(TensorBoard, AFullDiskLeavesWholeRecords) {
  const TemporaryFolder folder;
  const int ok = on_full_disk(100, [&] {
    TensorBoardWriter events(folder.path());
    const size_t before = read_bytes(events.path()).size();
    const ExitCode code = code_of([&] {
      events.scalar("a tag that is much too long for what is left of the disk",
                    1.0, 1);
    });
    return code == ExitCode::cannot_write &&
           read_bytes(events.path()).size() == before;
  });
  EXPECT_EQ(ok, 1);
}

TEST(TensorBoard, AFolderThatIsNotThereIsNamed) {
  EXPECT_EQ(code_of([] { TensorBoardWriter events("/no/such/folder"); }),
            ExitCode::cannot_write);
}

TEST(RunningScore, IsTheDeviationFromTheValuesBefore) {
  RunningScore score;
  for (int i = 0; i < 16; ++i) {
    EXPECT_FALSE(score.add(i % 2 == 0 ? 1.0 : 3.0).has_value());
  }
  // Mean 2, deviation 1.
  EXPECT_DOUBLE_EQ(score.add(5.0).value(), 3.0);
}

TEST(RunningScore, ForgetsWhatIsLongAgo) {
  RunningScore score;
  for (int i = 0; i < 1000; ++i) (void)score.add(1e6 + i);
  for (int i = 0; i < 128; ++i) (void)score.add(i % 2 == 0 ? 1.0 : 3.0);
  EXPECT_DOUBLE_EQ(score.add(2.0).value(), 0.0);
}

TEST(RunningScore, EqualValuesHaveNone) {
  RunningScore score;
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(score.add(2.0).has_value());
}

TEST(RunningScore, ANonFiniteValueLeavesNoTrace) {
  RunningScore with, without;
  for (int i = 0; i < 40; ++i) {
    EXPECT_FALSE(with.add(i % 2 == 0 ? std::nan("") : kInfinity).has_value());
    EXPECT_EQ(with.add(i * i), without.add(i * i));
  }
}

TEST(ProgressLine, HasAllPartsThatAreKnown) {
  ProgressLine line;
  for (int i = 0; i < 16; ++i) line.add(i % 2 ? 1.0 : 3.0, i % 2 ? 2.0 : 6.0);
  line.add(2.5, 2.0);
  EXPECT_EQ(line.format({.step = 7,
                         .num_steps = 1000,
                         .loss = 3.45678,
                         .grad_norm = 0.8123,
                         .lr = 3e-4,
                         .tokens_per_second = 52310.4,
                         .mfu = 0.412,
                         .memory_bytes = int64_t{13} << 30,
                         .seconds_left = 845}),
            "step    7/1000 | loss 3.4568 (+0.50z) | norm 0.8123 (-1.00z) | "
            "lr 3.00e-04 | 52,310 tok/s | 41.2% MFU | 13.0 GiB | ETA 0:14:05");
}

TEST(ProgressLine, LeavesOutWhatIsNotKnown) {
  ProgressLine line;
  line.add(1, 1);
  EXPECT_EQ(line.format({.step = 1, .num_steps = 9, .seconds_left = -1}),
            "step 1/9 | loss 0.0000 | norm 0.0000 | lr 0.00e+00 | 0 tok/s | "
            "ETA ?");
}

TEST(ProgressLine, WritesDurationsAsPeopleDo) {
  EXPECT_EQ(format_duration(0), "0:00:00");
  EXPECT_EQ(format_duration(59.6), "0:01:00");
  EXPECT_EQ(format_duration(86399), "23:59:59");
  EXPECT_EQ(format_duration(3 * 86400 + 7200), "3 d 02:00:00");
  EXPECT_EQ(format_duration(kInfinity), "?");
  EXPECT_EQ(format_duration(std::nan("")), "?");
}

TEST(ProgressLine, WritesNumbersAndBytesAsPeopleDo) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(-123456), "-123,456");
  EXPECT_EQ(with_commas(1234567890), "1,234,567,890");
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1023), "1.00 KiB");
  EXPECT_EQ(format_bytes(12.34 * 1024 * 1024), "12.3 MiB");
  EXPECT_EQ(format_bytes(870.0 * 1024 * 1024), "870 MiB");
}

}  // namespace
}  // namespace tessera::train
