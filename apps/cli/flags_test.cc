#include "apps/cli/flags.h"

#include <gtest/gtest.h>

#include "equitile/base/error.h"

namespace equitile {
namespace {

struct Values {
  int64_t threads = 2;
  std::optional<int64_t> layer;
  double density = 0.5;
  std::string dtype = "f32";
  std::vector<int64_t> tokens = {8192};
  std::vector<double> densities = {1.0, 0.25};
  std::vector<std::string> masks = {"random"};
};

Values Parse(std::vector<std::string> args) {
  Values values;
  CLI::App app;
  AddNumber(app, "-t,--threads", values.threads, {.min = 1, .max = 1024}, "threads");
  AddNumber(app, "--layer", values.layer, {.min = 0}, "layer");
  AddNumber(app, "--density", values.density, {.min = 0.0, .max = 1.0}, "density");
  AddChoice(app, "--dtype", values.dtype, {"f32", "bf16"}, "type");
  AddNumbers(app, "--tokens", values.tokens, {.min = 1}, "tokens");
  AddNumbers(app, "--densities", values.densities, {.min = 0.0, .max = 1.0}, "densities");
  AddChoices(app, "--masks", values.masks, {"random", "one"}, "masks");
  std::reverse(args.begin(), args.end());
  app.parse(args);
  return values;
}

std::string Complaint(const std::vector<std::string>& args) {
  try {
    Parse(args);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Flags, KeepDefaultsWhenAbsent) {
  const Values values = Parse({});
  EXPECT_EQ(values.threads, 2);
  EXPECT_FALSE(values.layer.has_value());
  EXPECT_EQ(values.densities, (std::vector<double>{1.0, 0.25}));
}

TEST(Flags, TakeValues) {
  const Values values =
      Parse({"-t", "1024", "--layer", "0", "--density=1e-1", "--dtype", "bf16", "--tokens",
             "7,4096", "--densities", "0,1,0.125", "--masks", "one,random"});
  EXPECT_EQ(values.threads, 1024);
  EXPECT_EQ(values.layer, 0);
  EXPECT_EQ(values.density, 0.1);
  EXPECT_EQ(values.dtype, "bf16");
  EXPECT_EQ(values.tokens, (std::vector<int64_t>{7, 4096}));
  EXPECT_EQ(values.densities, (std::vector<double>{0.0, 1.0, 0.125}));
  EXPECT_EQ(values.masks, (std::vector<std::string>{"one", "random"}));
}

TEST(Flags, NameTheValueAndWhatWouldBeRight) {
  EXPECT_EQ(Complaint({"--threads", "0"}), "--threads 0: must be a whole number from 1 to 1024");
  EXPECT_EQ(Complaint({"--layer", "-1"}), "--layer -1: must be a whole number, 0 or more");
  EXPECT_EQ(Complaint({"--density", "1.5"}), "--density 1.5: must be a number from 0 to 1");
  EXPECT_EQ(Complaint({"--dtype", "f64"}), "--dtype f64: must be f32 or bf16");
  EXPECT_EQ(Complaint({"--masks", "one,two"}), "--masks two: must be random or one");
}

TEST(Flags, RefuseWhatIsNotANumber) {
  for (const char* text : {"", "x", "2x", "1.5", "0x10", "1e3", "99999999999999999999", " 2"}) {
    EXPECT_NE(Complaint({"--threads", text}), "accepted") << text;
  }
  for (const char* text : {"nan", "inf", "-inf", "0.5x", "", "1e999", "-0.1"}) {
    EXPECT_NE(Complaint({"--density", text}), "accepted") << text;
  }
  for (const char* text : {",", "1,", ",1", "1,,2", "1,0", "1;2", "1, 2"}) {
    EXPECT_NE(Complaint({"--tokens", text}), "accepted") << text;
  }
}

}  // namespace
}  // namespace equitile
