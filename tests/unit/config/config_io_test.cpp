// Files, merging, overrides, and where errors are said to be.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "helpers.h"

namespace octet::test {
namespace {

class ConfigFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() /
           fmt::format("octet_config_{}_{}", ::getpid(), ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string write(const std::string& name, const std::string& text) {
    const std::string path = (dir_ / name).string();
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  std::filesystem::path dir_;
};

std::string text_error(const std::string& text) {
  return error_of([&] { parse_config_text(text, "a.json"); });
}

TEST_F(ConfigFiles, CommentsAndByteOrderMark) {
  const auto j = load_config_file(write("c.json", "\xEF\xBB\xBF// one\n{\"run\": /* two\nlines */ {\"steps\": 3}} // three"));
  EXPECT_EQ(j.dump(), R"({"run":{"steps":3}})");
}

TEST_F(ConfigFiles, MissingFileAndDirectory) {
  const std::string missing = (dir_ / "none.json").string();
  EXPECT_EQ(error_of([&] { load_config_file(missing); }),
            missing + ": cannot open the config file: No such file or directory (check the path given to --config)");
  EXPECT_EQ(error_of([&] { load_config_file(dir_.string()); }), dir_.string() + ": is a directory, not a config file (name a JSON file in it)");
}

TEST_F(ConfigFiles, DuplicateKeysNameFileLineAndKey) {
  const std::string path = write("d.json", "{\n  \"run\": {\"steps\": 3,\n\n          \"seed\": 1, \"steps\": 4}\n}\n");
  EXPECT_EQ(error_of([&] { load_config_file(path); }), path + ":4: duplicate key run.steps (keep one of the two)");
  EXPECT_EQ(text_error("{\"a\": 1,\n\"a\": 2}"), "a.json:2: duplicate key a (keep one of the two)");
  EXPECT_EQ(text_error("{\"data\": {\"train\": [{\"path\": \"x\"}, {\"path\": \"y\",\n\"path\": \"z\"}]}}"),
            "a.json:2: duplicate key data.train.1.path (keep one of the two)");
  // The same key in different objects is fine.
  EXPECT_NO_THROW(parse_config_text(R"({"a": {"x": 1}, "b": {"x": 1}, "c": [{"x": 1}, {"x": 2}]})", "a.json"));
}

TEST_F(ConfigFiles, SyntaxErrorsNameLineAndColumn) {
  EXPECT_EQ(text_error("{\n  \"a\": 1,\n}"), "a.json:3:1: not valid JSON while parsing object key - unexpected '}'; expected string literal");
  EXPECT_EQ(text_error("{\"a\": NaN}").find("a.json:1:7: not valid JSON while parsing value - invalid literal"), 0u);
  EXPECT_EQ(text_error("{\"a\":\n 0.1f}").find("a.json:2:6: not valid JSON"), 0u);
  EXPECT_EQ(text_error("").find("a.json:1:1: not valid JSON while parsing value - unexpected end of input"), 0u);
  EXPECT_EQ(text_error("{\"a\": 1} x").find("a.json:1:10: not valid JSON"), 0u);
  EXPECT_NE(text_error("{\"a\": 1e999}").find("number overflow parsing '1e999'"), std::string::npos);
  EXPECT_EQ(text_error("{\"a\": \"\xff\"}").find("a.json:1:8: not valid JSON"), 0u);
  EXPECT_EQ(text_error("{\"a\": \"x\ny\"}").find("a.json:1:9: not valid JSON"), 0u);
  EXPECT_EQ(text_error("[1]"), "a.json: the top level of a config must be an object (write {\"model\": {...}, ...})");
  EXPECT_EQ(text_error("/* {}").find("a.json:1:"), 0u);
}

TEST_F(ConfigFiles, HostileFilesAreBounded) {
  EXPECT_EQ(text_error(std::string("{\"a\": ") + std::string(1000, '[')), "a.json:1: nested more than 16 levels deep");
  EXPECT_EQ(text_error(std::string("{\"") + std::string(1000, 'k') + "\": 1}"), "a.json:1: a key of 1000 characters (keys have at most 128)");
  std::string many = "{";
  for (int i = 0; i < 20001; ++i) many += fmt::format("\"{}\":0,", i);
  EXPECT_EQ(text_error(many), "a.json:1: more than 20000 keys");
  EXPECT_EQ(text_error(std::string((1u << 20) + 1, ' ')), "a.json: larger than 1 MiB, which no config is (give a JSON config file)");
  EXPECT_EQ(error_of([] { load_config_file("/dev/zero"); }), "/dev/zero: larger than 1 MiB, which no config is (give a JSON config file)");
}

TEST_F(ConfigFiles, EveryPrefixOfAConfigIsAnErrorNotACrash) {
  const std::string text = small_config().dump(1);
  for (size_t n = 0; n < text.size(); ++n) EXPECT_FALSE(text_error(text.substr(0, n)).empty()) << n;
  for (size_t n = 0; n < text.size(); ++n) {   // any single byte
    for (const unsigned b : {0u, 10u, 34u, 44u, 48u, 92u, 123u, 128u, 255u}) {
      std::string damaged = text;
      damaged[n] = static_cast<char>(b);
      try {
        from_json(parse_config_text(damaged, "a.json"));
      } catch (const Error& e) {
        EXPECT_EQ(e.code, ExitCode::config) << e.what();
      }
    }
  }
}

TEST_F(ConfigFiles, ErrorsNameTheFileAndLineOfTheValue) {
  const std::string base = write("base.json", small_config().dump(2)), over = write("over.json", "{\n  \"optim\": {\n    \"lr\": \"high\"}}");
  ConfigTree tree;
  tree.merge_file(base);
  tree.merge_file(over);
  EXPECT_EQ(error_of([&] { from_json(tree.values, tree.origins); }), over + ":3: optim.lr must be a number, not \"high\"");
  const std::string misspelt = write("m.json", "{\"optim\": {\"lr\": 1},\n \"modle\": {}}");
  tree.merge_file(misspelt);
  EXPECT_EQ(error_of([&] { from_json(tree.values, tree.origins); }), misspelt + ":2: unknown key modle (did you mean model?)");
  // A flag over the file is named instead.
  ConfigTree flagged;
  flagged.merge_file(base);
  flagged.set("batch.micro", 0, "--micro-batch-size");
  EXPECT_EQ(error_of([&] { from_json(flagged.values, flagged.origins); }),
            "--micro-batch-size: batch.micro must be at least 1 and at most 1048576, not 0");
}

// RFC 7396, appendix A.
TEST(Merge, Rfc7396) {
  const char* cases[][3] = {
      {R"({"a":"b"})", R"({"a":"c"})", R"({"a":"c"})"},
      {R"({"a":"b"})", R"({"b":"c"})", R"({"a":"b","b":"c"})"},
      {R"({"a":"b"})", R"({"a":null})", R"({})"},
      {R"({"a":"b","b":"c"})", R"({"a":null})", R"({"b":"c"})"},
      {R"({"a":["b"]})", R"({"a":"c"})", R"({"a":"c"})"},
      {R"({"a":"c"})", R"({"a":["b"]})", R"({"a":["b"]})"},
      {R"({"a":{"b":"c"}})", R"({"a":{"b":"d","c":null}})", R"({"a":{"b":"d"}})"},
      {R"({"a":[{"b":"c"}]})", R"({"a":[1]})", R"({"a":[1]})"},
      {R"({"e":null})", R"({"a":1})", R"({"e":null,"a":1})"},
      {R"({})", R"({"a":{"bb":{"ccc":null}}})", R"({"a":{"bb":{}}})"},
  };
  for (const auto& c : cases) {
    ConfigTree tree{nlohmann::json::parse(c[0]), {}};
    tree.merge(nlohmann::json::parse(c[1]), {});
    EXPECT_EQ(tree.values, nlohmann::json::parse(c[2])) << c[0] << " + " << c[1];
  }
}

TEST(Merge, LaterFilesWinAndNullRestoresTheDefault) {
  ConfigTree tree;
  tree.merge(small_config(), {});
  tree.merge(nlohmann::json::parse(R"({"optim": {"lr": 0.1, "beta2": 0.5}})"), {});
  tree.merge(nlohmann::json::parse(R"({"optim": {"lr": 0.2, "beta2": null}, "model": {"rope_scaling": null}})"), {});
  const RunConfig c = from_json(tree.values);
  EXPECT_EQ(c.optim.lr, 0.2);
  EXPECT_EQ(c.optim.beta2, 0.95);
}

ConfigTree with_set(std::initializer_list<const char*> expressions) {
  ConfigTree tree{small_config(), {}};
  for (const char* e : expressions) tree.set_expression(e);
  return tree;
}

TEST(Set, ValuesAreJsonElseText) {
  const ConfigTree tree = with_set({"optim.lr=3e-4", "model.tie_word_embeddings=true", "precision.recipe=mxfp8", "data.split=98,1,1",
                                    "data.train.0.weight=0.3", "recompute.modules=[\"norm\"]", "run.dir=2024", "sched.type=\"wsd\"",
                                    "precision.rules=[{\"match\": \"a=b\", \"recipe\": \"bf16\"}]", "model.rope_scaling.factor=8"});
  const RunConfig c = from_json(tree.values, tree.origins);
  EXPECT_EQ(c.optim.lr, 3e-4);
  EXPECT_TRUE(c.model.tie_word_embeddings);
  EXPECT_EQ(c.precision.recipe, "mxfp8");
  EXPECT_EQ(c.data.split, "98,1,1");
  EXPECT_EQ(c.data.train[0].weight, 0.3);
  EXPECT_EQ(c.recompute.modules, std::vector<std::string>{"norm"});
  EXPECT_EQ(c.run.dir, "2024");   // a field of text keeps its text
  EXPECT_EQ(c.sched.type, "wsd");
  EXPECT_EQ(c.precision.rules.at(0).match, "a=b");
  EXPECT_EQ(c.model.rope_scaling.factor, 8.0);
}

TEST(Set, NullDeletesAndLaterWins) {
  const ConfigTree tree = with_set({"optim.beta1=0.5", "optim.beta1=null", "run.steps=10", "run.steps=20"});
  const RunConfig c = from_json(tree.values);
  EXPECT_EQ(c.optim.beta1, 0.9);
  EXPECT_EQ(c.run.steps, 20);
  EXPECT_TRUE(with_set({"data.train.0=null"}).values["data"]["train"].empty());
}

TEST(Set, Errors) {
  const auto set_error = [](const char* e) { return error_of([&] { with_set({e}); }); };
  const auto read = [](const char* e) {
    const ConfigTree tree = with_set({e});
    return error_of([&] { from_json(tree.values, tree.origins); });
  };
  EXPECT_EQ(error_of([] { with_set({"optim.lr"}); }, ExitCode::usage),
            "--set: \"optim.lr\" has no value (write --set path=value, for example --set optim.lr=0.0005)");
  EXPECT_EQ(set_error("=3"), "--set : \"\" is not a config path (write it like optim.lr)");
  EXPECT_EQ(set_error("optim..lr=3"), "--set optim..lr: \"optim..lr\" is not a config path (write it like optim.lr)");
  EXPECT_EQ(set_error("data.train.1.weight=3"),
            "--set data.train.1.weight: \"1\" of data.train.1.weight is no entry of a list of 1 (entries are numbered 0 to 0)");
  EXPECT_EQ(set_error("data.train.x=3"), "--set data.train.x: \"x\" of data.train.x is no entry of a list of 1 (entries are numbered 0 to 0)");
  EXPECT_EQ(set_error("optim.lr.x=3"), "--set optim.lr.x: nothing stands below \"lr\" in optim.lr.x: it is a single value");
  EXPECT_NE(set_error("precision.rules=[{\"match\": 1, \"match\": 2}]").find("duplicate key"), std::string::npos);
  EXPECT_EQ(read("optim.lrr=3"), "--set optim.lrr: unknown key optim.lrr (did you mean optim.lr?)");
  EXPECT_EQ(read("optim.lr=nan"), "--set optim.lr: optim.lr must be a number, not \"nan\"");
  EXPECT_EQ(read("optim.lr=1e999"), "--set optim.lr: optim.lr must be a number, not \"1e999\"");
  EXPECT_EQ(read("run.dir=a\xff"), "--set run.dir: run.dir is not valid UTF-8");
  EXPECT_EQ(read("data.train=[{\"pat\": 1}]"), "--set data.train: unknown key data.train.0.pat (did you mean data.train.0.path?)");
}

}  // namespace
}  // namespace octet::test
