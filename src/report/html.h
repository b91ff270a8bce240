// The comparison as one self-contained HTML page: no network, no external fonts or scripts; readable without JavaScript.
#pragma once
#include <string>

#include "report/compare.h"

namespace octet::report {

std::string to_html(const Comparison& comparison);

}  // namespace octet::report
