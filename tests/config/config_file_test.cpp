#include "tessera/train/config_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>

#include "tessera/base/error.h"
#include "tessera/base/nearest_name.h"

namespace tessera::train {
namespace {

enum class Color { red, green };

/// One field of each type, and what reads them.
struct Fields {
  int64_t steps = 10;
  double lr = 0.5;
  bool tied = false;
  std::string name = "none";
  Color color = Color::red;
  uint64_t seed = 7;
  std::vector<int64_t> shape = {1};
  std::vector<double> betas = {0.9, 0.95};
  std::vector<std::string> words = {};
};

void read(ConfigReader& reader, Fields& f) {
  reader.get("title", f.name);
  reader.get("train.steps", f.steps, {.min = 1});
  reader.get("train.seed", f.seed);
  reader.get("optimizer.lr", f.lr, {.max = 10, .above = 0});
  reader.get("optimizer.betas", f.betas, {.min = 0, .max = 1});
  reader.get("model.tied", f.tied);
  reader.get("model.color", f.color,
             {{"red", Color::red}, {"green", Color::green}});
  reader.get("model.deep.shape", f.shape, {.min = 0});
  reader.get("model.deep.words", f.words);
  reader.finish();
}

Fields read(std::string_view text,
            const std::vector<std::string>& overrides = {}) {
  Fields fields;
  auto reader = ConfigReader::from_text(text, "run.toml", overrides);
  read(reader, fields);
  return fields;
}

std::string error_of(std::string_view text,
                     const std::vector<std::string>& overrides = {}) {
  try {
    (void)read(text, overrides);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

constexpr const char* kWhole = R"(title = "whole"
[train]
steps = 20
seed = 9
[optimizer]
lr = 1e-3
betas = [0.8, 1]
[model]
tied = true
color = "green"
[model.deep]
shape = [2, 3]
words = ["a", "b"]
)";

TEST(ConfigFile, FieldsKeepTheirDefaultsWhenNothingIsSet) {
  const Fields f = read("");
  EXPECT_EQ(f.steps, 10);
  EXPECT_EQ(f.lr, 0.5);
  EXPECT_EQ(f.color, Color::red);
  EXPECT_EQ(f.shape, std::vector<int64_t>{1});
}

TEST(ConfigFile, EveryTypeIsRead) {
  const Fields f = read(kWhole);
  EXPECT_EQ(f.name, "whole");
  EXPECT_EQ(f.steps, 20);
  EXPECT_EQ(f.seed, 9u);
  EXPECT_EQ(f.lr, 1e-3);
  EXPECT_EQ(f.betas, (std::vector<double>{0.8, 1.0}));
  EXPECT_TRUE(f.tied);
  EXPECT_EQ(f.color, Color::green);
  EXPECT_EQ(f.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(f.words, (std::vector<std::string>{"a", "b"}));
}

TEST(ConfigFile, ANumberMayBeWrittenAsAnInteger) {
  EXPECT_EQ(read("optimizer.lr = 1").lr, 1.0);
}

TEST(ConfigFile, TheLastOverrideWinsOverTheFile) {
  const Fields f = read(kWhole, {"--train.steps=5", "train.steps=6",
                                 "--optimizer.lr=2e-2", "--model.tied=false"});
  EXPECT_EQ(f.steps, 6);
  EXPECT_EQ(f.lr, 2e-2);
  EXPECT_FALSE(f.tied);
}

TEST(ConfigFile, AnOverrideIsReadAsTheFieldWantsIt) {
  const Fields f = read("", {"--title=2024", "--model.tied",
                             "--model.deep.shape=[4]", "--model.color=green"});
  EXPECT_EQ(f.name, "2024");
  EXPECT_TRUE(f.tied);
  EXPECT_EQ(f.shape, std::vector<int64_t>{4});
  EXPECT_EQ(f.color, Color::green);
  EXPECT_EQ(read("", {"--title=a b/c=d.txt"}).name, "a b/c=d.txt");
  EXPECT_EQ(read("", {"--title="}).name, "");
  EXPECT_EQ(read("", {"--title=\"3\""}).name, "3");
  EXPECT_EQ(read("", {"--title=true"}).name, "true");
  EXPECT_EQ(read("", {"--title=a # b"}).name, "a # b");
}

TEST(ConfigFile, AnUnknownKeyIsRefusedWithItsLineAndTheNearestKey) {
  EXPECT_EQ(error_of("\n[optimizer]\nlrr = 1\n"),
            "run.toml:3: there is no key 'optimizer.lrr'; did you mean "
            "'optimizer.lr'?");
  EXPECT_EQ(error_of("", {"--train.step=3"}),
            "command line: there is no key 'train.step'; did you mean "
            "'train.steps'?");
  EXPECT_EQ(error_of("lr = 3"),
            "run.toml:1: there is no key 'lr'; did you mean 'optimizer.lr'?");
  EXPECT_EQ(error_of("[train]\nwhatever = 3"),
            "run.toml:2: there is no key 'train.whatever'; [train] has steps, "
            "seed.");
  EXPECT_EQ(error_of("[zoo]\nelephant = 3"),
            "run.toml:2: there is no key 'zoo.elephant'; there are the tables "
            "train, optimizer, model, model.deep.");
}

TEST(ConfigFile, EveryUnknownKeyHasALine) {
  const std::string error = error_of("[train]\nstep = 1\n", {"--x.y=1"});
  EXPECT_NE(error.find("run.toml:2"), std::string::npos) << error;
  EXPECT_NE(error.find("\ncommand line"), std::string::npos) << error;
}

TEST(ConfigFile, AnUnknownTableIsRefusedAlsoWhenItIsEmpty) {
  EXPECT_NE(error_of("[zoo]\n").find("run.toml:1: there is no key 'zoo'"),
            std::string::npos);
  EXPECT_EQ(error_of("[train]\n"), "no error");
}

TEST(ConfigFile, ATableInPlaceOfAValueAndTheReverseAreRefused) {
  EXPECT_EQ(error_of("[train.steps]\n"),
            "run.toml:1: train.steps expects an integer, got a table.");
  EXPECT_NE(error_of("[train.steps]\nx = 1\n").find("'train.steps.x'"),
            std::string::npos);
  EXPECT_NE(error_of("train = 3\n").find("run.toml:1: there is no key 'train'"),
            std::string::npos);
  EXPECT_NE(error_of("\"train.steps\" = 3\n").find("there is no key"),
            std::string::npos);
}

TEST(ConfigFile, AnIllTypedValueSaysWhatIsExpectedAndWhatWasGot) {
  EXPECT_EQ(error_of("[train]\nsteps = 1.5"),
            "run.toml:2: train.steps expects an integer, got the number 1.5.");
  EXPECT_EQ(error_of("[train]\nsteps = \"many\""),
            "run.toml:2: train.steps expects an integer, got the string "
            "\"many\".");
  EXPECT_EQ(error_of("optimizer.lr = true"),
            "run.toml:1: optimizer.lr expects a number, got true.");
  EXPECT_EQ(error_of("title = 3"),
            "run.toml:1: title expects a string, got the integer 3.");
  EXPECT_EQ(error_of("model.tied = 1"),
            "run.toml:1: model.tied expects true or false, got the integer 1.");
  EXPECT_EQ(error_of("model.deep.shape = 3"),
            "run.toml:1: model.deep.shape expects an array, as in [1, 2], got "
            "the integer 3.");
  EXPECT_EQ(error_of("model.deep.shape = [1, \"x\"]"),
            "run.toml:1: model.deep.shape expects an integer, got the string "
            "\"x\".");
  EXPECT_EQ(error_of("title = 1979-05-27"),
            "run.toml:1: title expects a string, got a date.");
  EXPECT_EQ(error_of("", {"--train.steps=ten"}),
            "command line: train.steps expects an integer, got the string "
            "\"ten\".");
}

TEST(ConfigFile, LimitsAreHeldAndNamed) {
  EXPECT_EQ(error_of("train.steps = 0"),
            "run.toml:1: train.steps is 0; give 1 or more.");
  EXPECT_EQ(error_of("optimizer.lr = 0"),
            "run.toml:1: optimizer.lr is 0; give more than 0, and at most 10.");
  EXPECT_EQ(error_of("optimizer.lr = 10.5"),
            "run.toml:1: optimizer.lr is 10.5; give more than 0, and at most "
            "10.");
  EXPECT_EQ(error_of("optimizer.betas = [0.5, 2]"),
            "run.toml:1: optimizer.betas is 2; give a number from 0 to 1.");
  EXPECT_EQ(error_of("train.seed = -1"),
            "run.toml:1: train.seed is -1; give 0 or more.");
  EXPECT_EQ(read("optimizer.lr = 10").lr, 10.0);
  EXPECT_EQ(read("train.steps = 1").steps, 1);
}

TEST(ConfigFile, NanAndInfinityAreNoNumbers) {
  for (const char* text : {"nan", "inf", "-inf"}) {
    const std::string error = error_of(str("optimizer.lr = ", text));
    EXPECT_NE(error.find("optimizer.lr is "), std::string::npos) << error;
  }
}

TEST(ConfigFile, AChoiceIsRefusedWithTheNearestName) {
  EXPECT_EQ(error_of("model.color = \"gren\""),
            "run.toml:1: model.color is 'gren'; did you mean 'green'? It "
            "takes: red, green.");
  EXPECT_EQ(error_of("model.color = \"ultramarine\""),
            "run.toml:1: model.color is 'ultramarine'; give one of: red, "
            "green.");
}

TEST(ConfigFile, TextThatIsNotTomlIsRefusedWithLineAndColumn) {
  const std::string error = error_of("[train]\nsteps = = 3\n");
  EXPECT_TRUE(error.starts_with("run.toml:2:9: this is not TOML: ")) << error;
}

TEST(ConfigFile, WordsWithoutAKeyAreRefused) {
  for (const char* word : {"--=3", "", "--", "---x=1"}) {
    const std::string error = error_of("", {word});
    EXPECT_NE(error.find("sets no key"), std::string::npos) << word << error;
  }
}

TEST(ConfigFile, TheEffectiveConfigReadsBackToTheSameValues) {
  Fields before;
  auto first = ConfigReader::from_text(
      kWhole, "run.toml",
      std::vector<std::string>{"--title=say \"hi\"\t\\ \x01 \xc3\xa4",
                               "--optimizer.lr=0.1"});
  read(first, before);
  const std::string text = first.effective();
  Fields after;
  auto second = ConfigReader::from_text(text, "again.toml");
  read(second, after);
  EXPECT_EQ(after.name, "say \"hi\"\t\\ \x01 \xc3\xa4");
  EXPECT_EQ(after.lr, 0.1);
  EXPECT_EQ(after.betas, before.betas);
  EXPECT_EQ(after.words, before.words);
  EXPECT_EQ(after.color, before.color);
  EXPECT_EQ(second.effective(), text);
}

TEST(ConfigFile, TheEffectiveConfigHasDefaultsTooTableByTable) {
  Fields fields;
  auto reader = ConfigReader::from_text("", "run.toml");
  read(reader, fields);
  EXPECT_EQ(reader.effective(), R"(title = "none"

[train]
steps = 10
seed = 7

[optimizer]
lr = 0.5
betas = [0.9, 0.95]

[model]
tied = false
color = "red"

[model.deep]
shape = [1]
words = []
)");
}

TEST(ConfigFile, DoublesKeepAllTheirDigitsAndStayDoubles) {
  EXPECT_EQ(to_toml(0.1), "0.1");
  EXPECT_EQ(to_toml(1.0), "1.0");
  EXPECT_EQ(to_toml(1e300), "1e+300");
  EXPECT_EQ(std::stod(to_toml(1.0 / 3)), 1.0 / 3);
}

TEST(ConfigFile, SaysWhetherAndWhereAKeyIsSet) {
  const auto reader = ConfigReader::from_text(
      "\nx = 1\n", "run.toml", std::vector<std::string>{"--y=1"});
  EXPECT_TRUE(reader.has("x"));
  EXPECT_FALSE(reader.has("z"));
  EXPECT_EQ(reader.where("x"), "run.toml:2");
  EXPECT_EQ(reader.where("y"), "command line");
  EXPECT_EQ(reader.where("z"), "run.toml");
  EXPECT_NO_THROW(reader.require_set("x", "a letter"));
  EXPECT_THROW(reader.require_set("z", "a letter"), InvalidArgument);
}

TEST(ConfigFile, AFileThatCannotBeReadIsNamed) {
  const std::string folder = std::filesystem::temp_directory_path();
  for (const std::string& path : {folder, folder + "/no/such.toml"}) {
    try {
      (void)ConfigReader::from_file(path);
      ADD_FAILURE() << "no error for " << path;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos);
    }
  }
}

TEST(ConfigFile, AFileIsReadFromDisk) {
  const auto path = std::filesystem::temp_directory_path() /
                    str("config_file_test_", getpid(), ".toml");
  std::ofstream(path) << "x = 3\n";
  auto reader = ConfigReader::from_file(path.string());
  int64_t x = 0;
  reader.get("x", x);
  reader.finish();
  EXPECT_EQ(x, 3);
  std::filesystem::remove(path);
}

TEST(NearestName, CountsInsertionsDropsReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("abc", "abc"), 0);
  EXPECT_EQ(edit_distance("abc", "ABC"), 0);
  EXPECT_EQ(edit_distance("abc", "acb"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
}

TEST(NearestName, IsEmptyWhenNothingIsNear) {
  const std::vector<std::string> names = {"train", "run", "plan"};
  EXPECT_EQ(nearest_name("trian", names), "train");
  EXPECT_EQ(nearest_name("plot", names), "plan");
  EXPECT_EQ(nearest_name("zzzzzzzz", names), "");
  EXPECT_EQ(nearest_name("x", std::vector<std::string>{"y"}), "");
}

}  // namespace
}  // namespace tessera::train
