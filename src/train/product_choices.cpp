#include "train/product_choices.h"

#include <cstring>

namespace octet {

ProductChoices agreed_choices(Comm& all, Machine& machine) {
  // Lines of text, each of a product followed by its words.
  const std::string kind = machine.name() + ", " + machine.product_library() + "\n";
  std::string mine = kind;
  for (const auto& [product, words] : machine.product_choices()) {
    mine += product + "\n";
    mine.append(reinterpret_cast<const char*>(words.data()), sizeof words);
  }
  ProductChoices agreed;
  for (const std::string& theirs : exchange(all, mine)) {
    if (!theirs.starts_with(kind)) continue;
    for (size_t at = kind.size(); at < theirs.size();) {
      const size_t end = theirs.find('\n', at);
      ProductChoices::mapped_type words{};
      std::memcpy(words.data(), theirs.data() + end + 1, sizeof words);
      agreed.try_emplace(theirs.substr(at, end - at), words);
      at = end + 1 + sizeof words;
    }
  }
  return agreed;
}

}  // namespace octet
