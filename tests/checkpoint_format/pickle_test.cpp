// The restricted pickle reader: what it reads, and what it refuses.
#include "tessera/checkpoint/pickle.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/value_pickle.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

using namespace std::string_literals;
using testing::message_of;

Value read(const std::string& bytes) {
  const Pickle pickle = read_pickle(bytes, "test");
  return value_of(pickle.root(), "test");
}

std::string error_of(const std::string& bytes) {
  return message_of<CheckpointError>([&] { (void)read(bytes); });
}

void expect_error(const std::string& bytes, const std::string& part) {
  const std::string message = error_of(bytes);
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(Pickle, BringsBackEveryPlainValue) {
  Value::Items many;
  for (int i = 0; i < 2500; ++i) many.emplace_back(i);
  const Value all = Value::dict(
      {{"none", Value()},
       {"bools", Value::tuple({true, false})},
       {"ints", Value::list({0, 255, 256, 65535, 65536, -1, -5, INT32_MAX,
                             INT64_C(1) << 40, INT64_MIN, INT64_MAX})},
       {"floats", Value::list({0.001, -0.0, 1e300})},
       {"text", "Größe"},
       {"empty", ""},
       {"bytes", Value::bytes("\xff\x00"
                              "a\xc3"s)},
       {"no bytes", Value::bytes("")},
       {"many", Value::list(many)},
       {"empty tuple", Value::tuple({})},
       {"nested", Value::dict({{7, Value::dict({{3, Value::list({})}})}})}});
  EXPECT_EQ(read(pickle_of(all)), all);
}

TEST(Pickle, CallsNothing) {
  expect_error(
      "\x80\x02"
      "cposix\nsystem\nX\x04\0\0\0echo\x85R."s,
      "it would call 'posix system'");
  expect_error(
      "\x80\x02"
      "c__builtin__\neval\n."s,
      "__builtin__ eval");
  expect_error("\x80\x04\x8c\x02os\x8c\x06system\x93."s, "'os system'");
  expect_error("\x80\x02(cos\nsystem\no."s, "opcode 0x6f at byte 14");  // OBJ
  expect_error("\x80\x02(ios\nsystem\n."s, "opcode 0x69 at byte 3");    // INST
  expect_error("\x80\x02\x82\x01."s, "opcode 0x82 at byte 2");          // EXT1
}

TEST(Pickle, RefusesProgramsThatDoNotFitTheirStack) {
  expect_error("", "needs 1 bytes");
  expect_error("\x80\x02."s, "the stack is empty");
  expect_error("\x80\x02N"s, "needs 1 bytes");
  expect_error("\x80\x02NN."s, "left over");
  expect_error("\x80\x02(N."s, "left over");
  expect_error("\x80\x02N.N"s, "bytes follow");
  expect_error("\x80\x02t."s, "no mark");
  expect_error("\x80\x02h\x01."s, "no memo entry 1");
  expect_error("\x80\x02]NNs."s, "no dict");
  expect_error("\x80\x02}(Nu."s, "odd items");
  expect_error("\x80\x02NNR."s, "no tuple");
  expect_error("\x80\x02N}b."s, "no object");
  expect_error("\x80\x09N."s, "protocol 9");
  expect_error(
      "\x80\x02X\xff\xff\xff\xff"
      "a."s,
      "needs 4294967295 bytes");
  expect_error(
      "\x80\x04\x8d\0\0\0\0\0\0\0\x10"
      "a."s,
      "bytes");
  expect_error("\x80\x02\x8b\xff\xff\xff\xff."s, "bytes");
  expect_error("\x80\x02Nr\xff\xff\xff\x7f."s, "memo number");
  expect_error("\x80\x02X\x01\0\0\0\xff."s, "UTF-8");
  expect_error("\x80\x02X\x03\0\0\0\xed\xa0\x80."s, "UTF-8");  // a surrogate
}

TEST(Pickle, RefusesAStructureThatContainsItself) {
  expect_error("\x80\x02]q\0h\0a."s, "part of itself");
  expect_error("\x80\x02]q\0\x85h\0Na."s, "part of something");
}

TEST(Pickle, RefusesDeepNestingAndBombs) {
  std::string deep = "\x80\x02N";
  for (int i = 0; i < 10000; ++i) deep += "\x85";
  expect_error(deep + ".", "nests too deeply");
  // Each tuple holds the one before ten times.
  std::string bomb = "\x80\x02N";
  for (char level = 0; level < 20; ++level) {
    bomb += "q"s + level + "(";
    for (int i = 0; i < 10; ++i) bomb += "h"s + level;
    bomb += "t";
  }
  expect_error(bomb + ".", "repeats itself too often");
}

TEST(Pickle, MemoNumbersTextsOnceTheyComeAgain) {
  PickleWriter out(PickleWriter::Memo::strings);
  out.empty_list().mark();
  for (int i = 0; i < 600; ++i) out.text(str("t", i % 300));
  const std::string bytes = out.appends().finish();
  const Value list = read(bytes);
  EXPECT_EQ(list.items().at(599), Value("t299"));
  EXPECT_LT(bytes.size(), 600U * 8);
}

TEST(Pickle, WritesNoTextThatPythonCannotRead) {
  EXPECT_THROW((void)pickle_of("\xff"), InvalidArgument);
}

}  // namespace
}  // namespace tessera::checkpoint
