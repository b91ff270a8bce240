// Help text generated from the field table.
#pragma once
#include <string>

namespace octet {

// Every config key by section: path, type or choices, default, flag, and what it means.
std::string config_help();

}  // namespace octet
