// The configuration reference page (Markdown), generated from the field table; docs/reference/config.md is its output.
#pragma once
#include <string>

namespace octet {

std::string config_reference();

}  // namespace octet
