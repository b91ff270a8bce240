// A small tokenizer.json made of parts that a test can change.
#pragma once
#include <fmt/format.h>

#include <set>
#include <string>
#include <vector>

#include "data/tokenizer_json.h"

namespace octet::data {

struct TinyTokenizer {
  struct Added {
    std::string content;
    bool special = false, single_word = false, lstrip = false, rstrip = false;
  };
  std::vector<std::string> merges, tokens;     // "a b"; further tokens of the vocabulary
  std::string merge_list;                      // JSON, in place of `merges`
  std::vector<Added> added;
  bool added_normalized = true, ignore_merges = false;
  std::string pre_tokenizer = R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})", normalizer = "null";
  std::string vocab_extra, model_extra, root_extra;  // JSON members

  std::string json() const {
    std::string vocab, list = merge_list, added_list;
    int id = 0;
    std::set<std::string> seen;
    const auto add = [&](const std::string& token) {
      if (seen.insert(token).second) vocab += fmt::format("{}\"{}\": {}", id ? ", " : "", token == "\"" || token == "\\" ? "\\" + token : token, id), ++id;
    };
    for (int b = 0; b < 256; ++b) add(byte_level_char(static_cast<unsigned char>(b)));
    for (const std::string& merge : merges) {
      const size_t blank = merge.find(' ');
      add(merge.substr(0, blank) + merge.substr(blank + 1));
    }
    for (const std::string& token : tokens) add(token);
    if (list.empty()) {
      for (const std::string& merge : merges) list += (list.empty() ? "\"" : ", \"") + merge + "\"";
      list = "[" + list + "]";
    }
    int next = id;
    for (const Added& a : added) {
      const bool known = a.content.size() == 1;
      int its_id = next;
      if (known) {
        its_id = 0;
        for (int b = 0; b < a.content[0]; ++b) ++its_id;
      } else {
        ++next;
      }
      added_list += fmt::format(R"({}{{"id": {}, "content": "{}", "single_word": {}, "lstrip": {}, "rstrip": {}, "normalized": {}, "special": {}}})",
                                added_list.empty() ? "" : ", ", its_id, a.content, a.single_word, a.lstrip, a.rstrip, added_normalized && !a.special, a.special);
    }
    return fmt::format(R"({{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [{}], "normalizer": {}, "pre_tokenizer": {}, {}
      "post_processor": {{"type": "ByteLevel"}}, "decoder": null, "model": {{"type": "BPE", "dropout": null, "unk_token": null, {}
      "continuing_subword_prefix": "", "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": {},
      "vocab": {{{}{}}}, "merges": {}}}}})",
                       added_list, normalizer, pre_tokenizer, root_extra, model_extra, ignore_merges, vocab, vocab_extra, list);
  }
};

}  // namespace octet::data
