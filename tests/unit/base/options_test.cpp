#include "segfuse/context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "base/code/code_store.h"
#include "base/console/log.h"
#include "base/context/state.h"
#include "segfuse/error.h"

namespace segfuse {
namespace {

/// Sets a variable for one test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }

 private:
  const char* name_;
};

template <class F>
std::string message_of(F&& action) {
  try {
    action();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(OptionTable, EveryRowIsComplete) {
  std::set<std::string> names;
  for (const OptionInfo& info : option_table()) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name << " stands twice";
    EXPECT_GT(info.doc.size(), 10U) << info.name;
    EXPECT_EQ(info.environment.rfind("SEGFUSE_", 0), 0U) << info.name;
    EXPECT_EQ(info.environment.find_first_of("-abcdefghijklmnopqrstuvwxyz"), std::string::npos);
    Options options;
    EXPECT_NO_THROW(options.set_text(info.name, options.text(info.name)))
        << "the default of " << info.name << " must be allowed, and its text must parse back";
    EXPECT_EQ(options.value(info.name), info.fallback);
  }
}

TEST(OptionTable, KeysNameRowsOfTheirType) {
  const Options options;
  EXPECT_EQ(options.get(options::kThreads), 0);
  EXPECT_EQ(options.get(options::kLog), "info");
  EXPECT_FALSE(options.get(options::kQuiet));
  EXPECT_EQ(options.get(options::kCheckNumerics), "step");
  EXPECT_EQ(options.get(options::kCacheDir), "");
}

TEST(Options, TextIsParsedByType) {
  Options options;
  options.set_text("threads", "3");
  options.set_text("check-numerics", "yes");
  options.set_text("cache_dir", "a b");
  EXPECT_EQ(options.get(options::kThreads), 3);
  EXPECT_EQ(options.text("cache-dir"), "a b");
  for (const char* no : {"false", "0", "no", "off"}) {
    options.set(options::kQuiet, true);
    options.set_text("quiet", no);
    EXPECT_FALSE(options.get(options::kQuiet)) << no;
  }
}

/// What may stand alone on the command line: words for yes and no are understood as well.
TEST(Options, AChoiceThatMayStandAloneTakesWordsForYesAndNo) {
  Options options;
  for (const auto& [text, meant] :
       std::vector<std::pair<std::string, std::string>>{{"yes", "op"},
                                                        {"1", "op"},
                                                        {"on", "op"},
                                                        {"no", "off"},
                                                        {"0", "off"},
                                                        {"off", "off"},
                                                        {"step", "step"},
                                                        {"op", "op"}}) {
    options.set_text("check-numerics", text);
    EXPECT_EQ(options.get(options::kCheckNumerics), meant) << text;
  }
  EXPECT_EQ(message_of([&] { options.set_text("check-numerics", "always"); }),
            "option 'check-numerics': 'always' was given, expected one of 'off', 'step' and 'op'");
}

TEST(Options, UnknownNamesGetTheNearestOne) {
  Options options;
  EXPECT_EQ(message_of([&] { options.set_text("thread", "1"); }),
            "unknown option 'thread'; did you mean 'threads'?");
  EXPECT_EQ(message_of([&] { options.value("elephant"); }),
            "unknown option 'elephant'; known are 'threads', 'log', 'quiet', 'check-numerics', "
            "'backend', 'device', 'check-streams', 'cache-dir' and 'cache-size'");
}

TEST(Options, ValuesThatDoNotFitAreRefusedAndChangeNothing) {
  Options options;
  options.set(options::kThreads, std::int64_t{2});
  EXPECT_EQ(message_of([&] { options.set_text("threads", "-1"); }),
            "option 'threads': '-1' was given, expected an integer in [0, 4096]");
  EXPECT_EQ(message_of([&] { options.set_text("threads", "two", "--threads"); }),
            "--threads: 'two' was given, expected an integer in [0, 4096]");
  EXPECT_EQ(message_of([&] { options.set(options::kThreads, std::int64_t{5000}); }),
            "option 'threads': '5000' was given, expected an integer in [0, 4096]");
  EXPECT_EQ(message_of([&] { options.set_text("quiet", "maybe"); }),
            "option 'quiet': 'maybe' was given, expected true or false");
  EXPECT_EQ(message_of([&] { options.set_text("log", "loud"); }),
            "option 'log': 'loud' was given, expected one of 'debug', 'info', 'warning', 'error' "
            "and 'off'");
  EXPECT_EQ(options.get(options::kThreads), 2);
}

TEST(Options, TheEnvironmentOverridesDefaults) {
  const Variable threads("SEGFUSE_THREADS", "5");
  const Variable numerics("SEGFUSE_CHECK_NUMERICS", "1");
  const Variable other("SEGFUSE_SOMETHING_ELSE", "x");
  const Options options = Options::from_environment();
  EXPECT_EQ(options.get(options::kThreads), 5);
  EXPECT_EQ(options.get(options::kCheckNumerics), "op");
  EXPECT_EQ(Options().get(options::kThreads), 0) << "the plain defaults do not look at it";
}

TEST(Options, BadVariablesAreNamed) {
  {
    const Variable threads("SEGFUSE_THREADS", "many");
    EXPECT_EQ(message_of([] { Options::from_environment(); }),
              "environment variable SEGFUSE_THREADS: 'many' was given, expected an integer in "
              "[0, 4096]");
  }
  for (const std::string name : {"SEGFUSE_THREAD", "SEGFUSE_TREADS", "SEGFUSE_THERAD"}) {
    const Variable slip(name.c_str(), "1");
    EXPECT_EQ(message_of([] { Options::from_environment(); }),
              "unknown environment variable " + name + "; did you mean SEGFUSE_THREADS?");
  }
}

TEST(Context, OfTheProcessIsReplacedAsAWhole) {
  const Context former = Context::process_default();
  Options mine;
  mine.set(options::kThreads, std::int64_t{7});
  mine.set_text("log", "error");
  Context::set_process_default(mine);
  EXPECT_EQ(Context::process_default().options().get(options::kThreads), 7);
  EXPECT_EQ(log_level(), LogLevel::kError);
  EXPECT_EQ(Context().options().get(options::kThreads), 0) << "only who asks for it gets it";
  Context::set_process_default(former.options());
  EXPECT_EQ(log_level(), LogLevel::kInfo);
}

TEST(Context, CopiesAreTheSameAndOthersAreNot) {
  const Context one = Context().with(options::kThreads, std::int64_t{3});
  const Context copy = one;
  EXPECT_EQ(copy, one);
  EXPECT_EQ(&copy.state().pool(), &one.state().pool());
  EXPECT_EQ(copy.threads(), 3);
  const Context other = one.with(options::kCacheDir, std::string("elsewhere"));
  EXPECT_NE(other, one);
  EXPECT_EQ(other.threads(), 3);
  EXPECT_EQ(other.state().code->folder(), "elsewhere");
  EXPECT_EQ(Context(), Context());
}

TEST(Context, KeepsOnePartOfEachType) {
  struct Part {
    int value = 1;
  };
  const Context context{Options()};
  context.state().part<Part>().value = 5;
  EXPECT_EQ(Context(context).state().part<Part>().value, 5);
  EXPECT_EQ(Context(Options()).state().part<Part>().value, 1);
}

}  // namespace
}  // namespace segfuse
