// Help texts generated from the field table, for the terminal.
#pragma once
#include <string>
#include <vector>

namespace octet {

// Every config key by section: path, type or choices, default, flag, and what it means.
std::string config_help();

// Names of the sections: "model", "data", ...
std::vector<std::string> config_sections();

// The part of config_help() about one section, or all that is known about one key ("optim.lr") or flag ("--lr"). Empty: no such topic.
std::string config_help(const std::string& topic);

// "--lr V" padded, what it means and its default, in one line; for a list of chosen flags. The flag must exist.
std::string flag_help(const std::string& flag);

}  // namespace octet
