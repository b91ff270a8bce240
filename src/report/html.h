// The comparison as one self-contained HTML page: no network, no external fonts or scripts. Verdicts, tables and charts are there
// without JavaScript; the script (page/*.js, embedded at build time) makes the charts interactive and adds the heat maps.
#pragma once
#include <string>

#include "report/compare.h"

namespace octet::report {

std::string to_html(const Comparison& comparison);

}  // namespace octet::report
