// Flags of `octet train` that are not of single config fields, and its help texts.
#pragma once
#include <string>
#include <vector>

#include "app/cli.h"

namespace octet {

struct TrainFlag {
  cli::Flag flag;
  std::string argument;  // as help shows it; may be empty
  std::string doc;
};

const std::vector<TrainFlag>& train_flags();

// topic "": usage, the flags a newcomer needs, examples; "all": everything; "command": train_flags(); a section, key or flag: that.
// Any other topic is Error(usage) with the nearest one.
std::string train_help(const std::string& topic);

}  // namespace octet
